"""`--verify`: start the sandbox that these flags and files would get here, and try to break out of it.

Canaries are planted on the host, some in place of the user's credentials; a probe runs inside; and each promise is
reported as held, broken, or not testable here. It needs no root, asks nothing, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from typing import Literal

from claudebox import session
from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.base.syscalls import memory_file, sha256
from claudebox.commands import rehearsal
from claudebox.commands.verify.canaries import Canaries, with_canaries
from claudebox.plan import compose
from claudebox.plan.records import Mount
from claudebox.run import prepare as run_prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from claudebox.commands.rehearsal import Examined
    from claudebox.host.records import Host
    from claudebox.plan.records import Plan
    from claudebox.run.prepare import Prepared
    from claudebox.session import FetchedValues, Planned
    from claudebox.settings.layers import Settings


Status = Literal["held", "broken", "untestable"]

_PROBE, _SPEC = "/run/claudebox/probe.py", "/run/claudebox/probe.json"
_LIMIT = 1 << 20
_COLOURS = {"held": "green", "broken": "red", "untestable": "yellow"}
_GONE_WITHIN = 3.0  # seconds until everything inside must have ended

# Name of the probe, the promise, and the requirements and threats that it covers.
PROMISES: tuple[tuple[str, str, str], ...] = (
    ("environment", "variables of the host do not enter", "SAND-02 A01"),
    ("arguments", "arguments inside show neither values nor mounts", "SAND-02 A02"),
    ("memory", "the memory of the first process contains nothing of the host", "A03"),
    ("descriptors", "files that your shell has open do not enter", "A04"),
    ("redirected", "a redirected file can be read, not reopened", "A21"),
    ("keyrings", "the kernel's keyrings do not answer", "A08 A09"),
    ("hidden", "your keys, tokens, history and profiles are hidden", "SAND-04 SAND-09"),
    ("secrets", "a secret planted beside them is hidden", "SAND-08 SAND-09"),
    ("login", "your refresh token does not enter", "AUTH-01 I01 I02"),
    ("credential", "your API key or login is not inside, and the broker does not reveal it", "AUTH-01 I03"),
    ("held_secrets", "values of `[[secrets]]` are not inside, only their placeholders", "SECR-01 A01"),
    ("sockets", "sockets of the host do not answer, not even renamed ones in the project", "SAND-09 C19 C33"),
    ("masked", "secrets in files of the project are masked", "A20 C32"),
    ("abstract", "abstract sockets of the host do not answer", "F15 F16"),
    ("listeners", "services of this machine do not answer", "NET-T NET-01 F01"),
    ("domains", "only listed domains answer, and no IP address does", "NET-03 F05 F13"),
    ("processes", "processes of the host are invisible", "SEC-02 A06"),
    ("shared_memory", "shared memory of the host is invisible", "A11"),
    ("terminal", "nothing can be typed into your terminal", "B01 B02 B04"),
    ("user_namespaces", "no user namespaces can be made", "H01 C24"),
    ("kernel_surface", "rarely used parts of the kernel are closed", "H02 F17"),
    ("privileges", "no capabilities, and a seccomp filter on every process", "H03 H04 H05"),
    ("limits", "no core files, and a limit on processes", "A19 H08"),
    ("names", "hostname and boot parameters are hidden", "A17"),
    ("read_only", "only what the plan says is writable", "SAND-04 SAND-06 C25"),
    ("settings", "tier, variables and mounts are those of your settings", "PROF-01 E07"),
    ("project", "the project is writable", "SAND-05"),
    ("protected", "files that your tools obey cannot change", "SEC-04 C20 C22 D05 D06 D21"),
    ("nix_daemon", "the Nix daemon does not trust the sandbox, or is unreachable", "NIXSEC-01 G01 G03"),
    ("survivors", "nothing outlives the sandbox", "SAND-15 E12"),
)


@dataclass(frozen=True)
class PromiseResult:
    """The outcome of one promise."""

    promise: str
    text: str
    proves: tuple[str, ...]
    status: Status
    detail: str = ""


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Print the results; return 1 if a promise is broken."""
    wanted = rehearsal.read_examined(flags, environ)
    findings = examine(environ, wanted)
    broken = [finding for finding in findings if finding.status == "broken"]
    if wanted.settings.on("json"):
        rows = [asdict(finding) for finding in findings]
        document = {"ok": not broken, "examined": wanted.document(), "promises": rows}
        console.write([json.dumps(document, indent=2)], descriptor=1)
    else:
        console.write([*wanted.lines(), *_lines(findings)], descriptor=1)
    return 1 if broken else 0


