from __future__ import annotations

import pytest
from tests import hosts

from claudebox import network
from claudebox.catalogue import SETTINGS
from claudebox.model import Policy


def resolv_conf(content: bytes, tier: str = "full") -> bytes:
    return network.resolv_conf(Policy("client", network=tier), hosts.debian(resolv_conf=content))  # type: ignore[arg-type]


def test_a_linked_resolv_conf_becomes_a_file_of_servers_and_search_rules():
    # proves SAND-12
    assert resolv_conf(hosts.RESOLVED) == b"nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch fritz.box\n"


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", b""),
        (b"# nameserver 1.2.3.4\n; nameserver 5.6.7.8\n", b""),
        (b"  nameserver\t9.9.9.9  \r\n", b"nameserver\t9.9.9.9\n"),
        (b"nameserver 2001:db8::1", b"nameserver 2001:db8::1\n"),
        (b"sortlist 10.0.0.0\nlookup file bind\n", b""),
        (b"domain lan\nsearch a b\n", b"domain lan\nsearch a b\n"),
        (b"nameserverx 1.1.1.1\n", b""),
        (b"token sk-secret\nnameserver 1.1.1.1\n", b"nameserver 1.1.1.1\n"),
    ],
)
def test_nothing_else_of_the_file_enters(content, kept):
    # proves SAND-12
    assert resolv_conf(content) == kept


def test_without_a_network_there_is_nobody_to_ask_for_names():
    # proves NET-T
    assert resolv_conf(hosts.RESOLVED, "none") == b""


def test_only_tier_full_shares_the_network_of_the_host():
    # proves NET-T
    tiers = next(row for row in SETTINGS if row.key == "network").choices
    shared = [tier for tier in tiers if not network.own_namespace(Policy("client", network=tier))]  # type: ignore[arg-type]

    assert shared == ["full"]


def test_every_tier_has_a_meaning_that_a_person_can_read():
    # proves F18
    tiers = next(row for row in SETTINGS if row.key == "network").choices

    assert set(network.MEANING) == set(tiers)
    assert "loopback" in network.MEANING["full"]
