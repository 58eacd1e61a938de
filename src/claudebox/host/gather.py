"""Gathering `Host`: the one place where a launch looks at the machine.

Nothing after this reads the machine again, so that what was shown is what is done; tests build a `Host` by hand.
What only some launches need is looked for, and its module imported, only if it was asked for.
"""

from __future__ import annotations

import os

from claudebox.agent import facts as agent_facts
from claudebox.base import state as base_state
from claudebox.base.files import read_small
from claudebox.base.records import Value
from claudebox.git import facts as git_facts
from claudebox.host import machine, programs, project_search, secret_files, sockets
from claudebox.host import paths as host_paths
from claudebox.host import protected as host_protected
from claudebox.host.paths import Examiner
from claudebox.host.project_search import Found
from claudebox.host.records import (
    Barrier,
    Git,
    Host,
    HostTools,
    KnownPlaces,
    Mounted,
    Network,
    PathFact,
    Project,
    Secrets,
    SocketSearch,
    System,
)
from claudebox.tables.environment import AUTHORITIES, SAME_AUTHORITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.base.state import Instance
    from claudebox.git.config import Row
    from claudebox.git.facts import Repository
    from claudebox.host.installations import Ground
    from claudebox.network.facts import CompanyNetwork
    from claudebox.network.uplink import Candidate
    from claudebox.nix.records import Nix
    from claudebox.settings.records import Policy


_FEW_ENTRIES, _FEW_SECONDS = 5000, 0.1  # of a search for repositories in a mount
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", *AUTHORITIES, *SAME_AUTHORITIES)


class _Start(Value):
    """What every finder needs to know: what was asked for, by whom and where."""

    _unprinted = ("environ",)
    policy: Policy
    environ: dict[str, str]
    home: str
    workdir: PathFact
    path: tuple[str, ...]  # where tools are looked for
    repository: Repository | None  # that the project lies in
    instance: Instance
    examiner: Examiner
    searching: bool  # the project for secrets and sockets


def read_host(policy: Policy, environ: dict[str, str], *, searching: bool = True, state: str = "") -> Host:
    """Look at the machine: nothing is written, and no program of the user is run.

    Without `searching` the project is not searched for secrets and sockets, for commands that start no sandbox in it.
    """
    user, account_home = machine.read_account()
    home = machine.current_home(environ)
    examiner = Examiner()
    workdir = host_paths.find_workdir(examiner, machine.current_directory())
    path = programs.search_path(environ, workdir.real)
    repository = git_facts.find_repository(workdir.real, os.getuid(), home, environ, policy.mounts)
    instance = base_state.locate(home, repository.main if repository else workdir.real, state)
    start = _Start(policy, environ, home, workdir, path, repository, instance, examiner, searching)
    homes = [home] if account_home in ("", home) else [home, account_home]
    places = host_paths.find_places(examiner, home, homes, environ)
    mounted = _find_mounted(start)
    searched = _search(start, places)
    git = _find_git(start, searched)
    nix = _find_nix(start)
    system = machine.find_system(examiner, environ, path, nix.location.store if nix else "")
    project, bound = _find_project(start, git, mounted, places, searched)
    return Host(
        uid=os.getuid(),
        gid=os.getgid(),
        user=user,
        home=home,
        environ=environ,
        workdir=workdir,
        instance=instance,
        session=f"{os.getpid()}-{os.urandom(4).hex()}",
        machine=machine.find_machine(policy, path),
        system=system,
        bwrap=programs.find_bwrap(path),
        places=places,
        project=project,
        mounted=mounted,
        sockets=bound,
        git=git,
        agent=agent_facts.find_agent(policy, environ, home, path, workdir.real, instance),
        network=_find_network(start, git, system),
        tools=_find_tools(start, mounted, places, system),
        secrets=_find_secrets(start),
        nix=nix,
    )


def _find_mounted(start: _Start) -> Mounted:
    requests = start.policy.mounts
    sources = {request.source: start.examiner.fact(request.source) for request in requests}
    destinations = {request.dest: host_paths.find_destination(request.dest) for request in requests}
    writable = [request for request in requests if request.writable]
    if not writable:
        return Mounted(sources, destinations)
    found, protected = git_facts.look(
        start.policy, sources, start.repository, start.home, start.environ, start.instance
    )
    for request in writable:
        root, unsearched = git_facts.find_exposed(request, sources[request.source].real)
        destinations[request.dest] = destinations[request.dest].replace(repository=root, unsearched=unsearched)
    return Mounted(sources, destinations, found, protected)


