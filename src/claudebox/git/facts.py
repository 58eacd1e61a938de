"""Find the repository of a directory by reading files: git itself is never run in the project.

Almost every git command executes something that the configuration of a repository names (threats D01-D04). A `.git`
file is trusted only where the repository that it names points back at this checkout (D15).
"""

from __future__ import annotations

import os
import stat

from claudebox.base import files as base_files
from claudebox.base import state as base_state
from claudebox.base import syscalls
from claudebox.base.files import OPEN_DIRECTORY, Closing, identify, mode_of, read_at, read_small, real_path
from claudebox.base.records import Value
from claudebox.git import config as git_config
from claudebox.git.config import Executed
from claudebox.host import protected as host_protected
from claudebox.tables.paths import COPIES, STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from claudebox.base.state import Instance
    from claudebox.git.config import Row
    from claudebox.host.records import Identity, PathFact, ProtectedPath
    from claudebox.settings.records import MountRequest, Policy


class Store(Value):
    """A directory of git objects."""

    path: str
    identity: Identity
    borrowed: bool = False  # of another repository that `alternates` names
    chained: bool = False  # it has `alternates` itself
    lfs: Identity | None = None  # the directory for large files beside it


class GitDirectory(Value):
    """A git directory of the host."""

    path: str
    identity: Identity
    name: str  # of its private directory
    worktree: str = ""  # its checkout
    place: str = ""  # of a submodule: where it lies in the git directory of the repository
    rows: tuple[Row, ...] = ()  # of its configuration
    worktree_rows: tuple[Row, ...] = ()  # of `config.worktree`
    stores: tuple[Store, ...] = ()
    before: tuple[Row, ...] = ()  # of the configuration that was last written inside
    inside: tuple[Row, ...] = ()  # of the configuration inside now


class Repository(Value):
    """The repository of a directory."""

    root: str  # of the checkout
    main: str = ""  # the path that identifies the project in all of its worktrees
    directory: GitDirectory | None = None  # with objects, refs and configuration
    git_dir: str = ""  # of this checkout: the same, or that of a linked worktree
    gitfile: Identity | None = None  # `.git` is a file that names it
    branch: str = ""  # of an agent's worktree: the only ref of the repository that its sessions move
    problem: str = ""  # why it is not trusted; then git does not work inside
    submodules: tuple[GitDirectory, ...] = ()
    checkouts: tuple[str, ...] = ()  # directories of submodules, relative to the root
    nested: tuple[Repository, ...] = ()  # submodules that have their git directory in their checkout
    executed: tuple[Executed, ...] = ()  # what the host executes in the checkout
    obeyed: tuple[str, ...] = ()  # the same in all checkouts of the repository, relative to them

    @property
    def common_dir(self) -> str:
        """The path of the git directory, if the repository is trusted."""
        return self.directory.path if self.directory else ""

    @property
    def directories(self) -> tuple[GitDirectory, ...]:
        """The git directory and those of submodules, if the repository is trusted."""
        return (self.directory, *self.submodules) if self.directory else ()


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
    found = _find(root, uid)
    is_copy = _is_copy(root, home)
    if root != workdir or is_copy:  # conversations of its own
        found = found.replace(main=workdir)
    if is_copy and found.gitfile is not None:
        found = found.replace(branch=_branch_of_copy(root))
    if not found.directory:
        return found
    submodules = tuple(_find_submodule_directories(found))
    worktrees = tuple(_find_worktrees(found))
    checkouts = tuple(dict.fromkeys(_find_checkouts(found, submodules, worktrees)))
    found = found.replace(submodules=submodules, checkouts=checkouts, nested=tuple(_find_nested(root, checkouts, uid)))
    writable = (root, *(real_path(row.source) for row in mounts if row.writable))
    executed, obeyed = git_config.find_executed(found, worktrees, home, environ or {}, writable)
    return found.replace(executed=executed, obeyed=obeyed)


