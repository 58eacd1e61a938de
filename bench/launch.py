"""Measure a launch beside what it is made of, and beside its peers.

Every case runs once per round, so that whatever else the machine does falls on all of them alike; medians are
compared. claudebox is measured as it is installed: by `scripts/install` with its own entry, and by pip with a shim.
Home and project lie in memory unless `--disk` says otherwise: launches follow each other at once here, and ext4 passes
over the inodes of what was deleted within the last minutes one by one. Launches minutes apart do not pay for that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{TOP}/src")

from claudebox.host import gather  # noqa: E402
from claudebox.plan import compose  # noqa: E402
from claudebox.run import prepare  # noqa: E402
from claudebox.run.stubs import SessionStubs  # noqa: E402
from claudebox.settings import layers  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PYTHON = "/usr/bin/python3"
_MESSAGES = "../messages"  # of the last run, beside the project
_MEMORY = "/dev/shm"
_FEW = 100  # mounts with which a launch is quick enough to be repeated
PAYLOAD = ("-y", "--exec", "--", "true")


@dataclass(frozen=True)
class Case:
    """One thing that is measured."""

    name: str
    argv: tuple[str, ...]
    environ: dict[str, str]
    descriptors: tuple[int, ...] = ()  # handed over for this case alone
    project: str = "."  # where it runs

    def run(self) -> tuple[float, float]:
        """Run it once and return the milliseconds that passed, and those that its own process computed."""
        for descriptor in self.descriptors:
            _rewind(descriptor)
            os.set_inheritable(descriptor, True)  # noqa: FBT003
        quiet = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, _MESSAGES, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        ]
        with contextlib.chdir(self.project):
            begin = time.perf_counter_ns()
            process = os.posix_spawn(self.argv[0], self.argv, self.environ, file_actions=quiet)
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
            elapsed = time.perf_counter_ns() - begin
        with open(f"/proc/{process}/schedstat", encoding="ascii") as times:  # to the nanosecond, without its children
            computed = int(times.read().split()[0])
        _, status = os.waitpid(process, 0)
        for descriptor in self.descriptors:
            os.set_inheritable(descriptor, False)  # noqa: FBT003
        if status:
            with open(_MESSAGES, encoding="utf-8", errors="replace") as messages:
                raise SystemExit(f"bench: {self.name} failed: status {status:#x}\n{messages.read()[-1000:]}")
        return elapsed / 1e6, computed / 1e6


@dataclass(frozen=True)
class Target:
    """What a number should be at most (or at least), and what it is."""

    name: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def ok(self) -> bool:
        """Return whether it was met."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench/launch", description="measure what a launch costs")
    parser.add_argument("--rounds", type=int, default=41, metavar="N", help="how often each case runs (default: 41)")
    parser.add_argument(
        "--mounts", default="0,100,500,1000", metavar="N,N,...", help="how many extra mounts (default: %(default)s)"
    )
    parser.add_argument("--no-peers", action="store_true", help="leave out srt and firejail")
    parser.add_argument("--disk", action="store_true", help="home and project in the directory for temporary files")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    given = parser.parse_args()
    counts = sorted(int(count) for count in given.mounts.split(","))
    memory_file_system = None if given.disk or not os.access(_MEMORY, os.W_OK) else _MEMORY
    with (
        tempfile.TemporaryDirectory(prefix="claudebox-bench-") as base,
        tempfile.TemporaryDirectory(prefix="claudebox-bench-", dir=memory_file_system) as stage,
    ):
        for directory in (base, stage):
            os.chmod(directory, 0o755)
        environ = _stage(stage)
        installed, shim = _install(base), _install_with_pip(base)
        cases = [
            Case("python3 -I -c pass", (PYTHON, "-I", "-c", "pass"), environ),
            _bare("bwrap, same mounts and options", installed, PAYLOAD, environ),
            Case("claudebox, own entry (-IS)", (installed, *PAYLOAD), environ),
            Case("claudebox, shim of pip", (shim, *PAYLOAD), environ),
            *([] if given.no_peers else _peers(environ)),
        ]
        passed = {name: passed for name, (passed, _) in _measure(cases, given.rounds).items()}
        times = {name: statistics.median(values) for name, values in passed.items()}
        best = {name: min(values) for name, values in passed.items()}
        mounts = _measure_mounts(base, installed, environ, counts, given.rounds)
        memory = _resident_memory(installed, environ)
    targets = list(_targets(times, mounts, memory))
    if given.json:
        document = {
            "milliseconds": times,
            "best": best,
            "mounts": mounts,
            "resident_kib": memory,
            "targets": [{"name": row.name, "value": row.value, "limit": row.limit, "ok": row.ok} for row in targets],
        }
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(_report(times, best, mounts, targets, given.rounds)))
    return 0 if all(row.ok for row in targets) else 1


