"""Read git's configuration as git does, and find what it names in checkouts. Git itself is never run in the project."""

from __future__ import annotations

import os
import stat

from claudebox.base.files import expand, join, read_small, real_path
from claudebox.base.records import Value
from claudebox.tables.git_keys import FILTERS
from claudebox.tables.paths import ASIDE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from claudebox.git.facts import Repository
    from claudebox.host.records import StubKind

    Glob = Callable[[str], object]


Row = tuple[str, str, str, str]  # section, subsection, key, value

_FILE_LIMIT = 1 << 20
_MOST_FILES = 32
_DEPTH = 10
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


class IncludeContext(Value):
    """What the conditions of includes refer to."""

    home: str
    git_dirs: tuple[str, ...] = ()  # as it is spelled, and with links resolved
    branch: str = ""
    urls: tuple[str, ...] = ()  # of remotes
    everything: bool = False  # take every condition as met


class ConfigRows(Value):
    """The rows of some files and of what they include, and which files those were."""

    rows: tuple[Row, ...] = ()
    files: tuple[str, ...] = ()


def read_config(paths: tuple[str, ...], context: IncludeContext) -> ConfigRows:
    """Read files and what they include, in the order in which git takes them."""
    rows: list[Row] = []
    files: list[str] = []
    for path in paths:
        _read_file(path, context, _DEPTH, rows, files)
    return ConfigRows(tuple(rows), tuple(files))


def _read_file(path: str, context: IncludeContext, depth: int, rows: list[Row], files: list[str]) -> None:
    if len(files) >= _MOST_FILES:
        return
    files.append(path)
    for row in parse_config(read_small(path, limit=_FILE_LIMIT, follow=True) or b""):
        section, condition, key, value = row
        rows.append(row)
        if (
            key == "path"
            and depth
            and value
            and (
                (section, condition) == ("include", "")
                or (section == "includeif" and _is_met(condition, path, context))
            )
        ):
            target = join(value, os.path.dirname(path), context.home)
            _read_file(target, context, depth - 1, rows, files)


def _is_met(condition: str, path: str, context: IncludeContext) -> bool:
    if context.everything:
        return True
    kind, _, pattern = condition.partition(":")
    if kind in ("gitdir", "gitdir/i"):
        if pattern.startswith("./"):
            pattern = os.path.dirname(real_path(path)) + pattern[1:]
        elif pattern.startswith("~"):
            pattern = expand(pattern, "/", context.home) + ("/" if pattern.endswith("/") else "")
        elif not pattern.startswith("/"):
            pattern = f"**/{pattern}"
        if kind == "gitdir/i":
            return any(_fits(pattern.lower(), name.lower()) for name in context.git_dirs)
        return any(_fits(pattern, name) for name in context.git_dirs)
    if kind == "onbranch":
        return bool(context.branch) and _fits(pattern, context.branch)
    if kind == "hasconfig" and pattern.startswith("remote.*.url:"):
        globs = compile_path(pattern.removeprefix("remote.*.url:"))
        return any(fits_path(url.split("/"), globs) for url in context.urls)
    return False


def _fits(pattern: str, text: str) -> bool:
    """Return whether a text fits a pattern; one that ends with a slash stands for everything in a directory."""
    return fits_path(text.split("/"), compile_path(f"{pattern}**/*" if pattern.endswith("/") else pattern))


