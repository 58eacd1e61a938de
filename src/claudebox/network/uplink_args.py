"""The command lines of the uplinks. Pure."""

from __future__ import annotations

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
