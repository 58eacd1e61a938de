"""Which repository a directory belongs to, learnt by reading files: git itself is never run in the project.

Almost every git command executes something that a repository's configuration names (threats D01-D04), so the
launcher looks at the few files that matter, and believes a `.git` file only where the repository that it names
points back at this very checkout (D15).
"""

from __future__ import annotations

import os
import stat

from claudebox import state, syscalls
from claudebox.facts import git_config
from claudebox.facts.git_model import Executed, GitDirectory, Repository, Store
from claudebox.files import read_small, real_path
from claudebox.tables.host_paths import COPIES, STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.config.model import MountRequest
    from claudebox.facts.model import Identity

_DIGITS = 16
_MOST_STORES = 32


def find_repository(
    workdir: str,
    uid: int,
    home: str = "/",
    environ: dict[str, str] | None = None,
    mounts: tuple[MountRequest, ...] = (),
) -> Repository | None:
    """Return the repository of a directory; its `root` is a parent if the checkout starts above."""
    root = find_root(workdir)
    if not root:
        return None
    copy = _is_copy(root, home)
    found = _find(root, uid)
    if root != workdir or copy:  # a copy has conversations of its own
        found = found.replace(main=workdir)
    if copy and found.gitfile is not None:
        found = found.replace(branch=_branch_of_copy(root))
    if not found.directory:
        return found
    from claudebox.facts import git_executed, git_submodules

    rows = (*found.directory.rows, *found.directory.worktree_rows)
    digest = 32 if git_config.last(rows, "extensions", "objectformat").lower() == "sha256" else 20
    submodules = tuple(git_submodules.find_directories(found, lambda path, place: describe(path, place=place)))
    worktrees = tuple(git_submodules.find_worktrees(found))
    checkouts = tuple(dict.fromkeys(git_submodules.find_checkouts(found, submodules, worktrees, digest)))
    status = os.stat(root)
    found = found.replace(
        submodules=submodules,
        checkouts=checkouts,
        nested=tuple(_nested(root, checkouts, uid)),
        owner=(status.st_uid, status.st_gid),
    )
    writable = (root, *(real_path(row.source) for row in mounts if row.writable))
    executed, obeyed = git_executed.find_executed(found, worktrees, home, environ or {}, writable)
    return found.replace(executed=executed, obeyed=obeyed)


def find_root(workdir: str) -> str:
    """Return where the checkout starts that a directory belongs to, nothing if it belongs to none."""
    root = workdir
    while not begins(root):
        if root == "/":
            return ""
        root = os.path.dirname(root)
    return root


def _is_copy(root: str, home: str) -> bool:
    """Return whether a checkout is a copy that claudebox made for an agent."""
    if f"/{STATE}/{COPIES}/" not in root:
        return False
    place = f"{real_path(home)}/{STATE}/{COPIES}/"
    return root.startswith(place) and root[len(place) :].count("/") == 1  # what lies in one is the agent's


def _branch_of_copy(root: str) -> str:
    """Return the branch that an agent's worktree was made for, from what claudebox wrote beside it."""
    parent, name = os.path.split(root)
    fields = os.fsdecode(read_small(f"{parent}/.{name}") or b"").split("\0")
    return f"refs/heads/{fields[3] if len(fields) > 3 else name}"


def with_changes(repository: Repository, state: str) -> Repository:
    """Add what was changed inside in the configuration of each git directory."""

    def changed(directory: GitDirectory) -> GitDirectory:
        private = f"{state}/git/{directory.name}"
        return directory.replace(before=_rows(f"{private}/config"), inside=_rows(f"{private}/own/config"))

    if repository.directory is None or not os.path.isdir(f"{state}/git"):
        return repository
    return repository.replace(
        directory=changed(repository.directory),
        submodules=tuple(changed(directory) for directory in repository.submodules),
        nested=tuple(with_changes(nested, state) for nested in repository.nested),
    )


def empty_name(workdir: str) -> str:
    """Return the name of what is kept for a project that is no repository; nothing where none can be made."""
    path = f"{workdir.rstrip('/')}/.git"
    return syscalls.sha256(os.fsencode(path))[:_DIGITS] if os.access(workdir, os.W_OK) or os.path.isdir(path) else ""


def begins(root: str) -> bool:
    """Return whether a checkout begins here; git passes over a directory without `HEAD`."""
    status = _status(f"{root.rstrip('/')}/.git")
    return status is not None and (not stat.S_ISDIR(status.st_mode) or os.path.lexists(f"{root.rstrip('/')}/.git/HEAD"))


def _find(root: str, uid: int) -> Repository:
    dot = f"{root.rstrip('/')}/.git"
    status = os.lstat(dot)
    if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
        return Repository(root, root, problem="`.git` is neither a directory nor a file")
    gitfile = (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
    named = ""
    try:
        if gitfile is None:
            main, common, git_dir = root, dot, dot
            redirected = os.path.lexists(f"{dot}/commondir") and (read_small(f"{dot}/commondir") or b"").strip() != b"."
            if redirected:
                raise ValueError("`.git/commondir` in a main repository redirects its configuration")
        else:
            named = _one_line(dot, "gitdir: ") or ""
            main, common, git_dir = _linked(root, dot, named, uid)
        directory = describe(common, worktree=root, git_dir=git_dir)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error)
    except RecursionError:  # of realpath, which counts no links
        problem = "`.git` leads through too many links"
    else:
        return Repository(root, main, directory, git_dir, gitfile)
    # What `.git` names could be made from inside.
    place = os.path.normpath(os.path.join(root, named)) if named and "\0" not in named else ""
    inside = place.startswith(root.rstrip("/") + "/") and not f"{place}/".startswith(f"{dot}/")
    executed = (Executed(place, "directory", "`.git` names it"),) if inside else ()
    return Repository(root, root, gitfile=gitfile, problem=problem or "", executed=executed)


