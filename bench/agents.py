"""Measure agents side by side: how much later one starts in a copy of its own, and how much memory is beside each.

A plain launch and one with `new` take turns, so that whatever else the machine does falls on both alike; medians are
shown, of the time until the payload runs. The limits are those of a quiet machine. Memory is measured with the real
client where `scripts/client` has installed one: detached in tier `full`, the credential held by the broker.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{TOP}/src")

from claudebox.commands.demo.server import ScriptedModel  # noqa: E402

CLAUDEBOX = ("/usr/bin/python3", "-IS", f"{TOP}/bin/claudebox", "-y", "--quiet")
MORE, BESIDE = 0.5, 45  # seconds for a copy of 20,000 files; MiB beside each client
KEY = "key-of-the-benchmark"
SCRIPT = [{"say": "Hello."}]
PATIENCE = 120.0  # seconds for all agents to have answered


def main() -> int:
    """Print the figures; 1 if something costs too much."""
    parser = argparse.ArgumentParser(prog="bench/agents", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=20000)
    parser.add_argument("--agents", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="claudebox-bench-") as base, ScriptedModel(SCRIPT) as model:
        case = Case(base, options.files, model.url)
        plain, copied = zip(*(case.measure(number) for number in range(options.rounds)), strict=True)
        beside, inside = case.weigh(options.agents)
    more = statistics.median(copied) - statistics.median(plain)
    print(f"{options.files} files, {options.agents} agents, load {os.getloadavg()[0]:.1f}")
    print(f"  plain launch {statistics.median(plain):6.2f} s until the payload runs")
    print(f"  with new     {more:+6.2f} s, {MORE} are allowed")
    print(f"  memory       {beside:6.1f} MiB beside each {case.payload} of {inside:.1f} MiB, {BESIDE} are allowed")
    return 1 if more > MORE or beside > BESIDE else 0


class Case:
    """A home and a repository."""

    def __init__(self, base: str, files: int, url: str) -> None:
        self._home, self._project = f"{base}/home", f"{base}/project"
        self._environ = {"HOME": self._home, "PATH": "/usr/bin:/bin", "TERM": "xterm"}
        self._credential = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY}
        client = next(Path(TOP, ".local/client/node_modules/@anthropic-ai").glob("claude-code-linux-*/claude"), None)
        self.payload = "client" if client else "`sleep` (there is no client: scripts/client)"
        self._words = ("hello",) if client else ("--exec", "--", "sh", "-c", r"printf '\033]0;✳\007'; sleep 1000")
        if client:
            self._environ["PATH"] = f"{client.parent}:/usr/bin:/bin"
        os.makedirs(f"{self._home}/.claudebox", 0o700)
        Path(self._home, ".claudebox/config.toml").write_text('network = "full"\n', encoding="ascii")
        for number in range(files):
            directory = f"{self._project}/{number // 100}"
            os.makedirs(directory, exist_ok=True)
            with open(f"{directory}/{number % 100}.txt", "w", encoding="ascii") as file:
                file.write(f"{number}\n" * 20)
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all"), ("gc", "-q")):
            self._run("git", "-c", "user.name=b", "-c", "user.email=b@b", "-c", "gc.auto=0", *words)
        self._claudebox("--exec", "--", "true")

    def measure(self, number: int) -> tuple[float, float]:
        """Return how long it takes until the payload runs, and the same in a new copy."""
        found = []
        for words in ((), ("new", f"n{number}")):
            begun = time.time()
            found.append(
                float(self._claudebox("--set", "undo_keep=0", *words, "--exec", "--", "date", "+%s.%N")) - begun
            )
        self._claudebox("drop", f"n{number}")
        return found[0], found[1]

    def weigh(self, count: int) -> tuple[float, float]:
        """Return the MiB that each agent takes outside of its sandbox, its share of tmux included, and inside."""
        socket = f"{self._home}/.claudebox/run/tmux"
        self._environ |= self._credential
        try:
            for number in range(count):
                self._claudebox("--detach", "new", f"w{number}", "--set", "undo_keep=0", *self._words)
            limit = time.monotonic() + PATIENCE
            rows = self._list()
            while any(row["state"] != "waiting" for row in rows):
                rows = self._list()
                if time.monotonic() > limit:
                    raise SystemExit(f"bench: not all agents have answered: {rows}")
            server = int(self._run("tmux", "-S", socket, "display-message", "-p", "#{pid}"))
            outside, inside = zip(*(_weigh_session(int(row["process"])) for row in rows), strict=True)
            return statistics.mean(outside) + _proportion(server) / count, statistics.mean(inside)
        finally:
            for number in range(count):
                self._run(*CLAUDEBOX, "stop", f"w{number}", check=False)
            self._run("tmux", "-S", socket, "kill-server", check=False)

    def _list(self) -> list[dict[str, int | str]]:
        rows: list[dict[str, int | str]] = json.loads(self._claudebox("sessions", "--json"))
        return rows

    def _claudebox(self, *words: str) -> str:
        return self._run(*CLAUDEBOX, *words)

    def _run(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            words, cwd=self._project, env=self._environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if check and done.returncode:
            raise SystemExit(f"{words}: {done.stderr[-1000:]}")
        return done.stdout


def _weigh_session(launcher: int) -> tuple[float, float]:
    """Return the MiB of a launcher and what descends from it: outside of the sandbox, and inside."""
    here, outside, inside, waiting = os.readlink("/proc/self/ns/pid"), 0.0, 0.0, [launcher]
    while waiting:
        process = waiting.pop()
        for task in Path(f"/proc/{process}/task").glob("*/children"):
            waiting += map(int, task.read_text(encoding="ascii").split())
        if os.readlink(f"/proc/{process}/ns/pid") == here:
            outside += _proportion(process)
        else:
            inside += _proportion(process)
    return outside, inside


def _proportion(process: int) -> float:
    """Return the MiB of a process, shared pages in equal parts."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    except ProcessLookupError:  # a zombie has none
        return 0.0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    sys.exit(main())
