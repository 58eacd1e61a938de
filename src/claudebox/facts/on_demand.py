"""Facts that only some launches need, each found by a module that is imported when it is asked for."""

from __future__ import annotations

import os

from claudebox.facts import distro, paths
from claudebox.tables.agent import MCP
from claudebox.tables.inside import AUTHORITIES, SAME_AUTHORITIES
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import Policy, SecretRequest
    from claudebox.facts.browsers import Browsers
    from claudebox.facts.cgroup import ControlGroup
    from claudebox.facts.company import CompanyNetwork
    from claudebox.facts.devices import Devices
    from claudebox.facts.git_config import Row
    from claudebox.facts.git_model import Repository
    from claudebox.facts.model import Guarded, Held, PathFact
    from claudebox.facts.nix_model import Nix
    from claudebox.facts.paths import Destination, Examiner
    from claudebox.facts.toolchains import Found, ProgramDirectory
    from claudebox.facts.uplink import Candidate
    from claudebox.state import Instance

_NAMING = ("SSL_CERT_FILE", "SSL_CERT_DIR", *AUTHORITIES, *SAME_AUTHORITIES)


class ToolFacts(Value):
    """What there is of programs and devices beside those of the system, as far as it was asked for."""

    program_directories: tuple[ProgramDirectory, ...] = ()
    devices: Devices | None = None
    browsers: Browsers | None = None
    containers: tuple[str, ...] = ()  # programs for them, by name
    drop: PathFact | None = None  # the directory for files that the user wants to show


class MountFacts(Value):
    """What there is at mounts that the user asked for."""

    repositories: tuple[Repository, ...] = ()  # writable, and at their own place
    guarded: tuple[Guarded, ...] = ()
    destinations: dict[str, Destination] = {}  # noqa: RUF012 - values are never changed; where something must be


def find_in_mounts(
    policy: Policy,
    sources: dict[str, PathFact],
    workdir: str,
    repository: Repository | None,
    home: str,
    environ: dict[str, str],
    instance: Instance,
) -> MountFacts:
    """Look at what is mounted besides the project, which has this repository."""
    if not policy.mounts:
        return MountFacts()
    dests = [request.dest for request in policy.mounts]
    destinations = paths.look_in(dests, (workdir, "/opt", "/etc", *dests))
    writable = [request for request in policy.mounts if request.writable]
    if not writable:
        return MountFacts(destinations=destinations)
    from claudebox.facts import git_mounts

    found, guarded = git_mounts.look(policy, sources, repository, home, environ, instance)
    for request in writable:
        root, unsearched = git_mounts.find_exposed(request, sources[request.source].real)
        found_there = destinations.get(request.dest) or paths.destination(request.dest, {})
        destinations[request.dest] = found_there.replace(repository=root, unsearched=unsearched)
    return MountFacts(found, guarded, destinations)


def find_own_files(state: str, workdir: str) -> tuple[tuple[Guarded, ...], tuple[Held, ...]]:
    """Look for settings of the user in the project; only links can lead there, and profiles may be such."""
    names = ("config.toml", "CLAUDE.md", "profiles")
    if not any(os.path.islink(f"{state}/{name}") for name in names) and not os.path.isdir(f"{state}/profiles"):
        return (), ()
    from claudebox.facts import dotfiles

    return dotfiles.find_own_settings(state, workdir)


def read_toolchains(policy: Policy, home: str, path: tuple[str, ...], examiner: Examiner) -> Found | None:
    """Return the toolchains that were asked for."""
    if not policy.toolchains:
        return None
    from claudebox.facts import toolchains

    return toolchains.find_toolchains((request.name for request in policy.toolchains), home, path, examiner)


def find_tools(
    policy: Policy,
    environ: dict[str, str],
    home: str,
    path: tuple[str, ...],
    sources: dict[str, PathFact],
    examiner: Examiner,
) -> ToolFacts:
    """Look for what was asked for, each by a module of its own."""
    found = ToolFacts(containers=distro.containers())
    drop = f"{home}/.claudebox/drop"
    if os.path.isdir(drop):
        found = found.replace(drop=examiner.fact(drop))
    if any(request.programs for request in policy.mounts):
        from claudebox.facts import toolchains

        found = found.replace(program_directories=tuple(toolchains.find_directories(policy.mounts, sources)))
    if policy.gpu or policy.devices:
        from claudebox.facts import devices

        found = found.replace(devices=devices.find_devices(policy, environ, path, examiner))
    if policy.browser:
        from claudebox.facts import browsers

        found = found.replace(browsers=browsers.find_browsers(home, path, examiner))
    return found


def read_nix(
    policy: Policy, environ: dict[str, str], home: str, path: tuple[str, ...], workdir: str, *, asking: bool
) -> Nix | None:
    """Return what there is of Nix."""
    if not distro.has_nix(environ):
        return None
    from claudebox.facts import nix as facts

    return facts.read_nix(policy, environ, home=home, path=path, workdir=workdir, asking=asking)


def find_secrets(
    policy: Policy, environ: dict[str, str], home: str, workdir: str
) -> tuple[tuple[SecretRequest, ...], bool]:
    """Return the secrets for the broker, and whether there is a token for git inside."""
    if not policy.secrets and policy.credential is None:
        return (), False
    from claudebox.facts import secret_sources

    held, login = secret_sources.find_secrets(policy, environ, home=home, workdir=workdir), policy.credential
    return held, login is not None and secret_sources.available(login.token, login.origin, environ, home=home)


def find_inherited(policy: Policy, home: str) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """Return what comes along with settings of the host's client, kind and name, and a file with its MCP servers."""
    if not policy.inherit and not policy.shared_home:
        return (), b""
    from claudebox.facts import client_settings

    found = client_settings.find_inherited(policy, home)
    if not any(request.name == MCP for request in policy.inherit):
        return found, b""
    servers, told = client_settings.find_servers(home)
    return (*found, *told), servers


def read_company(
    environ: dict[str, str], home: str, rows: tuple[Row, ...], bundle: PathFact | None, workdir: str = ""
) -> CompanyNetwork | None:
    """Return what a company's network asks of programs."""
    if not any(environ.get(name) for name in _NAMING) and not any(section == "http" for section, *_ in rows):
        return None
    from claudebox.facts import company

    return company.read_company(environ, home, rows, bundle.real if bundle is not None else "", workdir)


def find_control_group(policy: Policy, path: tuple[str, ...]) -> ControlGroup | None:
    """Return how a limit of memory or processors could be enforced, where one is asked for."""
    wanted = policy.limits.controllers(os.getuid()) if policy.limits is not None else ()
    if not wanted:
        return None
    from claudebox.facts import cgroup

    return cgroup.find_group(os.getuid(), path, wanted)


def find_uplinks(policy: Policy, path: tuple[str, ...]) -> tuple[Candidate, ...]:
    """Return the programs that could carry packets."""
    if not policy.tier.uplink:
        return ()
    from claudebox.facts import uplink

    return uplink.find_uplinks(path, policy.uplink)