def _stage(base: str) -> dict[str, str]:
    """Make a home and a project, go there, and return the environment of everything that is measured."""
    for name in ("home", "project"):
        os.mkdir(f"{base}/{name}")
    os.chdir(f"{base}/project")
    return {"HOME": f"{base}/home", "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "xterm"}


def _install(base: str) -> str:
    _run(f"{TOP}/scripts/install", "--prefix", f"{base}/prefix")
    return f"{base}/prefix/bin/claudebox"


def _install_with_pip(base: str) -> str:
    """Build a wheel with the build backend of our own environment, and install it into a fresh one."""
    pip = (sys.executable, "-I", "-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(*pip, "wheel", "--no-index", "--no-build-isolation", "--no-deps", "--wheel-dir", f"{base}/wheel", TOP)
    _run(PYTHON, "-I", "-m", "venv", "--without-pip", f"{base}/venv")
    wheel = f"{base}/wheel/{os.listdir(f'{base}/wheel')[0]}"
    _run(*pip, "--python", f"{base}/venv/bin/python", "install", "--no-index", "--no-deps", wheel)
    return f"{base}/venv/bin/claudebox"


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(argv)} failed\n{done.stdout}{done.stderr}")


def _bare(name: str, installed: str, argv: Sequence[str], environ: dict[str, str]) -> Case:
    """Return bwrap with the options of claudebox's own plan, and without its gate.

    What claudebox puts into a project for the time of a session has to stay for bwrap, hence a project of its own.
    """
    project = os.getcwd()
    twin = tempfile.mkdtemp(prefix="twin-", dir=os.path.dirname(project))
    os.chdir(twin)
    Case("the first launch", (installed, *PAYLOAD), environ).run()  # makes the state of this project
    wishes = layers.decide_policy(layers.read_settings(argv, environ), home=environ["HOME"], workdir=twin)
    facts = gather.read_host(wishes, environ)
    facts = facts.replace(machine=facts.machine.replace(terminal=False))
    made = compose.make_plan(wishes, facts).replace(gate=())
    stubs = SessionStubs(facts.instance)
    stubs.begin(made)
    stubs.make(made)
    prepared = prepare.prepare(made, {}, by_name=True)
    os.chdir(project)
    return Case(name, (made.bwrap, *prepared.argv[1:]), {}, prepared.descriptors)


def _peers(environ: dict[str, str]) -> Iterator[Case]:
    srt = f"{TOP}/.local/bench/node_modules/.bin/srt"
    if os.path.exists(srt):
        yield Case("srt", (srt, "true"), environ)
    firejail = shutil.which("firejail", path=environ["PATH"])
    if firejail:
        yield Case("firejail, default profile", (firejail, "--quiet", "true"), environ)


def _measure(cases: Sequence[Case], rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return, of every case, what its rounds took: passed and computed."""
    times: dict[str, tuple[list[float], list[float]]] = {case.name: ([], []) for case in cases}
    for number in range(-2, rounds):  # the first two warm the caches
        for case in cases:
            passed, computed = case.run()
            if number >= 0:
                times[case.name][0].append(passed)
                times[case.name][1].append(computed)
    return times


def _measure_mounts(
    base: str, installed: str, environ: dict[str, str], counts: list[int], rounds: int
) -> dict[int, dict[str, float]]:
    """Measure claudebox with as many more mounts, and bare bwrap besides.

    bwrap alone takes a second for a thousand, in which other processes of the machine would hide the milliseconds that
    claudebox adds. What counts is the time that the launcher itself computes: in pairs with and without, each in a
    project of its own where nothing is new, the median of all differences.
    """
    table: dict[int, dict[str, float]] = {}
    cases: dict[int, Case] = {}
    for count in counts:
        flags: list[str] = []
        for index in range(count):
            source = f"{base}/mounts/{index}"
            os.makedirs(source, exist_ok=True)
            flags.append(f"--mount-ro={source}:/mnt/{index}")
        argv = (*flags, *PAYLOAD)
        bare = _bare(f"bwrap {count}", installed, argv, environ)
        project = tempfile.mkdtemp(prefix="mounts-", dir="..")
        cases[count] = Case(str(count), (installed, *argv), environ, project=os.path.abspath(project))
        repeated = rounds if count <= _FEW else max(3, rounds // 4)
        times = _measure([bare], repeated) | _measure([cases[counts[0]], cases[count]], repeated)
        without, computed = times[str(counts[0])][1], times[str(count)][1]
        table[count] = {
            "bwrap": statistics.median(times[bare.name][0]),
            "launcher": statistics.median(computed),
            "extra": statistics.median(more - less for more, less in zip(computed, without, strict=True)),
        }
        for descriptor in bare.descriptors:
            os.close(descriptor)
    return table


def _resident_memory(installed: str, environ: dict[str, str]) -> int:
    """Return the resident memory of the supervisor while a sandbox runs, in KiB."""
    with subprocess.Popen(
        [installed, "-y", "--exec", "--", "sh", "-c", "echo up; read -r word"],
        env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
            fields = dict(line.split(":", 1) for line in status)
        process.stdin.close()
    return int(fields["VmRSS"].split()[0])


def _rewind(descriptor: int) -> None:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:  # a directory that is bound: nothing is read from it
        return


def _targets(times: dict[str, float], mounts: dict[int, dict[str, float]], memory: int) -> Iterator[Target]:
    python, bare, own, shim, *_ = times.values()
    parts = python + bare
    yield Target("own entry / (python + bwrap)", own / parts, 1.6, "x")
    yield Target("shim / (python + bwrap)", shim / parts, 1.7, "x")
    if "srt" in times:
        yield Target("srt / own entry", times["srt"] / own, 7.0, "x", at_least=True)
    yield Target("resident memory of the supervisor", memory / 1024, 16.0, " MB")
    if 0 in mounts:
        for count in (count for count in mounts if count):
            extra = mounts[count]["extra"] * 100 / count
            yield Target(f"per 100 of {count} extra mounts, beside bwrap", extra, 4.0, " ms")


def _report(
    times: dict[str, float],
    best: dict[str, float],
    mounts: dict[int, dict[str, float]],
    targets: list[Target],
    rounds: int,
) -> Iterator[str]:
    parts, best_parts = (sum(list(row.values())[:2]) for row in (times, best))
    yield f"Medians of {rounds} interleaved rounds; Python {platform.python_version()}, Linux {platform.release()},"
    load = os.getloadavg()[0]
    busy = "; the machine is busy, and medians say little" if load > (os.cpu_count() or 1) + 1 else ""
    yield f"{os.cpu_count()} cores, load {load:.1f}{busy}."
    yield ""
    yield from _table(
        ("what", "ms", "of python + bwrap", "best ms", "of best"),
        [
            (name, f"{ms:.1f}", f"{ms / parts:.2f}", f"{best[name]:.1f}", f"{best[name] / best_parts:.2f}")
            for name, ms in times.items()
        ],
    )
    yield ""
    yield from _table(
        ("extra mounts", "bwrap alone, ms", "launcher itself, CPU ms", "more than without"),
        [
            (str(count), *(f"{row[name]:.1f}" for name in ("bwrap", "launcher", "extra")))
            for count, row in mounts.items()
        ],
    )
    yield ""
    rows = [
        (
            row.name,
            f"{row.value:.2f}{row.unit}",
            f"{'>=' if row.at_least else '<='} {row.limit:g}{row.unit}",
            "ok" if row.ok else "missed",
        )
        for row in targets
    ]
    yield from _table(("target", "measured", "wanted", ""), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for index, row in enumerate((head, *rows)):
        cells = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"| {' | '.join(cells)} |"
        if index == 0:
            yield f"|{'-' * (widths[0] + 2)}|" + "".join(f"{'-' * (width + 1)}:|" for width in widths[1:])


if __name__ == "__main__":
    sys.exit(main())
