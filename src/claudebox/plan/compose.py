"""Composes the parts into one `Plan` and checks what must hold of every plan."""

from __future__ import annotations

import os

from claudebox.agent import plan as agent_plan
from claudebox.agent.facts import find_credential
from claudebox.base.errors import ClaudeboxError
from claudebox.git import plan as git_plan
from claudebox.host.records import Host, ancestors
from claudebox.network import plan as network_plan
from claudebox.network.records import Broker, Link
from claudebox.plan import bwrap, masking, mount_checks, sandbox_md, seccomp
from claudebox.plan import environment as plan_environment
from claudebox.plan import mounts as plan_mounts
from claudebox.plan import protected as plan_protected
from claudebox.plan.records import Additions, GroupLimits, Mount, Plan, join_additions
from claudebox.settings.records import Policy, SecretRequest, named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.plan.records import Kind


_FILES = frozenset(("file", "symlink", "copy", "mask", "socket", "late"))
_RANK = {"mask": 2, "empty": 2, "copy": 2, "bind": 1, "tmpfs": 1}  # hide > write > read, for the same place


def make_plan(policy: Policy, host: Host) -> Plan:
    """Return the plan, or say what stands in its way."""
    host = git_plan.forget_committed(plan_protected.close_unprotectable(policy, host))
    if host.bwrap.problem is not None:
        raise host.bwrap.problem
    mount_checks.check_home(host)
    mount_checks.check_workdir(host)
    scoped = host.machine.landlock >= 6
    program = seccomp.build(host.machine.architecture, allow_userns=policy.allow_userns)
    if program is None:
        raise ClaudeboxError(
            f"there is no seccomp filter for {host.machine.architecture}",
            hint="claudebox protects x86_64 and aarch64; elsewhere it does not start",
        )
    service = policy.agent.upstream
    # Decided here and nowhere else; the plan carries it.
    held = find_credential(service, host.environ, host.agent.login) if policy.brokered else ""
    broker, brokered = _broker(policy, host, held)
    extra = join_additions((brokered, _tools(policy, host)))
    made = tuple(agent_plan.plan_variables(policy, host, held))
    variables = plan_environment.plan_variables(policy, host, (*made, *extra.variables))
    outside = plan_environment.path_outside(host, variables)
    absent = plan_environment.find_absent(host, outside)
    variables += tuple(plan_environment.plan_absent_handler(absent, host))
    extra = extra.replace(mounts=(*extra.mounts, *plan_environment.plan_absent_table(absent)))
    rows = _rows(policy, host, held, extra)
    masked = masking.find_masked(policy, host)
    unread = [row for row in masked if not row.stored]
    note = masking.describe(masking.name_files(unread, host, lines=False))  # without lines: it is not told again
    own_git = git_plan.plan_private(policy, host)
    checkouts = (f"{git_plan.CHECKOUTS}/{row.name}" for row in host.git.empty_submodules)
    kept = (
        *(place for _, place in policy.agent.state),
        *plan_mounts.list_kept(policy, host),
        *extra.kept,
        *(f"git/{own.name}/own" for own in own_git),
        *(f"hooks/{os.path.basename(hooks.copy)}" for own in own_git for hooks in own.hooks),
        *checkouts,
    )
    group, limited = _limits(policy, host)
    return Plan(
        policy=policy,
        bwrap=host.bwrap.path,
        mounts=rows,
        variables=variables,
        namespaces=("user", "pid", "ipc", "uts", "cgroup", *(() if policy.tier.shared else ("net",))),
        workdir=host.workdir.real,
        start=policy.start or host.workdir.real,
        command=(*extra.prefix, *_command(policy, host, extra.arguments)),
        gate=bwrap.gate(host, policy.start or host.workdir.real),
        directory=host.instance.directory,
        seccomp=program,
        scoped=scoped,
        detached=not host.machine.terminal,
        disable_userns=not policy.allow_userns,
        link=_link(policy, host, broker),
        hostname=host.machine.hostname,
        warnings=(*_warnings(policy, host, held), *extra.warnings),
        notes=(*filter(None, (note,)), *_notes(policy, host), *limited),
        withheld=plan_environment.withheld(host, variables),
        path_outside=outside,
        absent=tuple(absent.items()),
        masked=masking.name_files(unread, host),
        masked_note=note,
        exposed=() if policy.masks_secrets else masking.name_files(host.project.hidden_files, host),
        committed=masking.name_files(masking.find_readable(policy, host), host),
        remembered=(*((row.identity, row.path) for row in masked), *host.project.masked_before),
        inherited=host.agent.inherited,
        login=agent_plan.describe_missing_login(policy, host),
        state=(
            f"{host.instance.login}/store",
            f"{host.instance.own_login}/store",
            host.instance.cover,
            f"{host.instance.cover}-worktrees/worktrees",
            *(f"{host.instance.directory}/{path}" for path in kept),
            *(row.source for row in rows if row.role == "scratch"),
        ),
        sockets_elsewhere=host.sockets.elsewhere,
        stubs=(*plan_protected.stubs(policy, host), *git_plan.stubs(policy, host)),
        mountpoints=agent_plan.mountpoints(policy, host),
        seeds=agent_plan.find_seeds(policy, host, variables, [model.api for model in broker.models] if broker else ()),
        kept=kept,
        nix=extra.nix,
        relay=extra.relay,
        secrets=host.secrets.held,
        broker=broker,
        git=own_git,
        caches=plan_mounts.find_caches(policy, host),
        scratch=plan_mounts.find_scratch(policy, host),
        group=group,
    )


