"""Measure what a launch pays for its files: defaults, a profile that extends another, and an approved project file.

Both cases run once per round, so that whatever else the machine does falls on both alike. The difference of the
medians is what the files cost; the first launch, which reads them for the first time, is shown beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{TOP}/src")

from claudebox.settings import files as settings_files  # noqa: E402
from claudebox.settings import layers as settings_layers  # noqa: E402
from claudebox.settings import trust  # noqa: E402
from claudebox.settings.layers import Settings  # noqa: E402

LIMIT = 8.0  # milliseconds
PROGRAM = ("/usr/bin/python3", "-IS", f"{TOP}/bin/claudebox", "-y", "--exec", "--", "true")
DEFAULTS = 'extra_env_passthrough = ["GH_TOKEN"]\nprofile = "mine"\n\n[env]\nPAGER = "cat"\n'
PROFILE = 'extends = "default"\ndescription = "mine"\ninherit = []\nsecret_variables = "show"\n'
PROJECT = 'terminal = "plain"\nextra_env_passthrough = ["DATABASE_HOST"]\n\n[env]\nSTAGE = "test"\n'


def main() -> int:
    """Print the figures; 1 if the files cost too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="claudebox-bench-") as base:
        without, files = (Case(f"{base}/{name}") for name in ("without", "with"))
        files.furnish()
        first = files.run()
        without.run()
        pairs = [(without.run(), files.run()) for _ in range(rounds)]
    for name, index in (("wall clock", 0), ("computing", 1)):
        plain, furnished = (statistics.median(pair[which][index] for pair in pairs) for which in (0, 1))
        print(f"{name:<11} {plain:6.1f} ms without, {furnished:6.1f} ms with files: {furnished - plain:+.1f} ms")
    print(f"the first time: {first[0]:.1f} ms")
    cost = statistics.median(furnished[1] - plain[1] for plain, furnished in pairs)
    print(f"cost of the files: {cost:.1f} ms of computing, {LIMIT:.0f} are allowed")
    return 1 if cost > LIMIT else 0


class Case:
    """A home and a project."""

    def __init__(self, base: str) -> None:
        self._home, self._project = f"{base}/home", f"{base}/project"
        for directory in (self._home, self._project):
            os.makedirs(directory)
        self._environ = {"HOME": self._home, "PATH": "/usr/bin:/bin"}

    def furnish(self) -> None:
        """Write the files, and approve the project's."""
        for path, content in (
            (f"{self._home}/.claudebox/config.toml", DEFAULTS),
            (f"{self._home}/.claudebox/profiles/mine.toml", PROFILE),
            (f"{self._project}/.claudebox.toml", PROJECT),
        ):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
        reader = settings_files.SettingsReader(self._home)
        request = settings_files.read_request(reader, self._project)
        assert request is not None
        own = settings_files.layers(Settings({}), {}, reader)
        before, after = (settings_layers.merge(Settings({}), {}, layers) for layers in (own, (*own, request.layer)))
        wide = trust.find_widening(before, after)
        assert wide
        trust.approve(request, wide)

    def run(self) -> tuple[float, float]:
        """Launch once and return the milliseconds that passed, and those that were computed."""
        quiet = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, f"{self._home}/messages", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        ]
        begin = time.perf_counter_ns()
        shell = ("/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", self._project, *PROGRAM)
        process = os.posix_spawn(shell[0], shell, self._environ, file_actions=quiet)
        _, status, usage = os.wait4(process, 0)
        elapsed = time.perf_counter_ns() - begin
        if status:
            raise SystemExit(subprocess.run(["cat", f"{self._home}/messages"], check=False).returncode or 1)
        return elapsed / 1e6, (usage.ru_utime + usage.ru_stime) * 1e3


if __name__ == "__main__":
    sys.exit(main())
