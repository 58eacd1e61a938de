"""Reading git's configuration as git does: syntax, includes, conditions. Git itself is never run in the project."""

from __future__ import annotations

import os

from claudebox.base.files import expand, join, read_small, real_path
from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


Row = tuple[str, str, str, str]  # section, subsection, key, value

_FILE_LIMIT = 1 << 20
_MOST_FILES = 32
_DEPTH = 10
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


class IncludeContext(Value):
    """What conditions of includes are judged by."""

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
        fold = kind == "gitdir/i"
        return any(matches(_whole(pattern), name, fold=fold) for name in context.git_dirs)
    if kind == "onbranch":
        return bool(context.branch) and matches(_whole(pattern), context.branch)
    if kind == "hasconfig" and pattern.startswith("remote.*.url:"):
        return any(matches(pattern.removeprefix("remote.*.url:"), url) for url in context.urls)
    return False


def _whole(pattern: str) -> str:
    return f"{pattern}**" if pattern.endswith("/") else pattern


def matches(pattern: str, text: str, *, fold: bool = False) -> bool:
    """Return whether a pattern of git's matches: `*` stays in one part of a path, `**` does not."""
    import re

    out: list[str] = []
    position = 0
    while position < len(pattern):
        rest = pattern[position:]
        if rest.startswith("**/") and (position == 0 or pattern[position - 1] == "/"):
            out.append("(?:.*/)?")
            position += 3
        elif rest.startswith("**"):
            out.append(".*")
            position += 2
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(rest[0]) or re.escape(rest[0]))
            position += 1
    return re.fullmatch("".join(out), text, (re.IGNORECASE if fold else 0) | re.DOTALL) is not None


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
    """Return the value of a key that counts: the last one."""
    return next((row[3] for row in reversed(rows) if row[:3] == (section, "", key)), "")


def urls(rows: tuple[Row, ...]) -> Iterator[str]:
    """Yield the addresses of remotes."""
    return (value for section, name, key, value in rows if section == "remote" and name and key == "url")


def quote(value: str) -> str:
    """Return a value as it stands in a configuration of git."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
