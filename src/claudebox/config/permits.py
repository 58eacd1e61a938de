"""`permit` of a secret: `METHOD /path`, or a preset with the repository that it is for.

Off the usual launch path: imported only where somebody has such settings.
"""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.tables.permits import PRESETS

_METHOD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
_NEVER = ("CONNECT", "TRACE", "TRACK")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_SEGMENT = _NAME | frozenset("~!$&'()+,=:@%")
_EXAMPLE = "for example `GET /repos/acme/**`, or `github:read acme/shop`"


def read_permit(word: str, origin: str) -> tuple[str, ...]:
    """Return what one element permits, each as `METHOD /path`; or say what is wrong with it."""
    method, _, path = word.partition(" ")
    if ":" in method:
        return _preset(method, path, origin)
    if not path.startswith("/"):
        raise ClaudeboxError(f"`{origin}`: `{word}` in `permit` is not a method and a path", hint=_EXAMPLE)
    if method != "*" and (not method or not set(method) <= _METHOD or method in _NEVER):
        raise ClaudeboxError(f"`{origin}`: `{method}` in `permit` is not a method that can pass", hint=_EXAMPLE)
    *parents, last = path[1:].split("/")
    if "**" in parents:
        raise ClaudeboxError(f"`{origin}`: `{word}`: `**` stands for all that follows, and only at the end")
    for part in (*parents, last or "*"):  # a slash at the end counts
        if part not in ("*", "**") and not _is_plain(part):
            raise ClaudeboxError(
                f"`{origin}`: `{word}`: `{part}` is not a part of a path",
                hint="write it as it is sent, without a query; `*` stands for one whole part, `**` for all that follow",
            )
    return (f"{method} {path}",)


def _is_plain(part: str) -> bool:
    return bool(part) and set(part) <= _SEGMENT and part.strip(".") != ""


def _preset(name: str, repository: str, origin: str) -> tuple[str, ...]:
    if name not in PRESETS:
        raise ClaudeboxError(f"`{origin}`: `permit` has no preset `{name}`", hint=f"there are {', '.join(PRESETS)}")
    rows = PRESETS[name]
    takes = any("{" in row for row in rows)
    owner, slash, rest = repository.partition("/")
    named = slash and all(part and set(part) <= _NAME and part.strip(".") for part in (owner, rest))
    if takes and not named:
        raise ClaudeboxError(f"`{origin}`: `{name}` needs a repository", hint=f"`{name} acme/shop`")
    if repository and not takes:
        raise ClaudeboxError(f"`{origin}`: `{name}` is for all repositories: leave `{repository}` away")
    return tuple(row.format(repository=repository.removesuffix(".git")) for row in rows)
