"""`--check`: go the way of a launch up to the client; say what would stop it and what to do (UX-05).

It is the pipeline of a launch, with its home, its state, its broker and its network, so the two cannot disagree; what
was made for it is taken away. Other tiers are tried in a home and a project that are thrown away.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from typing import Literal

from claudebox import session
from claudebox.agent import facts as agent_facts
from claudebox.base import console, syscalls
from claudebox.base.errors import ClaudeboxError, describe_failure
from claudebox.base.files import read_small
from claudebox.broker import facts as broker_facts
from claudebox.broker import plan as broker_plan
from claudebox.commands import rehearsal
from claudebox.host import bubblewrap, machine, programs
from claudebox.host import records as host_records
from claudebox.network import uplink
from claudebox.nix import facts as nix_facts
from claudebox.nix import plan as nix_plan
from claudebox.nix.records import Daemon, Nix
from claudebox.report import leftovers
from claudebox.run.prepare import prepare
from claudebox.settings.layers import parse_arguments
from claudebox.settings.records import Policy
from claudebox.settings.table import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from claudebox.agent.record import ModelService
    from claudebox.commands.rehearsal import Examined
    from claudebox.settings.layers import Settings


Status = Literal["ok", "warning", "failed"]
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
        yield f"{mark}  {finding.name}: {console.clean(finding.detail)}"
        for line in finding.remedy.split("\n") if finding.remedy else ():
            yield f"         {console.clean(line)}".rstrip()
    yield ""
    yield "a launch would fail; see above" if failed else "a launch will work"


def examine(environ: dict[str, str], wanted: Examined) -> Iterator[Finding]:
    """Start what a launch would start; then look at what else this machine can and cannot do."""
    path = programs.search_path(environ, machine.current_directory())
    of_launch = list(_launch(environ, wanted))
    yield from of_launch
    works = of_launch[0].status == "ok"
    bwrap = bubblewrap.find_bwrap(path)
    rows: list[tuple[str, Callable[[], Finding]]] = []
    if not bwrap.problem:
        rows = [("bubblewrap", lambda: _bubblewrap(bwrap))]
    if works:
        rows += [("network inet", lambda: _uplink(environ, path)), ("network allow", lambda: _domains(environ))]
    if bubblewrap.find_container():
        rows.append(("container", _container))
    rows += [
        ("Landlock", _landlock),
        ("terminal", _terminal),
        ("broker", lambda: _broker(environ, wanted.policy.agent.upstream)),
        ("Nix", lambda: _nix(environ, path)),
        ("limits", lambda: _limits(path)),
        ("sessions", lambda: _sessions(path, environ.get("USER", ""))),
        ("state", lambda: _state(environ)),
    ]
    for name, look in rows:
        try:
            yield look()
        except (OSError, MemoryError) as error:
            yield Finding(name, "warning", f"could not be examined: {describe_failure(error).message}")


def _launch(environ: dict[str, str], wanted: Examined) -> Iterator[Finding]:
    """Go the way of a launch, in this directory and with its settings, up to a program that ends at once.

    Whatever would stop a launch stops this, with the same words: nothing else here can fail.
    """
    try:
        asked = session.make_plan(wanted.settings, wanted.policy, environ)
        trial = wanted.policy.replace(program="exec", words=("true",))  # in place of the client, and without a snapshot
        planned = session.make_plan(wanted.settings, trial, environ)
        with rehearsal.temporary_state(planned.host.instance):
            prepared = prepare(planned.plan)
            status = rehearsal.try_out(planned, prepared, session.fetch(planned, environ))
        if status:
            raise ClaudeboxError(f"a program inside ended with status {status}")
    except ClaudeboxError as problem:
        yield Finding("launch", "failed", "; ".join((problem.message, *problem.more)), problem.hint)
        return
    except (OSError, MemoryError) as error:
        known = describe_failure(error)
        yield Finding("launch", "failed", known.message, known.hint)
        return
    plan = asked.plan
    detail = f"a program ran in this very sandbox: {len(plan.mounts)} mounts, {len(plan.variables)} variables"
    warnings = "\n".join(f"warning: {warning}" for warning in plan.warnings)
    yield Finding("launch", "ok", f"{detail}; `--explain` shows them", warnings)
    share = max(row.size for row in plan.mounts) >> 20
    scratch = "on disk" if plan.scratch else f"in memory, {share} MiB each at most"
    yield Finding("scratch", "ok", f"home and /tmp inside are {scratch} (`--scratch`)")
    client = asked.host.agent.client
    if client is not None and not wanted.policy.command:
        version = f", version {agent_facts.spell_version(client.version)}" if client.version else ""
        arrow = "" if client.found == client.path else f" -> {client.path}"
        yield Finding("client", "ok", f"{client.found}{arrow}{version}", "\n".join(plan.notes))


def _detached(facts: host_records.Host) -> host_records.Host:
    """Return the facts of a machine without a terminal: sandboxes that are thrown away need none."""
    return facts.replace(machine=facts.machine.replace(terminal=False))


def _bubblewrap(bwrap: host_records.Bubblewrap) -> Finding:
    lacking = [option for option in bubblewrap.USEFUL if option not in bwrap.options]
    if not lacking:
        return Finding("bubblewrap", "ok", f"{bwrap.path} has every option that claudebox uses")
    remedy = f"install bubblewrap {bubblewrap.FULL} or newer"
    return Finding("bubblewrap", "warning", f"{bwrap.path} lacks {', '.join(lacking)}", remedy)


def _attempt(environ: dict[str, str], *command: str, network: str = "full") -> ClaudeboxError | None:
    """Launch with a home and a project that are thrown away, and return what went wrong."""
    before = machine.current_directory()
    base = tempfile.mkdtemp(prefix="claudebox-check-")
    home, project = f"{base}/home", f"{base}/project"
    own = {row.variable for row in SETTINGS}
    bare = {name: value for name, value in environ.items() if name not in own} | {"HOME": home}
    try:
        os.mkdir(home, 0o700)
        os.mkdir(project, 0o700)
        os.chdir(project)
        settings, _ = session.read_settings(parse_arguments(["--exec", "--network", network, "--", *command]), bare)
        planned = session.make_plan(settings, session.decide_policy(settings, bare), bare, pretend=_detached)
        status = rehearsal.try_out(planned, prepare(planned.plan), session.Values())
    except ClaudeboxError as error:
        return error
    except OSError as error:
        return describe_failure(error)
    else:
        return ClaudeboxError(f"a program inside ended with status {status}") if status else None
    finally:
        os.chdir(before)
        shutil.rmtree(base, ignore_errors=True)


def _container() -> Finding:
    """Name the container around us; whether a sandbox can be made in it, the launch has shown."""
    told = {
        "unmask": "parts of /proc are covered",
        "permit": "system calls are filtered",
        "unconfine": "AppArmor or SELinux confines it",
    }
    what = "; ".join(told[lack] for lack in bubblewrap.find_lacks()) or "its restrictions do not interfere"
    return Finding("container", "ok", f"running in {bubblewrap.name_container(bubblewrap.find_container())}; {what}")


def _landlock() -> Finding:
    abi = syscalls.landlock_abi()
    if abi >= syscalls.LANDLOCK_ABI_WITH_SCOPES:
        return Finding("Landlock", "ok", f"version {abi}: abstract sockets of the host are out of reach")
    return Finding(
        "Landlock",
        "warning",
        f"version {abi}: in tier full, abstract sockets of the host (X11, D-Bus) stay reachable",
        "Linux 6.12 or newer closes them; or use `--network none`",
    )


def _terminal() -> Finding:
    if (read_small("/proc/sys/dev/tty/legacy_tiocsti") or b"1").strip() == b"0":
        return Finding("terminal", "ok", "the kernel forbids typing into terminals, and so does the sandbox")
    return Finding("terminal", "ok", "the kernel permits typing into terminals (legacy_tiocsti), the sandbox does not")


def _broker(environ: dict[str, str], upstream: ModelService) -> Finding:
    """Look for what keeps the key outside."""
    try:
        broker_facts.find_libraries()
    except ClaudeboxError as problem:
        return Finding("broker", "warning", str(problem), problem.hint)
    base = environ.get(upstream.base_url, "") or upstream.official
    try:
        endpoint = broker_plan.read_endpoint(base, upstream.base_url)
    except ClaudeboxError as problem:
        return Finding("broker", "warning", str(problem), problem.hint)
    return Finding("broker", "ok", f"its libraries are there; it would ask {endpoint}")


def _uplink(environ: dict[str, str], path: tuple[str, ...]) -> Finding:
    """Tell which program connects the tier `inet` and why, after doing it; other tiers need none."""
    found = uplink.find_uplinks(path)
    usable = next((candidate for candidate in found if not candidate.problem), None)
    problems = "; ".join(dict.fromkeys(candidate.problem for candidate in found if candidate.problem))
    if usable is None:
        remedy = "; ".join(dict.fromkeys(candidate.remedy for candidate in found))
        return Finding("network inet", "warning", f"cannot be used: {problems}", remedy)
    problem = _attempt(environ, "true", network="inet")
    if problem is not None:
        return Finding("network inet", "warning", f"cannot be used: {problem.message}", problem.hint)
    why = f"; {problems}" if problems else ""
    return Finding("network inet", "ok", f"a sandbox was connected by {usable.path}, behind its rules{why}")


def _domains(environ: dict[str, str]) -> Finding:
    """Tell how programs get out in tier `allow`, after starting it: all of them, or those that honour a proxy."""
    led = ("grep", "-q", "198.18.0.0", "/proc/net/fib_trie")  # the route exists only where the kernel can redirect
    if _attempt(environ, *led, network="allow") is None:
        return Finding("network allow", "ok", "a sandbox was led to its proxy, programs that know none included")
    problem = _attempt(environ, "true", network="allow")
    if problem is not None:
        return Finding("network allow", "warning", f"cannot be used: {problem.message}", problem.hint)
    return Finding(
        "network allow",
        "warning",
        "works for programs that honour HTTPS_PROXY: this kernel cannot lead others to the proxy",
        "`sudo modprobe -a nf_tables nft_chain_nat nft_redir`",
    )


def _nix(environ: dict[str, str], path: tuple[str, ...]) -> Finding:
    """Tell what a sandbox would get of Nix in tier `full`; in the others it gets no daemon unless that was said."""
    if not machine.has_nix(environ):
        return Finding("Nix", "ok", "not on this machine, and not needed")
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
    remedies = (decision.remedy, *decision.warnings)
    return Finding("Nix", "ok" if good else "warning", "; ".join(told), "\n".join(filter(None, remedies)))


def _state(environ: dict[str, str]) -> Finding:
    """Look who can read the state, and what waits there; a launch refuses where others can write to it, and says so."""
    directory = f"{machine.current_home(environ)}/.claudebox"
    try:
        status = os.lstat(directory)
    except OSError:
        return Finding("state", "ok", f"{directory} does not exist yet")
    if status.st_mode & 0o077:
        return Finding("state", "warning", f"{directory} is open to others", f"`chmod 700 {directory}`")
    if unlooked := list(leftovers.describe_killed(directory)):
        return Finding("state", "warning", console.list_some(unlooked, 1))
    return Finding("state", "ok", f"{directory} is yours alone")


def _limits(path: tuple[str, ...]) -> Finding:
    always = "time, processes, scratch: always"
    group = machine.find_group(os.getuid(), path)
    if group.problem:
        return Finding("limits", "ok", f"{always}; `--memory` and `--cpus` are refused here: {group.problem}")
    way = "your systemd" if group.way == "systemd" else group.place
    return Finding("limits", "ok", f"{always}; memory and processors: by a control group of {way}")


def _sessions(path: tuple[str, ...], user: str) -> Finding:
    """Tell whether sessions outlive their terminal."""
    if programs.find_tool("tmux", path) is None:
        return Finding("sessions", "warning", "`--detach` needs tmux", "install the package `tmux`")
    settings = read_small("/etc/systemd/logind.conf") or b""
    lingers = os.path.exists(f"/var/lib/systemd/linger/{user}")
    if not lingers and any(line.replace(b" ", b"") == b"KillUserProcesses=yes" for line in settings.splitlines()):
        remedy = "`loginctl enable-linger` lets them run on"
        return Finding("sessions", "warning", "systemd ends sessions without a terminal when you log out", remedy)
    return Finding("sessions", "ok", "`--detach`: tmux is there")
