"""`--check`: report what would prevent a launch, and the remedy (UX-05).

It runs the pipeline of a launch, with its home, state, broker and network, up to a program that ends at once, so the
two cannot disagree; what was made for it is removed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Literal

from claudebox import session
from claudebox.agent import facts as agent_facts
from claudebox.agent import kinds
from claudebox.base import console, syscalls
from claudebox.base.errors import ClaudeboxError, describe_failure
from claudebox.base.files import read_small
from claudebox.broker import facts as broker_facts
from claudebox.broker import plan as broker_plan
from claudebox.commands import rehearsal
from claudebox.host import control_groups, machine, programs, remedies
from claudebox.network import uplink
from claudebox.nix import facts as nix_facts
from claudebox.nix import plan as nix_plan
from claudebox.nix.records import Daemon, Nix
from claudebox.report import killed
from claudebox.settings.records import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.commands.rehearsal import Examined
    from claudebox.settings.layers import Settings


Status = Literal["ok", "warning", "failed"]
Row = tuple[Status, str, str]  # status, detail, remedy
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Print the report; 1 if a launch would fail."""
    wanted = rehearsal.read_examined(flags, environ)
    findings = list(examine(environ, wanted))
    failed = any(finding.status == "failed" for finding in findings)
    if wanted.settings.on("json"):
        document = {"ok": not failed, "examined": wanted.document(), "findings": [asdict(row) for row in findings]}
        console.write([json.dumps(document, indent=2)], descriptor=1)
    else:
        console.write([*wanted.lines(), *_lines(findings, failed=failed)], descriptor=1)
    return 1 if failed else 0


def _lines(findings: list[Finding], *, failed: bool) -> Iterator[str]:
    for finding in findings:
        mark = console.paint(f"{finding.status:<7}", _COLOURS[finding.status], descriptor=1)
        yield from _wrap(f"{finding.name}: {console.clean(finding.detail)}", f"{mark}  ")
        for line in finding.remedy.split("\n") if finding.remedy else ():
            yield from _wrap(console.clean(line), " " * 9)
    yield ""
    yield "a launch would fail; see above" if failed else "a launch will work"


def _wrap(text: str, start: str) -> Iterable[str]:
    return console.wrap(text, start) if os.isatty(1) else (f"{start}{text}".rstrip(),)


def examine(environ: dict[str, str], wanted: Examined) -> Iterator[Finding]:
    """Start what a launch would start; then look at what else this machine can and cannot do."""
    path = programs.search_path(environ, machine.current_directory())
    yield from _launch(environ, wanted)
    rows: list[tuple[str, Callable[[], Row]]] = []
    rows.append(("network inet", lambda: _uplink(path)))
    if remedies.find_container():
        rows.append(("container", _container))
    rows += [
        ("Landlock", _landlock),
        ("terminal", _terminal),
        ("broker", _broker),
        ("agents", lambda: _agents(environ, path)),
        ("Nix", lambda: _nix(environ, path)),
        ("limits", lambda: _limits(path)),
        ("sessions", lambda: _sessions(path, environ.get("USER", ""))),
        ("state", lambda: _state(environ)),
    ]
    for name, look in rows:
        try:
            yield Finding(name, *look())
        except ClaudeboxError as problem:
            yield Finding(name, "warning", problem.message, problem.hint)
        except (OSError, MemoryError) as error:
            yield Finding(name, "warning", f"could not be examined: {describe_failure(error).message}")


def _launch(environ: dict[str, str], wanted: Examined) -> Iterator[Finding]:
    """Launch in this directory with these settings, up to a program that ends at once.

    Whatever would stop a launch stops this, with the same message; nothing else here can fail.
    """
    try:
        asked = session.make_plan(wanted.settings, wanted.policy, environ)
        trial = wanted.policy.replace(program="exec", words=("true",))  # instead of the client, without a snapshot
        planned = session.make_plan(wanted.settings, trial, environ)
        with rehearsal.temporary_state(planned.host.instance):
            status = rehearsal.try_out(planned, session.fetch(planned, environ))
        if status:
            raise ClaudeboxError(f"a program inside ended with status {status}")
    except (ClaudeboxError, OSError, MemoryError) as error:
        problem = error if isinstance(error, ClaudeboxError) else describe_failure(error)
        yield Finding("launch", "failed", "; ".join((problem.message, *problem.more)), problem.hint)
        return
    plan = asked.plan
    detail = f"a test program ran in this sandbox: {len(plan.mounts)} mounts, {len(plan.variables)} variables"
    warnings = "\n".join(f"warning: {warning}" for warning in plan.warnings)
    yield Finding("launch", "ok", f"{detail}; `--explain` shows them", warnings)
    share = max(row.size for row in plan.mounts) >> 20
    scratch = "on disk" if plan.scratch else f"in memory, {share} MiB each at most"
    yield Finding("scratch", "ok", f"home and /tmp inside are {scratch} (`scratch`)")
    client = asked.host.agent.client
    if client is not None:
        version = f", version {agent_facts.spell_version(client.version)}" if client.version else ""
        arrow = "" if client.found == client.path else f" -> {client.path}"
        yield Finding("client", "ok", f"{client.found}{arrow}{version}", "\n".join(plan.notes))
        yield _login(asked)


