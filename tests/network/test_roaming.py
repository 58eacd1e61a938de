"""Addresses that the host gets while a sandbox runs: a VPN comes up, the Wi-Fi changes."""

from __future__ import annotations

import functools
import subprocess

import pytest
from tests.network.topology import PORT, wait_until

PEER4, PEER6 = "192.0.2.50", "2001:db8:99::50"
OWN4, OWN6 = "192.0.2.1", "2001:db8:99::1"


def test_what_becomes_the_hosts_own_during_a_session_is_barred_at_once(user_netbox, world):
    # proves NET-01, F04
    world.address("tailnet", "lo", f"{PEER4}/32")
    world.address("tailnet", "lo", f"{PEER6}/128")
    world.address("tailnet", "host0", "fd99::1/64")
    world.address("host", "tail0", "fd99::2/64")
    world.ip("host", "route", "add", "192.0.2.0/24", "via", "100.64.7.1")
    world.ip("host", "-6", "route", "add", "2001:db8:99::/64", "via", "fd99::1")
    world.ip("tailnet", "-6", "route", "add", "2001:db8:77::/64", "via", "fd99::2")
    world.ip("tailnet", "route", "add", "192.168.77.0/24", "via", "100.64.7.2")
    try:
        with user_netbox.asking(("--network", "inet"), wait=True) as probe:
            ask = functools.partial(probe, "tcp")
            # As long as a gateway leads there it is the internet, as far as anybody can tell.
            assert [ask(PEER4), ask(PEER6)] == ["tailnet", "tailnet"]

            world.address("host", "tail0", f"{OWN4}/24")
            world.address("host", "tail0", f"{OWN6}/64")

            assert wait_until(lambda: ask(PEER4) == ask(PEER6) == "ECONNREFUSED", 2)
            assert [ask(OWN4), ask(OWN6)] == ["ECONNREFUSED", "ECONNREFUSED"]
            assert user_netbox.probe([["tcp", OWN4, PORT], ["tcp", PEER4, PORT]], flags=None)[0][0] == "host"
            assert ask("203.0.113.80") == "internet"

            world.ip("host", "addr", "del", f"{OWN4}/24", "dev", "tail0")
            assert ask(PEER4) == "ECONNREFUSED"  # it may come back; a session is short

            # A network that is reached without a gateway, but without an address there (WireGuard).
            world.ip("host", "route", "add", "203.0.113.0/24", "dev", "tail0")
            assert wait_until(lambda: ask("203.0.113.80") == "ECONNREFUSED", 2)
    finally:
        for words in (
            ("host", "addr", "del", f"{OWN6}/64", "dev", "tail0"),
            ("host", "addr", "del", "fd99::2/64", "dev", "tail0"),
            ("host", "route", "del", "203.0.113.0/24", "dev", "tail0"),
            ("host", "addr", "del", f"{OWN4}/24", "dev", "tail0"),
            ("host", "route", "del", "192.0.2.0/24"),
            ("host", "-6", "route", "del", "2001:db8:99::/64"),
            ("tailnet", "addr", "del", f"{PEER4}/32", "dev", "lo"),
            ("tailnet", "addr", "del", f"{PEER6}/128", "dev", "lo"),
            ("tailnet", "addr", "del", "fd99::1/64", "dev", "host0"),
            ("tailnet", "-6", "route", "del", "2001:db8:77::/64"),
            ("tailnet", "route", "del", "192.168.77.0/24"),
        ):
            subprocess.run(["ip", "-n", world.name(words[0]), *words[1:]], check=False, capture_output=True)


@pytest.mark.parametrize("route", [
    ("route", "add", "192.0.2.0/24", "nexthop", "dev", "tail0", "nexthop", "dev", "lan0"),
    ("route", "add", "192.0.2.0/24", "nexthop", "dev", "tail0", "nexthop", "via", "192.168.77.1", "dev", "lan0"),
])  # fmt: skip
def test_a_network_with_several_next_hops_and_no_gateway_is_barred(plain_netbox, world, route):
    # proves NET-01, NET-03, F04, K09, OLD-B8
    world.address("tailnet", "lo", f"{PEER4}/32")
    world.address("lan", "lo", f"{PEER4}/32")
    world.sysctl("tailnet", "net/ipv4/conf/all/proxy_arp", "1")
    targets = [["tcp", PEER4, PORT], ["tcp", "203.0.113.80", PORT]]
    named = [["connect", "roaming.example", PORT], ["connect", "public.example", PORT]]
    flags = ("--network", "allow", *(w for _, name, _ in named for w in ("--allow-domain", f"{name}:{PORT}")))
    try:
        world.ip("host", *route)
        control = plain_netbox.probe(targets, flags=None)
        inet = plain_netbox.probe(targets, flags=("--network", "inet"))
        allow = plain_netbox.probe(named, flags=flags, wait=False)
    finally:
        world.ip("host", "route", "del", "192.0.2.0/24")
        world.ip("tailnet", "addr", "del", f"{PEER4}/32", "dev", "lo")
        world.ip("lan", "addr", "del", f"{PEER4}/32", "dev", "lo")

    assert control[0][0] in ("tailnet", "lan")
    assert [answer for answer, _ in inet] == ["ECONNREFUSED", "internet"]
    assert [answer for answer, _ in allow] == ["403", "internet"]