def _linked(root: str, dot: str, named: str, uid: int) -> tuple[str, str, str]:
    """Follow a `.git` file to a repository that knows this checkout, or raise ValueError."""
    if not named:
        raise ValueError("`.git` is a file that does not name a git directory")
    git_dir = real_path(os.path.join(root, named))
    if git_dir == root:
        raise ValueError("`.git` names the project itself")
    if os.stat(git_dir).st_uid != uid:
        raise ValueError("the repository that `.git` names belongs to another user")
    back = _one_line(f"{git_dir}/gitdir")
    if back is None:
        if os.path.lexists(f"{git_dir}/commondir"):
            raise ValueError("the repository that `.git` names redirects its configuration")
        if not git_dir.startswith(root.rstrip("/") + "/") and not _names_checkout(git_dir, root):
            raise ValueError(
                "the repository that `.git` names does not know this checkout "
                '(`git config core.worktree "$PWD"` tells it, if it is yours)'
            )
        return root, git_dir, git_dir
    if real_path(os.path.join(git_dir, back)) != dot:
        raise ValueError("the repository that `.git` names does not know this checkout")
    common = _one_line(f"{git_dir}/commondir")
    parent, name = os.path.split(os.path.dirname(git_dir))
    if common is None or name != "worktrees" or real_path(os.path.join(git_dir, common)) != parent:
        raise ValueError("the git directory is not a worktree of the repository that it names")
    if os.stat(parent).st_uid != uid:
        raise ValueError("the repository that `.git` names belongs to another user")
    main = os.path.dirname(parent) if os.path.basename(parent) == ".git" else parent
    return main, parent, git_dir


def _names_checkout(git_dir: str, root: str) -> bool:
    """Return whether a git directory points at a checkout by `core.worktree` in its own configuration."""
    value = git_config.last(_rows(f"{git_dir}/config"), "core", "worktree")
    return bool(value) and real_path(os.path.join(git_dir, value)) == root


def _rows(path: str) -> tuple[git_config.Row, ...]:
    return tuple(git_config.parse_config(read_small(path, limit=1 << 20) or b""))


def describe(path: str, *, worktree: str = "", place: str = "", git_dir: str = "") -> GitDirectory:
    """Return what a git directory is, or raise ValueError if it is none."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"`{path}` is not a directory")
    identity = (status.st_dev, status.st_ino)
    name = state.name_git_directory(path, git_dir or path)
    config = git_config.read_config((f"{path}/config",), git_config.IncludeContext("/nonexistent"))
    stores = tuple(_stores(f"{path}/objects"))
    if not stores:
        raise ValueError(f"`{path}` has no objects")
    per_worktree = _rows(f"{git_dir or path}/config.worktree")
    return GitDirectory(path, identity, name, worktree, place, config.rows, per_worktree, stores)


def find_stores(repository: Repository | None) -> Iterator[str]:
    """Yield the directories of objects, and of large files beside them, that lie outside of the checkout."""
    directories = (repository.directory, *repository.submodules) if repository is not None else ()
    for store in (store for directory in directories if directory is not None for store in directory.stores):
        if repository is not None and not store.borrowed and not store.path.startswith(f"{repository.root}/"):
            yield store.path
            if store.lfs is not None:
                yield f"{os.path.dirname(store.path)}/lfs"


def _stores(objects: str) -> Iterator[Store]:
    """Yield a directory of objects, and those that it borrows from, however far that goes."""
    pending: list[tuple[str, bool]] = [(objects, False)]
    seen: set[Identity] = set()
    while pending and len(seen) < _MOST_STORES:
        path, borrowed = pending.pop(0)
        status = _status(path)
        if status is None or not stat.S_ISDIR(status.st_mode) or (status.st_dev, status.st_ino) in seen:
            continue
        identity = (status.st_dev, status.st_ino)
        seen.add(identity)
        lfs = None if borrowed else _status(f"{os.path.dirname(path)}/lfs")
        large = (lfs.st_dev, lfs.st_ino) if lfs is not None and stat.S_ISDIR(lfs.st_mode) else None
        yield Store(path, identity, borrowed, os.path.lexists(f"{path}/info/alternates"), large)
        pending += [(real_path(os.path.join(path, line)), True) for line in _lines(f"{path}/info/alternates")]


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _lines(path: str) -> list[str]:
    content = os.fsdecode(read_small(path) or b"")
    return [line for line in content.split("\n") if line and line[0] not in '#"' and "\0" not in line][:_MOST_STORES]


def _nested(root: str, checkouts: Iterable[str], uid: int) -> Iterator[Repository]:
    for checkout in checkouts:
        path = f"{root}/{checkout}"
        if real_path(path) == path and os.path.isdir(f"{path}/.git") and not os.path.islink(f"{path}/.git"):
            found = _find(path, uid)
            if found.directory:
                yield found


def _one_line(path: str, prefix: str = "") -> str | None:
    content = read_small(path, limit=8192)
    if content is None:
        return None
    text = os.fsdecode(content).rstrip("\r\n")
    if not text.startswith(prefix) or "\n" in text or "\0" in text or len(text) == len(prefix):
        return None
    return text[len(prefix) :]
