"""`Nix`: what claudebox learns about Nix on this machine; part of `Host`."""

from __future__ import annotations

import os

from claudebox import build_paths
from claudebox.facts import nix_daemon, nix_location, programs
from claudebox.facts.nix_model import RELAY_PREFIX, Daemon, Nix
from claudebox.files import real_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import Policy
    from claudebox.facts.nix_model import Location

_PLACES = ("~/.nix-profile/bin", "/nix/var/nix/profiles/default/bin", "/run/current-system/sw/bin", "/usr/bin")


def read_nix(
    policy: Policy, environ: dict[str, str], *, home: str, path: tuple[str, ...], workdir: str, asking: bool
) -> Nix | None:
    """Look at everything; nothing is run that was run before and cannot have changed."""
    where = nix_location.find_nix(environ)
    program = find_program(path, home)
    state = f"{home}/.claudebox"
    answer = b""
    known = Daemon(problem=where.problem or "the program `nix` was not found")
    if program and not where.problem and policy.nix != "off":
        wanted = policy.nix != "auto" or policy.tier.shared  # else the answer would change nothing
        known, answer = nix_daemon.ask(where, program, environ, state, asking=asking and wanted)
    if not os.path.isdir(where.store):
        return None
    reference = policy.nixpkgs or build_paths.NIXPKGS or known.nixpkgs or "nixpkgs"
    nix = Nix(where, program, known, _path(where, program, path), reference, answer=answer)
    if policy.packages:
        from claudebox.facts import nix_packages

        nix = nix.replace(packages=nix_packages.recall(policy, nix, state))
    shells = [name for name in ("flake.nix", "shell.nix") if os.path.lexists(f"{workdir}/{name}")]
    return nix.replace(directory=_relay_directory(environ), shell=shells[0] if shells else "")


def find_program(path: tuple[str, ...], home: str) -> str:
    """Return `nix`: the one that the user's shell would run."""
    if "nix" in build_paths.TOOLS:
        return build_paths.TOOLS["nix"]
    places = (place.replace("~", home, 1) for place in _PLACES)
    found = (f"{directory}/nix" for directory in (*path, *places))
    return next((real_path(program) for program in found if programs.executable(program)), "")


def _path(where: Location, program: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the directories of Nix and comma inside, where these are in the store; baked ones are in PATH anyway."""
    comma = programs.find_tool(",", path)
    directories = (os.path.dirname(where.inside(real_path(tool))) for tool in (program, comma) if tool)
    return tuple(dict.fromkeys(directory for directory in directories if directory))


def _relay_directory(environ: dict[str, str]) -> str:
    """Return where the socket of a relay would be: short, because the name of a socket may not be long."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    short = runtime.startswith("/") and len(runtime) < 40
    own = short and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.getuid()
    return f"{runtime if own else '/tmp'}/{RELAY_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
