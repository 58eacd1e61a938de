"""What claudebox knows about git, learnt by reading files: git itself is never run in the project.

Almost every git command executes something that a repository's configuration names (threats D01-D04), so the
launcher looks at the few files that matter, and believes a `.git` file only where the repository that it names
points back at this very checkout (D15).
"""

from __future__ import annotations

import os
import stat

from claudebox.facts import git_config
from claudebox.files import read_small
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_INCLUDE_DEPTH = 5


class Repository(Value):
    """The repository of the working directory."""

    root: str  # of the checkout
    common_dir: str = ""  # objects, refs and configuration
    linked: bool = False  # a worktree or submodule: the git directory lies outside of the checkout
    writable: tuple[tuple[str, tuple[int, int]], ...] = ()  # what a commit in a linked worktree writes
    frozen: tuple[str, ...] = ()  # files there that say which repository it is
    pins: tuple[tuple[str, tuple[int, int]], ...] = ()  # what of a linked one was looked at, by identity
    problem: str = ""  # why it was not believed; then git does not work inside
    main: str = ""  # what stands for the project in all of its worktrees
    git_dir: str = ""  # a git directory that is writable as a whole, so that its parts need protection
    identity: tuple[int, int] | None = None
    per_worktree: bool = False  # git also reads config.worktree
    obeyed: tuple[git_config.Obeyed, ...] = ()  # what the configuration makes the host execute, where we can write
    checkouts: tuple[str, ...] = ()  # directories of submodules


def find_repository(
    workdir: str, uid: int, home: str = "/", environ: dict[str, str] | None = None
) -> Repository | None:
    """Return the repository of the working directory; its `root` is a parent if the checkout starts above."""
    found = _find(workdir, uid)
    if found is None:
        return None
    reader = git_config.GitConfigReader(parse_config, found.root, home)
    for path in (*git_config.of_person(home, environ or {}), *_configuration(found)):
        reader.read(path)
    bases = (workdir, found.git_dir) if found.git_dir else (workdir,)
    return found.replace(
        per_worktree=("extensions", "worktreeconfig") in reader.keys,
        obeyed=reader.found(bases),
        checkouts=git_config.checkouts(parse_config, workdir),
    )


def _configuration(found: Repository) -> tuple[str, ...]:
    """Return the files of configuration of a repository, wherever it lies."""
    common = found.common_dir or os.path.join(found.root, ".git")
    if not os.path.isdir(common):  # above us, a worktree or submodule itself
        named = _one_line(common, "gitdir: ")
        git_dir = os.path.join(found.root, named) if named else common
        common = os.path.join(git_dir, _one_line(os.path.join(git_dir, "commondir")) or ".")
    return os.path.join(common, "config"), os.path.join(common, "config.worktree")


def _find(workdir: str, uid: int) -> Repository | None:
    dot = os.path.join(workdir, ".git")
    try:
        status = os.lstat(dot)
    except OSError:
        return _above(workdir)
    if stat.S_ISDIR(status.st_mode):
        commondir = os.path.join(dot, "commondir")
        if os.path.lexists(commondir) and (read_small(commondir) or b"").strip() != b".":
            return Repository(
                workdir, main=workdir, problem="`.git/commondir` in a main repository redirects its configuration"
            )
        return _writable(Repository(workdir, dot, main=workdir), dot)
    if not stat.S_ISREG(status.st_mode):
        return Repository(workdir, main=workdir, problem="`.git` is neither a directory nor a file")
    pin = (dot, (status.st_dev, status.st_ino))
    try:
        repository = _linked(workdir, dot, uid)
        return repository.replace(pins=(pin, *_pins(repository)))
    except (OSError, ValueError) as error:
        return Repository(workdir, linked=True, main=workdir, problem=str(error), pins=(pin,))
    except RecursionError:  # of realpath, which counts no links
        problem = "`.git` leads through too many links"
        return Repository(workdir, linked=True, main=workdir, problem=problem, pins=(pin,))


def _pins(repository: Repository) -> Iterable[tuple[str, tuple[int, int]]]:
    """Yield what the paths are that are mounted as they stand, or raise ValueError for a link (C04, C10)."""
    for path in (repository.common_dir, *repository.frozen):
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            raise ValueError(f"`{path}` became a link while it was being read")
        yield path, (status.st_dev, status.st_ino)


def _writable(repository: Repository, git_dir: str) -> Repository:
    """Note that the agent can write to the whole of a git directory."""
    status = os.lstat(git_dir)
    return repository.replace(git_dir=git_dir, identity=(status.st_dev, status.st_ino))


def _above(workdir: str) -> Repository | None:
    started = workdir
    parent = os.path.dirname(workdir)
    while parent != workdir:
        if os.path.lexists(os.path.join(parent, ".git")):
            return Repository(parent, main=started)
        workdir, parent = parent, os.path.dirname(parent)
    return None


