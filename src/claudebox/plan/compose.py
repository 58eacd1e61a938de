"""Composes the parts into one `Plan` and checks what must hold of every plan."""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.plan import (
    bwrap_args,
    claude_code,
    environment,
    git,
    masking,
    mount_checks,
    mounts,
    network,
    project,
    sandbox_md,
    seccomp,
    storage,
    warnings,
)
from claudebox.plan.model import Mount, Plan, Provision
from claudebox.tables import agent, bwrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.config.model import Policy
    from claudebox.facts.host import Host
    from claudebox.plan.model import GroupLimits
    from claudebox.plan.network_model import Broker, Link

_FILES = frozenset(("file", "symlink", "copy", "mask", "socket", "late"))
_RANK = {"mask": 2, "empty": 2, "copy": 2, "bind": 1, "tmpfs": 1}  # hide > write > read, for the same place


def make_plan(policy: Policy, host: Host) -> Plan:
    """Return the plan, or say what stands in its way."""
    host = project.settle(policy, host)
    _check_bwrap(host)
    mount_checks.check_home(host)
    mount_checks.check_workdir(host)
    scoped = host.landlock >= 6
    program = seccomp.build(host.machine, allow_userns=policy.allow_userns)
    if program is None:
        raise ClaudeboxError(
            f"there is no seccomp filter for {host.machine}",
            hint="claudebox protects x86_64 and aarch64; elsewhere it does not start",
        )
    extra = _provision(policy, host)
    held = host.credential if policy.brokered else ""  # decided here and nowhere else; the plan carries it
    broker, brokered = _broker(policy, host, held)
    made = () if policy.command else tuple(claude_code.plan_variables(host, held, policy.words))
    variables = environment.plan_variables(policy, host, (*made, *brokered.variables, *extra.variables))
    rows = _rows(policy, host, held, (*brokered.mounts, *extra.mounts), (*brokered.advice, *extra.advice))
    own_git = git.plan_own(policy, host)
    checkouts = (f"{git.CHECKOUTS}/{row.name}" for row in host.empty_submodules)
    kept = (*storage.kept(policy, host), *extra.kept, *(f"git/{own.name}/own" for own in own_git), *checkouts)
    group, limited = _limits(policy, host)
    return Plan(
        policy=policy,
        bwrap=host.bwrap.path,
        mounts=rows,
        variables=variables,
        namespaces=_namespaces(policy, host),
        workdir=host.workdir.real,
        start=policy.start or host.workdir.real,
        command=(*extra.prefix, *_command(policy, host)),
        gate=bwrap_args.gate(host, policy.start or host.workdir.real),
        directory=host.instance.directory,
        seccomp=program,
        scoped=scoped,
        detached=not host.terminal,
        pin="--bind-fd" in host.bwrap.options,
        disable_userns="--disable-userns" in host.bwrap.options and not policy.allow_userns,
        sizes="--size" in host.bwrap.options,
        link=_link(policy, host),
        hostname=host.hostname,
        warnings=(*warnings.describe(policy, host, held), *extra.warnings),
        notes=(*_notes(policy, host), *limited),
        withheld=environment.withheld(host, variables),
        path_outside=environment.path_outside(host, variables),
        exposed=masking.find_exposed(host),
        inherited=host.inherited,
        state=(
            host.instance.claude,
            f"{host.instance.login}/store",
            f"{host.instance.own_login}/store",
            host.instance.cover,
            f"{host.instance.cover}-worktrees/worktrees",
            *(f"{host.instance.directory}/{path}" for path in kept),
            *(row.source for row in rows if row.role == "scratch"),
        ),
        sockets_elsewhere=host.sockets_elsewhere,
        stubs=(*project.stubs(policy, host), *git.stubs(policy, host)),
        mountpoints=claude_code.mountpoints(policy, host),
        kept=kept,
        nix=extra.nix,
        relay=extra.relay,
        secrets=host.held_secrets,
        broker=broker,
        git=own_git,
        caches=storage.find_caches(policy, host),
        scratch=storage.find_scratch(policy, host),
        group=group,
        undo=policy.undo and policy.undo.replace(directory=f"{host.instance.directory}/undo"),
    )


