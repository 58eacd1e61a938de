"""Which addresses the broker connects to."""

from __future__ import annotations

import asyncio

import pytest
from tests.network import topology

from claudebox.base import addresses, netlink
from claudebox.broker.proxy import dial as module
from claudebox.broker.proxy.dial import Dialer, NoConnection, PrivateRanges, RangeWatch
from claudebox.network.facts import HostProxy
from claudebox.network.plan import closed_ranges

RANGES = closed_ranges()
OWN = [addresses.parse_prefix(text) for text in ("198.51.100.0/24", "198.51.100.2/32", "2001:db8:77::/64")]


@pytest.mark.parametrize("address", [
    *(address for address, _, _ in topology.CLOSED), "0.0.0.0", "127.0.0.1", "127.9.9.9", "::", "::1", "::127.0.0.1",
    "::ffff:192.168.1.1", "::ffff:198.51.100.7", "64:ff9b::10.0.0.1", "64:ff9b::198.51.100.2", "fe80::1", "fe80::1%lo",
    "fec0::1", "ff02::1", "224.0.0.1", "255.255.255.255", "100::1", "nonsense", "",
])  # fmt: skip
def test_nothing_near_is_reached(address):
    # proves F02, F03, F04, F06, F14
    assert PrivateRanges(RANGES, OWN).problem(address)


@pytest.mark.parametrize("address", ["203.0.113.80", "1.1.1.1", "2001:db8:1::80", "64:ff9b::203.0.113.80",
                                     "::ffff:203.0.113.80", "2606:4700::1111"])  # fmt: skip
def test_the_internet_is_reached(address):
    assert PrivateRanges(RANGES, OWN).problem(address) == ""


def test_what_appears_is_added():
    vicinity = PrivateRanges(RANGES)
    assert vicinity.problem("203.0.113.80") == ""

    vicinity.add([addresses.parse_prefix("203.0.113.0/24")])

    assert vicinity.problem("203.0.113.80")


async def test_the_tables_of_this_machine_are_read():
    watch = RangeWatch(RANGES)
    try:
        watch.follow()
        assert watch.ranges.problem("127.0.0.1")
    finally:
        watch.close()


async def test_while_the_tables_cannot_be_read_nothing_is_dialled(monkeypatch):
    # proves NEW-N9
    monkeypatch.setattr(module, "_PAUSE", 0.05)
    watch = RangeWatch(RANGES)
    proxy = HostProxy("127.0.0.1", 3128)
    dialer, through = (Dialer(watch.ranges, way, lambda _: ["203.0.113.80"]) for way in (None, proxy))
    try:
        watch.start()
        assert await dialer.check("a.example", 443) == ["203.0.113.80"]
        dump = netlink.dump

        def fail(*_words: object) -> list[tuple[int, bytes]]:
            raise OSError("the kernel's tables change faster than they can be read")

        monkeypatch.setattr(netlink, "dump", fail)
        watch.follow()
        for _ in range(3):
            assert watch.ranges.problem("203.0.113.80")
            with pytest.raises(NoConnection):
                await dialer.dial("a.example", 443)
            with pytest.raises(NoConnection):
                await through.dial("a.example", 80, plain=True)
            await asyncio.sleep(0.1)  # it tries again, and fails again
        monkeypatch.setattr(netlink, "dump", dump)
        for _ in range(500):
            await asyncio.sleep(0.02)
            if not watch.ranges.stale:
                break
        assert await dialer.check("a.example", 443) == ["203.0.113.80"]
    finally:
        watch.close()
        dialer.close()
        through.close()