def find_root(workdir: str) -> str:
    """Return the top of the checkout around a directory, "" if there is none."""
    root = workdir
    while not _is_root(root):
        if root == "/":
            return ""
        root = os.path.dirname(root)
    return root


def _is_root(directory: str) -> bool:
    """Return whether a directory is the top of a checkout; git ignores a `.git` directory without `HEAD`."""
    dot = f"{directory.rstrip('/')}/.git"
    mode = mode_of(dot)
    return bool(mode) and (not stat.S_ISDIR(mode) or os.path.lexists(f"{dot}/HEAD"))


def _is_copy(root: str, home: str) -> bool:
    """Return whether a checkout is a worktree that claudebox made for an agent."""
    place = f"{real_path(home)}/{STATE}/{COPIES}/"
    return root.startswith(place) and root[len(place) :].count("/") == 1  # not what lies in one


def _branch_of_copy(root: str) -> str:
    """Return the branch of an agent's worktree, from what claudebox wrote beside it."""
    parent, name = os.path.split(root)
    fields = os.fsdecode(read_small(f"{parent}/.{name}") or b"").split("\0")
    return f"refs/heads/{fields[3] if len(fields) > 3 else name}"


def _find(root: str, uid: int) -> Repository:
    """Return the repository that the `.git` of a checkout is or names, without what belongs to submodules."""
    dot = f"{root.rstrip('/')}/.git"
    status = os.lstat(dot)
    if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
        return Repository(root, root, problem="`.git` is neither a directory nor a file")
    gitfile = (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
    named = ""
    try:
        if gitfile is None:
            main, common, git_dir = root, dot, dot
            if os.path.lexists(f"{dot}/commondir") and (read_small(f"{dot}/commondir") or b"").strip() != b".":
                raise ValueError("`.git/commondir` in a main repository redirects its configuration")
        else:
            named = _read_line(dot, "gitdir: ")
            main, common, git_dir = _follow(root, dot, named, uid)
        directory = _describe(common, worktree=root, git_dir=git_dir)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error)
    except RecursionError:  # of realpath, which has no limit of links
        problem = "`.git` leads through too many links"
    else:
        return Repository(root, main, directory, git_dir, gitfile)
    # The agent could make what `.git` names.
    place = os.path.normpath(os.path.join(root, named)) if named else ""
    inside = place.startswith(root.rstrip("/") + "/") and not f"{place}/".startswith(f"{dot}/")
    executed = (Executed(place, "directory", "`.git` names it"),) if inside else ()
    return Repository(root, root, gitfile=gitfile, problem=problem or "", executed=executed)


def _follow(root: str, dot: str, named: str, uid: int) -> tuple[str, str, str]:
    """Follow a `.git` file to a repository that knows this checkout, or raise ValueError.

    Return what identifies the project, the git directory, and that of this checkout.
    """
    if not named:
        raise ValueError("`.git` is a file that does not name a git directory")
    git_dir = real_path(os.path.join(root, named))
    if git_dir == root:
        raise ValueError("`.git` names the project itself")
    if os.stat(git_dir).st_uid != uid:
        raise ValueError("the repository that `.git` names belongs to another user")
    back = _read_line(f"{git_dir}/gitdir")
    if not back:
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
    common = _read_line(f"{git_dir}/commondir")
    parent, name = os.path.split(os.path.dirname(git_dir))
    if not common or name != "worktrees" or real_path(os.path.join(git_dir, common)) != parent:
        raise ValueError("the git directory is not a worktree of the repository that it names")
    if os.stat(parent).st_uid != uid:
        raise ValueError("the repository that `.git` names belongs to another user")
    main = os.path.dirname(parent) if os.path.basename(parent) == ".git" else parent
    return main, parent, git_dir


def _read_line(path: str, prefix: str = "") -> str:
    """Return what follows the prefix in a file of one line; "" for any other file."""
    text = os.fsdecode(read_small(path, limit=8192) or b"").rstrip("\r\n")
    return "" if "\n" in text or "\0" in text or not text.startswith(prefix) else text[len(prefix) :]