def user_files(home: str, environ: dict[str, str]) -> tuple[str, ...]:
    """Return the files that apply to all repositories of a user."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    system = environ.get("GIT_CONFIG_SYSTEM") or "/etc/gitconfig"
    own = environ.get("GIT_CONFIG_GLOBAL")
    ours = (own,) if own else (os.path.join(base, "git/config"), os.path.join(home, ".gitconfig"))
    return ours if environ.get("GIT_CONFIG_NOSYSTEM", "") not in ("", "0", "false") else (system, *ours)


def parse_config(content: bytes) -> list[Row]:
    """Return the rows of a file; what does not parse is passed over. A key without a value is true."""
    rows: list[Row] = []
    section = subsection = ""
    lines = iter(os.fsdecode(content).removeprefix("\ufeff").split("\n"))
    for raw in lines:
        line = raw.strip()
        if line.startswith("["):
            section, subsection, line = _header(line)
        if not line or line[0] in "#;":
            continue
        key, equals, value = line.partition("=")
        pieces = [value]
        while _continues(pieces[-1]):
            pieces[-1] = pieces[-1][:-1]
            pieces.append(next(lines, "").rstrip("\r"))
        key = key.strip().lower()
        if section and key.replace("-", "").isalnum() and key.isascii():
            rows.append((section, subsection, key, _unquote("".join(pieces).strip()) if equals else "true"))
    return rows


def _header(line: str) -> tuple[str, str, str]:
    """Return section, subsection and the rest of a line that begins with a bracket."""
    end, quote = line.find("]"), line.find('"')
    if quote < 0 or 0 <= end < quote:
        section, _, subsection = line[1 : end if end >= 0 else None].strip().lower().partition(".")
        return section, subsection, line[end + 1 :].strip() if end >= 0 else ""
    name: list[str] = []
    position = quote + 1
    while position < len(line) and line[position] != '"':
        position += line[position] == "\\"
        name.append(line[position : position + 1])
        position += 1
    rest = line[position + 1 :].lstrip()
    return line[1:quote].strip().lower(), "".join(name), rest[1:].strip() if rest.startswith("]") else ""


def _continues(value: str) -> bool:
    return (len(value) - len(value.rstrip("\\"))) % 2 == 1


def _unquote(value: str) -> str:
    """Undo git's quoting; a comment ends an unquoted part."""
    if not any(char in value for char in '\\"#;'):  # nearly all
        return value
    out: list[str] = []
    kept = 0  # blanks at the end count only in quotes
    quoted = False
    chars = iter(value)
    for char in chars:
        if char == "\\":
            follower = next(chars, "")
            out.append(_ESCAPES.get(follower, follower))
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


def last(rows: tuple[Row, ...], section: str, key: str) -> str:
    """Return the last value of a key, which counts."""
    return next((row[3] for row in reversed(rows) if row[:3] == (section, "", key)), "")


def urls(rows: tuple[Row, ...]) -> Iterator[str]:
    """Yield the addresses of remotes."""
    return (value for section, name, key, value in rows if section == "remote" and name and key == "url")


def quote(value: str) -> str:
    """Quote a value for a configuration file."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


# What in a checkout the user's git executes because its configuration, or a link in its git directory, says so.
# Conditions of includes count as met: protecting a path that git would not have read costs little.


class Executed(Value):
    """A path in a checkout that the user's git executes, or takes configuration from."""

    path: str
    stub: StubKind
    reason: str
    generated: bool = False  # a directory that a manager of hooks fills: inside, a copy stands in its place


_HUSKY, _GENERATED = ".husky", "_"  # husky writes the latter anew at each installation; it is never committed
_MOST_PATHS = 512
_MOST_HOOKS = 256  # entries of a directory of hooks
_MOST_LINKS = 40  # the kernel follows no more
_MOST_WORDS = 1024  # of one value
# Values that are never run and often name a file of the project.
_INNOCENT = frozenset(("url", "pushurl", "fetch", "push", "merge", "remote", "name", "email", "template", "worktree",
                       "ignorerevsfile", "excludesfile", "blobs", "active", "branch"))  # fmt: skip
_PROSE = frozenset(("alias", "branch", "color", "format", "log", "pretty"))  # where a bare word is no file
_KNOWN = frozenset(value for rows in FILTERS.values() for _, value in rows)  # as `git lfs install` writes them
_QUOTES = str.maketrans(dict.fromkeys("'\"\\", ""))
_SHELL = str.maketrans(dict.fromkeys("'\";|&<>(){}$`=:,\\", " "))


class _Checkout(Value):
    """A directory that git works in, and the configuration in force there."""

    root: str
    rows: tuple[Row, ...]
    files: tuple[str, ...]
    git_dir: str  # with hooks


