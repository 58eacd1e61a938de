"""Ranges of addresses that no sandbox reaches in the tiers `inet` and `allow`, with reasons.

Over IPv4 everything is open that is not barred. Over IPv6 it is the other way round: only the prefixes of `OPEN6` are
open, and of these not what is barred, because new special ranges appear there (F03).
"""

from __future__ import annotations

# Prefix, and why. These stay closed whatever `--allow-address` names: this machine, the metadata of clouds (which hands
# out credentials), and addresses that carry others in them.
ALWAYS_BARRED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "this machine under another name"),
    ("10.0.2.0/24", "the uplink's own: one of its addresses leads to the resolver of this machine, on every port"),
    ("100.100.100.200/32", "Alibaba's metadata"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "Azure's metadata"),
    ("169.254.0.0/16", "link-local, and most clouds' metadata"),
    ("192.0.0.0/24", "protocol assignments, and Oracle's metadata"),
    ("224.0.0.0/4", "multicast: everybody on the LAN"),
    ("240.0.0.0/4", "reserved, and broadcast"),
    ("::/16", "loopback, and IPv4 addresses in another spelling"),
    ("2001::/32", "Teredo carries IPv4 addresses, private ones too"),
    ("2002::/16", "6to4 carries IPv4 addresses, private ones too"),
    ("fd00::/64", "the uplink's own"),
    ("fd00:42::42/128", "Scaleway's metadata"),
    ("fd00:c1::a9fe:a9fe/128", "Oracle's metadata"),
    ("fd00:ec2::/32", "Amazon's metadata"),
    ("fd20:ce::254/128", "Google's metadata"),
    ("fe80::/10", "link-local"),
    ("ff00::/8", "multicast: everybody on the LAN"),
)
# These are closed unless a user names an address or a network in them.
BARRED: tuple[tuple[str, str], ...] = (
    ("10.0.0.0/8", "private networks"),
    ("100.64.0.0/10", "carriers' and VPNs' own networks (Tailscale)"),
    ("172.16.0.0/12", "private networks"),
    ("192.168.0.0/16", "private networks"),
    ("198.18.0.0/15", "networks of test laboratories"),
    ("2001:2::/48", "networks of test laboratories"),
)
NAT64 = "64:ff9b::/96"  # carries an IPv4 address in its last four bytes
OPEN6 = ("2000::/3", NAT64)
