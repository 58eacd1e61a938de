"""What the tier `allow` costs, against a socat relay over a socket file, in one run: ratios with their targets.

Everything happens in namespaces made here. usage (as root): bench/proxy [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "src")]

from bench.ground import CONNECTS, PORT, SIZE, Ground, median, table, verdict  # noqa: E402

PROGRAM = str(REPOSITORY / "bin/claudebox")
NAME = "four.example"  # one address, as socat has
STREAMS, SMALL = 200, 1 << 20
ALLOW = ("-y", "--network", "allow", "--allow-domain", f"{NAME}:{PORT}", "--exec", "--")


class Bench(Ground):
    """The small world, seen from tier `allow`."""

    def allowed(self, *options: str) -> dict[str, float]:
        words = self.client(NAME, PORT, SIZE, CONNECTS, *options)
        return json.loads(self.run(PROGRAM, *ALLOW, *words))  # type: ignore[no-any-return]

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
    table(rows, rounds)
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
        times["none"].append(bench.launch(PROGRAM, "--network", "none"))
        times["allow"].append(bench.launch(PROGRAM, "--network", "allow", "--allow-domain", NAME))
    shown = ", ".join(f"{tier} {statistics.median(times[tier]):.0f}" for tier in times)
    print(f"launch to end of `true`, ms, with the end of a broker that has hardly begun: {shown}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    bench = Bench("cbq")
    try:
        bench.build()
        return 0 if report(bench, options.rounds) else 1
    finally:
        bench.destroy()


if __name__ == "__main__":
    sys.exit(main())