def find_executed(
    found: Repository,
    worktrees: tuple[tuple[str, str], ...],
    home: str,
    environ: dict[str, str],
    writable: tuple[str, ...],
) -> tuple[tuple[Executed, ...], tuple[str, ...]]:
    """Return what an agent can write: paths in or at writable directories, without git directories.

    And paths relative to any checkout of the repository, wherever that is, which a commit could change.
    """
    rows: dict[str, Executed] = {}
    committed: dict[str, None] = {}
    absent: dict[str, None] = {}
    inside = tuple(top.rstrip("/") + "/" for top in writable)
    own = tuple(f"{path}/" for path in (found.common_dir, *(nested.common_dir for nested in found.nested)))
    tops = tuple(top.rstrip("/") + "/" for top in dict.fromkeys((found.root, found.main, *dict(worktrees))))
    places = _Places()
    for checkout in _checkouts(found, worktrees, home, environ):
        for row in _named(checkout, home, places):
            table = committed if places.is_certain(row) else absent
            way = list(places.on_way(row.path))
            for path in way:
                is_end = path == way[-1]
                if f"{path}/".startswith(own) or (not is_end and f"{path}/" in (*inside, *tops)):
                    continue
                if f"{path}/".startswith(inside):
                    found_row = row.replace(
                        path=path, stub=row.stub if is_end else "directory", generated=row.generated and len(way) == 1
                    )
                    rows.setdefault(path, found_row)
                within = (f"{path}/"[len(top) :].rstrip("/") or "." for top in tops if f"{path}/".startswith(top))
                table.update(dict.fromkeys(within))
    first = sorted(rows.values(), key=lambda row: not places.is_certain(row))
    return tuple(first)[:_MOST_PATHS], tuple({**committed, **absent})[:_MOST_PATHS]


def find_named(root: str, files: tuple[str, ...], home: str) -> tuple[str, ...]:
    """Return what configurations, and what they include, name in one checkout; relative names begin with its path.

    Not everything is there: the same names count in other checkouts.
    """
    found = read_config(files, IncludeContext(home, everything=True))
    rows = _named(_Checkout(root, found.rows, found.files, ""), home, _Places(), elsewhere=True)
    paths = dict.fromkeys(row.path for row in rows)
    return tuple(path for path in paths if path not in files)[:_MOST_PATHS]


def _checkouts(
    found: Repository, worktrees: tuple[tuple[str, str], ...], home: str, environ: dict[str, str]
) -> Iterator[_Checkout]:
    """Yield the checkout, linked worktrees, and submodules: each resolves what is relative in itself.

    Of worktrees that lie elsewhere only those count that have settings of their own.
    """
    context = IncludeContext(home, everything=True)
    user = read_config(user_files(home, environ), context)

    def work(root: str, common: str, git_dir: str, *, linked: bool = False) -> _Checkout:
        own = read_config((f"{common}/config", f"{git_dir}/config.worktree"), context)
        return _Checkout(root, user.rows + own.rows, user.files + own.files, "" if linked else common)

    yield work(found.root, found.common_dir, found.git_dir)
    for where, entry in worktrees:
        if where.startswith(found.root.rstrip("/") + "/") or os.path.lexists(f"{entry}/config.worktree"):
            yield work(where, found.common_dir, entry, linked=True)
    for directory in found.submodules:
        yield work(directory.worktree or found.root, directory.path, directory.path)
    for nested in found.nested:
        yield work(nested.root, nested.common_dir, nested.git_dir)


class _Places:
    """Resolves paths."""

    def __init__(self) -> None:
        self._links: dict[str, str] = {}
        self._kinds: dict[str, int] = {}

    def is_kind(self, path: str, kind: int) -> bool:
        """Return whether a path leads to a directory, or to a file."""
        if path not in self._kinds:
            try:
                self._kinds[path] = stat.S_IFMT(os.stat(path).st_mode)
            except (OSError, ValueError):
                self._kinds[path] = 0
        return self._kinds[path] == kind

    def is_certain(self, row: Executed) -> bool:
        """Return whether a path counts even if nothing is there; a word may only look like a program."""
        return row.stub != "none" or self.is_kind(row.path, stat.S_IFREG)

    def on_way(self, path: str) -> Iterator[str]:
        """Yield what the kernel passes on a path: links, directories that `..` leaves, and the end."""
        waiting = path.split("/")[::-1]
        here, links = "", 0
        while waiting and "\0" not in path:
            part = waiting.pop()
            if part == "..":
                yield here or "/"
                here = here.rpartition("/")[0]
            elif part not in ("", "."):
                target = self._read_link(f"{here}/{part}")
                if not target:
                    here = f"{here}/{part}"
                    continue
                yield f"{here}/{part}"
                links += 1
                if links > _MOST_LINKS:
                    return
                here = "" if target.startswith("/") else here
                waiting += target.split("/")[::-1]
        yield here or "/"

    def _read_link(self, path: str) -> str:
        if path not in self._links:
            try:
                self._links[path] = os.readlink(path)
            except (OSError, ValueError):
                self._links[path] = ""
        return self._links[path]


