"""`Host`: everything that claudebox learns about this machine, gathered once through one door.

Nothing after this reads the machine again, so that what was shown is what is done; tests build a `Host` by hand.
"""

from __future__ import annotations

import os

from claudebox.agent import facts as agent_facts
from claudebox.agent.claude import MCP
from claudebox.base import state as base_state
from claudebox.base import syscalls
from claudebox.base.files import read_small
from claudebox.base.records import Value
from claudebox.broker import facts as broker_facts
from claudebox.git import facts as git_facts
from claudebox.git import nested as git_nested
from claudebox.host import bubblewrap, machine, programs, secret_files, sockets
from claudebox.host import paths as host_paths
from claudebox.host import protected as host_protected
from claudebox.host import records as host_records
from claudebox.host.machine import _account, current_directory, current_home
from claudebox.host.paths import Examiner
from claudebox.host.records import Guarded, Held, Hidden, Leak, PathFact, Submount
from claudebox.tables import paths as tables_paths
from claudebox.tables.environment import AUTHORITIES, SAME_AUTHORITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.base.errors import ClaudeboxError
    from claudebox.base.state import Instance
    from claudebox.git.config import Row
    from claudebox.git.facts import Nested, Repository
    from claudebox.host.machine import ControlGroup
    from claudebox.host.records import Destination, EmptySubmodule
    from claudebox.host.tools import Browsers, Devices, Found, ProgramDirectory
    from claudebox.network.facts import CompanyNetwork
    from claudebox.network.uplink import Candidate
    from claudebox.nix.records import Nix
    from claudebox.settings.records import Policy, SecretRequest


# Facts that only some launches need, each found by a module that is imported when it is asked for.


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
    destinations = host_paths.look_in(dests, (workdir, "/opt", "/etc", *dests))
    writable = [request for request in policy.mounts if request.writable]
    if not writable:
        return MountFacts(destinations=destinations)

    found, guarded = git_facts.look(policy, sources, repository, home, environ, instance)
    for request in writable:
        root, unsearched = git_facts.find_exposed(request, sources[request.source].real)
        found_there = destinations.get(request.dest) or host_paths.destination(request.dest, {})
        destinations[request.dest] = found_there.replace(repository=root, unsearched=unsearched)
    return MountFacts(found, guarded, destinations)


def find_own_files(state: str, workdir: str) -> tuple[tuple[Guarded, ...], tuple[Held, ...]]:
    """Look for settings of the user in the project; only links can lead there, and profiles may be such."""
    names = ("config.toml", "CLAUDE.md", "profiles")
    if not any(os.path.islink(f"{state}/{name}") for name in names) and not os.path.isdir(f"{state}/profiles"):
        return (), ()

    return host_protected.find_own_settings(state, workdir)


def read_toolchains(policy: Policy, home: str, path: tuple[str, ...], examiner: Examiner) -> Found | None:
    """Return the toolchains that were asked for."""
    if not policy.toolchains:
        return None
    from claudebox.host import tools as host_tools

    return host_tools.find_toolchains((request.name for request in policy.toolchains), home, path, examiner)


def find_tools(
    policy: Policy,
    environ: dict[str, str],
    home: str,
    path: tuple[str, ...],
    sources: dict[str, PathFact],
    examiner: Examiner,
) -> ToolFacts:
    """Look for what was asked for, each by a module of its own."""
    found = ToolFacts(containers=machine.containers())
    drop = f"{home}/.claudebox/drop"
    if os.path.isdir(drop):
        found = found.replace(drop=examiner.fact(drop))
    if any(request.programs for request in policy.mounts):
        from claudebox.host import tools as host_tools

        found = found.replace(program_directories=tuple(host_tools.find_directories(policy.mounts, sources)))
    if policy.gpu or policy.devices:
        from claudebox.host import tools as host_tools

        found = found.replace(devices=host_tools.find_devices(policy, environ, path, examiner))
    if policy.browser:
        from claudebox.host import tools as host_tools

        found = found.replace(browsers=host_tools.find_browsers(home, path, examiner))
    return found


def read_nix(
    policy: Policy, environ: dict[str, str], home: str, path: tuple[str, ...], workdir: str, *, asking: bool
) -> Nix | None:
    """Return what there is of Nix."""
    if not machine.has_nix(environ):
        return None
    from claudebox.nix import facts as nix_facts

    return nix_facts.read_nix(policy, environ, home=home, path=path, workdir=workdir, asking=asking)


