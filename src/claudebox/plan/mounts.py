"""Policy + Host → the mount table: nothing of the host is visible unless a row here names it, with its reason.

Also where what is not the project is kept: caches that last, a home and a /tmp that do not.
"""

from __future__ import annotations

import os

from claudebox.base.errors import ClaudeboxError
from claudebox.git import plan as git_plan
from claudebox.host.records import Host, PathFact, ancestors, covers
from claudebox.network import plan as network_plan
from claudebox.plan.records import Mount, Variable
from claudebox.tables import environment as tables_environment
from claudebox.tables.environment import CA_BUNDLE_INSIDE, CLIENT_DIRECTORY, GATE, GIT_HELPER, NAMED_AUTHORITIES_INSIDE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.plan.records import Role
    from claudebox.settings.records import Policy


HOSTNAME = "claudebox"
_NSSWITCH = b"passwd: files\ngroup: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n"
_HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost {HOSTNAME}\n".encode()


def plan_mounts(policy: Policy, host: Host) -> Iterable[Mount]:
    """Return the rows of the system, the project, and what lies in the home, in any order."""
    yield from _skeleton(host)
    yield from _kernel(policy, host)
    yield from _system(policy, host)
    yield from _etc(policy, host)
    yield from _home(policy, host)
    yield from _project(host)
    yield from _programs(policy, host)


def _kernel(policy: Policy, host: Host) -> Iterable[Mount]:
    yield Mount("/proc", "proc", "processes of the sandbox alone")
    for path in host.machine.kernel_settings:
        yield Mount(path, "ro-bind", "settings of the kernel: root could change them even from inside", path)
    yield Mount("/dev", "dev", "null, zero, random, tty, pts")
    yield Mount("/dev/shm", "tmpfs", "shared memory of the sandbox", mode=0o1777, size=size_of(policy, host, 8))
    yield Mount(f"/run/user/{host.uid}", "tmpfs", "runtime directory", mode=0o700, size=64 << 20)


def _skeleton(host: Host) -> Iterable[Mount]:
    for dest in ("/etc", "/run", "/run/claudebox", "/run/user"):  # bwrap makes parents that only their owner can enter
        yield Mount(dest, "dir", "skeleton of the system")
    reason = "waits until claudebox has examined the sandbox"
    yield Mount(GATE, "file", reason, content=host.machine.gate, mode=0o555)


def _system(policy: Policy, host: Host) -> Iterable[Mount]:
    if host.system.store:
        yield Mount("/nix/store", "ro-bind", "programs of Nix", host.system.store)
    if host.system.usr:
        yield Mount("/usr", "ro-bind", "programs of the system", "/usr")
    for root, target in host.system.roots:
        if target:
            yield Mount(root, "symlink", "programs of the system", target)
        else:
            yield Mount(root, "ro-bind", "programs of the system", root)
    if host.system.opt:
        yield Mount("/opt", "ro-bind", "programs of the system", "/opt")
    for link, target in host.system.store_links:
        yield Mount(link, "symlink", "scripts expect it here", target)
    for path, why in host.system.masked:
        # A sandbox inside must mount /proc anew, which the kernel permits only where nothing covers a part of it.
        if not path.startswith("/proc/"):  # programs read it, and some end if they may not: for them it is empty
            yield Mount(path, "copy", why, mode=0o444, role="masked")
        elif not policy.allow_userns:
            yield Mount(path, "mask", why, role="masked")


def _etc(policy: Policy, host: Host) -> Iterable[Mount]:
    shell = "/bin/bash" if host.system.bash else "/bin/sh"
    accounts = {0: ("root", "/root"), 65534: ("nobody", "/"), host.uid: (host.user, host.home)}
    groups = {0: "root", 65534: "nogroup", host.gid: host.user if host.gid else "root"}
    passwd = "".join(f"{name}:x:{uid}:{host.gid if uid == host.uid else uid}:{name}:{home}:{shell}\n"
                     for uid, (name, home) in sorted(accounts.items()))  # fmt: skip
    group = "".join(f"{name}:x:{gid}:\n" for gid, name in sorted(groups.items()))
    for name, content in (
        ("passwd", os.fsencode(passwd)),
        ("group", os.fsencode(group)),
        ("nsswitch.conf", _NSSWITCH),
        ("hostname", HOSTNAME.encode() + b"\n"),
        ("hosts", _HOSTS + _aliases(host) + host.network.etc_hosts),
        ("resolv.conf", network_plan.resolv_conf(policy, host)),
    ):
        yield Mount(f"/etc/{name}", "file", "made by claudebox", content=content, mode=0o644)
    for path, real, reason in host.system.etc:
        if path == "/etc/ssl/certs" and not host.system.usr:
            continue  # made below: a link into the store could not be filled
        if any(covers(root, real) for root in host.system.shown):
            yield Mount(path, "symlink", reason, real)
        else:
            yield Mount(path, "ro-bind", reason, real)
    yield from _ca_bundle(host)


