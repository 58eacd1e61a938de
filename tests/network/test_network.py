from __future__ import annotations

import pytest
from tests.support import hosts

from claudebox.base.errors import ClaudeboxError
from claudebox.network import plan as network_plan
from claudebox.network.tiers import TIERS, Tier
from claudebox.plan import compose
from claudebox.plan import environment as plan_environment
from claudebox.settings.records import AddressRequest, Constant, NameRequest, Policy
from claudebox.settings.table import SETTINGS

LAN = (AddressRequest("10.0.0.0/8", 0, "--set allow_addresses"),)
NAMES = (NameRequest("a.example", "--allow-domain"),)


def resolv_conf(content: bytes, tier: str = "full") -> bytes:
    return network_plan.resolv_conf(Policy("client", network=tier), hosts.debian(resolv_conf=content))


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
    shared = [tier for tier in tiers if Policy("client", network=tier).tier.shared]

    assert shared == ["full"]


def test_every_tier_has_a_meaning_that_a_user_can_read():
    # proves F18
    assert next(row for row in SETTINGS if row.key == "network").choices == tuple(TIERS)
    assert all(tier.meaning for tier in TIERS.values())
    assert "loopback" in TIERS["full"].meaning


def test_a_new_tier_opens_nothing_until_it_says_so(monkeypatch):
    # proves NET-T
    monkeypatch.setitem(TIERS, "new", Tier("new", "nobody has thought about it", "Nobody knows."))
    proxied = {"HTTPS_PROXY": "http://me:pass-word@proxy:3128"}
    for host in (hosts.debian(environ=proxied), hosts.debian_with_nix(environ=proxied)):
        made, closed = (
            compose.make_plan(Policy("exec", ("true",), network=tier, addresses=LAN, domains=NAMES), host)
            for tier in ("new", "none")
        )
        unnamed = {"policy": Policy("exec"), "mounts": (), "nix": None}  # these name the tier
        assert made.replace(**unnamed) == closed.replace(**unnamed)
        assert made.nix is None or made.nix.kind == "off"
        assert "net" in made.namespaces
        unequal = {new.dest for new, old in zip(made.mounts, closed.mounts, strict=True) if new != old}
        assert unequal <= {"/run/claudebox/SANDBOX.md", "/etc/claude-code/CLAUDE.md"}

    full = compose.make_plan(Policy("exec", ("true",)), hosts.debian(environ=proxied))
    assert "net" not in full.namespaces
    assert full.broker is not None


def test_a_tier_that_does_not_exist_is_an_error():
    # proves NET-T
    with pytest.raises(KeyError):
        compose.make_plan(Policy("exec", ("true",), network="ful"), hosts.debian())


def allowed(*names, **options):
    return Policy(
        "exec", ("true",), network="allow", domains=tuple(NameRequest(name, "x") for name in names), **options
    )


def test_tiers_stand_in_the_order_of_what_they_lead_to():
    # proves NET-T, EXT-01
    row = next(row for row in SETTINGS if row.key == "network")

    assert (row.choices, row.widest) == (("full", "inet", "allow", "none"), "first")


def test_tier_allow_has_listeners_variables_and_a_broker_and_no_uplink():
    # proves NET-03
    made = compose.make_plan(allowed("a.example"), hosts.debian())

    assert made.link is not None
    assert (made.link.program, made.link.forwarder, made.link.ranges.barred) == ("", "", ())
    assert {(row.name, row.port) for row in made.link.served} == {
        ("proxy", 3128), ("redirected", 3129), ("names", 53),
    }  # fmt: skip
    assert made.broker is not None
    assert made.broker.proxy is not None
    assert [row.name for row in made.broker.proxy.domains] == ["a.example"]
    found = {row.name: row.value for row in made.variables}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        assert found[name] == "http://127.0.0.1:3128"
    assert found["NO_PROXY"] == found["no_proxy"] == "localhost,127.0.0.1,::1,claudebox.invalid"
    assert resolv_conf(hosts.RESOLVED, "allow") == b"nameserver 127.0.0.1\n"


@pytest.mark.parametrize("tier", ["full", "none"])
def test_other_tiers_have_nothing_of_it(tier):
    made = compose.make_plan(Policy("exec", ("true",), network=tier), hosts.debian())

    assert made.broker is None
    assert not {row.name for row in made.variables} & set(network_plan.PROXY_VARIABLES)


def test_the_way_out_is_not_replaced_by_a_constant():
    with pytest.raises(ClaudeboxError, match="the only way out"):
        plan_environment.plan_variables(
            allowed("a.example", constants=(Constant("HTTPS_PROXY", "http://x", "--env"),)), hosts.debian(), ()
        )


def test_a_client_that_cannot_log_in_is_announced():
    policy = Policy("client", network="allow", auth="passthrough")
    assert any("is not listed" in text for text in compose.make_plan(policy, hosts.debian()).warnings)

    listed = policy.replace(domains=(NameRequest("api.anthropic.com", "x"),))
    assert not any("is not listed" in text for text in compose.make_plan(listed, hosts.debian()).warnings)
    assert not any("is not listed" in text for text in compose.make_plan(allowed(), hosts.debian()).warnings)
