"""Measure agents side by side: how much later one starts in a copy of its own, and how much memory is beside each.

A plain launch and one with `--new` take turns, so that whatever else the machine does falls on both alike; medians are
shown. The limits are those of a quiet machine.
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

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLAUDEBOX = ("/usr/bin/python3", "-IS", f"{TOP}/bin/claudebox", "-y", "--quiet")
MORE, BESIDE = 0.5, 45  # seconds for a copy of 20,000 files; MiB beside the payload, launcher and tmux


def main() -> int:
    """Print the figures; 1 if something costs too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=20000)
    parser.add_argument("--agents", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="claudebox-bench-") as base:
        case = Case(base, options.files)
        plain, copied = zip(*(case.measure(number) for number in range(options.rounds)), strict=True)
        beside = case.weigh(options.agents)
    more = statistics.median(copied) - statistics.median(plain)
    print(f"{options.files} files, {options.agents} agents")
    print(f"  plain launch {statistics.median(plain):6.2f} s")
    print(f"  with --new   {more:+6.2f} s, {MORE} are allowed")
    print(f"  memory       {beside:6.1f} MiB beside each payload, {BESIDE} are allowed")
    return 1 if more > MORE or beside > BESIDE else 0


class Case:
    """A home and a repository."""

    def __init__(self, base: str, files: int) -> None:
        self._home, self._project = f"{base}/home", f"{base}/project"
        os.mkdir(self._home)
        for number in range(files):
            directory = f"{self._project}/{number // 100}"
            os.makedirs(directory, exist_ok=True)
            with open(f"{directory}/{number % 100}.txt", "w", encoding="ascii") as file:
                file.write(f"{number}\n" * 20)
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all"), ("gc", "-q")):
            self._run("git", "-c", "user.name=b", "-c", "user.email=b@b", "-c", "gc.auto=0", *words)
        self._claudebox("--exec", "--", "true")

    def measure(self, number: int) -> tuple[float, float]:
        """Return how long a launch takes, and one in a copy."""
        found = []
        for words in ((), ("--new", f"n{number}")):
            begun = time.monotonic()
            self._claudebox("--undo-keep", "0", *words, "--exec", "--", "true")
            found.append(time.monotonic() - begun)
        self._claudebox("--drop", f"n{number}")
        return found[0], found[1]

    def weigh(self, count: int) -> float:
        """Return the MiB that each agent takes besides its payload, which is next to nothing here."""
        try:
            for number in range(count):
                self._claudebox("--detach", "--new", f"w{number}", "--undo-keep", "0", "--exec", "--", "sleep", "100")
            rows = json.loads(self._claudebox("--sessions", "--json"))
            return statistics.mean(int(row["memory"]) for row in rows if row["state"] == "working") / (1 << 20)
        finally:
            self._run("tmux", "-S", f"{self._home}/.claudebox/run/tmux", "kill-server", check=False)
            time.sleep(1)  # for launchers to hear of it, before their home is gone

    def _claudebox(self, *words: str) -> str:
        return self._run(*CLAUDEBOX, *words)

    def _run(self, *words: str, check: bool = True) -> str:
        environ = {"HOME": self._home, "PATH": "/usr/bin:/bin", "TERM": "xterm"}
        done = subprocess.run(
            words, cwd=self._project, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise SystemExit(f"{words}: {done.stderr[-1000:]}")
        return done.stdout


if __name__ == "__main__":
    sys.exit(main())
