"""Measure what a repository costs: a launch in it, `git status` inside and outside, bringing a commit back, snapshots.

Each case runs once per round, so that whatever else the machine does falls on all alike; medians are shown. The limits
are those of a quiet machine.
"""

from __future__ import annotations

import argparse
import gc
import glob
import os
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{TOP}/src")

from claudebox.git import importer  # noqa: E402
from claudebox.git import state as git_state  # noqa: E402
from claudebox.git.sandbox import Tools  # noqa: E402
from claudebox.plan import seccomp  # noqa: E402
from claudebox.undo import restore  # noqa: E402
from claudebox.undo.manifest import Scan  # noqa: E402
from claudebox.undo.store import SnapshotStore  # noqa: E402

LAUNCH = ("-y", "--set", "git_import=manual", "--exec", "--")
# Files → milliseconds: a launch more than with the same files and no repository, an import, the first snapshot and
# later ones.
LIMITS = {2000: (10.0, 100.0, 50.0, 50.0), 20000: (20.0, 100.0, 400.0, 150.0), 200000: (80.0, 400.0, 6000.0, 1500.0)}
UNLIMITED = (float("inf"),) * 4
_STATUS = 1.1  # times what `git status` takes outside
STATUS = "s=$(date +%s%N); git status --porcelain; e=$(date +%s%N); echo $(((e - s) / 10000))"


def main() -> int:
    """Print the figures; 1 if something costs too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, nargs="*", default=[2000, 20000])
    options = parser.parse_args()
    gc.disable()  # as in a session
    missed = 0
    for files in options.files:
        with tempfile.TemporaryDirectory(prefix="claudebox-bench-") as base:
            case = Case(base, files)
            rows = [case.measure(number) for number in range(options.rounds)]
            # Afterwards: ext4 passes over the inodes of files that were deleted within the last minutes, one by one.
            rows = [{**row, **case.take_snapshots(number)} for number, row in enumerate(rows)]
        median = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        more, limit, first, later = LIMITS.get(files, UNLIMITED)
        print(f"{files} files")
        print(f"  launch     {median['launch'] - median['bare']:+7.1f} ms with the repository, {more:.0f} are allowed")
        print(f"  git status {median['inside'] / median['outside']:7.2f} x outside ({median['outside']:.0f} ms)")
        print(f"  import     {median['import']:7.1f} ms of a commit, {limit:.0f} are allowed")
        print(f"  unchanged  {median['unchanged']:7.2f} ms to see that nothing is left")
        print(
            f"  snapshot   {median['first']:7.1f} ms until the agent may run, the first time, {first:.0f} are allowed"
        )
        print(f"             {median['whole']:7.1f} ms until it is complete, beside the agent")
        print(f"             {median['later']:7.1f} ms until the agent may run, later, {later:.0f} are allowed")
        print(f"  undo       {median['undo']:7.1f} ms for 200 deleted files")
        missed += median["import"] > limit or median["launch"] - median["bare"] > more
        missed += median["inside"] > _STATUS * median["outside"]
        missed += median["first"] > first or median["later"] > later
    return 1 if missed else 0


class Case:
    """A home, a repository of many files, and the same files without one."""

    def __init__(self, base: str, files: int) -> None:
        self._base = base
        self._environ = {"HOME": f"{base}/home", "PATH": "/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1"}
        for name in ("home", "project", "bare"):
            os.makedirs(f"{base}/{name}")
        with open(f"{base}/home/.gitconfig", "w", encoding="ascii") as config:
            config.write("[user]\n\tname = n\n\temail = n@example.org\n[gc]\n\tauto = 0\n")
        for number in range(files):
            directory = f"{base}/project/d{number // 200}"
            if number % 200 == 0:
                os.mkdir(directory)
            with open(f"{directory}/f{number}", "w", encoding="ascii") as file:
                file.write(f"file {number}\n" * 5)
        self._run("cp", "-a", "../project/.", ".", where="bare")
        self._run("sh", "-ec", "git init -q; git add .; git commit -qm first; git repack -adq; git status -s")
        self._tools = Tools("/usr/bin/bwrap", seccomp=seccomp.build(os.uname().machine) or b"")
        self._run(f"{TOP}/scripts/install", "--prefix", f"{base}/prefix")
        self._launch = (f"{base}/prefix/bin/claudebox", *LAUNCH)

    def _run(self, *words: str, where: str = "project") -> tuple[float, str]:
        begun = time.perf_counter()
        result = subprocess.run(words, cwd=f"{self._base}/{where}", env=self._environ, check=True, capture_output=True)
        return (time.perf_counter() - begun) * 1e3, result.stdout.decode()

    def measure(self, number: int) -> dict[str, float]:
        """Run everything once and return milliseconds."""
        bare = self._run(*self._launch, "true", where="bare")[0]
        launch = self._run(*self._launch, "true")[0]
        outside = float(self._run("sh", "-c", STATUS)[1].split()[-1]) / 100
        inside = float(self._run(*self._launch, "sh", "-c", STATUS)[1].split()[-1]) / 100
        self._run(*self._launch, "sh", "-ec", f"echo {number} >>d0/f0; git commit -qam more{number}")
        directories = glob.glob(f"{self._base}/home/.claudebox/instances/*/git")
        paths = (path for directory in directories for path in importer.private_directories(directory))
        (private,) = filter(git_state.is_known, paths)
        begun = time.perf_counter()
        done = importer.bring_back(private, self._tools, "bench", final=True)
        imported = (time.perf_counter() - begun) * 1e3
        assert [move.name for move in done.moved] == ["refs/heads/master"], done
        begun = time.perf_counter()
        assert git_state.settled(private)
        unchanged = (time.perf_counter() - begun) * 1e3
        return {"bare": bare, "launch": launch, "outside": outside, "inside": inside, "import": imported,
                "unchanged": unchanged}  # fmt: skip

    def take_snapshots(self, number: int) -> dict[str, float]:
        """Take two snapshots into a fresh store, and put back one directory."""
        root, place = f"{self._base}/project", f"{self._base}/store{number}"
        self._run("git", "status", "-s")  # with an index as git leaves it
        first, whole = self._take(root, place, "0")
        later, _ = self._take(root, place, "1")
        subprocess.run(("rm", "-rf", f"{root}/d0"), check=True)
        begun = time.perf_counter()
        self._take(root, place, "2")
        problems = restore.put_back(self._tools, place, ("1", "2"), root, (f"{root}/.git",))
        assert not problems, problems
        return {"first": first, "whole": whole, "later": later, "undo": (time.perf_counter() - begun) * 1e3}

    def _take(self, root: str, place: str, name: str) -> tuple[float, float]:
        """Take one as a session does; return when the agent could run, and when it was complete."""
        begun = time.perf_counter()
        store = SnapshotStore(place)
        scan = Scan(root, store, store.newest_like(root), most=64 << 20, skipped=(f"{root}/.git",))
        scan.look(lambda: 0)
        ready = time.perf_counter()
        store.write_snapshot(name, scan.snapshot())
        return (ready - begun) * 1e3, (time.perf_counter() - begun) * 1e3


if __name__ == "__main__":
    sys.exit(main())
