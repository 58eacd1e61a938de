"""What the tier `inet` costs: throughput, latency and launch time, as ratios with their targets, in one run.

Everything happens in namespaces made here. usage (as root): bench/network [--pasta PATH] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "src")]

from bench.ground import CONNECTS, PORT, PYTHON, SIZE, Ground, ratio, table, verdict  # noqa: E402
from tests.network.topology import INTERNET4  # noqa: E402

from claudebox.network import netns  # noqa: E402
from claudebox.network import uplink as network_uplink  # noqa: E402

WAN4, WAN_SIZE = "198.41.0.4", 16 << 20
FORWARDER = "10.0.2.3"
# The same settings of TCP on every side, or the machine's own would be compared: those of the warden inside, and the
# kernel's defaults elsewhere.
OUTSIDE = (("tcp_congestion_control", "reno"), ("tcp_wmem", "4096 16384 4194304"), ("tcp_rmem", "4096 131072 6291456"))


def inside(uplink: str) -> str:
    """Return what a shell does to have the warden's settings."""
    rows = (*netns.SETTINGS, ("ipv4/tcp_wmem", f"4096 16384 {netns.IN_FLIGHT[uplink]}"))
    return " ".join(f"echo '{value}' 2>/dev/null > /proc/sys/net/{name};" for name, value in rows)


