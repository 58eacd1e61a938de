"""Packages of nixpkgs for a sandbox: built on the host when the user has agreed, and kept for the next (PKG-01).

Only attributes of the package set that the user (or the build of claudebox) chose are evaluated here, never anything of
the project. What was resolved is kept, with a root for the garbage collector, below ~/.claudebox/nix.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

from claudebox.base import console, syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_DIRECTORY, Closing, replace_file
from claudebox.base.state import open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from claudebox.nix.records import Nix, Packages
    from claudebox.settings.records import Policy


_FEATURES = ("--extra-experimental-features", "nix-command flakes")
_UNUSED = 60 * 24 * 3600  # seconds after which packages that were not asked for are left to the garbage collector
_PR_SET_PDEATHSIG = 1


def resolve(policy: Policy, nix: Nix, known: Packages, environ: dict[str, str], state: str) -> tuple[str, ...]:
    """Return the directories of programs of the packages that the policy asks for, in their order."""
    names = tuple(request.name for request in policy.packages)
    console.note(f"resolving packages: {', '.join(names)}")
    built = _build(nix, environ, _open_roots(state, known.key), names)
    failed = [name for name in names if name not in built]
    if failed and known.path is not None:  # for example offline: those of last time are still in the store
        console.warn(f"packages are those of last time: {', '.join(failed)} could not be built; see above")
        return known.path
    if failed and not policy.packages_optional:
        origins = {request.name: request.origin for request in policy.packages}
        first, *more = (f"`{origins[name]}`: package `{name}` could not be built; see above" for name in failed)
        hint = "correct the name, or leave it out; `packages_optional = true` starts without unavailable packages"
        raise ClaudeboxError(first, more=tuple(more), hint=hint)
    directories = tuple(dict.fromkeys(f"{path}/bin" for name in names for path in built.get(name, ())
                                      if os.path.isdir(f"{nix.location.root}{path}/bin")))  # fmt: skip
    if not failed:
        with Closing(os.open(f"{state}/nix/{known.key}", OPEN_DIRECTORY)) as directory:
            replace_file(directory, "paths", os.fsencode("".join(f"{path}\n" for path in directories)))
        _remove_unused(f"{state}/nix")
    for name in failed:
        console.warn(f"package {name} could not be built; it is missing inside")
    for name, paths in built.items():
        if not any(f"{path}/bin" in directories for path in paths):
            console.warn(f"package {name} has no programs")
    return directories


def _build(nix: Nix, environ: dict[str, str], roots: str, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the store paths of each package that could be built."""
    if len(names) > 1:
        found = _run_build(nix, environ, f"{roots}/all", names)
        if len(found) == len(names):
            return dict(zip(names, found, strict=True))
    built = {}
    for index, name in enumerate(names):  # one by one, to know which of them fail
        found = _run_build(nix, environ, f"{roots}/package-{index}", [name])
        if len(found) == 1:
            built[name] = found[0]
    return built


def _run_build(nix: Nix, environ: dict[str, str], link: str, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Run `nix build`, which shows its own progress and errors; return the outputs of each package, or nothing."""
    command = [nix.program, *_FEATURES, "build", "--json", "--out-link", link]
    result = subprocess.run(
        [*command, *(f"{nix.nixpkgs}#{name}" for name in names)], cwd="/", env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, check=False, preexec_fn=_end_with_parent,
    )  # fmt: skip
    return [tuple(row["outputs"].values()) for row in json.loads(result.stdout)] if result.returncode == 0 else []


def _end_with_parent() -> None:
    syscalls.call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def _open_roots(state: str, key: str) -> str:
    with Closing(open_state(state, "nix")) as parent:
        try:
            os.mkdir(key, 0o700, dir_fd=parent)
        except FileExistsError:
            pass
    return f"{state}/nix/{key}"


def _remove_unused(parent: str) -> None:
    """Remove the roots of packages that were not resolved for long."""
    for name in os.listdir(parent):
        path = f"{parent}/{name}"
        if not os.path.islink(path) and os.path.isdir(path) and time.time() - os.stat(path).st_mtime > _UNUSED:
            for entry in os.listdir(path):
                os.unlink(f"{path}/{entry}")
            os.rmdir(path)