def find_secrets(
    policy: Policy, environ: dict[str, str], home: str, workdir: str
) -> tuple[tuple[SecretRequest, ...], bool]:
    """Return the secrets for the broker, and whether there is a token for git inside."""
    if not policy.secrets and policy.credential is None:
        return (), False

    held, login = broker_facts.find_secrets(policy, environ, home=home, workdir=workdir), policy.credential
    return held, login is not None and broker_facts.available(login.token, login.origin, environ, home=home)


def find_inherited_settings(policy: Policy, home: str) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """Return what comes along with settings of the host's client, kind and name, and a file with its MCP servers."""
    if not policy.inherit and not policy.shared_home:
        return (), b""

    found = agent_facts.find_inherited(policy, home)
    if not any(request.name == MCP for request in policy.inherit):
        return found, b""
    servers, told = agent_facts.find_servers(home)
    return (*found, *told), servers


def read_company_facts(
    environ: dict[str, str], home: str, rows: tuple[Row, ...], bundle: PathFact | None, workdir: str = ""
) -> CompanyNetwork | None:
    """Return what a company's network asks of programs."""
    if not any(environ.get(name) for name in _NAMING) and not any(section == "http" for section, *_ in rows):
        return None
    from claudebox.network import facts as network_facts

    return network_facts.read_company(environ, home, rows, bundle.real if bundle is not None else "", workdir)


def find_control_group(policy: Policy, path: tuple[str, ...]) -> ControlGroup | None:
    """Return how a limit of memory or processors could be enforced, where one is asked for."""
    wanted = policy.limits.controllers(os.getuid()) if policy.limits is not None else ()
    if not wanted:
        return None

    return machine.find_group(os.getuid(), path, wanted)


def find_uplinks(policy: Policy, path: tuple[str, ...]) -> tuple[Candidate, ...]:
    """Return the programs that could carry packets."""
    if not policy.tier.uplink:
        return ()
    from claudebox.network import uplink

    return uplink.find_uplinks(path, policy.uplink)


class Host(Value):
    """The facts."""

    _unprinted = ("environ",)
    uid: int
    gid: int
    user: str
    home: str
    workdir: PathFact
    environ: dict[str, str]
    machine: str = "x86_64"
    memory: int = 8 << 30
    bwrap: host_records.Bubblewrap = host_records.Bubblewrap()
    landlock: int = 0
    cgroup_namespace: bool = True
    hostname: bool = True  # the sandbox can have a name of its own
    terminal: bool = False  # standard input and output are terminals
    home_fact: PathFact = PathFact("", "")
    hidden: tuple[Hidden, ...] = ()
    not_projects: tuple[PathFact, ...] = ()
    not_beneath: tuple[PathFact, ...] = ()
    beneath_after_all: tuple[PathFact, ...] = ()
    usr: bool = True  # an ordinary /usr, as opposed to NixOS
    roots: tuple[tuple[str, str], ...] = ()  # /bin and its like: the link's target, or nothing for a directory
    opt: bool = False
    etc: tuple[tuple[str, str, str], ...] = ()  # path, where it really is, reason
    masked: tuple[tuple[str, str], ...] = ()
    kernel_settings: tuple[str, ...] = ()  # parts of /proc that this user could write
    store: str = ""  # where what is called /nix/store lies
    store_path: tuple[str, ...] = ()
    store_links: tuple[tuple[str, str], ...] = ()  # /bin/sh and its like, on a machine without /usr
    ca_bundle: PathFact | None = None
    company: CompanyNetwork | None = None  # authorities and proxies that were named for single programs
    resolv_conf: bytes = b""
    etc_hosts: bytes = b""  # read in tier `full` only
    pager: bool = False  # the one that the user prefers is a program of the system
    linked: str = ""  # the working directory as the user's shell spells it, through a link
    uplinks: tuple[Candidate, ...] = ()  # looked for in tier `inet` only
    control_group: ControlGroup | None = None  # looked for where a limit needs one
    bash: bool = True
    ignored_signals: frozenset[int] = frozenset()
    git_user: git_facts.UserSettings = git_facts.UserSettings()
    repository: Repository | None = None
    above: PathFact | None = None  # where the repository starts, if that is not the project
    more_repositories: tuple[Repository, ...] = ()  # in what is mounted writable besides
    empty_git: str = ""  # the name of what is kept for a project that is no repository, where one can be made
    empty_submodules: tuple[EmptySubmodule, ...] = ()  # that are not initialised
    worktrees: PathFact | None = None  # where the client makes worktrees, if that can be writable
    sockets: tuple[str, ...] = ()  # in the project and in what is mounted besides
    sockets_note: str = ""  # what was not searched for them
    sockets_elsewhere: tuple[str, ...] = ()  # those that were searched for and are not there
    submounts: tuple[Submount, ...] = ()  # of the host, below the project
    writable: bool = True  # the project, for this user
    owned: bool = True  # the project, by this user
    only_read: bool = False  # the project, in this launch, whoever the user is
    barrier: host_records.Barrier = host_records.Barrier()  # in the way of root
    guarded: tuple[Guarded, ...] = ()
    nested: tuple[Nested, ...] = ()  # repositories of the user's below the project
    leaks: tuple[Leak, ...] = ()  # files of the project that hold secrets
    leaks_note: str = ""  # how far was searched, if not everywhere
    held: tuple[Held, ...] = ()
    client: agent_facts.Client | None = None
    client_problem: ClaudeboxError | None = None
    sources: dict[str, PathFact] = {}  # noqa: RUF012 - values are never changed
    destinations: dict[str, host_records.Destination] = {}  # noqa: RUF012 - where something must be already
    instance: base_state.Instance = base_state.Instance("", "", "")
    session: str = "session"  # a name that no other session of the project has
    login: agent_facts.Login = agent_facts.Login()
    claude_parts: tuple[tuple[str, str, bool], ...] = ()  # entries of the host's ~/.claude: name, place, directory?
    inherited: tuple[tuple[str, str], ...] = ()  # what comes along with its settings: kind and name
    mcp_servers: bytes = b""  # of the user's own configuration, for the client inside
    managed: tuple[tuple[str, str], ...] = ()  # entries of /etc/claude-code and where they really are
    memory_files: tuple[bytes, ...] = ()  # texts for the agent: the administrator's, the user's
    toolchains: Found | None = None
    tools: ToolFacts = ToolFacts()
    nix: Nix | None = None
    git_token: bool = False  # there is one for git inside
    held_secrets: tuple[SecretRequest, ...] = ()  # without their values
    libraries: tuple[str, ...] | ClaudeboxError = ()  # where the broker's are, looked for where there is one

    @property
    def credential(self) -> str:
        """Return which credential for the model this machine has."""
        return agent_facts.find_credential(self.environ, self.login)


