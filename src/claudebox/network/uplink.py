"""Which program can carry packets between sandbox and internet on this machine: found by trying, not by version."""

from __future__ import annotations

import os
import select

from claudebox.base.records import Value
from claudebox.base.syscalls import signal
from claudebox.host import programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


TUN = "/dev/net/tun"
_INSTALL = "install the package `passt` (2024 or newer) or `slirp4netns`"
_PATIENCE = 5000  # milliseconds
# Options by which to tell versions of pasta apart. Without the first, it stalls uploads and spins as root; without the
# second, it uploads over long distances at a third of the speed, which slirp4netns does not.
_SOUND = ("--map-host-loopback", "none")
_FAST = ("--splice-only",)


class Candidate(Value):
    """A program that might be the uplink, and what is wrong with it."""

    name: str
    path: str = ""
    problem: str = ""
    remedy: str = ""


def find_uplinks(path: Sequence[str], wanted: str = "auto") -> tuple[Candidate, ...]:
    """Return the programs in the order of preference; the first without a problem is the one to use."""
    order = {
        "auto": (("pasta", _FAST), ("slirp4netns", ()), ("pasta", _SOUND)),
        "pasta": (("pasta", _SOUND),),
        "slirp4netns": (("slirp4netns", ()),),
    }[wanted]
    found: list[Candidate] = []
    for name, option in order:
        found.append(_examine(name, programs.find_tool(name, path), option))
        if not found[-1].problem:
            break
    return tuple(found)


def _tunnel_problem() -> tuple[str, str]:
    """Return what stops everybody from making a tap device, and the remedy."""
    if not os.path.exists(TUN):
        return f"there is no {TUN}", "`sudo modprobe tun`; in a container, hand the device in (docker: `--device`)"
    if not os.access(TUN, os.R_OK | os.W_OK):
        return f"{TUN} is closed to you", f"`sudo chmod 0666 {TUN}`, as most distributions have it"
    return "", ""


def _examine(name: str, path: str | None, option: tuple[str, ...]) -> Candidate:
    if path is None or not os.access(path, os.X_OK):
        return Candidate(name, problem=f"`{name}` is not installed", remedy=_INSTALL)
    problem, remedy = _tunnel_problem()
    if problem:
        return Candidate(name, path, problem, remedy)
    status = _run(path, (*option, "--version")) if option else 0
    if status == 0:
        return Candidate(name, path)
    if status is None:
        return Candidate(name, path, f"`{path}` does not answer", _INSTALL)
    if status != 1:
        return Candidate(name, path, f"`{path}` does not run (status {status})", _INSTALL)
    flaw = "uploads slowly over long distances" if option == _FAST else "stalls uploads and spins as root"
    return Candidate(name, path, f"`{path}` is too old: it {flaw}", _INSTALL)


def _run(path: str, words: Sequence[str]) -> int | None:
    """Run a program that says nothing to anybody; its status, or nothing if it hangs."""
    quiet = [(os.POSIX_SPAWN_OPEN, descriptor, "/dev/null", os.O_RDWR, 0) for descriptor in (0, 1, 2)]
    process = os.posix_spawn(path, (path, *words), {}, file_actions=quiet)
    descriptor = os.pidfd_open(process)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    answered = bool(poll.poll(_PATIENCE))
    if not answered:
        os.kill(process, signal.SIGKILL)
    os.close(descriptor)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return status if answered else None


# The command lines of the uplinks. Pure.


DEVICE = "tap0"
_MTU = 65520
# What slirp4netns gives the sandbox by itself; pasta would give it the host's own addresses, which tell who it is.
_ADDRESS4, _LENGTH4, _GATEWAY4 = "10.0.2.100", "24", "10.0.2.2"
_ADDRESS6, _GATEWAY6 = "fd00::100", "fe80::2"


def pasta(path: str, forwarder: str, holder: int, ready: str, *, ipv6: bool, root: bool) -> tuple[str, ...]:
    """Return the words for pasta in the foreground; it writes its number to `ready` when packets flow.

    Every mapping is switched off by name: by default pasta splices the sandbox's loopback to the host's, and opens
    on the host what listens inside (F11, F12). It polls the holder's namespace and ends with it.
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
    """Return the words for slirp4netns; it writes to one descriptor when packets flow, and ends when another closes."""
    return (
        path, "--configure", f"--mtu={_MTU}", "--disable-host-loopback", "--enable-seccomp",
        *(("--enable-ipv6",) if ipv6 else ()),
        f"--ready-fd={ready}", f"--exit-fd={end}", f"--userns-path=/proc/{holder}/ns/user",
        "--netns-type=path", f"/proc/{holder}/ns/net", DEVICE,
    )  # fmt: skip