def _linked(workdir: str, dot: str, uid: int) -> Repository:
    """Follow a `.git` file to a repository that knows this checkout, or raise ValueError."""
    named = _one_line(dot, "gitdir: ")
    if named is None:
        raise ValueError("`.git` is a file that does not name a git directory")
    git_dir = os.path.realpath(os.path.join(workdir, named))
    if git_dir == workdir or git_dir.startswith(workdir.rstrip("/") + "/"):
        raise ValueError("`.git` names a directory inside the project")
    if os.stat(git_dir).st_uid != uid:
        raise ValueError("the repository that `.git` names belongs to another user")
    back = _one_line(os.path.join(git_dir, "gitdir"))
    if back is None:
        return _submodule(workdir, git_dir)
    if os.path.realpath(os.path.join(git_dir, back)) != dot:
        raise ValueError("the repository that `.git` names does not know this checkout")
    common = _one_line(os.path.join(git_dir, "commondir"))
    parent, name = os.path.split(os.path.dirname(git_dir))
    if common is None or name != "worktrees" or os.path.realpath(os.path.join(git_dir, common)) != parent:
        raise ValueError("the git directory is not a worktree of the repository that it names")
    if os.stat(parent).st_uid != uid:
        raise ValueError("the repository that `.git` names belongs to another user")
    main = os.path.dirname(parent) if os.path.basename(parent) == ".git" else parent
    config = read_small(os.path.join(parent, "config"), limit=1 << 20)
    if config is None or b"worktreeconfig" in config.lower():
        return Repository(
            workdir, parent, linked=True, main=main
        )  # a missing config.worktree could be planted: read-only
    written = (git_dir, *(os.path.join(parent, part) for part in ("objects", "refs", "logs")))
    frozen = (os.path.join(git_dir, "commondir"), os.path.join(git_dir, "gitdir"))
    return Repository(workdir, parent, True, tuple(_directories(written)), frozen, main=main)  # noqa: FBT003


def _directories(paths: tuple[str, ...]) -> Iterable[tuple[str, tuple[int, int]]]:
    """Yield those that are directories and not links: an agent may have planted one in an earlier session (C04)."""
    for path in paths:
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode):
            yield path, (status.st_dev, status.st_ino)


def _submodule(workdir: str, git_dir: str) -> Repository:
    """Believe a submodule's git directory that points back by `core.worktree` in its own configuration."""
    config = read_small(os.path.join(git_dir, "config"), limit=1 << 20)
    for section, key, value in parse_config(config or b""):
        if (section, key) == ("core", "worktree") and os.path.realpath(os.path.join(git_dir, value)) == workdir:
            return _writable(Repository(workdir, git_dir, linked=True, main=workdir), git_dir)
    raise ValueError("the repository that `.git` names does not know this checkout")


def _one_line(path: str, prefix: str = "") -> str | None:
    content = read_small(path, limit=8192)
    if content is None:
        return None
    text = os.fsdecode(content).rstrip("\r\n")
    if not text.startswith(prefix) or "\n" in text or "\0" in text or len(text) == len(prefix):
        return None
    return text[len(prefix) :]


def read_identity(home: str, environ: dict[str, str]) -> tuple[str, str]:
    """Return name and address of the person from their global configuration, as git would read it."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    found = {"name": "", "email": ""}
    for path in (os.path.join(base, "git/config"), os.path.join(home, ".gitconfig")):
        _read_identity_file(path, home, found, _INCLUDE_DEPTH)
    return found["name"], found["email"]


def _read_identity_file(path: str, home: str, found: dict[str, str], depth: int) -> None:
    content = read_small(path, limit=1 << 20, follow=True)
    for section, key, value in parse_config(content or b""):
        if section == "user" and key in found:
            found[key] = value
        elif section == "include" and key == "path" and depth:
            target = os.path.join(home, value[2:]) if value.startswith("~/") else value
            _read_identity_file(os.path.join(os.path.dirname(path), target), home, found, depth - 1)


def parse_config(content: bytes) -> list[tuple[str, str, str]]:
    """Return (section, key, value) of a git configuration file; what does not parse is passed over."""
    rows: list[tuple[str, str, str]] = []
    section = ""
    lines = iter(os.fsdecode(content).removeprefix("\ufeff").split("\n"))
    for raw in lines:
        line = raw.strip()
        if line.startswith("["):
            header, closing, line = line[1:].partition("]")
            section = header.strip() if '"' in header else header.strip().lower()
            line = line.strip() if closing else ""
        if not line or line[0] in "#;":
            continue
        key, _, value = line.partition("=")
        pieces = [value]
        while _continues(pieces[-1]):
            pieces[-1] = pieces[-1][:-1]
            pieces.append(next(lines, ""))
        rows.append((section, key.strip().lower(), _unquote("".join(pieces).strip())))
    return rows


def _continues(value: str) -> bool:
    return (len(value) - len(value.rstrip("\\"))) % 2 == 1


def _unquote(value: str) -> str:
    """Undo git's quoting; a comment ends an unquoted part."""
    out: list[str] = []
    kept = 0  # blanks at the end count only in quotes
    quoted = False
    chars = iter(value)
    for char in chars:
        if char == "\\":
            follower = next(chars, "")
            out.append({"n": "\n", "t": "\t", "b": "\b"}.get(follower, follower))
        elif char == '"':
            quoted = not quoted
            continue
        elif char in "#;" and not quoted:
            break
        else:
            out.append(char)
            if char.isspace() and not quoted:
                continue
        kept = len(out)
    return "".join(out[:kept])