def _search(start: _Start, places: KnownPlaces) -> Found:
    """Search what is shown of the user's files, and near the top of other writable directories for repositories."""
    tops, opened = _shown(start, places), _opened(start)
    if not tops or not start.searching:
        return Found()
    found = project_search.search(tops, seconds=secret_files.search_time(start.policy))
    own = {f"{row.root}/.git" for row in start.repository.nested} if start.repository is not None else set()
    configs = tuple((f"{path}/config", "mixed") for path in found.repositories if path not in own)
    more = project_search.search(opened, most=_FEW_ENTRIES, seconds=_FEW_SECONDS).repositories if opened else ()
    return found.replace(suspects=(*found.suspects, *configs), repositories=(*found.repositories, *more))


def _shown(start: _Start, places: KnownPlaces) -> tuple[str, ...]:
    """Return the project, and the top of the repository that is read-only around it; nothing if they are refused."""
    tops = host_paths.without_refused((start.workdir, *_above(start)), places)
    return tuple(tops) if start.workdir.real in tops else ()


def _above(start: _Start) -> tuple[PathFact, ...]:
    repository = start.repository
    is_around = repository is not None and repository.root != start.workdir.real
    return (start.examiner.fact(repository.root),) if repository is not None and is_around else ()


def _opened(start: _Start) -> tuple[str, ...]:
    """Return what is mounted writable at its own place."""
    return tuple(row.source for row in start.policy.mounts if row.writable and row.dest == row.source)


def _find_git(start: _Start, searched: Found) -> Git:
    repository, workdir, instance = start.repository, start.workdir.real, start.instance
    return Git(
        user=git_facts.read_user_settings(start.home, start.environ, repository),
        repository=git_facts.with_changes(repository, instance.directory) if repository else None,
        above=next(iter(_above(start)), None),
        nested=git_facts.find_nested(searched.repositories, (workdir, *_opened(start)), instance.directory)
        if start.searching
        else (),
        empty="" if repository else git_facts.empty_name(workdir),
        empty_submodules=tuple(host_protected.find_empty_submodules(workdir, repository, instance)),
    )


def _find_project(
    start: _Start, git: Git, mounted: Mounted, places: KnownPlaces, searched: Found
) -> tuple[Project, SocketSearch]:
    policy, path, instance, repository = start.policy, start.workdir.real, start.instance, git.repository
    mounts = machine.read_mounts()
    found, bound = secret_files.SecretSearch(), SocketSearch()
    if start.searching and (shown := _shown(start, places)):  # otherwise the launch is refused
        beside = (git.above,) if git.above else ()
        stores = (start.examiner.fact(store) for store in git_facts.find_stores(repository))
        sources = host_paths.without_refused((*beside, *mounted.sources.values(), *stores), places)
        committed = git_facts.CommittedContents(repository, git.nested)
        found = secret_files.find_secrets(policy, searched, shown, instance, committed)
        bound = sockets.find_sockets(
            path, sources, mounts, strict=not policy.tier.shared, instance=instance, home=start.home
        )
    protected = host_protected.look_at_project(path, repository, instance, git.nested)
    own_files, pinned = host_protected.find_own_settings(f"{start.home}/.claudebox", path)
    # What is masked must be found again at the same place in the next session.
    masked = (row.path for row in found.files if policy.masks_secrets and not row.committed)
    masks = (*bound.paths, *masked)
    return Project(
        linked=host_paths.find_spelling(start.environ.get("PWD", ""), start.workdir),
        writable=os.access(path, os.W_OK),
        owned=os.stat(path).st_uid == os.getuid(),
        barrier=host_paths.find_barrier(path) if os.getuid() == 0 else Barrier(),
        protected=(*protected, *own_files, *mounted.protected),
        pinned=(
            *pinned,
            *host_paths.pin_above(masks, path),
            *host_protected.pin_own_places(path, repository, git.empty_submodules),
        ),
        submounts=machine.find_submounts(mounts, path),
        worktrees=host_protected.find_worktrees(path, repository, instance),
        secret_files=found.files,
        unsearched=found.unsearched,
        masked_before=found.missing,
    ), bound


def _find_network(start: _Start, git: Git, system: System) -> Network:
    policy = start.policy
    uplinks: tuple[Candidate, ...] = ()
    if policy.tier.uplink:
        from claudebox.network import uplink

        uplinks = uplink.find_uplinks(start.path, policy.uplink)
    model_ports: tuple[int, ...] = ()
    if policy.tier.shared and policy.agent.upstreams:
        from claudebox.broker import facts as broker_facts

        model_ports = broker_facts.find_free_ports(len(policy.agent.upstreams))
    return Network(
        model_ports=model_ports,
        company=read_company_facts(start.environ, start.home, git.user.rows, system.ca_bundle, start.workdir.real),
        resolv_conf=read_small("/etc/resolv.conf", follow=True) or b"",
        etc_hosts=read_small("/etc/hosts", limit=4 << 20, follow=True) or b"" if policy.tier.shared else b"",
        uplinks=uplinks,
    )


