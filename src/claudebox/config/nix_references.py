"""References to a package set: which are well-formed, which can never mean something else, what a registry says of one.

A few kinds only, of plain characters: they end in commands, in configuration and in JSON.
"""

from __future__ import annotations

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:+~@")
_HEX = frozenset("0123456789abcdef")
_NAME = "nixpkgs"


def well_formed(reference: str) -> bool:
    """Return whether this is a reference that claudebox takes."""
    if not reference or not set(reference) <= _PLAIN or reference.startswith("-") or ".." in reference.split("/"):
        return False
    kind, colon, rest = reference.partition(":")
    if not colon:
        return reference == _NAME
    if kind == "path":
        return rest.startswith("/")
    if kind == "flake":
        return bool(rest) and ":" not in rest and not rest.startswith("/")
    return kind in ("github", "gitlab") and rest.count("/") in (1, 2) and all(rest.split("/")) and ":" not in rest


def pinned(reference: str) -> bool:
    """Return whether it means the same for ever: a path of the store, or a commit."""
    kind, _, rest = reference.partition(":")
    if not well_formed(reference):
        return False
    if kind == "path":
        return rest.startswith("/nix/store/")
    commit = rest.split("/")[2:]
    return kind in ("github", "gitlab") and len(commit) == 1 and len(commit[0]) == 40 and set(commit[0]) <= _HEX


def portable(reference: str) -> bool:
    """Return whether it means the same inside as it does on the host."""
    return pinned(reference) or (well_formed(reference) and reference.startswith(("github:", "gitlab:")))


def directory(reference: str) -> str:
    """Return the directory that a reference names, if it does."""
    return reference.removeprefix("path:") if reference.startswith("path:/") else ""


def registry(reference: str) -> str:
    """Return a registry in which `nixpkgs` is this, if that is known inside, and nothing else."""
    kind, _, rest = reference.partition(":")
    if not portable(reference):
        return '{"version": 2, "flakes": []}\n'
    if kind == "path":
        target = f'"type": "path", "path": "{rest}"'
    else:
        owner, repository, *commit = rest.split("/")
        target = f'"type": "{kind}", "owner": "{owner}", "repo": "{repository}"'
        if commit:
            target += f', "{"rev" if pinned(reference) else "ref"}": "{commit[0]}"'
    return f'{{"version": 2, "flakes": [{{"from": {{"type": "indirect", "id": "{_NAME}"}}, "to": {{{target}}}}}]}}\n'
