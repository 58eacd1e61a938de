"""Policy + Host → what profiles add to a sandbox: toolchains, a git credential, state of other agents.

Off the usual launch path: imported only where a policy asks for one of them.
"""

from __future__ import annotations

from claudebox import credential, environment, exposure
from claudebox.errors import ClaudeboxError
from claudebox.model import Mount, Provision, Variable
from claudebox.toolchains import TOOLCHAINS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host import Host
    from claudebox.model import Policy


def make(policy: Policy, host: Host) -> Provision:
    """Return everything that is added."""
    caches = _caches(policy)
    return Provision(
        mounts=(*_toolchains(host), *_kept(policy, host), *_cache_mounts(caches, host), *_credential(policy, host)),
        variables=tuple(_variables(policy, host, caches)),
        kept=(*(f"home/{name}" for name in policy.kept_names), *(f"caches/{name}" for name in caches.values())),
        warnings=tuple(_warnings(policy, host)),
    )


def _caches(policy: Policy) -> dict[str, str]:
    return {variable: name for request in policy.toolchains for variable, name in TOOLCHAINS[request.name].caches}


def _inside(name: str, host: Host) -> str:
    return f"{host.home}/.cache/claudebox/{name}"


def _toolchains(host: Host) -> Iterator[Mount]:
    if host.toolchains is None:
        return
    for name, dest, fact in host.toolchains.programs:
        hidden = exposure.hidden_by(fact, host)
        if hidden is not None:
            raise ClaudeboxError(f"toolchain `{name}`: `{dest}` would expose `{hidden.fact.path}` ({hidden.why})")
        if fact.identity in host.home_fact.lineage:
            raise ClaudeboxError(f"toolchain `{name}`: `{dest}` leads to your home")
        if not exposure.covers(host.workdir.real, dest):  # a project that is a toolchain is visible already
            yield Mount(dest, "ro-bind", f"programs of toolchain {name}", fact.real, pinned=fact.identity)
    for link, target in host.toolchains.links:
        yield Mount(link, "symlink", "leads to a program of a toolchain", target)


def _kept(policy: Policy, host: Host) -> Iterator[Mount]:
    for name in policy.kept_names:
        reason = "state of the agent in this project"
        yield Mount(f"{host.home}/{name}", "bind", reason, f"{host.instance.directory}/home/{name}")


def _cache_mounts(caches: dict[str, str], host: Host) -> Iterator[Mount]:
    for variable, name in caches.items():
        reason = f"private to this project, for {variable}"
        yield Mount(_inside(name, host), "bind", reason, f"{host.instance.directory}/caches/{name}")


def _credential(policy: Policy, host: Host) -> Iterator[Mount]:
    if policy.credential is not None:
        yield from credential.plan_mounts(policy.credential, host.token)


def _variables(policy: Policy, host: Host, caches: dict[str, str]) -> Iterator[Variable]:
    for request in policy.toolchains:
        for variable, place in TOOLCHAINS[request.name].variables:
            yield Variable(variable, f"{host.home}/{place}", "claudebox", f"toolchain {request.name}")
    for variable, name in caches.items():
        yield Variable(variable, _inside(name, host), "claudebox", "private to this project")
    if host.toolchains is not None and host.toolchains.path:
        reason = "programs, those of the toolchains first; none in a directory that can be written to"
        yield Variable("PATH", environment.search_path(host, host.toolchains.path), "claudebox", reason)


def _warnings(policy: Policy, host: Host) -> Iterator[str]:
    for request in policy.toolchains:
        if host.toolchains is not None and all(name != request.name for name, _, _ in host.toolchains.programs):
            places = ", ".join(f"~/{place}" for place in TOOLCHAINS[request.name].programs)
            yield f"{request.origin}: nothing of toolchain {request.name} is in your home (looked for {places})"
    if policy.credential is not None and not host.token:
        yield f"{policy.credential.origin}: {policy.credential.token} is not set, git inside cannot log in"
    if policy.packages:
        names = ", ".join(request.name for request in policy.packages)
        if not host.store:
            raise ClaudeboxError(
                f"`{policy.packages[0].origin}`: packages ({names}) need Nix, and there is none on this machine",
                hint="install Nix, or the programs in /usr; see `--toolchain` for those in your home",
            )
        yield f"packages are not brought in by this version: {names}"
