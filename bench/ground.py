"""What the benchmarks of the network share: a small world with a project in it, a relay to compare with, verdicts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.network.topology import INTERNET4, World

REPOSITORY = Path(__file__).resolve().parent.parent
PYTHON = "/usr/bin/python3"
PROGRAMS = ("bwrap", "ip", "socat")
PORT, RELAYED = 9000, 9100
SIZE, CONNECTS = 256 << 20, 300


class Ground:
    """The world, and a project in it with both ends of the traffic."""

    def __init__(self, name: str) -> None:
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if missing:
            sys.exit(f"this benchmark needs {', '.join(missing)}: bench/setup installs what it compares with")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its namespaces go as well
        self.world = World(prefix=f"{name}{os.getpid() % 10000}")
        self.base = tempfile.mkdtemp(prefix="claudebox-bench-")
        self.home, self.project = f"{self.base}/home", f"{self.base}/project"
        for directory in (self.home, self.project):
            os.mkdir(directory)
        shutil.copy(REPOSITORY / "bench/traffic.py", self.project)

    def build(self) -> None:
        self.world.build()
        self.tune()
        server = self.world.start("internet", PYTHON, f"{self.project}/traffic.py", "serve")
        assert server.stdout is not None
        assert server.stdout.readline()

    def tune(self) -> None:
        """Set what must hold before anybody listens."""

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start something, in a session of its own.

        What is outside of a sandbox always is, and the kernel shares its time out by sessions.
        """
        return subprocess.Popen(
            [*self.world.within("host"), *words], cwd=self.project, env={"HOME": self.home, "PATH": os.defpath},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str) -> str:
        process = self.begin(*words)
        output, errors = process.communicate(timeout=120)
        if process.returncode:
            raise RuntimeError(f"{words}: {errors[-2000:]}")
        return output

    def client(self, address: str, port: int, size: int, count: int, *options: str) -> tuple[str, ...]:
        return (PYTHON, f"{self.project}/traffic.py", address, str(port), str(size), str(count), *options)

    def direct(self, address: str = INTERNET4, size: int = SIZE, count: int = CONNECTS) -> dict[str, float]:
        return json.loads(self.run(*self.client(address, PORT, size, count)))  # type: ignore[no-any-return]

    def relayed(self) -> dict[str, float]:
        """Measure what a sandbox gets whose only way out is socat, a socket file, and socat again."""
        sock = f"{self.project}/relay"
        outside = self.begin("socat", f"UNIX-LISTEN:{sock},fork", f"TCP:{INTERNET4}:{PORT}")
        limit = time.monotonic() + 10
        while not os.path.exists(sock):
            if outside.poll() is not None or time.monotonic() > limit:
                outside.kill()
                raise RuntimeError(f"socat did not start: {outside.communicate()[1][-500:]}")
            time.sleep(0.01)
        script = (f"socat TCP-LISTEN:{RELAYED},bind=127.0.0.1,fork,reuseaddr UNIX-CONNECT:{sock} & sleep 0.3; "
                  f"{' '.join(self.client('127.0.0.1', RELAYED, SIZE, CONNECTS))}; kill $!")  # fmt: skip
        try:
            words = ("bwrap", "--unshare-all", "--dev-bind", "/", "/", "sh", "-c", script)
            return json.loads(self.run(*words))  # type: ignore[no-any-return]
        finally:
            outside.kill()
            outside.communicate()
            os.unlink(sock)

    def launch(self, program: str, *flags: str) -> float:
        """Return the milliseconds from the launch to the end of `true`."""
        start = time.perf_counter()
        self.run(program, "-y", *flags, "--exec", "--", "true")
        return (time.perf_counter() - start) * 1e3

    def destroy(self) -> None:
        self.world.destroy()
        shutil.rmtree(self.base, ignore_errors=True)


def median(rows: list[dict[str, float]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def ratio(ours: list[dict[str, float]], theirs: list[dict[str, float]], key: str) -> float:
    """Return the median of the ratios, each of two runs that followed one another: the machine has its moods."""
    return statistics.median(one[key] / other[key] for one, other in zip(ours, theirs, strict=True))


def table(rows: dict[str, list[dict[str, float]]], rounds: int) -> None:
    """Print the medians."""
    print(f"one router away, median of {rounds}: {'down Mbit/s':>12} {'up Mbit/s':>12} {'connect and a byte, us':>24}")
    for name, found in rows.items():
        print(
            f"  {name:<28} {median(found, 'down'):14.0f} {median(found, 'up'):12.0f} {median(found, 'connect'):24.0f}"
        )


def verdict(name: str, value: float, target: float, *, at_least: bool, unit: str = "") -> bool:
    good = value >= target if at_least else value <= target
    wanted = f"target {'>=' if at_least else '<='} {target}{unit}"
    print(f"  {'ok    ' if good else 'missed'} {name:<58} {value:8.2f}{unit}  {wanted}")
    return good
