"""`--verify`: start the sandbox that these flags and files would get here, and try to break out of it.

Canaries are planted on the host, some in place of the user's credentials; a probe runs inside; and each promise is
reported as held, broken, or not testable here. It needs no root, asks nothing, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import select
import sys
from dataclasses import asdict, dataclass
from typing import Literal

from claudebox import session
from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.base.syscalls import memory_file, sha256
from claudebox.commands import rehearsal
from claudebox.commands.verify.canaries import Canaries, with_canaries
from claudebox.commands.verify.probe import PROMISES
from claudebox.plan import compose
from claudebox.plan.records import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from claudebox.agent.record import AgentKind
    from claudebox.commands.rehearsal import Examined
    from claudebox.host.records import Host
    from claudebox.plan.records import Plan
    from claudebox.session import FetchedValues, Planned
    from claudebox.settings.layers import Settings

    Try = Callable[[Planned, FetchedValues], object]


Status = Literal["held", "broken", "untestable"]

_PROBE, _SPEC = "/run/claudebox/probe.py", "/run/claudebox/probe.json"
_COLOURS = {"held": "green", "broken": "red", "untestable": "yellow"}
_GONE_WITHIN = 3.0  # seconds until everything inside must have ended


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
    try_out: Try = rehearsal.try_out,
) -> list[PromiseResult]:
    """Plant canaries, run the probe, and return its results.

    `alter` and `try_out` are for tests, which take protections away.
    """
    policy = wanted.policy.replace(program="exec", words=("true",))  # the promises hold without a client, too
    first = session.make_plan(wanted.settings, policy, environ)
    instance = first.host.instance
    with contextlib.ExitStack() as stack:
        stack.enter_context(rehearsal.temporary_state(instance))
        base_state.create(instance)
        canaries = Canaries(instance.state, first.plan.workdir, policy.agent)
        stack.callback(canaries.remove)
        canaries.plant()
        planned = session.make_plan(
            wanted.settings,
            policy,
            {**environ, "CLAUDEBOX_CANARY": canaries.token},
            pretend=lambda facts: with_canaries(facts, policy.agent, canaries),
        )
        plan = _with_probe(planned, canaries)
        held = {row.source for row in plan.secrets}
        # The token for git enters by the user's wish, so it gets no canary.
        values = session.fetch(planned, environ, lambda source, _: canaries.value if source in held else "no-token")
        rows = _run_probe(planned.replace(plan=alter(plan)), values, canaries.token, try_out)
        return [row for row in _results(rows) if plan.nix is not None or row.promise != "nix_daemon"]


def _with_probe(planned: Planned, canaries: Canaries) -> Plan:
    """Return the plan with the probe as its program."""
    plan, python = planned.plan, _python(planned.host)
    if not python:
        raise ClaudeboxError(
            "`--verify` needs Python inside, as `/usr/bin/python3`", hint="install the package `python3`"
        )
    program = pkgutil.get_data("claudebox.commands.verify", "probe.py") or b""
    rows = (
        Mount(_PROBE, "file", "the probe", content=program, mode=0o444),
        Mount(_SPEC, "file", "what the probe tries", content=_specify(planned, canaries), mode=0o444),
    )
    return plan.replace(mounts=compose.arrange((*plan.mounts, *rows)), command=(python, "-IS", _PROBE, _SPEC))


def _python(facts: Host) -> str:
    candidates = ["/usr/bin/python3"] if facts.system.usr else []
    own = os.path.realpath(sys.executable)
    if facts.system.store and own.startswith("/nix/store/"):
        candidates.append(own)
    return next((path for path in candidates if os.access(path, os.X_OK)), "")


def _specify(planned: Planned, canaries: Canaries) -> bytes:
    """Return what the probe tries: where canaries are, and what the plan promises."""
    plan, facts, tier = planned.plan, planned.host, planned.policy.tier
    asked = [row for row in plan.mounts if row.role == "asked" and row.pinned]
    shown = {row.source for row in asked}
    hidden = [row.fact for row in facts.places.hidden if row.fact.identity and row.fact.real not in shown]
    specification = {
        "token": canaries.token[::-1],
        "since": canaries.planted,
        "held": canaries.value[::-1] if plan.secrets else "",
        "credential": canaries.credential[::-1] if plan.holds_credential else "",
        "login": _find_login(plan.policy.agent) if facts.agent.login.known else "",
        "hidden": [*canaries.hidden, *((fact.path, *(fact.identity or ())) for fact in hidden)],
        "sockets": canaries.sockets,
        "masked": _list_masked(facts, canaries) if planned.policy.masks_secrets and canaries.masked else "",
        "abstract": canaries.token if plan.scoped or not tier.shared else "",
        "listeners": [] if tier.shared else canaries.listeners,
        "unlisted": _unlisted(canaries) if tier.listed else [],
        "process": canaries.process,
        "shared_memory": canaries.shared_memory,
        "models": [
            (
                model.port or plan.policy.agent.upstream.socket,
                model.api.header,
                next((name for name, text in model.api.env if text == "{placeholder}"), ""),
                model.placeholder,
            )
            for model in (plan.broker.models if plan.broker is not None else ())
        ],
        "variables": {
            row.name: sha256(os.fsencode(row.value)) if row.deferred is None else "" for row in plan.variables
        },
        "asked": [(row.dest, row.writable, *(row.pinned or ())) for row in asked],
        "read_only": [row.dest for row in plan.mounts if row.kind == "ro-bind"],
        "writable": [row.dest for row in plan.mounts if row.writable],
        "protected": [row.dest for row in plan.mounts if row.role == "protected"],
        "workdir": plan.workdir,
        "project": plan.workdir if facts.project.writable else "",
        "hostname": plan.hostname,
        "network": plan.policy.network,
        "shared": tier.shared,
        "isolated": tier.isolated,
        "network_namespace": os.readlink("/proc/self/ns/net"),
        "userns": plan.policy.allow_userns,
        "nix": plan.nix.kind if plan.nix is not None else "",
    }
    return json.dumps(specification).encode("ascii")


def _list_masked(facts: Host, canaries: Canaries) -> dict[str, object]:
    """Return what of masked files is looked for: salted digests, no values; one is of a word that is shown."""
    from claudebox.host import secret_files
    from claudebox.report.leaks import is_telling

    files = [row for row in facts.project.hidden_files if not row.stored]
    words = {word: name for name, word in secret_files.list_values(files) if is_telling(word)}
    words[canaries.control] = ""
    digests = {sha256(os.fsencode(canaries.token + word)): name for word, name in words.items()}
    return {"words": digests, "lengths": sorted({len(os.fsencode(word)) for word in words})}


def _find_login(agent: AgentKind) -> tuple[str, str]:
    """Return the file inside with the copy of a login, and the field that must not be in it."""
    kind = agent.upstream.login
    assert kind is not None  # noqa: S101 - there is a login
    return f"{agent.extras.login}/store/{os.path.basename(kind.path)}", kind.refresh.rpartition(".")[2]


def _unlisted(canaries: Canaries) -> list[tuple[str, int]]:
    own = [(f"[{address}]" if ":" in address else address, port) for address, port in canaries.listeners]
    return [*own, *(("localhost", port) for _, port in own), ("192.88.99.1", 443), ("[2001:500::1]", 443),
            ("claudebox.invalid", 443)]  # fmt: skip


def _run_probe(planned: Planned, values: FetchedValues, token: str, try_out: Try) -> dict[str, dict[str, str]]:
    """Run the probe with a file as its standard input; return its rows by promise."""
    reading, writing = os.pipe()
    kept = os.dup(0), os.dup(1)
    file = memory_file(token.encode())
    try:
        os.dup2(file, 0)
        os.dup2(writing, 1)
        os.close(file)
        os.close(writing)
        try_out(planned, values)
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
    written, piece = b"", b" "
    while piece and select.select([reading], [], [], _GONE_WITHIN)[0]:
        written += (piece := os.read(reading, 65536))
    os.close(reading)
    rows = {row["promise"]: row for row in map(json.loads, written.splitlines())}
    if piece and "survivors" in rows:
        rows["survivors"] |= {"status": "broken", "detail": "a process started inside is still running"}
    return rows


def _results(rows: dict[str, dict[str, str]]) -> Iterator[PromiseResult]:
    silence: dict[str, str] = {"status": "broken", "detail": "the probe did not answer"}
    for name, (text, proves, _) in PROMISES.items():
        row = rows.get(name, silence)
        yield PromiseResult(name, text, tuple(proves.split()), row["status"], row["detail"])  # type: ignore[arg-type]
