"""What is shown is the very value that is enforced: JSON of a plan against what bwrap, netns holder and broker get."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support import hosts

from claudebox.base import addresses
from claudebox.broker import plan as secret_plans
from claudebox.broker import wire
from claudebox.broker.proxy.dial import PrivateRanges
from claudebox.host.records import Destination
from claudebox.network import nftables
from claudebox.network import plan as network_plan
from claudebox.network.records import Barred, Ranges
from claudebox.network.uplink import Candidate
from claudebox.plan import bwrap, compose, explain
from claudebox.plan.records import Mount
from claudebox.settings.domains import Permission, parse_domain
from claudebox.settings.records import AddressRequest, MountRequest, NameRequest, Policy, SecretRequest

if TYPE_CHECKING:
    from claudebox.plan.records import Plan

VALUE = "ghp_0123456789abcdefghij"
labels = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=6)
domains = st.builds(lambda star, name: f"{star}{name}.example", st.sampled_from(["", "*."]), labels)
secrets = st.lists(labels, max_size=3, unique=True).map(
    lambda names: tuple(
        SecretRequest(
            f"TOKEN_{name.upper()}",
            ((f"{name}.example", 443),),
            "env:X",
            "config",
            value=VALUE,
            placeholder=f"other-{name}",
        )
        for name in names
    )
)
networks = st.sampled_from(["full", "inet", "allow", "none"])
keys = st.sampled_from([{}, {"ANTHROPIC_API_KEY": "sk-real"}, {"CLAUDE_CODE_OAUTH_TOKEN": "o"}])
proxies = st.sampled_from([{}, {"https_proxy": "http://me:pass-word@proxy.corp:3128"}, {"HTTPS_PROXY": "proxy.corp"}])


def made(network: str, names: list[str], held: tuple[SecretRequest, ...], environ: dict[str, str]) -> Plan:
    policy = Policy(
        "client",
        network=network,
        auth="broker",
        domains=tuple(NameRequest(name, "--allow-domain") for name in names) if network == "allow" else (),
        mounts=(MountRequest("/data", "/data", writable=True, origin="--mount-rw"),),
        secrets=held if network in ("inet", "allow") else (),
    )
    host = hosts.debian(
        environ=environ,
        libraries=("/lib",),
        uplinks=(Candidate("pasta", "/usr/bin/pasta"),),
        held_secrets=policy.secrets,
        sources={"/data": hosts.fact("/data")},
        destinations={"/data": Destination()},
    )
    return compose.make_plan(policy, host)


def shown(plan: Plan) -> dict[str, Any]:
    document = json.loads(explain.as_json(plan))
    assert isinstance(document, dict)
    return document


plans = st.builds(made, networks, st.lists(domains, max_size=4), secrets, st.builds(lambda a, b: a | b, keys, proxies))


def test_every_service_can_be_drawn():
    held = (SecretRequest("TOKEN", (("a.example", 443),), "env:X", "config"),)
    drawn = made("allow", ["*.a.example"], held, {"ANTHROPIC_API_KEY": "sk-real"})

    assert drawn.broker is not None
    assert [name for name, _ in drawn.broker.services] == ["model_api", "proxy", "inject"]


@given(plans)
def test_mounts_that_are_shown_are_those_that_bwrap_gets(plan):
    # proves HOUSE-03
    kinds = {"--bind", "--ro-bind", "--tmpfs", "--proc", "--dev", "--dir", "--symlink",
             "--file", "--ro-bind-data"}  # fmt: skip
    rows = [row for row in bwrap.options(plan) if row[0] in kinds]
    document = sorted(shown(plan)["mounts"], key=lambda row: row["dest"])
    places = [str(row[-1]) for row in rows]

    # Not in the order in which they are shown, but each after what it lies in.
    later = {place: places[index + 1 :] for index, place in enumerate(places)}
    assert not [place for place in places if any(place.startswith(f"{other}/") for other in later[place])]
    rows.sort(key=lambda row: str(row[-1]))
    assert sorted(places) == [row["dest"] for row in document]
    writable = {row[-1] for row in rows if row[0] in ("--bind", "--tmpfs")}
    assert writable == {row["dest"] for row in document if row["access"] in ("writable", "temporary")}
    for row, told in zip(rows, document, strict=True):
        if told["kind"] in ("bind", "ro-bind", "symlink"):
            source = row[1].source if isinstance(row[1], Mount) else row[1]
            assert source == told["source"]


@given(plans)
def test_services_that_are_shown_are_those_that_the_broker_gets(plan):
    # proves HOUSE-03
    document = shown(plan)
    if plan.broker is None:
        assert document["broker"] is None
        return
    received = dict(wire.unpack(wire.pack(plan.broker.services)))

    assert received == dict(plan.broker.services)
    assert document["broker"]["services"] == list(received)
    if "model_api" in received:
        (config,) = received["model_api"]
        assert document["broker"]["models"][0]["endpoint"] == str(config.endpoint)
        assert document["broker"]["models"][0]["through"] == str(config.proxy or "")
    if "proxy" in received:
        config = received["proxy"]
        assert config.reach == {"allow": "listed", "inet": "internet", "full": "everything"}[plan.policy.network]
        if plan.link is None:
            return
        assert document["link"]["domains"] == [{"name": row.name, "origin": row.origin} for row in config.domains]
        assert document["link"]["barred"] == [
            {"prefix": row.prefix, "reason": row.reason} for row in config.ranges.barred
        ]
        assert document["link"]["through"] == str(config.proxy or "")
    if "inject" in received:
        config = received["inject"]
        assert document["broker"]["secrets"] == [
            {
                "env": row.env,
                "hosts": [f"{host}:{port}" for host, port in row.hosts],
                "permit": list(row.permit),
            }
            for row in config.secrets
        ]
    for secret in (VALUE, "sk-real", "pass-word"):
        assert secret not in json.dumps(document)


@given(plans)
def test_values_that_are_fetched_later_change_nothing_that_was_shown(plan):
    # proves HOUSE-03
    if plan.broker is None or plan.broker.inject is None:
        return
    elsewhere = tuple(
        row.replace(value=VALUE, placeholder="o" * 24, hosts=(("thief.example", 1),)) for row in plan.secrets
    )
    filled = secret_plans.with_values(plan.broker, elsewhere)
    assert filled.inject is not None

    assert [row.value for row in filled.inject.secrets] == [VALUE] * len(plan.secrets)
    before = tuple(row.replace(value="", placeholder="") for row in plan.broker.inject.secrets)
    after = tuple(row.replace(value="", placeholder="") for row in filled.inject.secrets)
    assert after == before
    assert filled.replace(inject=plan.broker.inject) == plan.broker
    assert shown(plan.replace(broker=filled)) == shown(plan)


@given(plans)
def test_listeners_that_are_shown_are_those_that_the_netns_holder_opens(plan):
    # proves HOUSE-03
    link = shown(plan)["link"]
    if plan.link is None:
        assert link is None
        return

    assert [(row["name"], row["address"], row["port"]) for row in link["served"]] == [
        (row.name, row.address, row.port) for row in plan.link.served
    ]
    assert (link["host_ports"], link["published"]) == (list(plan.link.host_ports), list(plan.link.published))


@given(st.lists(domains, max_size=5), domains)
def test_a_domain_is_permitted_exactly_if_one_that_is_shown_permits_it(names, asked):
    # proves HOUSE-03
    plan = made("allow", names, (), {})
    assert plan.broker is not None
    config = dict(wire.unpack(wire.pack(plan.broker.services)))["proxy"]
    listed = [row["name"] for row in shown(plan)["link"]["domains"]]
    host = asked.removeprefix("*.")

    enforced = Permission(parse_domain(row.name, row.origin) for row in config.domains).rule(host, 443) is not None
    assert enforced == any(host.endswith(name[1:]) if name.startswith("*.") else host == name for name in listed)


ranges = st.builds(
    Ranges,
    st.lists(
        st.builds(
            lambda packed, length: Barred(addresses.show(addresses.network(packed, length)), "drawn"),
            st.binary(min_size=4, max_size=4), st.integers(1, 32),
        ),
        max_size=6, unique_by=lambda row: row.prefix,
    ).map(tuple),
    st.just(("2000::/3",)),
)  # fmt: skip


@given(ranges, st.binary(min_size=4, max_size=4))
def test_exactly_the_ranges_of_the_plan_are_enforced(closed, packed):
    # proves HOUSE-03, NET-01
    address = addresses.show((packed, 32)).partition("/")[0]
    inside = any(addresses.covers(addresses.parse_prefix(row.prefix), (packed, 32)) for row in closed.barred)
    rules = list(nftables.fixed(closed, "10.0.2.3", nftables.FAMILIES))
    none = list(nftables.fixed(Ranges((), closed.open6), "10.0.2.3", nftables.FAMILIES))

    assert bool(PrivateRanges(closed).problem(address)) == inside  # the broker, in tier `allow`
    assert len(rules) == len(none) + 2 * len(closed.barred)  # the netns holder, in tier `inet`: plain and NAT64
    for row in closed.barred:
        alone = list(nftables.fixed(Ranges((row,), closed.open6), "10.0.2.3", nftables.FAMILIES))
        assert {rule for rule in alone if rule not in none} <= set(rules)


private = st.builds(
    lambda packed, length, port: AddressRequest(addresses.show(addresses.network(packed, length)), port, "drawn"),
    st.sampled_from([b"\x0a", b"\xc0\xa8", b"\x64\x64\x64", b"\xfd\x00"]).flatmap(
        lambda head: st.binary(min_size=16 if head[0] == 0xFD else 4, max_size=16 if head[0] == 0xFD else 4).map(
            lambda rest: head + rest[len(head) :]
        )
    ),
    st.integers(8, 32), st.sampled_from([0, 443]),
)  # fmt: skip


@given(st.lists(private, max_size=4, unique_by=lambda row: (row.prefix, row.port)))
def test_what_is_opened_is_shown_and_stands_behind_what_is_always_closed(requests):
    # proves HOUSE-03, NET-04
    opened = network_plan.closed_ranges(tuple(requests))
    own = addresses.parse_prefix("203.0.113.5")
    judge, closed = PrivateRanges(opened, [own]), PrivateRanges(network_plan.closed_ranges(), [own])

    assert [(row.prefix, row.port) for row in opened.opened] == [(row.prefix, row.port) for row in requests]
    for family in nftables.FAMILIES:
        rules = list(nftables.fixed(opened, "10.0.2.3", (family,)))
        without = list(nftables.fixed(network_plan.closed_ranges(), "10.0.2.3", (family,)))
        ours = [row for row in requests if (":" in row.prefix) == (family == socket.AF_INET6)]
        added = [at for at, rule in enumerate(rules) if rule not in without]
        always, others = (list(nftables._closed(opened, family, always=always)) for always in (True, False))
        assert len(added) == len(rules) - len(without) == sum(2 if row.port else 1 for row in ours)
        assert all(rules.index(always[-1]) < at < rules.index(others[0]) for at in added)
    for row in requests:
        first = row.prefix.partition("/")[0]
        metadata = any(
            addresses.covers(addresses.parse_prefix(barred.prefix), addresses.parse_prefix(first))
            for barred in opened.barred
            if barred.always
        )
        assert bool(judge.problem(first, row.port or 22)) == metadata
        wider = any(other.port == 0 for other in requests)
        assert not row.port or wider or judge.problem(first, 444) == closed.problem(first, 444)
    for never in ("169.254.169.254", "127.0.0.1", "100.100.100.200", "fd00:ec2::254", "10.0.2.3", "203.0.113.5"):
        assert judge.problem(never, 443)


def test_opened_addresses_are_shown_as_they_are_enforced():
    # proves HOUSE-03, NET-04
    request = AddressRequest("10.1.2.3/32", 443, "--set allow_addresses")
    policy = Policy("exec", ("true",), network="inet", addresses=(request,))
    plan = compose.make_plan(policy, hosts.debian(uplinks=(Candidate("pasta", "/usr/bin/pasta"),)))
    assert plan.link is not None

    assert shown(plan)["link"]["opened"] == [{"prefix": "10.1.2.3/32", "port": 443, "origin": "--set allow_addresses"}]
    assert [(row.prefix, row.port) for row in plan.link.ranges.opened] == [("10.1.2.3/32", 443)]
    assert "opened by allow_addresses: 10.1.2.3:443" in list(network_plan.described(plan))