def read_host(
    policy: Policy, environ: dict[str, str], *, asking: bool = True, searching: bool = True, state: str = ""
) -> Host:
    """Look at the machine; `asking` permits to run `nix` for what its daemon would do, and nothing is ever written.

    Without `searching` nothing is known of secrets and sockets in the project: for what starts no sandbox in it.
    """
    uid = os.getuid()
    user, account_home = _account()
    home = current_home(environ)
    examiner = Examiner()
    workdir = host_paths.find_workdir(examiner, current_directory())
    path = programs.search_path(environ, workdir.real)
    client, client_problem = agent_facts.look_for_client(home, path, workdir.real, policy.client)
    repository = git_facts.find_repository(workdir.real, uid, home, environ, policy.mounts)
    instance = base_state.locate(home, repository.main if repository else workdir.real, state)
    above = examiner.fact(repository.root) if repository and repository.root != workdir.real else None
    empty_submodules = tuple(host_protected.find_empty_submodules(workdir.real, repository, instance))
    opened = (request.source for request in policy.mounts if request.writable and request.dest == request.source)
    nested = git_nested.find_nested((workdir.real, *opened), instance.directory) if searching else ()
    sources = {request.source: examiner.fact(request.source) for request in policy.mounts}
    mounted = find_in_mounts(policy, sources, workdir.real, repository, home, environ, instance)
    own_files, held = find_own_files(f"{home}/.claudebox", workdir.real)
    usr = os.path.isdir("/usr/lib") and os.path.exists("/usr/bin/sh")
    nix = read_nix(policy, environ, home, path, workdir.real, asking=asking)
    store = nix.location.store if nix else ""
    homes = [home] if account_home in ("", home) else [home, account_home]
    secrets, git_token = find_secrets(policy, environ, home, workdir.real)
    found = agent_facts.find_login(home, instance)
    login, libraries = broker_facts.for_broker(policy, environ, found, certificates=bool(secrets))
    inherited, servers = find_inherited_settings(policy, home)
    home_fact = examiner.fact(home)
    not_beneath = host_paths.present(examiner, tables_paths.NOT_A_PROJECT_BENEATH)
    excepted = host_paths.present(examiner, tables_paths.BENEATH_AFTER_ALL)
    mounts = machine.read_mounts()
    leaks: tuple[Leak, ...] = ()
    leaks_note, bound = "", host_records.SocketSearch()
    beside = (above,) if above else ()
    if searching and host_paths.searchable((workdir,), home_fact, not_beneath, excepted):  # it is refused otherwise
        stores = (examiner.fact(store) for store in git_facts.find_stores(repository))
        searched = host_paths.searchable((*beside, *sources.values(), *stores), home_fact, not_beneath, excepted)
        shown = host_paths.searchable((workdir, *beside), home_fact, not_beneath, excepted)
        leaks, leaks_note = secret_files.leaks(policy, tuple(shown), instance)
        bound = sockets.find_sockets(
            workdir.real, searched, mounts, strict=not policy.tier.shared, instance=instance, home=home
        )
    ca_bundle = machine.ca_bundle(examiner)
    git_user = git_facts.read_user_settings(home, environ, repository)
    return Host(
        uid=uid,
        gid=os.getgid(),
        user=user,
        home=home,
        workdir=workdir,
        environ=environ,
        machine=os.uname().machine,
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        bwrap=bubblewrap.find_bwrap(path),
        landlock=syscalls.landlock_abi(),
        cgroup_namespace=os.path.exists("/proc/self/ns/cgroup"),
        hostname=bubblewrap.can_name_sandbox(),
        terminal=os.isatty(0) and os.isatty(1),
        home_fact=home_fact,
        hidden=host_paths.hidden(examiner, homes, environ),
        not_projects=host_paths.not_projects(examiner, homes),
        not_beneath=not_beneath,
        beneath_after_all=excepted,
        usr=usr,
        roots=machine.roots() if usr else (),
        opt=usr and os.path.isdir("/opt"),
        etc=machine.etc(examiner),
        masked=tuple(row for row in tables_paths.MASKED if os.path.isfile(row[0])),
        kernel_settings=tuple(path for path in tables_paths.KERNEL_SETTINGS if uid == 0 and os.path.exists(path)),
        store=store,
        store_path=machine.store_path(path, usr=usr) if store else (),
        store_links=machine.store_links(path) if store and not usr else (),
        ca_bundle=ca_bundle,
        company=read_company_facts(environ, home, git_user.rows, ca_bundle, workdir.real),
        resolv_conf=machine.read_resolv_conf(),
        etc_hosts=machine.read_etc_hosts() if policy.tier.shared else b"",
        pager="PAGER" in environ and programs.is_of_system(environ["PAGER"]),
        linked=host_paths.find_spelling(environ.get("PWD", ""), workdir),
        uplinks=find_uplinks(policy, path),
        control_group=find_control_group(policy, path),
        bash=os.path.exists("/bin/bash") or not usr,
        ignored_signals=frozenset(
            number for number in range(1, 16) if syscalls.signal.getsignal(number) is syscalls.signal.SIG_IGN
        ),
        git_user=git_user,
        repository=git_facts.with_changes(repository, instance.directory) if repository else None,
        above=above,
        more_repositories=mounted.repositories,
        empty_git="" if repository else git_facts.empty_name(workdir.real),
        empty_submodules=empty_submodules,
        worktrees=host_protected.worktrees(workdir.real, repository, instance),
        sockets=bound.paths,
        sockets_note=bound.note,
        sockets_elsewhere=bound.elsewhere,
        submounts=machine.find_submounts(mounts, workdir.real),
        writable=os.access(workdir.real, os.W_OK),
        owned=os.stat(workdir.real).st_uid == uid,
        barrier=host_paths.find_barrier(workdir.real) if uid == 0 else host_records.Barrier(),
        guarded=(*host_protected.look(workdir.real, repository, instance, nested), *own_files, *mounted.guarded),
        nested=nested,
        held=(
            *held,
            *host_paths.above(_masks(policy, leaks, bound.paths), workdir.real),
            *host_protected.held(workdir.real, repository, empty_submodules),
        ),
        leaks=leaks,
        leaks_note=leaks_note,
        client=client,
        client_problem=client_problem,
        sources=sources,
        destinations=mounted.destinations,
        instance=instance,
        session=f"{os.getpid()}-{os.urandom(4).hex()}",
        login=login,
        claude_parts=agent_facts.claude_parts(home) if policy.inherit or policy.shared_home else (),
        inherited=inherited,
        mcp_servers=servers,
        managed=agent_facts.managed(),
        memory_files=(
            read_small("/etc/claude-code/CLAUDE.md", follow=True) or b"",
            read_small(f"{home}/.claudebox/CLAUDE.md") or b"",
        ),
        toolchains=read_toolchains(policy, home, path, examiner),
        tools=find_tools(policy, environ, home, path, sources, examiner),
        nix=nix,
        git_token=git_token,
        held_secrets=secrets,
        libraries=libraries,
    )


def _masks(policy: Policy, leaks: tuple[Leak, ...], bound: tuple[str, ...]) -> Iterator[str]:
    """Yield what will be masked: it must be found again at the same place in the next session."""
    yield from bound
    if policy.masks_secrets:
        yield from (leak.path for leak in leaks)