def _names_checkout(git_dir: str, root: str) -> bool:
    """Return whether a git directory points at a checkout by `core.worktree` in its own configuration."""
    value = git_config.last(_read_rows(f"{git_dir}/config"), "core", "worktree")
    return bool(value) and real_path(os.path.join(git_dir, value)) == root


def _read_rows(path: str) -> tuple[Row, ...]:
    return tuple(git_config.parse_config(read_small(path, limit=1 << 20) or b""))


def _describe(path: str, *, worktree: str = "", place: str = "", git_dir: str = "") -> GitDirectory:
    """Describe a git directory, or raise ValueError if it is none."""
    identity = identify(path)
    if identity is None:
        raise ValueError(f"`{path}` is not a directory")
    name = base_state.name_git_directory(path, git_dir or path)
    config = git_config.read_config((f"{path}/config",), git_config.IncludeContext("/nonexistent"))
    stores = tuple(_find_stores(f"{path}/objects"))
    if not stores:
        raise ValueError(f"`{path}` has no objects")
    per_worktree = _read_rows(f"{git_dir or path}/config.worktree")
    return GitDirectory(path, identity, name, worktree, place, config.rows, per_worktree, stores)


_MOST_STORES = 32


def _find_stores(objects: str) -> Iterator[Store]:
    """Yield a directory of objects, and all that it borrows from."""
    pending: list[tuple[str, bool]] = [(objects, False)]
    seen: set[Identity] = set()
    while pending and len(seen) < _MOST_STORES:
        path, borrowed = pending.pop(0)
        identity = identify(path)
        if identity is None or identity in seen:
            continue
        seen.add(identity)
        lfs = None if borrowed else identify(f"{os.path.dirname(path)}/lfs")
        alternates = f"{path}/info/alternates"
        yield Store(path, identity, borrowed, os.path.lexists(alternates), lfs)
        lines = os.fsdecode(read_small(alternates) or b"").split("\n")
        named = [line for line in lines if line and line[0] not in '#"' and "\0" not in line][:_MOST_STORES]
        pending += [(real_path(os.path.join(path, line)), True) for line in named]


_MOST_DIRECTORIES = 128
_MODULE_DEPTH = 12  # names of submodules may hold slashes, and submodules have submodules


def _find_submodule_directories(found: Repository) -> Iterator[GitDirectory]:
    """Yield the git directories of submodules, outer ones first.

    Those of a linked worktree lie in its own part of the git directory.
    """
    pending = [(os.path.relpath(f"{found.git_dir}/modules", found.common_dir), 0)]
    known = {real_path(found.common_dir), real_path(found.git_dir)}  # a link can lead back to one of them
    count = 0
    while pending and count < _MOST_DIRECTORIES:
        relative, depth = pending.pop(0)
        path = os.path.join(found.common_dir, relative)
        for name in _list_directories(path):
            place, below = f"{relative}/{name}", f"{path}/{name}"
            count += 1
            if not os.path.isfile(f"{below}/HEAD"):
                pending += [(place, depth + 1)] if depth < _MODULE_DEPTH else []
                continue
            real = real_path(below)
            if real in known:
                continue
            known.add(real)
            try:
                directory = _describe(below, place=place)
            except (OSError, ValueError):
                continue
            value = git_config.last((*directory.rows, *directory.worktree_rows), "core", "worktree")
            yield directory.replace(worktree=real_path(os.path.join(below, value)) if value else "")
            pending += [(f"{place}/modules", depth + 1)] if depth < _MODULE_DEPTH else []


def _list_directories(path: str) -> list[str]:
    """Return the names of the directories in a directory, up to a limit."""
    try:
        with os.scandir(path) as entries:
            found = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            return sorted(name for _, name in zip(range(_MOST_DIRECTORIES), found, strict=False))
    except OSError:
        return []