def _aliases(host: Host) -> bytes:
    return "".join(f"{address} {name}\n" for name, address in network_plan.aliases(host).items()).encode()


def _ca_bundle(host: Host) -> Iterable[Mount]:
    """Make the bundle appear at one place, wherever the host has it (SAND-13)."""
    company = host.network.company
    if company is not None and company.named and not host.secrets.held:
        reason = "certificate authorities that you named"
        yield Mount(NAMED_AUTHORITIES_INSIDE, "file", reason, content=company.named, mode=0o644)
    if host.secrets.held:
        yield from _session_bundle(host)
    elif company is not None and company.bundle:
        reason = "certificate authorities, with those that you named for single programs"
        for dest in _bundle_places(host):
            yield Mount(dest, "copy", reason, content=company.bundle, mode=0o644)
    elif host.system.ca_bundle is not None:
        seen = next((dest for dest in _bundle_places(host) if dest != CA_BUNDLE_INSIDE), "")
        kind, source = ("symlink", seen) if seen else ("ro-bind", host.system.ca_bundle.real)  # a link costs bwrap less
        yield Mount(CA_BUNDLE_INSIDE, kind, "certificate authorities", source)  # type: ignore[arg-type]
    else:
        return
    if not host.system.usr:  # NixOS: the directory is full of links that lead nowhere inside
        for name in ("ca-certificates.crt", "ca-bundle.crt"):
            yield Mount(f"/etc/ssl/certs/{name}", "symlink", "certificate authorities", CA_BUNDLE_INSIDE)


def _session_bundle(host: Host) -> Iterable[Mount]:
    """Return the bundle with the authority of the session in it."""
    reason = "certificate authorities, with that of this session, for the hosts of secrets"
    for dest in _bundle_places(host):
        yield Mount(dest, "late", reason, "authority", mode=0o644)
    yield Mount(NAMED_AUTHORITIES_INSIDE, "late", reason, "named", mode=0o644)


def _bundle_places(host: Host) -> Iterable[str]:
    """Return where a bundle of our own stands: at our place, and over the one where programs look by default."""
    dests = [CA_BUNDLE_INSIDE]
    for path, real, _ in host.system.etc if host.system.ca_bundle is not None else ():
        if (
            host.system.ca_bundle is not None
            and host.system.ca_bundle.real.startswith(f"{real}/")
            and not real.startswith("/usr/")
        ):
            dests.append(path + host.system.ca_bundle.real[len(real) :])
    return dict.fromkeys(dests)


def _home(policy: Policy, host: Host) -> Iterable[Mount]:
    login = policy.credential if host.secrets.git_token else None
    proxy = ""
    if host.network.company is not None and host.network.company.git_proxy:
        proxy = network_plan.git_proxy(policy, host)
    config = git_plan.user_config(host, (login.host, GIT_HELPER) if login else ("", ""), proxy)
    yield Mount(f"{host.home}/.gitconfig", "file", "your name for commits, and how git behaves", content=config,
                mode=0o644)  # fmt: skip


def _project(host: Host) -> Iterable[Mount]:
    project = host.workdir
    row = Mount(project.real, "bind", "the project", project.real, pinned=project.identity, role="project")
    yield row.replace(kind="ro-bind") if host.project.only_read else row