def read_company_facts(
    environ: dict[str, str], home: str, rows: tuple[Row, ...], bundle: PathFact | None, workdir: str = ""
) -> CompanyNetwork | None:
    """Return the authorities and proxies that a company's network asks programs to use."""
    if not any(environ.get(name) for name in _CERTIFICATE_VARIABLES) and not any(
        section == "http" for section, *_ in rows
    ):
        return None
    from claudebox.network import facts as network_facts

    return network_facts.read_company(environ, home, rows, bundle.real if bundle is not None else "", workdir)


def _find_tools(start: _Start, mounted: Mounted, places: KnownPlaces, system: System) -> HostTools:
    policy, environ, home, path = start.policy, start.environ, start.home, start.path
    drop = f"{home}/.claudebox/drop"
    found = HostTools(drop=start.examiner.fact(drop) if os.path.isdir(drop) else None)
    programs_asked = any(request.programs for request in policy.mounts)
    asked = policy.toolchains or programs_asked or policy.gpu or policy.devices or policy.browser
    shows_path = not policy.hides_path and not set(programs.find_entries(environ)).issubset(programs.USUAL)
    if not asked and not shows_path:
        return found.replace(outside=tuple(programs.find_outside(environ, home)))
    from claudebox.host import installations

    finder = installations.Finder(_find_ground(start, places, system), start.examiner, environ)
    if asked:
        from claudebox.host import tools

        directories = tuple(tools.find_directories(policy.mounts, mounted.sources))
        for row in directories:
            finder.add_asked(mounted.sources[row.source].real + row.below)
        names = (request.name for request in policy.toolchains)
        toolchains = tuple((name, tools.find_toolchain(name, home, path)) for name in names)
        finder.add_path(place for _, places in toolchains for place in places)
        found = found.replace(program_directories=directories, toolchains=toolchains)
        if policy.gpu or policy.devices:
            found = found.replace(devices=tools.find_devices(policy, environ, path, start.examiner))
        if policy.browser:
            found = found.replace(browsers=tools.find_browsers(home, path, start.examiner))
    if not policy.hides_path:
        finder.add_path(programs.find_entries(environ))
    shown = finder.finish()
    managed = any(entry.endswith("/mise/shims") for entry in shown.path)
    return found.replace(
        programs=shown,
        choices=installations.read_choices(home) if managed else b"",
        outside=tuple(programs.find_outside(environ, home, shown.path, (row.path for row in shown.kept_out))),
    )


def _find_ground(start: _Start, places: KnownPlaces, system: System) -> Ground:
    from claudebox.host.installations import Ground

    policy, home, workdir = start.policy, start.home, start.workdir.real
    visible = [workdir, *system.shown]
    visible += [request.source for request in policy.mounts if not request.writable and request.dest == request.source]
    taken = [f"{home}/{path}" for path, _ in policy.agent.state]
    taken += [f"{home}/.cache"] if policy.caches != "off" else []
    taken += [request.dest for request in policy.mounts if request.writable]
    agents = frozenset((policy.agent.name, "claudebox"))
    return Ground(home, workdir, places, start.instance.state, tuple(visible), tuple(taken), agents)


def _find_nix(start: _Start) -> Nix | None:
    if not machine.has_nix(start.environ):
        return None
    from claudebox.nix import facts as nix_facts

    return nix_facts.read_nix(start.policy, start.environ, home=start.home, path=start.path, workdir=start.workdir.real)


def _find_secrets(start: _Start) -> Secrets:
    policy, environ, home = start.policy, start.environ, start.home
    if not policy.agent.upstreams and not policy.secrets and policy.credential is None:
        return Secrets()
    from claudebox.broker import facts as broker_facts

    models = broker_facts.find_model_logins(policy, environ, home) if policy.agent.upstreams else ()
    if not policy.secrets and policy.credential is None:
        return Secrets(models=models)
    held = broker_facts.find_secrets(policy, environ, home=home, workdir=start.workdir.real)
    login = policy.credential
    git_token = login is not None and broker_facts.available(login.token, login.origin, environ, home=home)
    return Secrets(held, models, git_token, broker_facts.look_for_libraries() if held else ())