def _lines(findings: list[PromiseResult]) -> Iterator[str]:
    words = {"held": "held", "broken": "BROKEN", "untestable": "not testable"}
    for finding in findings:
        mark = console.paint(f"{words[finding.status]:<12}", _COLOURS[finding.status], descriptor=1)
        detail = f": {console.clean(finding.detail)}" if finding.detail else ""
        yield f"{mark}  {finding.text} ({', '.join(finding.proves)}){detail}"
    count = {status: sum(finding.status == status for finding in findings) for status in words}
    yield ""
    yield f"{count['held']} promises held, {count['broken']} broken, {count['untestable']} not testable here"


def examine(
    environ: dict[str, str],
    wanted: Examined,
    *,
    alter: Callable[[Plan], Plan] = lambda plan: plan,
    prepare: Callable[[Plan, Canaries], Prepared] = lambda plan, _: run_prepare.prepare(plan),
) -> list[PromiseResult]:
    """Plant canaries, run the probe, and return its results.

    `alter` and `prepare` are for tests, which break one protection at a time.
    """
    policy = wanted.policy.replace(program="exec", words=("true",))  # the promises hold without a client, too
    first = session.make_plan(wanted.settings, policy, environ)
    instance = first.host.instance
    with contextlib.ExitStack() as stack:
        stack.enter_context(rehearsal.temporary_state(instance))
        base_state.create(instance)
        canaries = Canaries(instance.state, first.plan.workdir, policy.agent.upstream)
        stack.callback(canaries.remove)
        canaries.plant()
        planned = session.make_plan(
            wanted.settings,
            policy,
            {**environ, "CLAUDEBOX_CANARY": canaries.token},
            pretend=lambda facts: with_canaries(facts, policy.agent, canaries),
        )
        plan = _with_probe(planned, canaries)
        prepared = prepare(alter(plan), canaries)
        held = {row.source for row in plan.secrets}
        # The token for git enters by the user's wish, so it gets no canary.
        values = session.fetch(planned, environ, lambda source, _: canaries.value if source in held else "no-token")
        output = _run_probe(planned.replace(plan=plan), prepared, values, canaries.token)
        return [row for row in _findings(output, canaries) if plan.nix is not None or row.promise != "nix_daemon"]


def _with_probe(planned: Planned, canaries: Canaries) -> Plan:
    """Return the plan with the probe as its program."""
    plan, python = planned.plan, _python(planned.host)
    if not python:
        raise ClaudeboxError(
            "`--verify` needs Python inside, as `/usr/bin/python3`", hint="install the package `python3`"
        )
    program = pkgutil.get_data("claudebox.commands.verify", "probe.py") or b""
    masks = planned.policy.masks_secrets
    specification = json.dumps(_specification(plan, planned.host, canaries, masks=masks)).encode("ascii")
    rows = (
        Mount(_PROBE, "file", "the probe", content=program, mode=0o444),
        Mount(_SPEC, "file", "what the probe tries", content=specification, mode=0o444),
    )
    return plan.replace(mounts=compose.arrange((*plan.mounts, *rows)), command=(python, "-IS", _PROBE, _SPEC))


def _python(facts: Host) -> str:
    candidates = ["/usr/bin/python3"] if facts.system.usr else []
    own = os.path.realpath(sys.executable)
    if facts.system.store and own.startswith("/nix/store/"):
        candidates.append(own)
    return next((path for path in candidates if os.access(path, os.X_OK)), "")