class Bench(Ground):
    """The world, and a claudebox for each uplink."""

    def __init__(self, pasta: str | None) -> None:
        super().__init__("cbb")
        self.uplinks = {"slirp4netns": str(shutil.which("slirp4netns"))}
        if pasta:
            self.uplinks["pasta"] = pasta
        self.programs = {name: self._checkout(name, path) for name, path in self.uplinks.items()}

    def _checkout(self, name: str, path: str) -> str:
        target = f"{self.base}/{name}"
        for part in ("src", "bin"):
            shutil.copytree(REPOSITORY / part, f"{target}/{part}", ignore=shutil.ignore_patterns("__pycache__"))
        baked = Path(target, "src/claudebox/build_paths.py")
        lines = [f"TOOLS = {{{name!r}: {path!r}}}" if line.startswith("TOOLS") else line for line in
                 baked.read_text().splitlines()]  # fmt: skip
        baked.write_text("\n".join(lines) + "\n")
        subprocess.run([PYTHON, "-m", "compileall", "-q", f"{target}/src"], check=True)
        return f"{target}/bin/claudebox"

    def tune(self) -> None:
        for place in ("host", "internet"):
            for name, value in OUTSIDE:
                self.world.sysctl(place, f"net/ipv4/{name}", value)

    def build(self) -> None:
        super().build()
        wan = subprocess.Popen(
            [PYTHON, str(REPOSITORY / "bench/wan.py"), self.world.name("lan"), self.world.name("internet")],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.world.processes.append(wan)
        assert wan.stdout is not None
        assert wan.stdout.readline()
        for place in ("lan", "internet"):
            self.world.ip(place, "link", "set", "wan0", "up", "mtu", "1500")
        self.world.ip("lan", "route", "add", f"{WAN4}/32", "dev", "wan0")
        self.world.address("internet", "wan0", f"{WAN4}/32")
        self.world.ip("internet", "route", "add", "192.168.77.0/24", "dev", "wan0", "src", WAN4)
        self.world.ip("internet", "route", "add", "192.168.77.2/32", "via", "203.0.113.1", "src", INTERNET4)

    def wan_only(self, *, on: bool) -> None:
        """Let answers take the same way as questions; both servers are one."""
        self.world.ip("internet", "route", "del" if on else "add", "192.168.77.2/32", "via", "203.0.113.1",
                      "src", INTERNET4)  # fmt: skip

    def ours(self, uplink: str, address: str, size: int, connects: int) -> dict[str, float]:
        words = (self.programs[uplink], "-y", "--network", "inet", "--set", f"uplink={uplink}", "--exec", "--")
        return json.loads(self.run(*words, *self.client(address, PORT, size, connects)))  # type: ignore[no-any-return]

    def bare(self, uplink: str, address: str, size: int, connects: int) -> dict[str, float]:
        """Measure the same uplink with the same options and no rules.

        Each process has a session of its own, as with us and with everybody who makes a daemon of an uplink: the
        kernel shares its time out by sessions.
        """
        ready = f"{self.base}/ready"
        os.mkfifo(ready)
        user = subprocess.Popen(
            [*self.world.within("host"), "unshare", "--user", "--map-root-user", "--net", "sh", "-c",
             f'{inside(uplink)} ip link set lo up; echo up; read word < {ready}; exec "$@"', "bare",
             *self.client(address, PORT, size, connects)], stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert user.stdout is not None
        user.stdout.readline()
        path = self.uplinks[uplink]
        told, tell = os.pipe()
        end, held = os.pipe()
        if uplink == "pasta":
            sign = f"{self.base}/pid"
            os.mkfifo(sign)
            reading = os.open(sign, os.O_RDWR)
            words = network_uplink.pasta(path, FORWARDER, user.pid, sign, ipv6=True, root=True)
        else:
            reading, sign = told, ""
            words = network_uplink.slirp4netns(path, user.pid, tell, end, ipv6=True)
        quiet = subprocess.DEVNULL
        carrier = subprocess.Popen(
            [*self.world.within("host"), *words],
            pass_fds=(tell, end),
            stderr=quiet,
            stdout=quiet,
            start_new_session=True,
        )
        os.read(reading, 1)
        Path(ready).write_text("go\n")
        output = user.communicate(timeout=40)[0]
        carrier.kill()
        carrier.wait()
        for descriptor in {told, tell, end, held, reading}:
            os.close(descriptor)
        for fifo in (ready, sign):
            if fifo:
                os.unlink(fifo)
        return json.loads(output)  # type: ignore[no-any-return]


def report(bench: Bench, rounds: int) -> bool:
    good = True
    wanted = (INTERNET4, SIZE, CONNECTS)
    paths = {"host": bench.direct, "socat": bench.relayed}
    for name in bench.uplinks:
        paths[f"bare {name}"] = partial(bench.bare, name, *wanted)
        paths[f"inet {name}"] = partial(bench.ours, name, *wanted)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in paths}
    for number in range(rounds):
        for name in list(paths)[:: -1 if number % 2 else 1]:  # whoever comes second finds a warmer machine
            rows[name].append(paths[name]())
    table(rows, rounds)

    bench.wan_only(on=True)
    far: dict[str, list[float]] = {name: [] for name in ("host", *bench.uplinks)}
    for _ in range(rounds):
        far["host"].append(bench.direct(WAN4, WAN_SIZE, 0)["up"])
        for name in bench.uplinks:
            far[name].append(bench.ours(name, WAN4, WAN_SIZE, 0)["up"])
    bench.wan_only(on=False)
    print(
        "upload over 50 ms and 100 Mbit/s: "
        + ", ".join(f"{name} {statistics.median(found):.1f} Mbit/s" for name, found in far.items())
    )

    times: dict[str, list[float]] = {}
    for _ in range(rounds * 5):
        for name in bench.uplinks:
            for tier in ("full", "none", "inet"):
                times.setdefault(f"{tier} {name}", []).append(
                    bench.launch(bench.programs[name], "--network", tier, "--set", f"uplink={name}")
                )
    print(
        "launch to end of `true`, ms: "
        + ", ".join(f"{name} {statistics.median(found):.0f}" for name, found in times.items())
    )

    for name in bench.uplinks:
        print(name)
        ours, bare, socat = rows[f"inet {name}"], rows[f"bare {name}"], rows["socat"]
        for key in ("down", "up"):
            good &= verdict(f"{key}, share of the bare uplink", ratio(ours, bare, key), 0.95, at_least=True)
            good &= verdict(f"{key}, against socat", ratio(ours, socat, key), 1.5, at_least=True)
        good &= verdict("connect, bare uplink's share of ours", ratio(bare, ours, "connect"), 0.95, at_least=True)
        good &= verdict("connect, socat against ours", ratio(socat, ours, "connect"), 2, at_least=True)
        good &= verdict("upload over the far path, share of direct",
                        statistics.median(far[name]) / statistics.median(far["host"]), 0.85, at_least=True)  # fmt: skip
        more = statistics.median(times[f"inet {name}"]) - statistics.median(times[f"none {name}"])
        good &= verdict("launch, inet more than none", more, 60, at_least=False, unit=" ms")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pasta", help="a pasta of 2024 or newer; see scripts/fetch-debian")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    bench = Bench(options.pasta)
    try:
        bench.build()
        return 0 if report(bench, options.rounds) else 1
    finally:
        bench.destroy()


sys.exit(main())