def _find_worktrees(found: Repository) -> Iterator[tuple[str, str]]:
    """Yield the linked worktrees, each with its own part of the git directory."""
    for name in _list_directories(f"{found.common_dir}/worktrees"):
        entry = f"{found.common_dir}/worktrees/{name}"
        where = os.path.dirname(_read_line(f"{entry}/gitdir"))
        if where.startswith("/") and os.path.normpath(where) == where:
            yield where, entry


def _find_checkouts(
    found: Repository, submodules: Iterable[GitDirectory], worktrees: Iterable[tuple[str, str]]
) -> Iterator[str]:
    """Yield the directories of submodules that git enters from above, relative to the checkout.

    Git refuses a path through `.git`, and a mount there would hide the agent's git directory.
    """
    rows = (*found.directory.rows, *found.directory.worktree_rows) if found.directory else ()
    digest = 32 if git_config.last(rows, "extensions", "objectformat").lower() == "sha256" else 20
    top = found.root.rstrip("/") + "/"
    inner = [(row.worktree, f"{row.path}/index") for row in submodules if row.worktree.startswith(top)]
    named = [path for path, _ in inner]
    others = [(where, f"{entry}/index") for where, entry in worktrees if where.startswith(top)]
    for root, index in ((found.root, f"{found.git_dir}/index"), *inner, *others):
        named += [f"{root}/{name}" for name in find_submodules(index, digest)]
        for section, _, key, value in _read_rows(f"{root}/.gitmodules"):
            path = os.path.normpath(value) if value and "\0" not in value else "/"
            if (section, key) == ("submodule", "path") and not path.startswith(("/", "..")) and path != ".":
                named.append(f"{root}/{path}")
    relative = (os.path.relpath(path, found.root) for path in named)
    yield from (path for path in relative if ".git" not in path.split("/"))


def _find_nested(root: str, checkouts: Iterable[str], uid: int) -> Iterator[Repository]:
    """Yield the repositories of submodules that have a `.git` directory of their own."""
    for checkout in checkouts:
        path = f"{root}/{checkout}"
        if real_path(path) == path and os.path.isdir(f"{path}/.git") and not os.path.islink(f"{path}/.git"):
            found = _find(path, uid)
            if found.directory:
                yield found


# The index: its entries, of which those of submodules are commits of other repositories.


_INDEX_LIMIT = 512 << 20
_SUBMODULE = b"\0\0\xe0\0"  # the mode of such an entry, at offset 24
_HEADER = 12
_STAT = 40  # size, owner, times, ... before the name of the object
_EXTENDED = 0x4000
_MOST_SUBMODULES = 256


def find_submodules(path: str, digest: int) -> tuple[str, ...]:
    """Return the paths of submodules in an index; `digest` is the length of the names of objects."""
    content = read_small(path, limit=_INDEX_LIMIT) or b""
    if content.find(_SUBMODULE, _HEADER) < 0:  # nearly always
        return ()
    found: dict[str, None] = {}
    try:
        for name, at, _ in read_entries(content, digest):
            if content[at + 24 : at + 28] == _SUBMODULE and not name.startswith(b"/") and b".." not in name.split(b"/"):
                found[os.fsdecode(name)] = None
                if len(found) >= _MOST_SUBMODULES:
                    break
    except (IndexError, ValueError):  # damaged: git does not read it either
        pass
    return tuple(found)


