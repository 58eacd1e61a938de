"""Run a program in our own process group, as a pipeline does, and print which of its signals reached us."""

from __future__ import annotations

import signal
import subprocess
import sys

WATCHED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
reached: set[int] = set()

for number in WATCHED:
    signal.signal(number, lambda number, _frame: reached.add(number))
result = subprocess.run(sys.argv[1:], check=False)
print("reached", *sorted(reached), "status", result.returncode)  # noqa: T201
