"""Policy + facts → what of Nix is inside: store, socket, configuration, comma's picker, packages, and what to tell."""

from __future__ import annotations

import os

from claudebox import build_paths
from claudebox.config import nix_references
from claudebox.errors import ClaudeboxError
from claudebox.plan import nix_access, nix_devshell, storage
from claudebox.plan.model import Mount, NixAccess, NixRelay, Provision, Variable
from claudebox.tables import agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy
    from claudebox.facts.host import Host
    from claudebox.facts.nix_model import Nix

SOCKET_DIRECTORY = "/nix/var/nix/daemon-socket"
REGISTRY = "/run/claudebox/nix-registry.json"
PICKER = f"{agent.CLIENT_DIRECTORY}/comma-pick"
# Comma asks by a program on the terminal which of several packages is meant, and without one it gives up in silence.
# It hands the names over on standard input, the likeliest first; all of them must be read.
_PICKER = b"""\
#!/bin/sh
IFS= read -r first || exit 1
while IFS= read -r _; do :; done
printf '%s\\n' "$first"
"""
_CACHE = "nix-cache"  # of the instance: a cache of the host's would be believed by the host (facts of Nix's design)


def provide(policy: Policy, host: Host, nix: Nix) -> Provision:
    """Return everything of Nix for this sandbox."""
    decision = nix_access.decide_access(policy, nix)
    relay = _relay(host, nix) if decision.kind == "relay" else None
    shell = nix_devshell.plan(policy, nix, decision) if policy.devshell else None
    known = nix.packages.path if nix.packages is not None and nix.packages.fresh else None
    fetched = nix.packages is not None and known is None
    if fetched and not nix.program:
        raise ClaudeboxError(f"`{policy.packages[0].origin}`: packages need the program `nix`, which was not found")
    names = ", ".join(request.name for request in policy.packages)
    return Provision(
        mounts=(*_mounts(policy, host, nix, decision), *(shell.mounts if shell else ())),
        variables=tuple(_variables(policy, nix, decision)),
        kept=(_CACHE,) if decision.kind != "off" and _own_cache(policy, host) else (),
        warnings=decision.warnings + ((f"packages are resolved at the start: {names}",) if fetched else ()),
        path=(*(known or ()), *nix.path),
        packages=fetched,
        advice=tuple(_advice(policy, decision)),
        nix=decision,
        relay=relay,
        prefix=shell.prefix if shell else (),
    )


def _mounts(policy: Policy, host: Host, nix: Nix, decision: NixAccess) -> Iterator[Mount]:
    for dest in ("/nix", "/nix/var", "/nix/var/nix"):
        yield Mount(dest, "dir", "skeleton of Nix")
    if decision.kind == "off":
        return
    if decision.kind == "relay":
        yield Mount(SOCKET_DIRECTORY, "ro-bind", "a relay to the Nix daemon, of this session alone", nix.directory)
    else:  # the directory, because a daemon that starts anew makes a new socket
        source = os.path.dirname(nix.location.socket)
        yield Mount(SOCKET_DIRECTORY, "ro-bind", "the socket of the Nix daemon", source)
    if _registry(policy, nix):
        text = nix_references.registry(nix.nixpkgs).encode()
        yield Mount(REGISTRY, "file", "what `nixpkgs` means", content=text, mode=0o644)
    yield Mount(PICKER, "file", "answers comma where nobody can", content=_PICKER, mode=0o755)
    cache = f"{host.home}/.cache/nix"
    if _own_cache(policy, host):
        source = f"{host.instance.directory}/{_CACHE}"
        yield Mount(cache, "bind", "Nix's cache, private to this project", source, role="state")


def _own_cache(policy: Policy, host: Host) -> bool:
    """Return whether Nix's cache is a mount of its own: in ~/.cache, where that is kept, it needs none."""
    return storage.caches_inside(policy, host) != f"{host.home}/.cache"


def _registry(policy: Policy, nix: Nix) -> bool:
    """Return whether names are known beforehand; the registry of the world is a download."""
    return nix_references.portable(nix.nixpkgs) or policy.tier.isolated


def _variables(policy: Policy, nix: Nix, decision: NixAccess) -> Iterator[Variable]:
    # Without it Nix would take the directories above for a store of its own, and fail in a way that tells nobody why.
    name = os.path.basename(nix.location.socket) if decision.kind == "daemon" else "socket"
    remote = "daemon" if name == "socket" else f"unix://{SOCKET_DIRECTORY}/{name}"
    yield Variable("NIX_REMOTE", remote, "claudebox", "Nix builds by its daemon")
    lines = ["experimental-features = nix-command flakes"]
    if _registry(policy, nix) and decision.kind != "off":
        lines.append(f"flake-registry = {REGISTRY}")
    if not policy.tier.routed:
        # With nothing but loopback Nix would tell the daemon to download nothing, and build the world from source.
        lines.append("substitute = true")
    reason = "the sandbox's own configuration of Nix; the host's has tokens in it"
    yield Variable("NIX_CONFIG", "\n".join(lines), "claudebox", reason)
    if decision.kind == "off":
        return
    tree = nix_references.directory(nix.nixpkgs)
    if tree.startswith("/nix/store/"):
        yield Variable("NIX_PATH", f"nixpkgs={tree}", "claudebox", "what <nixpkgs> means")
    yield Variable("COMMA_PICKER", PICKER, "claudebox", "comma cannot ask without a terminal")
    if build_paths.NIX_INDEX_DATABASE:
        yield Variable(
            "NIX_INDEX_DATABASE", build_paths.NIX_INDEX_DATABASE, "claudebox", "where comma looks programs up"
        )


def _relay(host: Host, nix: Nix) -> NixRelay:
    if not nix.program:
        raise ClaudeboxError("the program `nix` was not found")
    where = nix.location
    needed = (where.store, os.path.dirname(where.socket))
    return NixRelay(nix.directory, nix.program, where.remote, host.bwrap.path, host.home, needed)


def _advice(policy: Policy, decision: NixAccess) -> Iterator[str]:
    if policy.packages:
        yield f"Packages of nixpkgs that are on PATH: {', '.join(request.name for request in policy.packages)}."
    if decision.kind == "off":
        yield (
            "Nix cannot build or download inside: its daemon is out of reach on purpose. If a task needs a program, "
            f"say which (`claudebox --package NAME`). The reason: {decision.why}."
        )
        return
    yield (
        "Nix works inside, without asking: `nix shell nixpkgs#NAME -c COMMAND` for a program that is missing (or "
        "`, COMMAND` where comma is installed), `nix build`, `nix develop`. What it adds to /nix/store is there at "
        "once and stays on the machine."
    )
    if decision.kind == "relay":
        yield "The daemon takes you for an ordinary user: options that only trusted users may set are ignored."
