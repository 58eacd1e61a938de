"""Ranges of addresses that no sandbox reaches in the tiers `inet` and `allow`, with reasons.

Over IPv4 everything is open that is not barred. Over IPv6 it is the other way round: only the prefixes of `OPEN6` are
open, and of these not what is barred, because new special ranges appear there (F03).
"""

from __future__ import annotations

# Prefix, and why.
BARRED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "this machine under another name"),
    ("10.0.0.0/8", "private networks"),
    ("100.64.0.0/10", "carriers' and VPNs' own networks (Tailscale, Alibaba's metadata)"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "Azure's metadata"),
    ("169.254.0.0/16", "link-local, and most clouds' metadata"),
    ("172.16.0.0/12", "private networks"),
    ("192.0.0.0/24", "protocol assignments, and Oracle's metadata"),
    ("192.168.0.0/16", "private networks"),
    ("198.18.0.0/15", "networks of test laboratories"),
    ("224.0.0.0/4", "multicast: everybody on the LAN"),
    ("240.0.0.0/4", "reserved, and broadcast"),
    ("2001::/32", "Teredo carries IPv4 addresses, private ones too"),
    ("2001:2::/48", "networks of test laboratories"),
    ("2002::/16", "6to4 carries IPv4 addresses, private ones too"),
)
NAT64 = "64:ff9b::/96"  # carries an IPv4 address in its last four bytes
OPEN6 = ("2000::/3", NAT64)