def _programs(policy: Policy, host: Host) -> Iterable[Mount]:
    """Return the rows of the user's own programs; links to them come later, where nothing else is."""
    found = host.tools.programs
    if found is None:
        return
    role: Role = "toolchain" if policy.hides_path else "programs"
    for fact in found.shown:
        yield Mount(
            _at_home(fact.real, host), "ro-bind", "programs of yours", fact.real, pinned=fact.identity, role=role
        )
    asked = {request.dest for request in policy.mounts}
    for path in found.masked:
        if _at_home(path, host) not in asked:
            yield Mount(_at_home(path, host), "copy", "seems to hold a secret", mode=0o444, role="masked")
    for path in found.partial:
        yield Mount(_at_home(path, host), "closed", "programs of yours, without what lies beside them", role=role)
    if host.tools.choices:
        path = f"{host.home}/.config/mise/config.toml"
        yield Mount(path, "file", "versions that mise is told to use", content=host.tools.choices, mode=0o644)


def _at_home(path: str, host: Host) -> str:
    """Return where a path of the home is inside, where the home is spelled through a link."""
    real = host.places.home.real
    return host.home + path[len(real) :] if real != host.home and path.startswith(f"{real}/") else path


def plan_links(host: Host, rows: Iterable[Mount]) -> Iterable[Mount]:
    """Return links that lead to the user's own programs, wherever nothing of the host is."""
    table = {row.dest: row.kind for row in rows}
    taken = {place for dest in table for place in ancestors(dest)}
    for path, target in host.tools.programs.links if host.tools.programs is not None else ():
        place = _at_home(path, host)
        around = next((table[above] for above in ancestors(place)[1:] if above in table), "tmpfs")
        if place not in taken and around in ("tmpfs", "dir", "closed"):
            yield Mount(place, "symlink", "leads to programs of yours", _at_home(target, host), role="programs")


def plan_spelling(host: Host, rows: Iterable[Mount]) -> Iterable[Mount]:
    """Return a link where the user's shell sees the project through one; never in what belongs to the host."""
    table, path = {row.dest: row.kind for row in rows}, host.project.linked
    if not path or any(f"{dest}/".startswith(f"{path}/") for dest in table):
        return
    around = next((table[place] for place in ancestors(path)[1:] if place in table), "tmpfs")
    if around == "tmpfs":
        yield Mount(path, "symlink", "the project, as your shell spells it", host.workdir.real, role="project")


_SMALLEST = 256 << 20
_LITTLE = 2 << 30  # for a home or /tmp in memory: a checkout with its packages is larger
# Below the directory of the instance: of this project alone, or of all that share them.
_CACHES: dict[str, tuple[str, ...]] = {"own": ("caches",), "shared": ("../../caches",), "off": ()}
_ELSEWHERE = "/run/claudebox/cache"
# The client asks this program for the picture of a clipboard, as PNG; it finds out itself what a picture really is.
_PASTE = b"""\
#!/bin/sh
# Ctrl+V in the client: the newest picture that the user has shown within an hour.
cd "$HOME/.claudebox/drop" 2>/dev/null || exit 1
picture=$(find . -maxdepth 1 -mmin -60 -printf '%T@ %p\\n' | grep -iE '\\.(png|jpe?g|gif|webp)$' | sort -n | tail -n 1)
[ "$picture" ] || exit 1
case " $* " in
  *' TARGETS -o '*) echo image/png ;;
  *' image/png -o '*) exec cat -- "${picture#* }" ;;
  *) exit 1 ;;
esac
"""


def find_caches(policy: Policy, host: Host) -> str:
    """Return where caches lie on the host."""
    if policy.caches == "off":
        return ""
    return f"{host.instance.directory if policy.caches == 'own' else host.instance.state}/caches"