def _named(checkout: _Checkout, home: str, places: _Places, *, elsewhere: bool = False) -> Iterator[Executed]:
    root = checkout.root
    for path in checkout.files:
        yield Executed(path, "file", "git reads configuration from it")
    if checkout.git_dir:
        yield Executed(f"{checkout.git_dir}/hooks", "directory", "git runs the hooks in it")
        yield from _hooks(f"{checkout.git_dir}/hooks", places)
        yield Executed(f"{checkout.git_dir}/info", "directory", "git reads attributes from it")
        yield Executed(f"{checkout.git_dir}/info/attributes", "file", "git reads attributes from it")
    if os.path.isdir(f"{root}/{_HUSKY}"):
        yield Executed(f"{root}/{_HUSKY}/{_GENERATED}", "directory", "git runs the hooks in it", generated=True)
    for section, _, key, value in checkout.rows:
        if not value or section in ("include", "includeif"):
            continue
        if (section, key) == ("core", "hookspath"):
            path = join(value, root, home)
            generated = os.path.basename(path) == _GENERATED
            yield Executed(path, "directory", "git runs the hooks in it", generated=generated)
            yield from _hooks(path, places)
        elif key not in _INNOCENT:
            bare = " " in value and (section not in _PROSE or value.startswith("!"))
            for path in _programs(value, root, home, places, bare=bare, elsewhere=elsewhere):
                yield Executed(path, "none", "the configuration of git runs it")


def _hooks(directory: str, places: _Places) -> Iterator[Executed]:
    """Yield where links in a directory of hooks lead to, but for those that claudebox has put aside."""
    try:
        with os.scandir(directory) as entries:
            links = [entry.path for _, entry in zip(range(_MOST_HOOKS), entries, strict=False)
                     if entry.is_symlink() and ASIDE not in entry.name]  # fmt: skip
    except (OSError, ValueError):
        return
    known = set(places.on_way(directory))
    for link in links:
        for path in places.on_way(link):
            if path not in known and os.path.dirname(path) not in known:
                yield Executed(path, "file", "git runs it as a hook")


def _programs(
    value: str, root: str, home: str, places: _Places, *, bare: bool, elsewhere: bool = False
) -> Iterator[str]:
    """Yield the files of a checkout that a command names: `./tools/clean.sh %f`, `!f() { sh release.sh; }; f`.

    A name with a `/` counts even if nothing is there; `elsewhere`, also if the checkout has something else there, and
    one with a `.`. Not all are found: a shell can spell a name in any way.
    """
    if value.replace(" --skip", "") in _KNOWN:  # its arguments are no files: `clean` is none
        return
    command = value.lstrip("!").replace("${HOME}", home).replace("$HOME", home)
    quoted = command.replace('"', "'").split("'")  # may hold blanks
    words = dict.fromkeys((*quoted, *command.translate(_QUOTES).split(), *command.translate(_SHELL).split()))
    for name in [word.lstrip("-") for word in words if word.strip("./ -")][:_MOST_WORDS]:
        path = join(name, root, home)
        is_file, lacks = places.is_kind(path, stat.S_IFREG), places.is_kind(path, 0)
        if (
            (is_file and (bare or "/" in name or "." in name))
            or (lacks and "/" in name)
            or (elsewhere and ("/" in name or "." in name))
        ):
            yield path


_compiled: dict[str, Glob] = {}


def compile_glob(text: str) -> Glob:
    """Return a test for the pattern of one part of a path; it takes linear time for each star."""
    import fnmatch
    import re

    if text not in _compiled:
        plain = re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[\\" else found[1], text)
        # For each bracket that is not closed, fnmatch would search to the end: minutes for a long line of them.
        closed, mark, rest = plain.replace("[^", "[!").rpartition("]")
        _compiled[text] = re.compile(fnmatch.translate(closed + mark + rest.replace("[", "[[]"))).match
    return _compiled[text]


def compile_path(pattern: str) -> list[Glob | None]:
    """Return a test for each part of a path; None stands for any number of parts."""
    return [None if part == "**" else compile_glob(part) for part in pattern.split("/")]


def fits_path(parts: Sequence[str], globs: Sequence[Glob | None]) -> bool:
    """Return whether the parts of a path fit what `compile_path` returned."""
    here, at, retry, star = 0, 0, 0, -1
    while here < len(parts):
        glob = globs[at] if at < len(globs) else None
        if at < len(globs) and glob is None:
            star, retry = at, here
            at += 1
        elif glob is not None and glob(parts[here]):
            here, at = here + 1, at + 1
        elif star >= 0:  # back to the last star, never beyond it
            retry += 1
            here, at = retry, star + 1
        else:
            return False
    return all(glob is None for glob in globs[at:])