def _notes(policy: Policy, host: Host) -> tuple[str, ...]:
    return tuple(claude_code.notes(host)) if policy.program == "client" and not policy.command else ()


def _limits(policy: Policy, host: Host) -> tuple[GroupLimits | None, tuple[str, ...]]:
    if policy.limits is None:
        return None, ()
    from claudebox.plan import limits

    return limits.plan_group(policy.limits, host), (f"limits: {limits.spell_limits(policy.limits)}",)


def _provision(policy: Policy, host: Host) -> Provision:
    asked = (
        policy.toolchains, policy.packages, policy.credential, policy.kept_names, policy.devshell, host.nix,
        host.tools.program_directories, host.tools.devices, host.tools.browsers,
    )  # fmt: skip
    if not any(asked) and policy.nix in ("auto", "off"):
        return Provision()
    from claudebox.plan import extras

    return extras.plan_extras(policy, host)


def _link(policy: Policy, host: Host) -> Link | None:
    if policy.tier.shared:
        return None
    from claudebox.plan import own_network

    link = own_network.plan_link(policy, host)
    if not host.held_secrets or link is None:
        return link
    from claudebox.plan import secrets

    return link.replace(served=(*link.served, *secrets.served(policy, host)))


def _broker(policy: Policy, host: Host, held: str) -> tuple[Broker | None, Provision]:
    cloud = any(name in host.environ for name, *_ in agent.CLOUDS)
    needed = (held, policy.tier.listed, host.held_secrets, any(policy.budget), network.has_proxy(host.environ))
    if not any(needed) and not cloud:
        return None, Provision()
    from claudebox.plan import broker as brokerage

    return brokerage.plan(policy, host, held), brokerage.provide(policy, host, held)


def _rows(policy: Policy, host: Host, held: str, extra: tuple[Mount, ...], advice: Iterable[str]) -> tuple[Mount, ...]:
    of_client = () if policy.command else claude_code.plan_mounts(policy, host, held)
    texts = (sandbox_md.PATH, f"{agent.MANAGED}/CLAUDE.md")
    own: tuple[Mount, ...] = (
        *mounts.plan_mounts(policy, host),
        *storage.plan_mounts(policy, host),
        *of_client,
        *project.plan_mounts(policy, host),
        *git.plan_mounts(policy, host),
        *masking.plan_mounts(policy, host),
        *extra,
        *(Mount(path, "file", "tells the agent where it is", mode=0o644) for path in texts),
    )
    if host.sockets:
        own = arrange(own)
        own += tuple(masking.mask_sockets(policy, host, own))
    asked = tuple(mount_checks.plan_mounts(policy, host))
    if asked:
        _check_taken(own, asked, host)
    rows = arrange((*own, *asked))
    rows = arrange((*rows, *masking.mask_sockets(policy, host, rows))) if host.sockets else rows
    rows = arrange((*rows, *mounts.plan_spelling(host, rows))) if host.linked else rows
    text = sandbox_md.describe(policy, tuple(row for row in rows if row.dest not in texts), advice)
    memory = b"\n".join(part for part in (*host.memory_files[:1], text, *host.memory_files[1:]) if part)
    contents = dict(zip(texts, (text, memory), strict=True))
    return tuple(row.replace(content=contents[row.dest]) if row.dest in contents else row for row in rows)


