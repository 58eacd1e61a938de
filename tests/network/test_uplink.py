"""The pure parts of the uplink: prefixes, tables of the kernel, rules."""

from __future__ import annotations

import ipaddress
import socket
import sys

import pytest

from claudebox.base import addresses, netlink
from claudebox.network import nftables, routes, uplink
from claudebox.network.plan import closed_ranges
from claudebox.settings.records import AddressRequest
from claudebox.tables import network as tables_network

RANGES = closed_ranges()
TABLE = (*tables_network.ALWAYS_BARRED, *tables_network.BARRED)


def test_every_barred_range_has_a_reason_and_is_a_network():
    for prefix, reason in TABLE:
        assert reason
        assert str(ipaddress.ip_network(prefix)) == prefix
        assert addresses.show(addresses.parse_prefix(prefix)) == prefix


@pytest.mark.parametrize("address", [
    "10.1.2.3", "172.31.255.255", "192.168.0.1", "100.64.0.1", "100.127.255.255", "169.254.169.254", "168.63.129.16",
    "192.0.0.192", "127.0.0.1", "0.0.0.0", "224.0.0.251", "255.255.255.255", "198.19.255.255",
])  # fmt: skip
def test_private_addresses_and_their_nat64_forms_are_barred(address):
    # proves NET-01, F02, F03, F06, F07
    prefix = addresses.parse_prefix(address)
    assert any(addresses.covers(addresses.parse_prefix(text), prefix) for text, _ in TABLE)
    wide = ipaddress.ip_address(addresses.embedded(prefix)[0])
    assert wide == ipaddress.ip_address("64:ff9b::") + int(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.0.1", "192.0.1.1"])
def test_public_addresses_are_not_barred(address):
    assert not any(addresses.covers(addresses.parse_prefix(text), addresses.parse_prefix(address)) for text, _ in TABLE)


@pytest.mark.parametrize(
    "address", ["::1", "fe80::1", "fd00:ec2::254", "fc00::1", "ff02::fb", "64:ff9b:1::1", "100::1"]
)
def test_ipv6_that_is_not_global_is_not_opened(address):
    # proves F03
    assert not any(
        addresses.covers(addresses.parse_prefix(text), addresses.parse_prefix(address)) for text in tables_network.OPEN6
    )


def message(family, length, *attributes, route=1):
    body = bytes([family, length, 0, 0, 0, 0, 0, route]) + bytes(4)
    return 24, body + b"".join(netlink.attribute(kind, value) for kind, value in attributes)


def address(family, length, *attributes):
    body = bytes([family, length, 0, 0]) + bytes(4)
    return 20, body + b"".join(netlink.attribute(kind, value) for kind, value in attributes)


def test_addresses_peers_and_networks_without_a_gateway_are_surroundings():
    # proves F04
    four, six = (lambda text: ipaddress.ip_address(text).packed,) * 2
    own, near = routes.surroundings([
        address(socket.AF_INET, 24, (1, four("203.0.113.5")), (2, four("203.0.113.5"))),
        address(socket.AF_INET, 32, (1, four("198.51.100.1")), (2, four("198.51.100.2"))),
        address(socket.AF_INET6, 64, (1, six("2001:db8::5"))),
        message(socket.AF_INET, 16, (1, four("203.1.0.0"))),
        message(socket.AF_INET, 24, (1, four("8.8.8.0")), (5, four("10.0.0.1"))),
        message(socket.AF_INET, 0),
        message(socket.AF_INET, 1, (1, four("128.0.0.0"))),
    ])  # fmt: skip

    assert sorted(map(addresses.show, own)) == ["198.51.100.2/32", "2001:db8::5/128", "203.0.113.5/32"]
    assert sorted(map(addresses.show, near)) == ["198.51.100.1/32", "2001:db8::/64", "203.0.113.0/24", "203.1.0.0/16"]


def hop(*attributes: tuple[int, bytes]) -> bytes:
    rest = b"".join(netlink.attribute(kind, value) for kind, value in attributes)
    return (8 + len(rest)).to_bytes(2, sys.byteorder) + bytes(6) + rest


def test_a_route_with_several_next_hops_is_near_if_one_of_them_has_no_gateway():
    # proves F04, K09, OLD-B8
    gateway = (5, ipaddress.ip_address("10.0.0.1").packed)
    via = (18, bytes(2) + ipaddress.ip_address("fd00::1").packed)

    def found(hops: bytes) -> bool:
        destination = ipaddress.ip_address("203.1.0.0").packed
        return any(routes.surroundings([message(socket.AF_INET, 16, (1, destination), (9, hops))]))

    assert found(hop() + hop())
    assert found(hop(gateway) + hop())
    assert found(hop() + hop(via))
    assert found(hop(gateway) + hop(gateway)[:6])
    assert not found(hop(gateway) + hop(via))


def test_what_is_barred_already_is_not_barred_again():
    found = {
        addresses.parse_prefix(text)
        for text in ("192.168.7.0/24", "203.0.113.0/24", "203.0.113.5/32", "fe80::/64", "2a00::/64")
    }
    assert [addresses.show(prefix) for prefix in nftables.find_unbarred(found, set(), RANGES, own=False)] == [
        "203.0.113.0/24",
        "2a00::/64",
    ]
    assert (
        nftables.find_unbarred(
            found, {addresses.parse_prefix("203.0.0.0/8"), addresses.parse_prefix("2a00::/32")}, RANGES, own=False
        )
        == []
    )


def test_addresses_of_the_host_are_barred_in_front_of_what_is_opened():
    # proves NET-04
    opened = closed_ranges((AddressRequest("192.168.7.0/24", 0, "x"), AddressRequest("fd77::/64", 443, "x")))
    found = {addresses.parse_prefix(text) for text in ("192.168.7.2/32", "fd77::2/128", "fd88::2/128", "127.0.0.1/32")}

    assert nftables.find_unbarred(found, set(), RANGES, own=True) == []
    own = nftables.find_unbarred(found, set(), opened, own=True)
    assert [addresses.show(prefix) for prefix in own] == ["192.168.7.2/32", "fd77::2/128"]


def test_a_route_that_makes_everything_local_is_no_address_of_the_host():
    kind = bytes([socket.AF_INET, 0, 0, 0, 0, 0, 0, 2]) + bytes(4)
    assert routes.surroundings([(24, kind)]) == (set(), set())


def test_the_chain_that_is_hooked_drops_and_ends_in_refusal():
    for family in nftables.FAMILIES:
        own = [
            rule
            for rule in nftables.fixed(RANGES, "10.0.2.3", nftables.FAMILIES)
            if rule.family == family and rule.chain == nftables.OUT
        ]
        assert b"refuse" in own[-1].expressions[-1]
        assert own[-1].expressions == own[-1].expressions[-1:]  # it matches everything that is left
    assert [chain.name for chain in nftables.chains(nftables.FAMILIES) if chain.hooked] == ["out", "out"]


def test_a_rule_that_comes_back_changed_is_noticed():
    first, second = list(
        nftables.machine(
            [addresses.parse_prefix("203.0.113.0/24"), addresses.parse_prefix("203.0.112.0/24")],
            nftables.FAMILIES,
            nftables.NEAR,
        )
    )[::2]
    sent = nftables.expressions(first)
    assert nftables.holds(sent, sent)
    assert not nftables.holds(sent, nftables.expressions(second))
    assert not nftables.holds(sent, sent[: len(sent) // 2])
    assert not nftables.holds(sent, b"")


def test_uplinks_are_told_to_open_nothing():
    # proves F01, F11, F12, F19
    pasta = uplink.pasta("/p", "10.0.2.3", 7, "/r", ipv6=True, root=True)
    for option in ("--tcp-ports", "--udp-ports", "--tcp-ns", "--udp-ns", "--map-guest-addr"):
        assert pasta[pasta.index(option) + 1] == "none"
    assert "--no-map-gw" in pasta
    slirp = uplink.slirp4netns("/s", 7, 5, 6, ipv6=False)
    assert {"--disable-host-loopback", "--enable-seccomp"} <= set(slirp)
    assert "--enable-ipv6" not in slirp
