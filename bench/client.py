"""Measure `-p hello` of the real client in a repository, bare and in claudebox, against the scripted model.

The cases of a round run in random order, and each is compared with the bare client of its own round: the client takes
a second, in which a machine does much else, so fewer than forty rounds decide nothing.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{TOP}/src")

from claudebox.commands.demo.server import ScriptedModel  # noqa: E402

LIMIT = 1.10  # of the bare client
KEY = "key-of-the-benchmark"
_NAME = ("-c", "user.name=Bench", "-c", "user.email=bench@example.com")
SCRIPT = [{"say": "Hello."}]


def main() -> int:
    """Print the figures; 1 if the client takes too long in claudebox."""
    parser = argparse.ArgumentParser(prog="bench/client", description="measure the real client in claudebox")
    parser.add_argument("--rounds", type=int, default=41, metavar="N", help="how often each case runs (default: 41)")
    parser.add_argument("--plain", action="store_true", help="in a directory that is no repository")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="claudebox-bench-") as base, ScriptedModel(SCRIPT) as model:
        cases = _cases(base, model, repository=not given.plain)
        seed = random.randrange(1 << 32)
        times = _measure(cases, base, given.rounds, random.Random(seed))
    bare = times["bare"]
    rows: dict[str, dict[str, float]] = {}
    for name, row in times.items():
        added = sorted(each - alone for each, alone in zip(row, bare, strict=True))
        rows[name] = {
            "median": statistics.median(row),
            "more": statistics.median(added),
            "first quartile": added[len(added) // 4],
            "third quartile": added[len(added) * 3 // 4],
            "ratio": statistics.median(each / alone for each, alone in zip(row, bare, strict=True)),
        }
    if given.json:
        print(json.dumps({"seed": seed, "rounds": given.rounds, "cases": rows}, indent=2))
    else:
        print(f"`-p hello`, {given.rounds} rounds in random order (seed {seed}), load {os.getloadavg()[0]:.1f}\n")
        print("| case | median ms | more than bare (quartiles) | ratio |\n|---|---:|---:|---:|")
        for name, figures in rows.items():
            more = f"{figures['more']:+.0f} ({figures['first quartile']:+.0f}, {figures['third quartile']:+.0f})"
            print(f"| {name} | {figures['median']:.0f} | {more} | {figures['ratio']:.2f} |")
    return 0 if all(figures["ratio"] <= LIMIT for figures in rows.values()) else 1


def _cases(base: str, model: ScriptedModel, *, repository: bool) -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Install claudebox, and return argument vectors and environments by name, each with a home of its own."""
    client = next(Path(TOP, ".local/client/node_modules/@anthropic-ai").glob("claude-code-linux-*/claude"), None)
    if client is None:
        raise SystemExit("bench: there is no client; run scripts/client")
    for name in ("home", "broker", "passthrough", "project", "state"):
        os.mkdir(f"{base}/{name}")
    os.chdir(f"{base}/project")
    if repository:
        Path("README").write_text("A project.\n", encoding="utf-8")
        for words in (("init", "-q"), ("add", "."), (*_NAME, "commit", "-qm", "Begin")):
            subprocess.run(["git", *words], check=True)
    subprocess.run([f"{TOP}/scripts/install", "--prefix", f"{base}/prefix"], stdout=subprocess.DEVNULL, check=True)
    trust = {"hasCompletedOnboarding": True, "projects": {os.getcwd(): {"hasTrustDialogAccepted": True}}}
    Path(base, "state/.claude.json").write_text(json.dumps(trust), encoding="utf-8")
    settings = {"skipDangerousModePermissionPrompt": True}
    Path(base, "state/settings.json").write_text(json.dumps(settings), encoding="utf-8")
    common = {
        "HOME": f"{base}/home",
        "PATH": f"{client.parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": KEY,
    }
    alone = {
        "CLAUDE_CONFIG_DIR": f"{base}/state",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
        "IS_SANDBOX": "1",
    }
    claudebox = (f"{base}/prefix/bin/claudebox", "-y")
    return {
        "bare": ((str(client), "--dangerously-skip-permissions", "-p", "hello"), {**common, **alone}),
        "claudebox, broker": (
            (*claudebox, "--set", "auth=broker", "-p", "hello"),
            {**common, "HOME": f"{base}/broker"},
        ),
        "claudebox, passthrough": (
            (*claudebox, "--set", "auth=passthrough", "--env", "ANTHROPIC_BASE_URL", "-p", "hello"),
            {**common, "HOME": f"{base}/passthrough"},
        ),
    }


def _forget_events(base: str) -> None:
    """Take away what the client could not report: offline it keeps that, and reads all of it at each start."""
    for state in (f"{base}/state", *glob.glob(f"{base}/*/.claudebox/instances/*/claude")):
        shutil.rmtree(f"{state}/telemetry", ignore_errors=True)


def _measure(
    cases: dict[str, tuple[tuple[str, ...], dict[str, str]]], base: str, rounds: int, order: random.Random
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(-2, rounds):  # the first two warm the caches
        for name in order.sample(sorted(cases), len(cases)):
            argv, environ = cases[name]
            _forget_events(base)
            begin = time.perf_counter()
            done = subprocess.run(
                argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            passed = (time.perf_counter() - begin) * 1e3
            if done.returncode or "Hello." not in done.stdout:
                raise SystemExit(f"bench: {name} failed with {done.returncode}\n{done.stdout}{done.stderr}")
            if number >= 0:
                times[name].append(passed)
    return times


if __name__ == "__main__":
    sys.exit(main())
