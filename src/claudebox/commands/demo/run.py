"""`claudebox demo`: the real client in the real sandbox, driven by a scripted model, in a throw-away home and project.

The home holds worthless secrets. Each attack runs on the host first, where it must succeed, then in the sandbox. The
verdicts come from what reached the model and from the state of the host, never from what the agent says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any, Literal

from claudebox.base import console
from claudebox.base.files import PACKAGE
from claudebox.commands.demo import scenario
from claudebox.commands.demo import stage as demo_stage
from claudebox.commands.demo.server import ScriptedModel
from claudebox.commands.demo.stage import read_text
from claudebox.network.tiers import TIERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from claudebox.commands.demo.scenario import Act
    from claudebox.commands.demo.stage import Stage
    from claudebox.settings.layers import Settings

    Verdict = Literal["held", "done", "open", "broken", "failed"]
    Row = tuple[str, Verdict, str]  # title, verdict, detail


_COLOURS: dict[Verdict, str] = {"held": "green", "done": "green", "open": "yellow", "broken": "red", "failed": "red"}
_PROGRAM = f"import sys; sys.path.insert(0, {PACKAGE!r}); from claudebox.cli import main; sys.exit(main())"
_OWN_FAILURES = (125, 126, 127)
_SHOWN = 6  # lines of what a tool returned
_INTRODUCTION = (
    "A scripted model plays an agent that has been turned against you, in a project and a home made for it.",
    "The client and the sandbox are the real ones; the secrets are not.",
)


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Run the demonstration; return 0 if every promise held.

    The default tier is `none`: the model is reached through the broker in any tier.
    """
    tier = flags.one("network").value if flags.all("network") else "none"
    with demo_stage.make_stage(environ) as stage:
        acts = scenario.list_acts(stage.project, stage.port, demo_stage.find_python())
        demo_stage.try_on_host(stage, acts)
        console.write(_INTRODUCTION, descriptor=1)
        with ScriptedModel(scenario.list_steps(acts), key=stage.canaries["key"], listener=_show) as model:
            status, output = _play(stage, model.url, "--network", tier, *flags.words)
        if status in _OWN_FAILURES:
            return status
        returned = ["\n".join(answer["results"]) for answer in model.answers[1:]] + [""] * len(acts)
        rows = [(act.title, *_judge(act, stage, text, tier)) for act, text in zip(acts, returned, strict=False)]
        if status:
            shown = console.shorten(" ".join(output.split()) or "see above")
            rows.append(("the session", "failed", f"claudebox ended with status {status}: {shown}"))
        console.write(_table(rows), descriptor=1)
        return 1 if any(verdict in ("broken", "failed") for _, verdict, _ in rows) else 0


def _play(stage: Stage, address: str, *words: str) -> tuple[int, str]:
    """Run claudebox as a user would; return its status and output."""
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", _PROGRAM, "-y", *words, "-p", scenario.PROMPT],
        cwd=stage.project, env={**stage.environ, "ANTHROPIC_BASE_URL": address}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, encoding="utf-8", errors="replace", pass_fds=(stage.descriptor,),
    ) as child:  # fmt: skip
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: child.terminate())
        output, _ = child.communicate()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode, output


def _show(event: dict[str, Any]) -> None:
    """Print what the tool returned, and the next answer of the model."""
    if event["event"] != "answer" or event["kind"] != "script":
        return
    lines = []
    for result in event["results"]:
        shown = [console.shorten(line) for line in result.splitlines() if line.strip()]
        if len(shown) > _SHOWN:
            shown[_SHOWN:] = [f"… and {len(shown) - _SHOWN} more lines"]
        lines += [console.paint(f"    {line}", "dim", descriptor=1) for line in shown]
    for line in event["say"].splitlines():
        lines += ["", f"● {console.clean(line)}"] if line else []
    for tool in event["tools"]:
        what = tool["input"].get("command") or tool["input"].get("file_path") or ""
        lines.append(f"  {console.paint(tool['name'], 'bold', descriptor=1)} {console.shorten(str(what), 200)}")
    console.write(lines, descriptor=1)


def _judge(act: Act, stage: Stage, returned: str, tier: str) -> tuple[Verdict, str]:
    """Return the verdict on one action, by what its tool returned and by what the host is like now."""
    if act.kind == "secret" and not stage.controls.get(act.key):
        return "failed", "could not be tried: the same command finds nothing on the host either"
    seen = [canary for canary in stage.canaries.values() if canary in returned]
    if act.kind == "secret" and seen:
        if act.key == "network" and TIERS[tier].shared:
            return "open", f"reachable: tier `{tier}` shares the network of the host"
        return "broken", f"the agent could read {seen[0]}"
    if act.kind == "host" and _has_changed(act.key, stage):
        return "broken", "the agent could write it, and the host would run it"
    if act.done not in returned:
        return "failed", "did not run to its end" if returned else "was not tried"
    if act.kind == "work":
        return ("done", "works") if _has_changed(act.key, stage) else ("failed", "did not work")
    return "held", "found on the host by the same command" if act.kind == "secret" else "the host's file is unchanged"


def _has_changed(key: str, stage: Stage) -> bool:
    """Return whether an action has had its effect on the host."""
    match key:
        case "edit":
            return scenario.WRONG not in read_text(f"{stage.project}/{scenario.EDITED}")
        case "commit":
            return read_text(f"{stage.project}/{scenario.BRANCH}") != stage.head
        case "hook":
            return os.path.lexists(f"{stage.project}/{scenario.HOOK}")
        case "startup":
            return read_text(f"{stage.home}/{scenario.STARTUP}") != scenario.STARTED_WITH
        case _:
            return True


def _table(rows: Sequence[Row]) -> Iterator[str]:
    width = max(len(title) for title, _, _ in rows)
    yield ""
    for title, verdict, detail in rows:
        painted = console.paint(f"{verdict:<6}", _COLOURS[verdict], descriptor=1)
        yield f"{painted}  {title:<{width}}  {console.clean(detail)}"
    counts = {name: sum(verdict == name for _, verdict, _ in rows) for name in _COLOURS}
    yield ""
    yield ", ".join(f"{count} {name}" for name, count in counts.items() if count)
