"""The lines of git's configuration that a repository of the agent's may keep: those that git itself writes."""

from __future__ import annotations

import os

from claudebox.files import real_path
from claudebox.tables import git_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_DIGITS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_NOT_IN_A_VALUE = frozenset('"\\#;')
_ADDRESSES = ("url", "pushurl", "remote", "pushremote")


def is_in_git(path: str) -> bool:
    """Return whether a path is a `.git`, or lies in one."""
    lower = path.lower()
    return lower.endswith(".git") or ".git/" in lower


def clean_config(content: bytes, module: str = "", is_hidden: Callable[[str], bool] | None = None) -> bytes:
    """Return the lines of a configuration that git itself writes and that name no program and no other place.

    Not parsed: a line counts only if it is spelled as git spells it. `module` is the git directory of a submodule, the
    only kind that names its checkout. `is_hidden`: an address leads to where the agent could write unseen.
    """
    kept: list[str] = []
    keys: tuple[str, ...] | None = None
    for line in content.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        if line.startswith("["):
            keys = _keys(line)
            kept += [line] if keys is not None else []
            continue
        key, equals, value = line.removeprefix("\t").partition(" = ")
        if not line.startswith("\t") or not equals or not _is_plain(value) or keys is None:
            continue
        if key.lower() in _ADDRESSES and is_hidden is not None and is_hidden(value):
            continue
        if key.lower() in keys or (key == "worktree" and keys is git_keys.PLAIN["core"] and _is_within(module, value)):
            kept.append(line)
    return "".join(f"{line}\n" for line in kept).encode("utf-8", "surrogateescape")


def _keys(header: str) -> tuple[str, ...] | None:
    """Return the keys that a section may have; None for one that is not spelled as git does, or may not be there."""
    section, _, name = header[1:-1].partition(" ")
    quoted = name[:1] == '"' == name[-1:] and len(name) > 2 and _is_plain(name[1:-1])
    if header[-1:] != "]" or (name and not quoted) or not _DIGITS.issuperset(section):
        return None
    return (git_keys.PLAIN_NAMED if name else git_keys.PLAIN).get(section)


def _is_plain(value: str) -> bool:
    return (
        value.isprintable()
        and _NOT_IN_A_VALUE.isdisjoint(value)
        and value[:1] not in ("", "-", "!")
        and "::" not in value
    )


def _is_within(module: str, value: str) -> bool:
    """Return whether a submodule has its checkout beside the repository that it is a submodule of."""
    top, found, _ = module.partition("/.git/")
    place = os.path.normpath(os.path.join(module, value))
    return (
        bool(found) and place.startswith(f"{top}/") and not is_in_git(place[len(top) :]) and real_path(place) == place
    )


def read_addresses(plain: bytes) -> list[str]:
    """Return where the remotes of a configuration lead that `clean_config` has left as it is."""
    found, name = [], ""
    for line in plain.decode("utf-8", "surrogateescape").split("\n"):
        section, _, rest = line.partition(" ")
        key, _, value = line.strip().partition(" = ")
        if line.startswith("["):
            name = rest.strip('"]') if section in ("[remote", "[branch") else ""
        elif name and key.lower() in _ADDRESSES and (key.lower() != "remote" or "/" in value):
            found.append(f"{name} leads to {value}" if key.lower() == "url" else f"{name} {key.lower()} to {value}")
    return found
