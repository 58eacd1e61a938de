"""Stashes and notes that were made inside: they come back to no repository, so they stay from session to session."""

from __future__ import annotations

import os

from claudebox.launch import git_copy, git_state

NAMES = _STASH, _NOTES = "refs/stash", "refs/notes"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")
_HEX = frozenset(b"0123456789abcdef")


def find_kept(own: str, before: dict[str, str]) -> dict[str, bytes]:
    """Return those of a git directory of the sandbox's own that differ from what both sides had in common."""
    copier = git_copy.Copier(own, own, None)
    try:
        packed = git_state.parse_refs(os.fsdecode(copier.content("packed-refs", git_copy.LIMIT) or b""))
        found = {name: os.fsencode(value) for name, value in packed.items()}
        found |= dict(copier.contents(_NOTES))
        found |= {_STASH: value} if (value := (copier.content(_STASH) or b"").strip()) else {}
    finally:
        copier.close()
    return {
        name: value
        for name, value in found.items()
        if _is_plain(name, value) and before.get(name) != str(value, "ascii")
    }


def _is_plain(name: str, value: bytes) -> bool:
    ours = name == _STASH or name.startswith(f"{_NOTES}/")
    parts = name.split("/")
    dotted = any(not part or part[0] == "." or part.endswith(".lock") for part in parts)
    return ours and not dotted and _PLAIN.issuperset(name) and _HEX.issuperset(value) and len(value) in (40, 64)


def take_along(own: str, base: dict[str, str], new: str) -> None:
    """Put them into the git directory that replaces this one."""
    kept = find_kept(own, base)
    for name, value in kept.items():
        git_copy.write(f"{new}/{name}", value + b"\n")
    if _STASH in kept:
        copier = git_copy.Copier(own, new, None)
        try:
            copier.files((f"logs/{_STASH}",))  # the older ones stand there
        finally:
            copier.close()


def describe(own: str, base: dict[str, str]) -> list[str]:
    """Return what the user should know at the end."""
    kept = find_kept(own, base)
    notes = ["stashes made inside stay there: `claudebox --exec -- git stash list`"] if kept.pop(_STASH, b"") else []
    return notes + [f"{name.removeprefix('refs/')} made inside stay there" for name in sorted(kept)][:3]