def _login(asked: session.Planned) -> Finding:
    """Report whether the client will have to log in."""
    if asked.plan.login:
        state, _, remedy = asked.plan.login.partition(": ")
        return Finding("login", "warning", state, remedy)
    login = asked.host.agent.login
    if asked.policy.agent.upstreams:
        return Finding("login", "ok", "; ".join(broker_plan.described(asked.plan)) or "named by your settings")
    credential = agent_facts.find_credential(asked.policy.agent.upstream, asked.host.environ, login)
    found = "in this project" if login.path and not login.known else f"of {login.source}" if login.known else ""
    detail = f"a login {found}" if found and credential in ("", "login") else credential or "named by your settings"
    return Finding("login", "ok", detail)


def _uplink(path: tuple[str, ...]) -> Row:
    """Report which program connects tier `inet`, and why; `--check --network inet` tries it."""
    found = uplink.find_uplinks(path)
    problems = "; ".join(dict.fromkeys(candidate.problem for candidate in found if candidate.problem))
    if found[-1].problem:
        return "warning", f"cannot be used: {problems}", "; ".join(dict.fromkeys(row.remedy for row in found))
    return "ok", f"connected by {found[-1].path}" + (f"; {problems}" if problems else ""), ""


def _container() -> Row:
    """Name the container; whether a sandbox can be made in it, the launch has shown."""
    effects = {
        "unmask": "parts of /proc are covered",
        "permit": "system calls are filtered",
        "unconfine": "AppArmor or SELinux confines it",
    }
    found = "; ".join(effects[lack] for lack in remedies.find_lacks()) or "its restrictions do not interfere"
    return "ok", f"running in {remedies.name_container(remedies.find_container())}; {found}", ""


def _landlock() -> Row:
    abi = syscalls.landlock_abi()
    if abi >= syscalls.LANDLOCK_ABI_WITH_SCOPES:
        return "ok", f"version {abi}: abstract sockets of the host are out of reach", ""
    detail = f"version {abi}: in tier full, abstract sockets of the host (X11, D-Bus) stay reachable"
    return "warning", detail, "Linux 6.12 or newer closes them; or use `--network none`"


def _terminal() -> Row:
    if (read_small("/proc/sys/dev/tty/legacy_tiocsti") or b"1").strip() == b"0":
        return "ok", "the kernel forbids typing into terminals, and so does the sandbox", ""
    return "ok", "the kernel permits typing into terminals (legacy_tiocsti), the sandbox does not", ""


def _broker() -> Row:
    broker_facts.find_libraries()
    return "ok", "its libraries are there", ""


def _agents(environ: dict[str, str], path: tuple[str, ...]) -> Row:
    """Name the agents that can be started."""
    home, workdir = machine.current_home(environ), machine.current_directory()
    found = [
        name
        for name in kinds.list_names()
        if agent_facts.look_for_client(kinds.find_kind(name), home, path, workdir, "")[0] is not None
    ]
    return "ok", f"{', '.join(found) or 'none is installed'}; `claudebox help agents` has all", ""


def _nix(environ: dict[str, str], path: tuple[str, ...]) -> Row:
    """Report what a sandbox gets of Nix in tier `full`; the others have no daemon unless asked for."""
    if not machine.has_nix(environ):
        return "ok", "not on this machine, and not needed", ""
    where = nix_facts.find_nix(environ)
    program = nix_facts.find_program(path, machine.current_home(environ))
    known = Daemon(problem=where.problem)
    if program and not where.problem:
        known = nix_facts.read_daemon(where, program, environ)
    decision = nix_plan.decide_access(Policy("exec"), Nix(where, program, known))
    told = [f"the store {where.store} is visible inside, read-only", nix_plan.described(decision.replace(remedy=""))]
    if known.version:
        told.append(f"version {known.version}, trusts you: {known.trusted}, sandbox of builders: {known.sandbox}")
    good = decision.kind != "off" and not decision.warnings
    advice = (decision.remedy, *decision.warnings)
    return "ok" if good else "warning", "; ".join(told), "\n".join(filter(None, advice))


def _limits(path: tuple[str, ...]) -> Row:
    always = "time, processes, scratch: always"
    group = control_groups.find_group(os.getuid(), path)
    if group.problem:
        return "ok", f"{always}; `--memory` and `cpus` are refused here: {group.problem}", ""
    way = "your systemd" if group.way == "systemd" else group.place
    return "ok", f"{always}; memory and processors: by a control group of {way}", ""


def _sessions(path: tuple[str, ...], user: str) -> Row:
    """Report whether sessions outlive their terminal."""
    if programs.find_tool("tmux", path) is None:
        return "warning", "`--detach` needs tmux", "install the package `tmux`"
    settings = read_small("/etc/systemd/logind.conf") or b""
    lingers = os.path.exists(f"/var/lib/systemd/linger/{user}")
    if not lingers and any(line.replace(b" ", b"") == b"KillUserProcesses=yes" for line in settings.splitlines()):
        detail = "systemd ends sessions without a terminal when you log out"
        return "warning", detail, "`loginctl enable-linger` keeps them running"
    return "ok", "`--detach`: tmux is installed", ""


def _state(environ: dict[str, str]) -> Row:
    """Report who can read the state, and what a killed session left; a state that others can write stops a launch."""
    directory = f"{machine.current_home(environ)}/.claudebox"
    try:
        status = os.lstat(directory)
    except OSError:
        return "ok", f"{directory} does not exist yet", ""
    if status.st_mode & 0o077:
        return "warning", f"{directory} is open to others", f"`chmod 700 {directory}`"
    if unlooked := list(killed.describe_killed(directory)):
        return "warning", console.list_some(unlooked, 1), ""
    return "ok", f"{directory} is accessible only to you", ""
