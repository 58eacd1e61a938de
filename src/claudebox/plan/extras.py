"""Policy + Host → what profiles add to a sandbox: toolchains, a git credential, state of other agents, Nix.

Off the usual launch path: imported only where a policy asks for one of them.
"""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.plan import environment, git_credential, mount_checks, storage
from claudebox.plan.model import PACKAGES, Fetched, Mount, Provision, Variable
from claudebox.tables.toolchains import TOOLCHAINS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy
    from claudebox.facts.host import Host

_NAMED = 6  # places of a toolchain that a warning names


def plan_extras(policy: Policy, host: Host) -> Provision:
    """Return everything that is added."""
    caches = _caches(policy)
    nix = _nix(policy, host)
    device, own = _devices(policy, host), _wrappers(policy, host)
    path = (*_asked(host), *nix.path, *device.path, *(host.toolchains.path if host.toolchains else ()))
    return nix.replace(
        mounts=(
            *_toolchains(host), *_kept(policy, host), *_credential(policy, host), *device.mounts, *own.mounts,
            *nix.mounts,
        ),
        variables=(
            *_variables(policy, host, caches), *device.variables, *own.variables, *nix.variables,
            *_path(host, path, packages=nix.packages),
        ),
        kept=(*(f"home/{name}" for name in policy.kept_names), *nix.kept),
        warnings=(*_warnings(policy, host), *device.warnings, *own.warnings, *nix.warnings),
        advice=(*device.advice, *nix.advice),
    )  # fmt: skip


def _nix(policy: Policy, host: Host) -> Provision:
    """Return what Nix adds, or refuse what was asked for in vain."""
    if host.nix is not None:
        from claudebox.plan import nix as inside

        return inside.provide(policy, host, host.nix)
    asked = [(policy.nix_origin, "the daemon")] if policy.nix in ("daemon", "relay") else []
    asked += [(policy.devshell, "a dev shell")] if policy.devshell else []
    asked += [(request.origin, f"the package `{request.name}`") for request in policy.packages]
    if asked and not (policy.packages and policy.packages_optional):
        origin, what = asked[0]
        raise ClaudeboxError(
            f"`{origin}`: {what} needs Nix, and there is none on this machine",
            hint="install Nix, or the programs in /usr; see `--toolchain` for those in your home",
        )
    warnings = [f"{origin}: {what} needs Nix, and there is none on this machine" for origin, what in asked]
    return Provision(warnings=tuple(warnings))


def _devices(policy: Policy, host: Host) -> Provision:
    if host.tools.devices is None:
        return Provision()
    from claudebox.plan import devices

    return devices.plan_devices(policy, host, host.tools.devices)


def _wrappers(policy: Policy, host: Host) -> Provision:
    if host.tools.browsers is None:
        return Provision()
    from claudebox.plan import wrappers

    return wrappers.plan_wrappers(policy, host)


def _path(host: Host, directories: tuple[str, ...], *, packages: bool) -> Iterator[Variable]:
    if directories or packages:
        reason = "programs, those that were asked for first; none in a directory that can be written to"
        value = environment.search_path(host, directories)
        own, _, rest = value.partition(":")
        fetched = Fetched(PACKAGES, f"{own}:", rest) if packages else None
        yield Variable("PATH", value, "claudebox", reason, fetched=fetched)


def _asked(host: Host) -> Iterator[str]:
    """Yield the directories of PATH that were asked for, by the names that they have inside."""
    for row in host.tools.program_directories:
        fact = host.sources[row.source]
        yield (fact.real if mount_checks.is_visible(fact, host) else fact.path) + row.below


def _caches(policy: Policy) -> dict[str, str]:
    return {variable: name for request in policy.toolchains for variable, name in TOOLCHAINS[request.name].caches}


def _toolchains(host: Host) -> Iterator[Mount]:
    if host.toolchains is None:
        return
    for name, dest, fact in host.toolchains.programs:
        hidden = mount_checks.hidden_by(fact, host)
        if hidden is not None:
            raise ClaudeboxError(f"toolchain `{name}`: `{dest}` would expose `{hidden.fact.path}` ({hidden.why})")
        if fact.identity in host.home_fact.lineage:
            raise ClaudeboxError(f"toolchain `{name}`: `{dest}` leads to your home")
        if not mount_checks.covers(host.workdir.real, dest):  # a project that is a toolchain is visible already
            yield Mount(
                dest, "ro-bind", f"programs of toolchain {name}", fact.real, pinned=fact.identity, role="toolchain"
            )
    for path in host.toolchains.without:
        yield Mount(path, "empty", "nothing that programs need", role="toolchain")
    for link, target in host.toolchains.links:
        yield Mount(link, "symlink", "leads to a program of a toolchain", target, role="toolchain")


def _kept(policy: Policy, host: Host) -> Iterator[Mount]:
    for name in policy.kept_names:
        reason = "state of the agent in this project"
        yield Mount(f"{host.home}/{name}", "bind", reason, f"{host.instance.directory}/home/{name}", role="state")


def _credential(policy: Policy, host: Host) -> Iterator[Mount]:
    if policy.credential is not None:
        yield from git_credential.plan_mounts(policy.credential, host)


def _variables(policy: Policy, host: Host, caches: dict[str, str]) -> Iterator[Variable]:
    for request in policy.toolchains:
        for variable, place in TOOLCHAINS[request.name].variables:
            yield Variable(variable, f"{host.home}/{place}", "claudebox", f"toolchain {request.name}")
    place = storage.caches_inside(policy, host) or f"{host.home}/.cache"
    for variable, name in caches.items():
        yield Variable(variable, f"{place}/{name}", "claudebox", "where this program keeps its cache")


def _warnings(policy: Policy, host: Host) -> Iterator[str]:
    for request in policy.toolchains:
        places = TOOLCHAINS[request.name].programs
        found = {dest for _, dest, _ in host.toolchains.programs} if host.toolchains is not None else set()
        if not found.intersection(f"{host.home}/{place}" for place in places):
            named = ", ".join(f"~/{place}" for place in places[:_NAMED]) + (", ..." if len(places) > _NAMED else "")
            yield f"{request.origin}: nothing of toolchain {request.name} is in your home (looked for {named})"
    for row in host.tools.program_directories:
        shown = [request.source for request in policy.mounts]
        strays = [path for path in row.strays if not any(mount_checks.covers(place, path) for place in shown)]
        if strays:
            origin = policy.mounts[shown.index(row.source)].origin
            yield f"{origin} {row.source}: programs there are links to {', '.join(strays[:3])}, which is not inside"
    if policy.credential is not None and not host.git_token:
        yield f"{policy.credential.origin}: {policy.credential.token} is not set, git inside cannot log in"
