"""Addresses that a user opens: which are taken, and in which spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claudebox.base import addresses
from claudebox.base.errors import ClaudeboxError
from claudebox.settings.domains import read_address
from claudebox.settings.layers import SettingValue, decide_policy, read_settings


def read(text):
    row = read_address(SettingValue(text, "--set allow_addresses"))
    return row.prefix, row.port


@pytest.mark.parametrize(
    ("text", "prefix", "port"),
    [
        ("10.1.2.3", "10.1.2.3/32", 0), ("10.1.2.3:443", "10.1.2.3/32", 443), ("10.1.0.0/16", "10.1.0.0/16", 0),
        ("10.1.0.0/16:22", "10.1.0.0/16", 22), ("fd77::50", "fd77::50/128", 0), ("[FD77::50]:22", "fd77::50/128", 22),
        ("[fd77::/64]:443", "fd77::/64", 443), ("fd77::/64", "fd77::/64", 0), ("100.64.0.0/10", "100.64.0.0/10", 0),
        ("2001:db8:77:0:0:0:0:50", "2001:db8:77:0:0:0:0:50/128", 0),
    ],
)  # fmt: skip
def test_addresses_and_networks_are_read(text, prefix, port):
    # proves NET-04
    assert read(text) == (prefix, port)


@pytest.mark.parametrize("text", [
    "169.254.169.254", "169.254.0.0/16", "169.254.170.2:80", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "fd00:ec2::254", "fd20:ce::254", "fd00:42::42", "127.0.0.1:5432", "127.0.0.0/8", "0.0.0.0", "::1", "fe80::1",
    "10.0.2.3", "224.0.0.251", "255.255.255.255", "::ffff:a00:1", "2002:a01:203::1",
])  # fmt: skip
def test_metadata_and_this_machine_are_refused(text):
    # proves NET-04, F06
    with pytest.raises(ClaudeboxError, match="stays closed"):
        read(text)


@pytest.mark.parametrize("text", [
    "", "git.corp.example", "10.1.2", "10.1.2.3.4", "010.1.2.3", "0x0a.1.2.3", "10.1.2.3:", "10.1.2.3:0",
    "10.1.2.3:99999", "10.1.2.3/33", "10.1.2.3/", "[fd77::50]22", "10.1.2.3/-1", "10.1.2.3 ", "fd:::50", "fd::1::1",
    "[fd77::50", "12345::1", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7", "\u0661\u0660.1.2.3", "1.2.3.4:4:",
])  # fmt: skip
def test_anything_else_is_refused_with_examples(text):
    # proves NET-04
    with pytest.raises(ClaudeboxError, match="is not an address") as problem:
        read(text)
    assert "10.1.2.3:443" in problem.value.hint


@pytest.mark.parametrize("text", ["0.0.0.0/0", "0.0.0.0/1", "8.0.0.0/7", "::/0", "c000::/6"])
def test_a_network_has_a_least_prefix(text):
    with pytest.raises(ClaudeboxError, match="too short; minimum"):
        read(text)


def test_bits_behind_a_network_are_an_error_that_names_it():
    with pytest.raises(ClaudeboxError) as problem:
        read("10.1.2.3/16")
    assert "`10.1.0.0/16`" in problem.value.hint
    with pytest.raises(ClaudeboxError) as problem:
        read("fd77:1::50/32")
    assert "`fd77:1::/32`" in problem.value.hint


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_an_address_is_what_everybody_takes_it_for(address):
    # proves NET-04
    for text in (str(address), address.exploded):
        assert addresses.pack(text) == address.packed


@pytest.mark.parametrize("tier", ["full", "none"])
def test_the_flag_means_nothing_elsewhere(tier):
    settings = read_settings(["--network", tier, "--set", "allow_addresses=10.1.2.3", "--shell"], {})
    with pytest.raises(ClaudeboxError, match="has no effect"):
        decide_policy(settings, home="/h", workdir="/w")
