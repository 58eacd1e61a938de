"""Packages of nixpkgs for a sandbox: built on the host when the user has agreed, and kept for the next (PKG-01).

Only attributes of the package set that the user (or the build of claudebox) chose are evaluated here, never anything
of the project. What was resolved is kept with a root for the garbage collector, below ~/.claudebox/nix.
"""

from __future__ import annotations

import os
import time

from claudebox import console
from claudebox.errors import ClaudeboxError
from claudebox.facts.nix_model import DAEMON_CACHE
from claudebox.files import OPEN_DIRECTORY, Closing, replace_file
from claudebox.state import open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy
    from claudebox.facts.nix_model import Nix, Packages

_UNUSED = 60 * 24 * 3600  # seconds after which packages that nobody asked for are left to the garbage collector


def resolve(policy: Policy, nix: Nix, known: Packages, environ: dict[str, str], state: str) -> tuple[str, ...]:
    """Return the directories of programs of the packages that the policy asks for, in their order."""
    from claudebox.launch.nix_build import Builder

    names = tuple(request.name for request in policy.packages)
    roots = _directory(state, known.key)
    built, failures = Builder(nix, environ, roots).build(names)
    if failures and known.path is not None:  # offline, for example: what was good yesterday is still there
        reasons = "; ".join(f"{name} {why}" for name, why in failures.items())
        console.warn(f"packages are those of last time: {reasons}")
        return known.path
    if failures and not policy.packages_optional:
        origins = {request.name: request.origin for request in policy.packages}
        first, *more = (f"`{origins[name]}`: package `{name}` {why}" for name, why in failures.items())
        hint = "correct the name, or leave it out; `packages_optional = true` starts without what is unavailable"
        raise ClaudeboxError(first, more=tuple(more), hint=hint)
    directories = tuple(dict.fromkeys(f"{path}/bin" for name in names for path in built.get(name, ())
                                      if os.path.isdir(f"{nix.location.root}{path}/bin")))  # fmt: skip
    if not failures:
        _remember(state, known.key, directories)
        _cleanup(state)
    for name, why in failures.items():
        console.warn(f"package {name} {why}; it is missing inside")
    for name, paths in built.items():
        if not any(f"{path}/bin" in directories for path in paths):
            console.warn(f"package {name} has no programs")
    return directories


def remember_daemon(state: str, answer: bytes) -> None:
    """Keep what the daemon said, so that it need not be asked at each launch."""
    with Closing(open_state(state, "cache")) as directory:
        replace_file(directory, DAEMON_CACHE, answer)


def _directory(state: str, key: str) -> str:
    with Closing(open_state(state, "nix")) as parent:
        try:
            os.mkdir(key, 0o700, dir_fd=parent)
        except FileExistsError:
            pass
    return f"{state}/nix/{key}"


def _remember(state: str, key: str, directories: tuple[str, ...]) -> None:
    with Closing(os.open(f"{state}/nix/{key}", OPEN_DIRECTORY)) as directory:
        replace_file(directory, "paths", os.fsencode("".join(f"{path}\n" for path in directories)))


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