def _notes(policy: Policy, host: Host) -> tuple[str, ...]:
    of_agent = agent_plan.notes(policy, host) if policy.program == "client" else ()
    return (*of_agent, *plan_protected.notes(policy, host))


def _limits(policy: Policy, host: Host) -> tuple[GroupLimits | None, tuple[str, ...]]:
    if policy.limits is None:
        return None, ()
    from claudebox.plan import limits as plan_limits

    return plan_limits.plan_group(policy.limits, host), (f"limits: {plan_limits.spell_limits(policy.limits)}",)


def _tools(policy: Policy, host: Host) -> Additions:
    asked = (
        policy.toolchains, policy.packages, policy.credential, policy.devshell, host.nix,
        host.tools.program_directories, host.tools.devices, host.tools.browsers,
    )  # fmt: skip
    if not any(asked) and policy.nix in ("auto", "off"):
        return Additions()
    from claudebox.plan import tools

    return tools.plan_tools(policy, host)


def _link(policy: Policy, host: Host, broker: Broker | None) -> Link | None:
    if policy.tier.shared:
        return None

    link = network_plan.plan_link(policy, host)
    if broker is None or not (host.secrets.held or any(model.port for model in broker.models)):
        return link
    from claudebox.broker import plan as broker_plan

    served = broker_plan.served(policy, host)
    return (link or Link()).replace(served=(*(link.served if link else ()), *served)) if served else link


def _broker(policy: Policy, host: Host, held: str) -> tuple[Broker | None, Additions]:
    cloud = any(name in host.environ for name, *_ in policy.agent.upstream.clouds)
    keys = host.secrets.models or any(host.environ.get(name) for row in policy.agent.upstreams for name in row.keys)
    proxied = network_plan.has_proxy(host.environ)
    if not any((held, keys, cloud, policy.tier.listed, host.secrets.held, any(policy.budget), proxied)):
        return None, Additions()
    from claudebox.broker import plan as broker_plan

    return broker_plan.plan(policy, host, held), broker_plan.provide(policy, host, held)


def _asked_mounts(policy: Policy, host: Host) -> tuple[Mount, ...]:
    if not policy.mounts:
        return ()
    from claudebox.plan import asked_mounts

    return tuple(asked_mounts.plan_mounts(policy, host))


def _rows(policy: Policy, host: Host, held: str, extra: Additions) -> tuple[Mount, ...]:
    asked = _asked_mounts(policy, host)  # first: what must not be asked for is refused with its own reason
    texts: dict[str, Kind] = {sandbox_md.PATH: "file", **agent_plan.instructions(policy, host)}
    own: tuple[Mount, ...] = (
        *plan_mounts.plan_mounts(policy, host),
        *plan_mounts.plan_storage(policy, host),
        *agent_plan.plan_mounts(policy, host, held),
        *plan_protected.plan_mounts(policy, host),
        *git_plan.plan_mounts(policy, host),
        *masking.plan_mounts(policy, host),
        *extra.mounts,
        *(Mount(path, kind, "tells the agent where it is", mode=0o644) for path, kind in texts.items()),
    )
    own += tuple(masking.cover(policy, host, arrange(own)))
    if asked:
        _check_taken(own, asked, host)
    rows = arrange((*own, *asked))
    rows = arrange((*rows, *masking.cover(policy, host, rows), *plan_mounts.plan_spelling(host, rows)))
    rows = arrange((*rows, *plan_mounts.plan_links(host, rows)))
    shown = tuple(row for row in rows if row.dest not in texts)
    masked = masking.name_files(masking.find_masked(policy, host), host, lines=False)
    text = sandbox_md.describe(policy, shown, extra.advice, masked=masked)
    instructions = b"\n".join(filter(None, (*host.agent.memory_files[:1], text, *host.agent.memory_files[1:])))
    contents = dict(zip(texts, (text, instructions), strict=False))
    return tuple(row.replace(content=contents[row.dest]) if row.dest in contents else row for row in rows)