def list_kept(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return the directories that must exist, below that of the instance."""
    caches = _CACHES[policy.caches]
    stores = [f"{place}/pnpm-store" for place in caches] if find_pnpm_store(policy, host) else []
    return (*caches, *stores, *(("scratch",) if find_scratch(policy, host) else ()))


def caches_inside(policy: Policy, host: Host) -> str:
    """Return where caches are inside: `~/.cache`, or out of the way where the user has mounted something there.

    Nothing is mounted below a directory that an agent of an earlier session could write to (C01).
    """
    if policy.caches == "off":
        return ""
    usual, below = f"{host.home}/.cache", f"{host.home}/.cache/"
    asked = (*(request.dest for request in policy.mounts), *(f"{host.home}/{path}" for path, _ in policy.agent.state))
    return _ELSEWHERE if any(dest == usual or dest.startswith(below) for dest in asked) else usual


def plan_storage(policy: Policy, host: Host) -> Iterator[Mount]:
    """Return the rows of /tmp, the home and the caches."""
    for dest, name, mode, reason in (
        ("/tmp", "tmp", 0o1777, "temporary files"),
        (host.home, "home", 0o700, "a home of its own, empty and gone at the end"),
    ):
        if scratch := find_scratch(policy, host):
            yield Mount(dest, "bind", f"{reason}; on disk", f"{scratch}/{name}", mode=mode, role="scratch")
        else:
            yield Mount(dest, "tmpfs", reason, mode=mode, size=size_of(policy, host, 4))
    if host.tools.drop is not None:
        yield _drop(host, host.tools.drop)
        reason = "Ctrl+V in the client shows the newest picture of the directory for what you want to show"
        yield Mount(f"{CLIENT_DIRECTORY}/xclip", "file", reason, content=_PASTE, mode=0o755)
    if place := caches_inside(policy, host):
        whose = "of this project" if policy.caches == "own" else "shared by all projects with this setting"
        yield Mount(place, "bind", f"caches of packages, {whose}", find_caches(policy, host), role="state")
        if store := find_pnpm_store(policy, host):
            reason = "pnpm's store where the host has its own: pnpm refuses packages that it linked from another path"
            yield Mount(store, "bind", f"{reason}; {whose}", f"{find_caches(policy, host)}/pnpm-store", role="state")


def find_pnpm_store(policy: Policy, host: Host) -> str:
    """Return where pnpm of the host keeps its store; nothing if something else is shown there."""
    programs = host.tools.programs
    if programs is None or "pnpm" not in programs.names:
        return ""
    root = os.path.normpath(host.environ.get("PNPM_HOME") or f"{host.home}/.local/share/pnpm")
    store = f"{root}/store"
    taken = (*(fact.real for fact in programs.shown), *(request.dest for request in policy.mounts))
    is_free = not any(covers(place, store) or covers(store, place) for place in taken)
    return store if is_free and covers(host.home, root) else ""


def _drop(host: Host, fact: PathFact) -> Mount:
    """Return the row of the directory for what the user wants to show; it may be a link to one of theirs."""
    from claudebox.plan import mount_checks

    hidden = mount_checks.hidden_by(fact, host) if fact.real != fact.path else None
    if hidden is not None or fact.identity in host.places.home.lineage:
        raise ClaudeboxError(f"`{fact.path}` leads to `{fact.real}`, which stays hidden", hint="remove the link")
    reason = "files that you want to show to the agent"
    role: Role = "drop" if fact.real == fact.path else "asked"
    return Mount(fact.path, "ro-bind", reason, fact.real, pinned=fact.identity, role=role)


def find_scratch(policy: Policy, host: Host) -> str:
    """Return the directory on disk for the home and /tmp: where asked for, or where memory would hold little."""
    limited = policy.limits is not None and policy.limits.scratch
    on_disk = policy.scratch == "disk" or (
        policy.scratch == "auto" and host.machine.memory // 4 < _LITTLE and not limited
    )
    return f"{host.instance.directory}/scratch/{host.session}" if on_disk else ""


def size_of(policy: Policy, host: Host, part: int) -> int:
    """Return how much a file system in memory holds: what was asked for, or a part of the memory."""
    return policy.limits.scratch if policy.limits is not None and policy.limits.scratch else share_memory(host, part)


def share_memory(host: Host, part: int) -> int:
    """Return a part of the memory; each tmpfs would take half of it unless told otherwise (H09)."""
    return max(_SMALLEST, host.machine.memory // part)


def plan_caches(policy: Policy, host: Host) -> Iterator[Variable]:
    """Return what leads programs to their caches; a user may set each of them."""
    place = caches_inside(policy, host)
    # In caches that other projects share, one agent could leave code for another's sources.
    bytecode = f"{place}/pycache" if place and policy.caches == "own" else "/tmp/pycache"
    reason = "where python keeps bytecode: not beside your sources"
    yield Variable(tables_environment.BYTECODE, bytecode, "claudebox", reason)
    if not place:
        return
    for name, value in tables_environment.CACHES + (
        tables_environment.CACHES_BY_DEFAULT if place == _ELSEWHERE else ()
    ):
        yield Variable(name, value.replace("~", place), "claudebox", "where this program keeps its cache")
