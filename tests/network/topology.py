"""A small world made of network namespaces: a host with its LAN, a VPN, a metadata service, and the internet behind.

    sandbox -- uplink -- [host] -- lan 192.168.77.0/24, fd77::/64 ------ [lan]: resolver, neighbour, router
                           |   `-- tailnet 100.64.7.0/24 -------------- [tailnet]
                           `------ vpn, added later by a test --------- [tailnet]
                                                                  [lan] -- transit -- [internet]

Every place has listeners over TCP and UDP that answer with the name of the place, so that a probe can tell what it
reached. Nothing leaves these namespaces.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

PORT = 8000
PLACES = ("host", "lan", "tailnet", "internet")
LISTENERS = str(Path(__file__).with_name("listeners.py"))

HOST_LAN4, HOST_LAN6 = "192.168.77.2", "fd77::2"
HOST_PUBLIC4, HOST_PUBLIC6 = "198.51.100.2", "2001:db8:77::2"
RESOLVER4, RESOLVER6 = "192.168.77.1", "fd77::1"
INTERNET4, INTERNET6 = "203.0.113.80", "2001:db8:1::80"

# What must be reachable in `inet`, and what must not: address, the place that answers there, why it is interesting.
OPEN = (
    (INTERNET4, "internet", "a public address"),
    (INTERNET6, "internet", "a public address over IPv6"),
    ("64:ff9b::203.0.113.80", "internet", "NAT64 of a public address"),
)
CLOSED = (
    (HOST_LAN4, "host", "the host in its LAN"),
    (HOST_LAN6, "host", "the host in its LAN over IPv6"),
    (HOST_PUBLIC4, "host", "the host's public address"),
    (HOST_PUBLIC6, "host", "the host's public address over IPv6"),
    ("100.64.7.2", "host", "the host in the tailnet"),
    (RESOLVER4, "lan", "the resolver, on a port that is not for names"),
    (RESOLVER6, "lan", "the resolver over IPv6"),
    ("192.168.77.50", "lan", "a neighbour"),
    ("10.1.2.3", "lan", "a private network"),
    ("172.16.9.9", "lan", "a private network"),
    ("2001:db8:77::50", "lan", "a neighbour with a public IPv6 address"),
    ("198.51.100.50", "lan", "a neighbour with a public address"),
    ("100.64.7.1", "tailnet", "a peer of a VPN"),
    ("100.100.100.200", "lan", "Alibaba's metadata"),
    ("169.254.169.254", "lan", "metadata"),
    ("168.63.129.16", "lan", "Azure's metadata"),
    ("192.0.0.192", "lan", "Oracle's metadata"),
    ("fd00:ec2::254", "lan", "metadata over IPv6"),
    ("198.18.0.9", "lan", "a test laboratory"),
    ("240.0.0.9", "lan", "reserved"),
    ("64:ff9b::192.168.77.50", "lan", "NAT64 of a neighbour"),
    ("64:ff9b::198.51.100.2", "lan", "NAT64 of the host"),
    ("64:ff9b:1::a01:203", "lan", "local NAT64"),
    ("2002:c0a8:4d32::1", "lan", "6to4 of a neighbour"),
    ("2001:0:c0a8:4d32::1", "lan", "Teredo"),
)
_LAN4 = ("192.168.77.1/24", "192.168.77.50/24", "198.51.100.1/24", "198.51.100.50/24")
_LAN6 = ("fd77::1/64", "2001:db8:77::1/64", "2001:db8:77::50/64")
_LAN_LOCAL = (
    "10.1.2.3/32", "172.16.9.9/32", "100.100.100.200/32", "169.254.169.254/32", "168.63.129.16/32",
    "192.0.0.192/32", "198.18.0.9/32", "240.0.0.9/32", "fd00:ec2::254/128", "64:ff9b::c0a8:4d32/128",
    "64:ff9b::c633:6402/128", "64:ff9b:1::a01:203/128", "2002:c0a8:4d32::1/128", "2001:0:c0a8:4d32::1/128",
)  # fmt: skip


def run(*words: str, **options: object) -> str:
    result = subprocess.run(words, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if result.returncode:
        raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip()}")
    return str(result.stdout)


@dataclass
class World:
    """The namespaces of one test session."""

    prefix: str = field(default_factory=lambda: f"cb{os.getpid() % 100000}")
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def name(self, place: str) -> str:
        return f"{self.prefix}-{place}"

    def within(self, place: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name(place))

    def ip(self, place: str, *words: str) -> None:
        run("ip", "-n", self.name(place), *words)

    def build(self) -> None:
        for place in PLACES:
            run("ip", "netns", "add", self.name(place))
            self.ip(place, "link", "set", "lo", "up")
            self.sysctl(place, "net/ipv6/conf/default/accept_dad", "0")
            self.sysctl(place, "net/ipv6/conf/all/accept_dad", "0")
        self.cable("host", "lan0", "lan", "host0")
        self.cable("host", "tail0", "tailnet", "host0")
        self.cable("lan", "transit", "internet", "transit")
        for address in (f"{HOST_LAN4}/24", f"{HOST_LAN6}/64", f"{HOST_PUBLIC4}/24", f"{HOST_PUBLIC6}/64"):
            self.address("host", "lan0", address)
        self.address("host", "tail0", "100.64.7.2/24")
        self.address("tailnet", "host0", "100.64.7.1/24")
        for address in (*_LAN4, *_LAN6):
            self.address("lan", "host0", address)
        for address in _LAN_LOCAL:
            self.address("lan", "lo", address)
        self.address("lan", "transit", "203.0.113.1/24")
        self.address("lan", "transit", "2001:db8:1::1/64")
        for address in (f"{INTERNET4}/24", "203.0.113.81/24", f"{INTERNET6}/64"):
            self.address("internet", "transit", address)
        self.address("internet", "lo", "64:ff9b::203.0.113.80/128")
        for forwarding in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            self.sysctl("lan", forwarding, "1")
        self.ip("host", "route", "add", "default", "via", RESOLVER4, "src", HOST_LAN4)
        self.ip("host", "-6", "route", "add", "default", "via", "2001:db8:77::1", "src", HOST_PUBLIC6)
        self.ip("internet", "route", "add", "default", "via", "203.0.113.1")
        self.ip("internet", "-6", "route", "add", "default", "via", "2001:db8:1::1")
        self.ip("lan", "-6", "route", "add", "64:ff9b::cb00:7150/128", "via", INTERNET6)
        for place in PLACES:
            self.sysctl(place, "net/ipv4/ping_group_range", "0 2147483647")
        directory = Path(f"/etc/netns/{self.name('host')}")
        directory.mkdir(parents=True)
        self.resolver(RESOLVER4)
        for place in PLACES:
            self.listen(place)

    def resolver(self, *servers: str, options: str = "") -> None:
        """Say which servers the host asks for names."""
        path = Path(f"/etc/netns/{self.name('host')}/resolv.conf")
        lines = ("search corp.example", *(f"nameserver {server}" for server in servers), f"options {options}")
        path.write_text("\n".join(lines) + "\n")

    def sysctl(self, place: str, name: str, value: str) -> None:
        run(*self.within(place), "sh", "-c", f"echo '{value}' > /proc/sys/{name}")

    def cable(self, one: str, device: str, other: str, device_there: str) -> None:
        run("ip", "-n", self.name(one), "link", "add", device, "type", "veth", "peer", "name", device_there,
            "netns", self.name(other))  # fmt: skip
        self.ip(one, "link", "set", device, "up")
        self.ip(other, "link", "set", device_there, "up")

    def address(self, place: str, device: str, address: str) -> None:
        extra = ("nodad",) if ":" in address else ()
        self.ip(place, "addr", "add", address, "dev", device, *extra)

    def listen(self, place: str) -> None:
        process = self.start(place, sys.executable, LISTENERS, place)
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"

    def start(self, place: str, *words: str, stdin: int | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen([*self.within(place), *words], stdin=stdin, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def destroy(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for place in PLACES:
            with contextlib.suppress(RuntimeError):
                run("ip", "netns", "delete", self.name(place))
        directory = Path(f"/etc/netns/{self.name('host')}")
        for entry in directory.glob("*"):
            entry.unlink()
        with contextlib.suppress(OSError):
            directory.rmdir()
            directory.parent.rmdir()


def wait_until(condition: object, seconds: float = 5.0) -> bool:
    """Wait until something holds; tell whether it does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return bool(condition())  # type: ignore[operator]
