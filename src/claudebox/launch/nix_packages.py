"""Packages of nixpkgs for a sandbox: resolved on the host before it starts, and found again at the next (PKG-01).

Only attributes of the package set that the person (or the build of claudebox) chose are evaluated here, never
anything of the project. What was resolved is kept with a root for the garbage collector, below ~/.claudebox/nix.
"""

from __future__ import annotations

import os
import time

from claudebox import syscalls
from claudebox.config import nix_references
from claudebox.errors import ClaudeboxError
from claudebox.facts.nix_model import Resolved
from claudebox.files import read_small, replace_file
from claudebox.state import open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy
    from claudebox.facts.nix_model import Nix

_LIFE = 24 * 3600  # seconds for which a package set that can change is taken for the same
_UNUSED = 60 * 24 * 3600  # seconds after which packages that nobody asked for are left to the garbage collector
_FORMAT = "1"


def resolve(policy: Policy, nix: Nix, environ: dict[str, str], state: str) -> Resolved:
    """Return the packages that the policy asks for, built if they are not there."""
    names = tuple(request.name for request in policy.packages)
    key = _key(nix, names)
    known, fresh = _recall(nix, state, key)
    if known is not None and fresh:
        return known
    if policy.showing:
        return Resolved(warnings=(f"packages are resolved at the start: {', '.join(names)}",))
    if not nix.program:
        raise ClaudeboxError(f"`{policy.packages[0].origin}`: packages need the program `nix`, which was not found")
    from claudebox.launch.nix_build import Builder  # noqa: PLC0415 - dear, and only for what is not known yet

    roots = _directory(state, key)
    built, failures = Builder(nix, environ, roots).build(names)
    if failures and known is not None:  # offline, say: what was good yesterday is still there
        reasons = "; ".join(f"{name} {why}" for name, why in failures.items())
        return known.replace(warnings=(f"packages are those of last time: {reasons}",))
    if failures and not policy.packages_optional:
        origins = {request.name: request.origin for request in policy.packages}
        first, *more = (f"`{origins[name]}`: package `{name}` {why}" for name, why in failures.items())
        hint = "correct the name, or leave it out; `packages_optional = true` starts without what cannot be had"
        raise ClaudeboxError(first, more=tuple(more), hint=hint)
    directories = tuple(dict.fromkeys(f"{path}/bin" for name in names for path in built.get(name, ())
                                      if os.path.isdir(f"{nix.location.root}{path}/bin")))  # fmt: skip
    if not failures:
        _remember(state, key, directories)
        _cleanup(state)
    warnings = [f"package {name} {why}; it is missing inside" for name, why in failures.items()]
    empty = [name for name in built if not any(f"{path}/bin" in directories for path in built[name])]
    warnings += [f"package {name} has no programs" for name in empty]
    return Resolved(directories, tuple(warnings))


def _key(nix: Nix, names: tuple[str, ...]) -> str:
    """Return what the packages depend on."""
    words: list[object] = [_FORMAT, os.uname().machine, nix.location.store, nix.nixpkgs, names]
    directory = nix_references.directory(nix.nixpkgs)
    if directory and not nix_references.pinned(nix.nixpkgs):  # a checkout of the person: what shows that it changed
        for name in (".", "flake.nix", "flake.lock", "default.nix", ".git/HEAD", ".git/index"):
            try:
                status = os.stat(f"{directory}/{name}")
                words.append((name, status.st_ino, status.st_mtime_ns))
            except OSError:
                continue
    return syscalls.sha256(repr(words).encode("utf-8", "surrogateescape"))[:32]


def _recall(nix: Nix, state: str, key: str) -> tuple[Resolved | None, bool]:
    """Return what was resolved before, if all of it is still there, and whether it needs no second look."""
    record = f"{state}/nix/{key}/paths"
    content = read_small(record)
    if content is None:
        return None, False
    directories = os.fsdecode(content).split("\n")[:-1]
    if not all(os.path.isdir(f"{nix.location.root}{path}") for path in directories):
        return None, False
    fresh = nix_references.pinned(nix.nixpkgs) or 0 <= time.time() - os.stat(record).st_mtime < _LIFE
    return Resolved(tuple(directories)), fresh


def _directory(state: str, key: str) -> str:
    parent = open_state(state, "nix")
    try:
        os.mkdir(key, 0o700, dir_fd=parent)
    except FileExistsError:
        pass
    finally:
        os.close(parent)
    return f"{state}/nix/{key}"


def _remember(state: str, key: str, directories: tuple[str, ...]) -> None:
    directory = os.open(f"{state}/nix/{key}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        replace_file(directory, "paths", os.fsencode("".join(f"{path}\n" for path in directories)))
    finally:
        os.close(directory)


def _cleanup(state: str) -> None:
    """Give up what was not resolved anew for long; it would be again if somebody asked for it."""
    for old in _unused(f"{state}/nix"):
        for name in os.listdir(old):
            os.unlink(f"{old}/{name}")
        os.rmdir(old)


def _unused(parent: str) -> Iterator[str]:
    for name in os.listdir(parent):
        path = f"{parent}/{name}"
        if not os.path.islink(path) and os.path.isdir(path) and time.time() - os.stat(path).st_mtime > _UNUSED:
            yield path
