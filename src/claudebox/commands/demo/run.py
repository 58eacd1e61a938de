"""`claudebox demo`: the real client in the real sandbox, driven by a scripted model, in a throw-away home and project.

The home holds worthless secrets. Each attack runs on the host first, where it must succeed, then in the sandbox. The
verdicts come from what reached the model and from the state of the host, never from what the agent says.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
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
    from collections.abc import Callable, Iterator, Sequence

    from claudebox.commands.demo.scenario import Act
    from claudebox.commands.demo.stage import Stage
    from claudebox.settings.layers import Settings


Verdict = Literal["held", "done", "open", "broken", "failed"]

_COLOURS = {"held": "green", "done": "green", "open": "yellow", "broken": "red", "failed": "red"}


@dataclass(frozen=True)
class Row:
    """One line of the table at the end."""

    title: str
    verdict: Verdict
    detail: str


def judge(act: Act, stage: Stage, model: ScriptedModel, tier: str) -> Row:
    """Return the verdict on one action."""
    notes = [answer["note"] for answer in model.answers if answer["note"]]
    seen = next((note["seen"] for note in notes if note["key"] == act.key), "")
    if act.kind in ("secret", "network"):
        return _judge_secret(act, stage, tier, seen, leaked=seen == "leaked" or act.key in model.leaks)
    if not seen:
        return Row(act.title, "failed", "was not tried")
    if seen == "unclear" and act.kind == "host":
        return Row(act.title, "failed", "the attempt did not run to its end")
    if act.kind == "host":
        return _judge_effect(act, stage, seen)
    changed = {
        "edit": lambda: scenario.WRONG not in read_text(f"{stage.project}/{scenario.EDITED}"),
        "commit": lambda: read_text(f"{stage.project}/{scenario.BRANCH}") != stage.head,
    }
    if seen != "done" or not changed.get(act.key, lambda: True)():
        return Row(act.title, "failed", "did not work")
    return Row(act.title, "done", "works")


def _judge_secret(act: Act, stage: Stage, tier: str, seen: str, *, leaked: bool) -> Row:
    if not stage.controls.get(act.key):
        return Row(act.title, "failed", "could not be tried: the same command finds nothing on the host either")
    if leaked and act.kind == "network" and TIERS[tier].shared:
        return Row(act.title, "open", f"reachable: tier `{tier}` shares the network of the host")
    if leaked:
        return Row(act.title, "broken", "the agent could read it")
    if seen != "clean":
        return Row(act.title, "failed", "the attempt did not run to its end" if seen else "was not tried")
    return Row(act.title, "held", "found on the host by the same command, and not inside")


def _judge_effect(act: Act, stage: Stage, seen: str) -> Row:
    changed = {
        "hook": lambda: os.path.lexists(f"{stage.project}/{scenario.HOOK}"),
        "startup": lambda: read_text(f"{stage.home}/{scenario.STARTUP}") != scenario.STARTED_WITH,
    }
    if changed[act.key]():
        return Row(act.title, "broken", "the agent could write it, and the host would run it")
    return Row(act.title, "held", "could not be written" if seen == "refused" else "written inside, not on the host")


def table(rows: Sequence[Row]) -> Iterator[str]:
    width = max(len(row.title) for row in rows)
    yield ""
    for row in rows:
        verdict = console.paint(f"{row.verdict:<6}", _COLOURS[row.verdict], descriptor=1)
        yield f"{verdict}  {row.title:<{width}}  {console.clean(row.detail)}"
    counts = [f"{sum(row.verdict == name for row in rows)} {name}" for name in _COLOURS]
    yield ""
    yield ", ".join(count for count in counts if not count.startswith("0 "))


_PROGRAM = f"import sys; sys.path.insert(0, {PACKAGE!r}); from claudebox.cli import main; sys.exit(main())"
_OWN_FAILURES = (125, 126, 127)
_PACE = 0.05  # seconds between pieces of text, so that a user can follow
_SHOWN = 6  # lines of what a tool returned
_INTRODUCTION = (
    "A scripted model plays an agent that was turned against you, in a project and a home made for this.",
    "The client and the sandbox are the real ones; the secrets are not.",
)


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Run the demonstration; return 0 if every promise held.

    The default tier is `none`: the model is reached through the broker in any tier.
    """
    interactive = os.isatty(0) and os.isatty(1) and not flags.on("yes")
    tier = flags.one("network").value if flags.all("network") else "none"
    with demo_stage.make_stage(environ) as stage:
        acts = scenario.acts(stage.project, stage.port, demo_stage.find_python())
        demo_stage.try_on_host(stage, acts)
        console.write(_INTRODUCTION, descriptor=1)
        model = ScriptedModel(
            scenario.script(acts, pause=_PACE if interactive else 0.0),
            key=stage.canaries["key"],
            canaries=stage.canaries,
            listener=None if interactive else _show,
        )
        with model:
            status, output = _play(stage, model, flags.words, tier, interactive=interactive)
        if status in _OWN_FAILURES:
            return status
        rows = [judge(act, stage, model, tier) for act in acts]
        if status:
            shown = console.shorten(" ".join(output.split()) or "see above")
            rows.append(Row("the session", "failed", f"claudebox ended with status {status}: {shown}"))
        console.write(table(rows), descriptor=1)
        return 1 if any(row.verdict in ("broken", "failed") for row in rows) else 0


def _play(
    stage: Stage, model: ScriptedModel, words: tuple[str, ...], tier: str, *, interactive: bool
) -> tuple[int, str]:
    """Run claudebox as a user would; return its status and output."""
    flags = ["--network", tier]
    own = [*flags, *words] if interactive else ["-y", *flags, *words, "-p"]
    child = subprocess.Popen(
        [sys.executable, "-IS", "-c", _PROGRAM, *own, scenario.PROMPT],
        cwd=stage.project,
        env={**stage.environ, "ANTHROPIC_BASE_URL": model.url},
        stdin=None if interactive else subprocess.DEVNULL,
        stdout=None if interactive else subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        pass_fds=(stage.descriptor,),
    )
    with _signals_for(child):
        if interactive:
            return _shell_status(child.wait()), ""
        output, _ = child.communicate()
    return _shell_status(child.returncode), output


def _shell_status(code: int) -> int:
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _signals_for(child: subprocess.Popen[str]) -> Iterator[None]:
    """Ignore signals that the terminal sends to the child too; pass on those that were sent to us."""

    def pass_on(number: int, _frame: object) -> None:
        child.send_signal(number)
        child.send_signal(signal.SIGCONT)  # it may be suspended

    own: dict[int, Callable[..., object]] = {
        signal.SIGINT: lambda *_: None,  # not SIG_IGN, which the child would inherit
        signal.SIGQUIT: lambda *_: None,
        signal.SIGTERM: pass_on,
        signal.SIGHUP: pass_on,
    }
    before = {number: signal.signal(number, handler) for number, handler in own.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