def _check_taken(own: tuple[Mount, ...], asked: tuple[Mount, ...], host: Host) -> None:
    # A git directory may lie in what is asked for, and what is protected there.
    within = ("git", "protected", "pin")
    shown = (row.dest for row in own if row.role not in within or row.dest.startswith(f"{host.workdir.real}/"))
    taken = {place for dest in shown for place in ancestors(dest)}
    for row in asked:
        # A writable one would win over /etc/passwd or ~/.gitconfig, and bwrap would create on the host what lies
        # beneath (C27).
        if row.dest in taken and row.kind != "mask":
            raise ClaudeboxError(
                f"the destination `{row.dest}` is claudebox's own", hint="choose another with `SRC:DEST`"
            )
    files = {row.dest for row in own if row.kind in _FILES}
    for row in asked:
        if found := files.intersection(ancestors(row.dest)[1:]):
            raise ClaudeboxError(
                f"nothing can be mounted in `{found.pop()}`, which is a file of claudebox's own",
                hint="choose another destination with `SRC:DEST`",
            )


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
    return tuple(table[dest] for dest in sorted(shown, key=lambda dest: dest.split("/")))


def _choose(rows: list[Mount]) -> Mount:
    """Return the strongest of the rows that want to be at one place."""
    first, *others = sorted(rows, key=lambda row: (_RANK.get(row.kind, 0), bool(row.pinned)), reverse=True)
    for other in others:
        if _RANK.get(other.kind) == _RANK.get(first.kind) and other != first and not _shows_the_same(other, first):
            raise ClaudeboxError(
                f"two mounts want to be at `{first.dest}`: {first.reason} and {other.reason}",
                hint="give one of them another destination with `SRC:DEST`",
            )
    return first


def _shows_the_same(one: Mount, other: Mount) -> bool:
    """Return whether both show the same directory or file, read-only: an agent among the programs of the PATH."""
    return (one.kind, one.source) == (other.kind, other.source) == ("ro-bind", other.source)


def _warnings(policy: Policy, host: Host, held: str) -> Iterable[str]:
    """Yield what a plan leaves open, in sentences for the audit."""
    if not host.machine.hostname:
        yield "the name of this machine is visible inside: a seccomp filter here prevents setting another"
    if host.machine.landlock < 6 and policy.tier.shared:
        yield (
            "the kernel is older than 6.12: abstract sockets of the host (X11, D-Bus) stay reachable in tier "
            f"{policy.network}"
        )
    if policy.allow_userns:
        useless = ", and root cannot even make one: the kernel wants capabilities for that" if host.uid == 0 else ""
        yield f"user namespaces are allowed inside: more of the kernel can be attacked{useless}"
    if policy.unsafe_mounts and policy.mounts:
        yield "unsafe_mounts: mounts were not checked for what they expose"
    yield from git_plan.warnings(policy, host)
    model = policy.program == "client" and not held
    of_network = [*network_plan.warnings(policy, host, needed=policy.agent.upstream.host if model else "")]
    if held or policy.agent.upstreams:
        from claudebox.broker import plan as broker_plan

        of_network += broker_plan.warnings(policy, host, held)
    yield from dict.fromkeys(of_network)
    yield from plan_protected.warnings(policy, host)
    yield from masking.warnings(policy, host)
    yield from masking.socket_warnings(host)
    yield from agent_plan.warnings(policy, host)
    yield from _secret_warnings(policy, host)
    for request in policy.names:
        if request.name not in host.environ and request.origin.startswith("--"):
            yield f"{request.origin}: {request.name} is not set on the host"


def _secret_warnings(policy: Policy, host: Host) -> Iterable[str]:
    held = {secret.env for secret in host.secrets.held}
    missing = [secret for secret in policy.secrets if secret.env not in held]
    if missing and policy.tier.isolated:
        names = ", ".join(secret.env for secret in missing)
        tier = policy.network
        yield f"secrets ({names}) are for hosts, and tier {tier} reaches no host: their variables are not set inside"
        return
    reached = {(secret.env, place) for secret in host.secrets.held for place in secret.hosts}
    if policy.tier.listed:
        for secret in policy.secrets:
            closed = [named(place) for place in secret.hosts if (secret.env, place) not in reached]
            if closed and (secret.env in held or _is_set(secret, host)):
                yield f"{secret.origin}: {', '.join(closed)} is not among the domains that are allowed"
        missing = [secret for secret in missing if not _is_set(secret, host)]
    for secret in missing:
        yield f"{secret.origin}: {secret.source} is not set on the host, so {secret.env} is not set inside"


def _is_set(secret: SecretRequest, host: Host) -> bool:
    kind, _, name = secret.source.partition(":")
    return kind != "env" or bool(host.environ.get(name))


def _command(policy: Policy, host: Host, arguments: tuple[str, ...]) -> tuple[str, ...]:
    if policy.program == "exec":
        return policy.words
    if policy.program == "shell":
        return ("/bin/bash" if host.system.bash else "/bin/sh", *policy.words)
    if host.agent.client is None:
        raise host.agent.client_problem or ClaudeboxError(f"`{policy.agent.name}` was not found")
    return agent_plan.command(policy, host, arguments)
