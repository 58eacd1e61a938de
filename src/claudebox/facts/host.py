"""`Host`: everything that claudebox learns about this machine, gathered once through one door.

Nothing after this reads the machine again, so that what was shown is what is done; tests build a `Host` by hand.
"""

from __future__ import annotations

import os
import pwd

from claudebox import state as instances
from claudebox import syscalls
from claudebox.errors import ClaudeboxError
from claudebox.facts import (
    bubblewrap,
    distro,
    git,
    git_identity,
    mount_table,
    nested_git,
    on_demand,
    paths,
    programs,
    project,
    protected,
    sockets,
)
from claudebox.facts import login as logins
from claudebox.facts.model import Guarded, Held, Hidden, Leak, PathFact, Submount
from claudebox.facts.paths import Examiner
from claudebox.files import read_small
from claudebox.tables import host_paths
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy, SecretRequest
    from claudebox.facts.cgroup import ControlGroup
    from claudebox.facts.company import CompanyNetwork
    from claudebox.facts.git_model import EmptySubmodule, Nested, Repository
    from claudebox.facts.nix_model import Nix
    from claudebox.facts.toolchains import Found
    from claudebox.facts.uplink import Candidate


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
    bwrap: bubblewrap.Bubblewrap = bubblewrap.Bubblewrap()
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
    git_user: git_identity.UserSettings = git_identity.UserSettings()
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
    barrier: paths.Barrier = paths.Barrier()  # in the way of root
    guarded: tuple[Guarded, ...] = ()
    nested: tuple[Nested, ...] = ()  # repositories of the user's below the project
    leaks: tuple[Leak, ...] = ()  # files of the project that hold secrets
    leaks_note: str = ""  # how far was searched, if not everywhere
    held: tuple[Held, ...] = ()
    client: programs.Client | None = None
    client_problem: ClaudeboxError | None = None
    sources: dict[str, PathFact] = {}  # noqa: RUF012 - values are never changed
    destinations: dict[str, paths.Destination] = {}  # noqa: RUF012 - where something must be already
    instance: instances.Instance = instances.Instance("", "", "")
    session: str = "session"  # a name that no other session of the project has
    login: logins.Login = logins.Login()
    claude_parts: tuple[tuple[str, str, bool], ...] = ()  # entries of the host's ~/.claude: name, place, directory?
    inherited: tuple[tuple[str, str], ...] = ()  # what comes along with its settings: kind and name
    mcp_servers: bytes = b""  # of the user's own configuration, for the client inside
    managed: tuple[tuple[str, str], ...] = ()  # entries of /etc/claude-code and where they really are
    memory_files: tuple[bytes, ...] = ()  # texts for the agent: the administrator's, the user's
    toolchains: Found | None = None
    tools: on_demand.ToolFacts = on_demand.ToolFacts()
    nix: Nix | None = None
    git_token: bool = False  # there is one for git inside
    held_secrets: tuple[SecretRequest, ...] = ()  # without their values
    libraries: tuple[str, ...] | ClaudeboxError = ()  # where the broker's are, looked for where there is one

    @property
    def credential(self) -> str:
        """Return which credential for the model this machine has."""
        return logins.find_credential(self.environ, self.login)


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
    workdir = paths.find_workdir(examiner, current_directory())
    path = programs.search_path(environ, workdir.real)
    client, client_problem = programs.look_for_client(home, path, workdir.real, policy.client)
    repository = git.find_repository(workdir.real, uid, home, environ, policy.mounts)
    instance = instances.locate(home, repository.main if repository else workdir.real, state)
    above = examiner.fact(repository.root) if repository and repository.root != workdir.real else None
    empty_submodules = tuple(protected.find_empty_submodules(workdir.real, repository, instance))
    opened = (request.source for request in policy.mounts if request.writable and request.dest == request.source)
    nested = nested_git.find_nested((workdir.real, *opened), instance.directory) if searching else ()
    sources = {request.source: examiner.fact(request.source) for request in policy.mounts}
    mounted = on_demand.find_in_mounts(policy, sources, workdir.real, repository, home, environ, instance)
    own_files, held = on_demand.find_own_files(f"{home}/.claudebox", workdir.real)
    usr = os.path.isdir("/usr/lib") and os.path.exists("/usr/bin/sh")
    nix = on_demand.read_nix(policy, environ, home, path, workdir.real, asking=asking)
    store = nix.location.store if nix else ""
    homes = [home] if account_home in ("", home) else [home, account_home]
    secrets, git_token = on_demand.find_secrets(policy, environ, home, workdir.real)
    found = logins.find_login(home, instance)
    login, libraries = logins.for_broker(policy, environ, found, certificates=bool(secrets))
    inherited, servers = on_demand.find_inherited(policy, home)
    home_fact = examiner.fact(home)
    not_beneath = paths.present(examiner, host_paths.NOT_A_PROJECT_BENEATH)
    excepted = paths.present(examiner, host_paths.BENEATH_AFTER_ALL)
    mounts = mount_table.read_mounts()
    leaks: tuple[Leak, ...] = ()
    leaks_note, bound = "", sockets.SocketSearch()
    beside = (above,) if above else ()
    if searching and paths.searchable((workdir,), home_fact, not_beneath, excepted):  # it is refused otherwise
        stores = (examiner.fact(store) for store in git.find_stores(repository))
        searched = paths.searchable((*beside, *sources.values(), *stores), home_fact, not_beneath, excepted)
        shown = paths.searchable((workdir, *beside), home_fact, not_beneath, excepted)
        leaks, leaks_note = project.leaks(policy, tuple(shown), instance)
        bound = sockets.find_sockets(
            workdir.real, searched, mounts, strict=not policy.tier.shared, instance=instance, home=home
        )
    ca_bundle = distro.ca_bundle(examiner)
    git_user = git_identity.read_user_settings(home, environ, repository)
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
        hidden=paths.hidden(examiner, homes, environ),
        not_projects=paths.not_projects(examiner, homes),
        not_beneath=not_beneath,
        beneath_after_all=excepted,
        usr=usr,
        roots=distro.roots() if usr else (),
        opt=usr and os.path.isdir("/opt"),
        etc=distro.etc(examiner),
        masked=tuple(row for row in host_paths.MASKED if os.path.isfile(row[0])),
        kernel_settings=tuple(path for path in host_paths.KERNEL_SETTINGS if uid == 0 and os.path.exists(path)),
        store=store,
        store_path=distro.store_path(path, usr=usr) if store else (),
        store_links=distro.store_links(path) if store and not usr else (),
        ca_bundle=ca_bundle,
        company=on_demand.read_company(environ, home, git_user.rows, ca_bundle, workdir.real),
        resolv_conf=distro.read_resolv_conf(),
        etc_hosts=distro.read_etc_hosts() if policy.tier.shared else b"",
        pager="PAGER" in environ and programs.is_of_system(environ["PAGER"]),
        linked=paths.find_spelling(environ.get("PWD", ""), workdir),
        uplinks=on_demand.find_uplinks(policy, path),
        control_group=on_demand.find_control_group(policy, path),
        bash=os.path.exists("/bin/bash") or not usr,
        ignored_signals=frozenset(
            number for number in range(1, 16) if syscalls.signal.getsignal(number) is syscalls.signal.SIG_IGN
        ),
        git_user=git_user,
        repository=git.with_changes(repository, instance.directory) if repository else None,
        above=above,
        more_repositories=mounted.repositories,
        empty_git="" if repository else git.empty_name(workdir.real),
        empty_submodules=empty_submodules,
        worktrees=protected.worktrees(workdir.real, repository, instance),
        sockets=bound.paths,
        sockets_note=bound.note,
        sockets_elsewhere=bound.elsewhere,
        submounts=mount_table.find_submounts(mounts, workdir.real),
        writable=os.access(workdir.real, os.W_OK),
        owned=os.stat(workdir.real).st_uid == uid,
        barrier=paths.find_barrier(workdir.real) if uid == 0 else paths.Barrier(),
        guarded=(*protected.look(workdir.real, repository, instance, nested), *own_files, *mounted.guarded),
        nested=nested,
        held=(
            *held,
            *paths.above(_masks(policy, leaks, bound.paths), workdir.real),
            *protected.held(workdir.real, repository, empty_submodules),
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
        claude_parts=paths.claude_parts(home) if policy.inherit or policy.shared_home else (),
        inherited=inherited,
        mcp_servers=servers,
        managed=distro.managed(),
        memory_files=(
            read_small("/etc/claude-code/CLAUDE.md", follow=True) or b"",
            read_small(f"{home}/.claudebox/CLAUDE.md") or b"",
        ),
        toolchains=on_demand.read_toolchains(policy, home, path, examiner),
        tools=on_demand.find_tools(policy, environ, home, path, sources, examiner),
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


def current_home(environ: dict[str, str]) -> str:
    """Return the user's home: HOME if it names a directory, or else that of the account."""
    home = environ.get("HOME", "")
    if not _is_home(home):
        home = _account()[1]  # asked for only here: a directory service may be slow
    if not _is_home(home):
        raise ClaudeboxError("no home directory was found", hint="set HOME to a directory of yours")
    return "/" + os.path.normpath(home).lstrip("/")


def _is_home(path: str) -> bool:
    return path.startswith("/") and bool(path.strip("/")) and os.path.isdir(path)


def _account() -> tuple[str, str]:
    """Return name and home of the account, as far as it has any."""
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:
        return "user", ""
    return account.pw_name, account.pw_dir


def current_directory() -> str:
    """Return the working directory as the kernel names it."""
    try:
        return os.getcwd()
    except OSError:
        raise ClaudeboxError("the working directory no longer exists", hint="change to a project directory") from None