def _check_taken(own: tuple[Mount, ...], asked: tuple[Mount, ...], host: Host) -> None:
    # A git directory may lie in what is asked for, and what is protected there.
    within = ("git", "protected", "pin")
    taken = _upward(row.dest for row in own if row.role not in within or row.dest.startswith(f"{host.workdir.real}/"))
    for row in asked:
        # A writable one would win over /etc/passwd or ~/.gitconfig, and bwrap would create on the host what lies
        # beneath (C27).
        if row.dest in taken and row.kind != "mask":
            raise ClaudeboxError(
                f"the destination `{row.dest}` is claudebox's own", hint="choose another with `SRC:DEST`"
            )
    files = {row.dest for row in own if row.kind in _FILES}
    for parent in {row.dest[: row.dest.rfind("/")]: "" for row in asked}:
        if found := files & _upward((parent or "/",)):
            raise ClaudeboxError(
                f"nothing can be mounted in `{found.pop()}`, which is a file of claudebox's own",
                hint="choose another destination with `SRC:DEST`",
            )


def _upward(paths: Iterable[str]) -> set[str]:
    """Return the paths and every path above them."""
    found: set[str] = set()
    for path in paths:
        while path not in found:
            found.add(path)
            path = path[: path.rfind("/")] or "/"  # noqa: PLW2901 - climbing is the point
    return found


def arrange(rows: Iterable[Mount]) -> tuple[Mount, ...]:
    """Return one row per destination, parents before children, whatever the order was."""
    table: dict[str, Mount] = {}
    disputed: dict[str, list[Mount]] = {}
    for row in rows:
        dest = row.dest
        if not row.reason or not dest.startswith("/") or "\0" in dest or "\0" in row.source:
            raise ClaudeboxError(f"a mount at `{dest}` is malformed")
        if table.setdefault(dest, row) is not row:
            disputed.setdefault(dest, [table[dest]]).append(row)
    table |= {dest: _choose(candidates) for dest, candidates in disputed.items()}
    hidden = tuple(f"{dest}/" for dest, row in table.items() if row.kind == "empty")  # nothing can be mounted in these
    shown = (dest for dest in table if not dest.startswith(hidden)) if hidden else table
    return tuple(table[dest] for dest in sorted(shown, key=_parts))


def _choose(rows: list[Mount]) -> Mount:
    """Return the strongest of the rows that want to be at one place."""
    first, *others = sorted(rows, key=_rank, reverse=True)
    for other in others:
        if _rank(other) == _rank(first) and other != first:
            raise ClaudeboxError(
                f"two mounts want to be at `{first.dest}`: {first.reason} and {other.reason}",
                hint="give one of them another destination with `SRC:DEST`",
            )
    return first


def _rank(row: Mount) -> int:
    return _RANK.get(row.kind, 0)


def _parts(path: str) -> list[str]:
    return path.split("/")


def _check_bwrap(host: Host) -> None:
    if host.bwrap.problem:
        raise ClaudeboxError(host.bwrap.problem, hint=host.bwrap.remedy)
    missing = [option for option in bwrap.NEEDED if option not in host.bwrap.options]
    if missing:
        raise ClaudeboxError(
            f"`{host.bwrap.path}` does not know {', '.join(f'`{option}`' for option in missing)}",
            hint=f"install bubblewrap {bwrap.LEAST} or newer",
        )


def _namespaces(policy: Policy, host: Host) -> tuple[str, ...]:
    names = ["user", "pid", "ipc", "uts"]
    names += ["cgroup"] if host.cgroup_namespace else []
    names += ["net"] if not policy.tier.shared else []
    return tuple(names)


def _command(policy: Policy, host: Host) -> tuple[str, ...]:
    if policy.program == "exec":
        return policy.words
    if policy.program == "shell":
        return ("/bin/bash" if host.bash else "/bin/sh", *policy.words)
    if policy.command:
        return (*policy.command, *policy.words)
    if host.client is None:
        raise host.client_problem or ClaudeboxError("`claude` was not found")
    servers = (f"--mcp-config={agent.MCP_FILE}",) if host.mcp_servers and policy.words[:1] != ("mcp",) else ()
    return (agent.PROGRAM, *agent.ALWAYS, *servers, *policy.words)
