"""Where the tier `inet` does not lead, as data with reasons.

Over IPv4 everything is open that is not barred. Over IPv6 it is the other way round: only the prefixes of `OPEN6` are
open, and of these not what is barred, because new special ranges appear there (F03).
"""

from __future__ import annotations

from claudebox.plan.model import Barred

TABLE: tuple[Barred, ...] = (
    Barred("0.0.0.0/8", "this machine under another name"),
    Barred("10.0.0.0/8", "private networks"),
    Barred("100.64.0.0/10", "carriers' and VPNs' own networks (Tailscale, Alibaba's metadata)"),
    Barred("127.0.0.0/8", "loopback"),
    Barred("168.63.129.16/32", "Azure's metadata"),
    Barred("169.254.0.0/16", "link-local, and most clouds' metadata"),
    Barred("172.16.0.0/12", "private networks"),
    Barred("192.0.0.0/24", "protocol assignments, and Oracle's metadata"),
    Barred("192.168.0.0/16", "private networks"),
    Barred("198.18.0.0/15", "networks of test laboratories"),
    Barred("224.0.0.0/4", "multicast: everybody on the LAN"),
    Barred("240.0.0.0/4", "reserved, and broadcast"),
    Barred("2001::/32", "Teredo carries IPv4 addresses, private ones too"),
    Barred("2001:2::/48", "networks of test laboratories"),
    Barred("2002::/16", "6to4 carries IPv4 addresses, private ones too"),
)
NAT64 = "64:ff9b::/96"  # carries an IPv4 address in its last four bytes
OPEN6 = ("2000::/3", NAT64)