def _specification(plan: Plan, facts: Host, canaries: Canaries, *, masks: bool) -> dict[str, object]:
    asked = {row.source for row in plan.mounts if row.role == "asked"}
    hidden = [row.fact for row in facts.places.hidden if row.fact.identity and row.fact.real not in asked]
    reached = plan.policy.tier.shared
    return {
        "token": canaries.token[::-1],
        "leftover": canaries.leftover,
        "variables": {
            row.name: sha256(os.fsencode(row.value)) if row.deferred is None else "" for row in plan.variables
        },
        "hostname": plan.hostname,
        "network": plan.policy.network,
        "shared": plan.policy.tier.shared,
        "isolated": plan.policy.tier.isolated,
        "network_namespace": os.readlink("/proc/self/ns/net"),
        "asked": [(row.dest, row.writable, *row.pinned) for row in plan.mounts if row.role == "asked" and row.pinned],
        "since": canaries.planted,
        "held": canaries.value[::-1] if plan.secrets else "",
        "hidden": [(fact.path, *fact.identity) for fact in hidden if fact.identity],
        "secrets": canaries.secrets,
        "credential": canaries.credential[::-1] if plan.holds_credential else "",
        "no_credential": "there is no key or login here, or you let it enter",
        "broker": plan.policy.agent.upstream.socket,
        "placeholder": plan.policy.agent.upstream.placeholder,
        "login": f"{plan.policy.agent.login}/store/.credentials.json" if facts.agent.login.known else "",
        "sockets": canaries.sockets,
        "masked": canaries.masked if masks else "",
        "abstract": canaries.abstract if plan.scoped or not reached else "",
        "listeners": [] if reached else canaries.listeners,
        "unlisted": _unlisted(canaries) if plan.policy.tier.listed else [],
        "process": canaries.process,
        "shared_memory": canaries.shared_memory,
        "userns": plan.policy.allow_userns,
        "read_only": [row.dest for row in plan.mounts if row.kind == "ro-bind"],
        "writable": [row.dest for row in plan.mounts if row.writable],
        "protected": [row.dest for row in plan.mounts if row.role == "protected"],
        "workdir": plan.workdir,
        "project": plan.workdir if facts.project.writable else "",
        "nix": "" if plan.nix is None else "told" if plan.nix.explicit and plan.nix.kind == "daemon" else plan.nix.kind,
    }


def _unlisted(canaries: Canaries) -> list[tuple[str, int]]:
    own = [(f"[{address}]" if ":" in address else address, port) for address, port in canaries.listeners]
    return [*own, *(("localhost", port) for _, port in own), ("192.88.99.1", 443), ("[2001:500::1]", 443),
            ("claudebox.invalid", 443)]  # fmt: skip


def _run_probe(planned: Planned, prepared: Prepared, values: FetchedValues, token: str) -> dict[str, dict[str, str]]:
    """Run the probe with a file as its standard input; return its lines by promise."""
    reading, writing = os.pipe()
    kept = os.dup(0), os.dup(1)
    file = memory_file(token.encode())
    try:
        os.dup2(file, 0)
        os.dup2(writing, 1)
        os.close(file)
        os.close(writing)
        rehearsal.try_out(planned, prepared, values)
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
    os.set_blocking(reading, False)  # a surviving process may hold the other end
    written = b""
    try:
        while len(written) < _LIMIT and (piece := os.read(reading, 65536)):
            written += piece
    except BlockingIOError:
        pass
    os.close(reading)
    rows = (_row(line) for line in written.splitlines())
    return {row["promise"]: row for row in rows if row}


def _row(line: bytes) -> dict[str, str]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) and {"promise", "status", "detail"} <= set(row) else {}


def _findings(output: dict[str, dict[str, str]], canaries: Canaries) -> Iterator[PromiseResult]:
    for name, text, proves in PROMISES:
        row = output.get(name)
        status: Status = "broken"
        detail = "the probe did not answer"
        if row is not None and row["status"] in _COLOURS:
            status, detail = row["status"], str(row["detail"])  # type: ignore[assignment]  # just checked
        if name == "keyrings" and status == "held" and canaries.key:
            status, detail = "untestable", canaries.key
        if name == "survivors" and status == "held" and _survives(canaries.leftover):
            status, detail = "broken", "a process started inside is still running"
        yield PromiseResult(name, text, tuple(proves.split()), status, detail)


def _survives(word: str) -> bool:
    deadline = time.monotonic() + _GONE_WITHIN
    while True:
        found = [process for process in os.listdir("/proc") if process.isdigit() and _has_argument(process, word)]
        if not found:
            return False
        if time.monotonic() > deadline:
            for process in found:
                os.kill(int(process), signal.SIGKILL)
            return True
        time.sleep(0.05)


def _has_argument(process: str, word: str) -> bool:
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return word.encode() in file.read().split(b"\0")
    except OSError:
        return False
