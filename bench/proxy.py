"""What the tier `allow` costs, against a socat relay over a socket file, in one run: ratios with their targets.

Everything happens in namespaces made here. usage (as root): bench/proxy [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "src")]

from tests.network.topology import INTERNET4, World  # noqa: E402

PYTHON = "/usr/bin/python3"
PROGRAM = str(REPOSITORY / "bin/claudebox")
NAME, PORT, RELAYED = "four.example", 9000, 9100  # one address, as socat has
SIZE, CONNECTS, STREAMS, SMALL = 256 << 20, 300, 200, 1 << 20
ALLOW = ("-y", "--network", "allow", "--allow-domain", f"{NAME}:{PORT}", "--exec", "--")


class Bench:
    """The small world, and a project in it."""

    def __init__(self) -> None:
        self.world = World(prefix=f"cbq{os.getpid() % 10000}")
        self.base = tempfile.mkdtemp(prefix="claudebox-bench-")
        self.home, self.project = f"{self.base}/home", f"{self.base}/project"
        for directory in (self.home, self.project):
            os.mkdir(directory)
        shutil.copy(REPOSITORY / "bench/traffic.py", self.project)

    def build(self) -> None:
        self.world.build()
        server = self.world.start("internet", PYTHON, f"{self.project}/traffic.py", "serve")
        assert server.stdout is not None
        assert server.stdout.readline()

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start something, in a session of its own: what is outside of a sandbox always is, and the kernel shares its
        time out by sessions."""
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

    def direct(self) -> dict[str, float]:
        return json.loads(self.run(*self.client(INTERNET4, PORT, SIZE, CONNECTS)))  # type: ignore[no-any-return]

    def allowed(self, *options: str) -> dict[str, float]:
        words = self.client(NAME, PORT, SIZE, CONNECTS, *options)
        return json.loads(self.run(PROGRAM, *ALLOW, *words))  # type: ignore[no-any-return]

    def relayed(self) -> dict[str, float]:
        """Measure what a sandbox gets whose only way out is socat, a socket file, and socat again."""
        sock = f"{self.project}/relay"
        outside = self.begin("socat", f"UNIX-LISTEN:{sock},fork", f"TCP:{INTERNET4}:{PORT}")
        while not os.path.exists(sock):
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

    def crowd(self, *options: str) -> tuple[dict[str, float], int]:
        """Download many times at once; return the result and the most memory that the broker had, in kilobytes."""
        process = self.begin(PROGRAM, *ALLOW, *self.client(NAME, PORT, SMALL, STREAMS, "crowd", *options))
        most = 0
        while process.poll() is None:
            most = max(most, broker_memory(process.pid))
            time.sleep(0.02)
        output, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(errors[-2000:])
        return json.loads(output), most

    def launch(self, *flags: str) -> float:
        start = time.perf_counter()
        self.run(PROGRAM, "-y", *flags, "--exec", "--", "true")
        return (time.perf_counter() - start) * 1e3

    def destroy(self) -> None:
        self.world.destroy()
        shutil.rmtree(self.base, ignore_errors=True)


def broker_memory(process: int) -> int:
    """Return the peak of resident memory of the broker below a process."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        for child in children:
            if b"claudebox.broker" in Path(f"/proc/{child}/cmdline").read_bytes():
                status = Path(f"/proc/{child}/status").read_text().splitlines()
                return next((int(line.split()[1]) for line in status if line.startswith("VmHWM:")), 0)
        return max((broker_memory(int(child)) for child in children), default=0)
    except OSError:  # it has just ended
        return 0


def median(rows: list[dict[str, float]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def verdict(name: str, value: float, target: float, *, at_least: bool, unit: str = "") -> bool:
    good = value >= target if at_least else value <= target
    wanted = f"target {'>=' if at_least else '<='} {target}{unit}"
    print(f"  {'ok    ' if good else 'missed'} {name:<52} {value:8.2f}{unit}  {wanted}")
    return good


def report(bench: Bench, rounds: int) -> bool:
    paths: dict[str, Callable[[], dict[str, float]]] = {
        "host": bench.direct,
        "socat": bench.relayed,
        "allow, by CONNECT": partial(bench.allowed, "connect"),
        "allow, by name": bench.allowed,
    }
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in paths}
    for _ in range(rounds):
        for name, path in paths.items():
            rows[name].append(path())
    print(f"one router away, median of {rounds}: {'down Mbit/s':>12} {'up Mbit/s':>12} {'connect and a byte, us':>24}")
    for name, found in rows.items():
        print(
            f"  {name:<28} {median(found, 'down'):14.0f} {median(found, 'up'):12.0f} {median(found, 'connect'):24.0f}"
        )
    good = True
    socat = rows["socat"]
    for name in ("allow, by CONNECT", "allow, by name"):
        print(name)
        for key in ("down", "up"):
            good &= verdict(f"{key}, against socat", median(rows[name], key) / median(socat, key), 1.5, at_least=True)
        share = median(rows[name], "connect") / median(socat, "connect")
        good &= verdict("connect, share of socat's time", share, 1.0, at_least=False)
        result, memory = bench.crowd(*(("connect",) if "CONNECT" in name else ()))
        good &= verdict(f"streams that hold, of {STREAMS}", result["whole"], STREAMS, at_least=True)
        good &= verdict("memory of the broker meanwhile", memory / 1024, 40, at_least=False, unit=" MB")
    times: dict[str, list[float]] = {"none": [], "allow": []}
    for _ in range(rounds * 5):
        times["none"].append(bench.launch("--network", "none"))
        times["allow"].append(bench.launch("--network", "allow", "--allow-domain", NAME))
    shown = ", ".join(f"{tier} {statistics.median(times[tier]):.0f}" for tier in times)
    print(f"launch to end of `true`, ms, with the end of a broker that has hardly begun: {shown}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    bench = Bench()
    try:
        bench.build()
        return 0 if report(bench, options.rounds) else 1
    finally:
        bench.destroy()


if __name__ == "__main__":
    sys.exit(main())
