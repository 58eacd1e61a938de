"""The program that carries packets between sandbox and internet: which one works here, and its command line.

Nothing is run to find out: a launch examines the machine before the user has agreed to anything.
"""

from __future__ import annotations

import os

from claudebox.base.files import read_small
from claudebox.base.records import Value
from claudebox.host import programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


TUN = "/dev/net/tun"
_INSTALL = "install the package `passt` (2024 or newer) or `slirp4netns`"
# Options that tell versions of pasta apart. Without the first, it stalls uploads and spins as root; without the second,
# it uploads over long distances at a third of the speed of slirp4netns.
_SOUND, _FAST = b"map-host-loopback", b"splice-only"
_PROGRAM_LIMIT = 16 << 20


class Candidate(Value):
    """A program that might be the uplink, and what is wrong with it."""

    name: str
    path: str = ""
    problem: str = ""
    remedy: str = ""


def find_uplinks(path: Sequence[str], wanted: str = "auto") -> tuple[Candidate, ...]:
    """Return the programs in the order of preference, up to the first without a problem."""
    order = {
        "auto": (("pasta", _FAST), ("slirp4netns", b""), ("pasta", _SOUND)),
        "pasta": (("pasta", _SOUND),),
        "slirp4netns": (("slirp4netns", b""),),
    }[wanted]
    found: list[Candidate] = []
    for name, option in order:
        found.append(_examine(name, programs.find_tool(name, path), option))
        if not found[-1].problem:
            break
    return tuple(found)


def _examine(name: str, path: str | None, option: bytes) -> Candidate:
    if path is None or not os.access(path, os.X_OK):
        return Candidate(name, problem=f"`{name}` is not installed", remedy=_INSTALL)
    if not os.path.exists(TUN):
        remedy = "`sudo modprobe tun`; in a container, pass the device in (docker: `--device`)"
        return Candidate(name, path, f"there is no {TUN}", remedy)
    if not os.access(TUN, os.R_OK | os.W_OK):
        return Candidate(name, path, f"{TUN} is closed to you", f"`sudo chmod 0666 {TUN}`, the default of most systems")
    content = read_small(path, limit=_PROGRAM_LIMIT, follow=True) or b""
    if option not in content and content.startswith(b"\x7fELF"):  # a script that starts it says nothing of its version
        flaw = "uploads slowly over long distances" if option == _FAST else "stalls uploads and spins as root"
        return Candidate(name, path, f"`{path}` is too old: it {flaw}", _INSTALL)
    return Candidate(name, path)


DEVICE = "tap0"
_MTU = 65520
# The addresses of slirp4netns; pasta would copy the host's, which identify it.
_ADDRESS4, _LENGTH4, _GATEWAY4 = "10.0.2.100", "24", "10.0.2.2"
_ADDRESS6, _GATEWAY6 = "fd00::100", "fe80::2"


def pasta(path: str, forwarder: str, holder: int, ready: str, *, ipv6: bool, root: bool) -> tuple[str, ...]:
    """Return the command line of pasta, which writes its pid to `ready` when packets flow.

    Every mapping is switched off: by default pasta connects the sandbox's loopback to the host's, and opens ports on
    the host for what listens inside (F11, F12). It ends with the holder's namespace.
    """
    return (
        path, "--foreground", "--quiet", "--config-net", "--ns-ifname", DEVICE,
        "--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none",
        "--no-map-gw", "--map-guest-addr", "none", "--dns-forward", forwarder,
        "--no-dhcp", "--no-dhcpv6", "--no-ra", "--pid", ready,
        "--address", _ADDRESS4, "--netmask", _LENGTH4, "--gateway", _GATEWAY4,
        *(("--address", _ADDRESS6, "--gateway", _GATEWAY6) if ipv6 else ("--ipv4-only",)),
        *(("--runas", "0:0") if root else ()),
        "--userns", f"/proc/{holder}/ns/user", "--netns", f"/proc/{holder}/ns/net",
    )  # fmt: skip


def slirp4netns(path: str, holder: int, ready: int, end: int, *, ipv6: bool) -> tuple[str, ...]:
    """Return the command line of slirp4netns, which writes to `ready` when packets flow and ends when `end` closes."""
    return (
        path, "--configure", f"--mtu={_MTU}", "--disable-host-loopback", "--enable-seccomp",
        *(("--enable-ipv6",) if ipv6 else ()),
        f"--ready-fd={ready}", f"--exit-fd={end}", f"--userns-path=/proc/{holder}/ns/user",
        "--netns-type=path", f"/proc/{holder}/ns/net", DEVICE,
    )  # fmt: skip