def read_entries(index: bytes, digest: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, offset and flags of each entry of an index; raise IndexError or ValueError if it is damaged."""
    if index[:4] != b"DIRC":
        return
    is_compressed = index[7] == 4  # each name builds upon the one before
    position, name = _HEADER, b""
    for _ in range(int.from_bytes(index[8:12], "big")):
        after = position + _STAT + digest
        flags = index[after] << 8 | index[after + 1]
        after += 4 if flags & _EXTENDED else 2
        cut = len(name)
        if is_compressed:
            cut, after = _read_varint(index, after)
        end = index.index(b"\0", after)
        name = name[: len(name) - cut] + index[after:end]
        yield name, position, flags
        position = end + 1 if is_compressed else end + 8 - (end - position) % 8


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    value = -1
    while True:
        byte = content[position]
        value, position = ((value + 1) << 7) | (byte & 0x7F), position + 1
        if byte < 0x80:
            return value, position


_SIZE = 36  # where the size of a file is in an entry
_FEW = 8  # contents, from which on all names are read at once


def forget_sizes(index: bytes, names: Container[bytes], digest: int) -> bytes:
    """Return an index in which these files have no size, so that git compares contents; a damaged one stays."""
    changed, hashed = bytearray(index), len(index) - digest
    try:
        for name, at, _ in read_entries(index, digest):
            if name in names:
                changed[at + _SIZE : at + _STAT] = bytes(_STAT - _SIZE)
    except (IndexError, ValueError):
        return index
    if any(index[hashed:]):  # git may be told to write none
        changed[hashed:] = _new_hash(digest)(bytes(changed[:hashed])).digest()
    return bytes(changed)


_INDEX_OF_PACK = b"\xfftOc\0\0\0\2"
_FANOUT = 256 * 4  # bytes: how many names begin with a byte, or with a smaller one


class CommittedContents:
    """Whether git has a content, by the indexes of a repository and its submodules: then its objects show it.

    `keeps` looks for the object itself, also in nested repositories: of what was staged once, stashed, or is history.
    """

    def __init__(self, repository: Repository | None, nested: Iterable[Nested] = ()) -> None:
        self._stores = [f"{row.path}/objects" for row in nested]
        self._packs: list[str] | None = None
        self._paths: list[str] = []
        self._indexes: tuple[bytes, ...] | None = None
        self._ids: set[bytes] = set()
        self._asked, self._digest = 0, 20
        if repository is not None and repository.directory is not None and not repository.problem:
            inner = [row for each in (repository, *repository.nested) for row in each.directories]
            self._stores += [store.path for row in inner for store in row.stores]
            self._paths = [f"{repository.git_dir}/index", *(f"{row.path}/index" for row in inner)]
            name = git_config.last(repository.directory.rows, "extensions", "objectformat")
            self._digest = 32 if name.lower() == "sha256" else 20

    def has(self, content: bytes) -> bool:
        if self._indexes is None:
            self._indexes = tuple(read_small(path, limit=_INDEX_LIMIT) or b"" for path in dict.fromkeys(self._paths))
        self._asked += 1
        name = self._name(content)
        if self._asked < _FEW:
            return any(name in index for index in self._indexes)
        if self._asked == _FEW:
            self._ids = {row for index in self._indexes for row in _read_ids(index, self._digest)}
        return name in self._ids

    def keeps(self, content: bytes) -> bool:
        if self._packs is None:
            self._stores = list(dict.fromkeys(map(real_path, self._stores)))
            self._packs = [path for store in self._stores for path in _list_packs(f"{store}/pack")]
        name = self._name(content)
        loose = f"{name.hex()[:2]}/{name.hex()[2:]}"
        if any(os.path.exists(f"{store}/{loose}") for store in self._stores):
            return True
        return any(_is_packed(path, name) for path in self._packs)

    def _name(self, content: bytes) -> bytes:
        return _new_hash(self._digest)(b"blob %d\0" % len(content) + content).digest()


def _list_packs(directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in os.listdir(directory) if name.endswith(".idx")]
    except OSError:
        return []


def _is_packed(index: str, name: bytes) -> bool:
    """Return whether the index of a pack has this name, by reading the names that begin like it."""
    try:
        with Closing(os.open(index, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            head = os.pread(file, len(_INDEX_OF_PACK) + _FANOUT, 0)
            if not head.startswith(_INDEX_OF_PACK):
                return False
            ends = b"\0\0\0\0" + head[len(_INDEX_OF_PACK) :]
            first, end = (int.from_bytes(ends[at : at + 4], "big") for at in (name[0] * 4, name[0] * 4 + 4))
            return name in os.pread(file, max(0, end - first) * len(name), len(head) + first * len(name))
    except OSError:
        return False


def _read_ids(index: bytes, digest: int) -> Iterator[bytes]:
    try:
        for _, at, _ in read_entries(index, digest):
            yield index[at + _STAT : at + _STAT + digest]
    except (IndexError, ValueError):  # damaged
        return


def _new_hash(digest: int) -> Callable[[bytes], hashlib._Hash]:
    return syscalls.new_sha256 if digest == 32 else syscalls.new_sha1


# What else a launch asks about the repository of the project.


_DIGITS = 16


def with_changes(repository: Repository, state: str) -> Repository:
    """Add the configuration inside of each git directory."""

    def changed(directory: GitDirectory) -> GitDirectory:
        private = f"{state}/git/{directory.name}"
        return directory.replace(before=_read_rows(f"{private}/config"), inside=_read_rows(f"{private}/own/config"))

    if repository.directory is None or not os.path.isdir(f"{state}/git"):
        return repository
    return repository.replace(
        directory=changed(repository.directory),
        submodules=tuple(changed(directory) for directory in repository.submodules),
        nested=tuple(with_changes(nested, state) for nested in repository.nested),
    )


def empty_name(workdir: str) -> str:
    """Return the name of the private directory of a project without a repository, "" if none can be made."""
    path = f"{workdir.rstrip('/')}/.git"
    return syscalls.sha256(os.fsencode(path))[:_DIGITS] if os.access(workdir, os.W_OK) or os.path.isdir(path) else ""


def find_stores(repository: Repository | None) -> Iterator[str]:
    """Yield the directories of objects, and of large files beside them, that lie outside of the checkout."""
    for directory in repository.directories if repository is not None else ():
        for store in directory.stores:
            if repository is not None and not store.borrowed and not store.path.startswith(f"{repository.root}/"):
                yield store.path
                if store.lfs is not None:
                    yield f"{os.path.dirname(store.path)}/lfs"


# The user's own configuration of git.


_IDENTITY_LIMIT = 256 << 10


class UserSettings(Value):
    """The user's configuration, as git would compute it for a checkout."""

    rows: tuple[git_config.Row, ...] = ()
    ignored: bytes = b""  # what `core.excludesFile` holds
    attributes: bytes = b""


def read_user_settings(home: str, environ: dict[str, str], repository: Repository | None) -> UserSettings:
    """Read the files of the user and of the system, with the includes whose conditions are met."""
    context = git_config.IncludeContext(home)
    local: tuple[git_config.Row, ...] = ()
    if repository is not None and repository.directory is not None:
        local = (*repository.directory.rows, *repository.directory.worktree_rows)
        spelled = f"{repository.root}/.git" if repository.gitfile is None else repository.git_dir
        head = os.fsdecode(read_small(f"{repository.git_dir}/HEAD") or b"").strip()
        branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else ""
        git_dirs = tuple(dict.fromkeys((spelled, repository.git_dir)))
        context = git_config.IncludeContext(home, git_dirs, branch, tuple(git_config.urls(local)))
    rows = git_config.read_config(git_config.user_files(home, environ), context).rows
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    # Only the user's own files may name a file whose content enters: a repository could name a key (C09).
    return UserSettings(
        rows,
        _file(git_config.last(rows, "core", "excludesfile") or f"{base}/git/ignore", home),
        _file(git_config.last(rows, "core", "attributesfile") or f"{base}/git/attributes", home),
    )


def _file(name: str, home: str) -> bytes:
    return read_small(base_files.expand(name, home, home), limit=_IDENTITY_LIMIT, follow=True) or b""


# Repositories in other writable mounts, and what git of the host obeys there.


_MOST_ENTRIES, _MOST_SECONDS = 50_000, 0.5  # of a walk for a repository


def look(
    policy: Policy,
    sources: Mapping[str, PathFact],
    repository: Repository | None,
    home: str,
    environ: dict[str, str],
    instance: Instance,
) -> tuple[tuple[Repository, ...], tuple[ProtectedPath, ...]]:
    """Return the repositories in writable mounts at their own place, and what git of the host obeys there.

    `repository` is that of the project, whose configuration may name something there.
    """
    uid = os.getuid()
    in_place = tuple(request for request in policy.mounts if request.writable and request.dest == request.source)
    found = {
        root: find_repository(root, uid, home, environ, policy.mounts)
        for request in in_place
        for root in _roots(request)
    }
    believed = {root: row for root, row in found.items() if row is not None and row.directory is not None}
    around = [find_root(sources[request.source].real) for request in in_place]
    known = {"", *believed, repository.root if repository is not None else ""}
    others = [find_repository(root, uid, home, environ, policy.mounts) for root in {*around} - known]
    naming = (*believed.values(), *(row for row in (repository, *others) if row is not None))
    changed = tuple(with_changes(row, instance.directory) for row in believed.values())
    return changed, host_protected.look_in_mounts(in_place, tuple(believed.values()), naming, instance)


def _roots(request: MountRequest) -> Iterator[str]:
    """Yield the checkouts that a mount is, or that lie directly in it."""
    below = (f"{request.source}/{name}" for name in _list_directories(request.source))
    yield from (root for root in (request.source, *below) if _is_root(root))


def find_exposed(request: MountRequest, real: str) -> tuple[str, str]:
    """Return a checkout that a writable mount leaves unprotected, and what was not searched.

    `real` is where its source was found to be. At another place, as behind a link, nothing is protected: neither in a
    checkout that the mount is or lies in, nor in one that it holds.
    """
    in_place = request.dest == request.source and not os.path.islink(request.source)
    if in_place and "/.git/" not in f"{real}/":
        return "", ""
    root = find_root(real)
    if in_place:
        return (root if root and f"{real}/".startswith(f"{root.rstrip('/')}/.git/") else ""), ""
    if root or not os.path.isdir(real):
        return root, ""
    from claudebox.base.trees import Walk

    walk = Walk(real, most=_MOST_ENTRIES, seconds=_MOST_SECONDS)
    for path, entry in walk.entries():
        if entry.name == ".git":
            return os.path.dirname(path), ""
    return "", walk.unfinished


# Nested repositories of the user below a project.


class Nested(Value):
    """A repository of the user's below a project, as it was when a session began."""

    path: str  # of its git directory
    identity: Identity
    hooks: int = 0  # inode
    config: bytes = b""


KEPT = "repositories"  # in the state of a project: git directories with settings of their own, from the last disarm
KEPT_LIMIT = 4 << 20
_MOST_NESTED = 256
_CONFIG_LIMIT = 1 << 16


def find_nested(found: Iterable[str], roots: tuple[str, ...], directory: str) -> tuple[Nested, ...]:
    """Return the nested repositories that were found, and those that the last disarm noted in the state."""
    kept = os.fsdecode(read_small(f"{directory}/{KEPT}", limit=KEPT_LIMIT) or b"").split("\0")
    inside = tuple(f"{root.rstrip('/')}/" for root in roots)
    paths = dict.fromkeys(path for path in (*found, *kept) if path.startswith(inside))
    return tuple(row for row in map(_look_at, list(paths)[:_MOST_NESTED]) if row is not None)


def _look_at(path: str) -> Nested | None:
    try:
        with Closing(os.open(path, OPEN_DIRECTORY)) as directory:
            status = os.fstat(directory)
            try:
                hooks = os.lstat("hooks", dir_fd=directory)
            except FileNotFoundError:
                hooks = None
            inode = hooks.st_ino if hooks is not None and stat.S_ISDIR(hooks.st_mode) else 0
            config = read_at(directory, "config", limit=_CONFIG_LIMIT) or b""
            return Nested(path, (status.st_dev, status.st_ino), inode, config)
    except OSError:
        return None
