"""Patterns of domains: what they mean, and what is said about those that mean nothing."""

from __future__ import annotations

import pytest

from claudebox.base.errors import ClaudeboxError
from claudebox.settings import domains as settings_domains
from claudebox.settings import layers as settings_layers
from claudebox.settings.domains import Permission, canonical, expand, parse_domain
from claudebox.tables.network import GROUPS


def permission(*texts):
    return Permission([parse_domain(text, "x") for text in texts])


@pytest.mark.parametrize("text", ["github.com", "*.example.org", "api.example.org:443", "xn--bcher-kva.example",
                                  "a_b.example", "1.example", "a-1.example.org:65535"])  # fmt: skip
def test_a_pattern_is_shown_as_it_was_written(text):
    assert str(parse_domain(text, "x")) == text


def test_a_pattern_does_not_depend_on_case():
    assert str(parse_domain("GitHub.COM", "x")) == "github.com"


@pytest.mark.parametrize(("text", "advice"), [
    ("https://github.com/a/b", "the name alone: `github.com`"),
    ("github.com/a", "the name alone: `github.com`"),
    ("user@github.com", "the name alone: `github.com`"),
    ("github.com.", "without the dot at its end: `github.com`"),
    ("*", "`--network inet`"),
    ("*.com", "`--network inet`"),
    ("*.*", "`--network inet`"),
    ("a.*.example.org", "allowed only as the first label"),
    ("*example.org", "allowed only as the first label"),
    ("*.*.example.org", "allowed only as the first label"),
    ("192.168.1.1", "names only, no addresses"),
    ("127.1", "names only, no addresses"),
    ("0x7f.0x1", "names only, no addresses"),
    ("10.0.0.0x1f", "names only, no addresses"),
    ("192.168.1.1:443", "names only, no addresses"),
    ("[::1]", "names only, no addresses"),
    ("2001:db8::1", "names only, no addresses"),
    ("bücher.example", "`xn--bcher-kva.example`"),
    ("-a.example", "write `github.com`"),
    ("a..example", "write `github.com`"),
    ("a b.example", "write `github.com`"),
    ("a.example\0", "write `github.com`"),
    ("", "write `github.com`"),
    (".", "write `github.com`"),
    (".example.org", "write `github.com`"),
    (f"{'a' * 64}.example", "write `github.com`"),
    (".".join(["a" * 50] * 6), "write `github.com`"),
])  # fmt: skip
def test_a_bad_pattern_is_refused_with_what_would_be_right(text, advice):
    with pytest.raises(ClaudeboxError, match="is not a domain name") as caught:
        parse_domain(text, "--allow-domain")

    assert "`--allow-domain`" in caught.value.message
    assert advice in caught.value.hint


@pytest.mark.parametrize("port", ["", "0", "65536", "http", "-1", "٣", "443 ", "4430000000"])
def test_a_port_is_a_number(port):
    with pytest.raises(ClaudeboxError, match="invalid port"):
        parse_domain(f"example.org:{port}", "x")


def test_a_name_means_itself_and_a_star_what_is_beneath():
    allowed = permission("github.com", "*.example.org")

    assert allowed.rule("github.com", 443)
    assert allowed.rule("a.example.org", 80)
    assert allowed.rule("a.b.example.org", 443)
    for name in ("example.org", "a.github.com", "xgithub.com", "github.com.evil.example", "aexample.org", "org", ""):
        assert not allowed.rule(name, 443), name
        assert not allowed.ports(name), name


def test_ports_are_those_of_the_web_unless_one_is_given():
    allowed = permission("github.com", "github.com:22", "api.example.org:8443", "*.example.org")

    assert set(allowed.ports("github.com")) == {443, 80, 22}
    assert set(allowed.ports("api.example.org")) == {8443, 443, 80}
    assert str(allowed.rule("api.example.org", 8443)) == "api.example.org:8443"
    assert str(allowed.rule("api.example.org", 443)) == "*.example.org"
    assert not allowed.rule("github.com", 8443)


@pytest.mark.parametrize(("spelling", "name"), [
    ("GitHub.Com", "github.com"), ("github.com.", "github.com"), ("github.com..", ""), ("", ""), (".", ""),
    ("127.0.0.1", ""), ("2130706433", ""), ("0x7f000001", ""), ("017700000001", ""), ("127.1", ""), ("a.0x", ""),
    ("::1", ""), ("[::1]", ""), ("fe80::1%lo", ""), ("a.example\0.github.com", ""), ("a.example\n", ""),
    ("\uff47ithub.com", ""), ("github。com", ""), ("a" * 254, ""), ("localhost", "localhost"), ("-x.example", ""),
    ("x-.example", ""), ("a%2eexample.org", ""), ("a/b.example", ""), ("1.2.3.example", "1.2.3.example"),
])  # fmt: skip
def test_a_name_has_one_spelling_and_an_address_is_no_name(spelling, name):
    # proves F05
    assert canonical(spelling) == name


def test_groups_are_used_by_name_and_those_of_a_user_win():
    own = {"work": ("git.example.org", "*.example.net:8443"), "github": ("github.example.org",)}

    found = [str(domain) for domain, _ in expand([("work", "x"), ("github", "x"), ("a.example", "x")], own)]
    assert found == ["git.example.org", "*.example.net:8443", "github.example.org", "a.example"]
    brought = {str(domain) for domain, _ in expand([("github", "x"), ("anthropic", "x")], {})}
    assert {"github.com", "api.github.com", "*.githubusercontent.com", "api.anthropic.com"} <= brought


def test_an_unknown_group_is_told_with_those_that_there_are():
    with pytest.raises(ClaudeboxError, match="there is no group of domains `gihub`") as caught:
        list(expand([("gihub", "--allow-domain")], {"work": ("a.example",)}))

    assert "`pypi`, `work`" in caught.value.hint
    assert "[domains.gihub]" in caught.value.hint


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_groups_that_are_brought_are_sound(group):
    assert all(str(parse_domain(text, group)) == text for text in GROUPS[group])


def decide(*argv, layers=()):
    return settings_layers.decide_policy(
        settings_layers.merge(settings_layers.parse_arguments(argv), {}, layers), home="/h", workdir="/w"
    )


def test_every_domain_knows_who_asked_for_it():
    made = decide("--network", "allow", "--allow-domain", "github", "--allow-domain=a.example:8443")

    found = {row.name: row.origin for row in made.domains}
    assert found["github.com"] == "--allow-domain, group github"
    assert found["a.example:8443"] == "--allow-domain"


def test_domains_from_files_wait_for_their_tier_and_flags_do_not():
    given = settings_layers.Layer("f", {"allow_domain": (settings_layers.SettingValue("a.example", "f:1"),)})
    assert decide("--network", "none", layers=[given]).domains == ()
    assert [row.name for row in decide("--network", "allow", layers=[given]).domains] == ["a.example"]

    with pytest.raises(ClaudeboxError, match="has no effect with `--network full`") as caught:
        decide("--allow-domain", "a.example")
    assert "`--network allow`" in caught.value.hint


@pytest.mark.parametrize("flag", ["--set=allow_host_port={}", "--publish={}"])
@pytest.mark.parametrize("port", ["3128", "3129", "53"])
def test_ports_that_lead_out_are_not_given_away(flag, port):
    assert decide("--network", "none", flag.format(port))
    with pytest.raises(ClaudeboxError, match="claudebox's own in tier `allow`"):
        decide("--network", "allow", flag.format(port))


def test_groups_that_are_brought_are_names_of_the_public_internet():
    # proves NET-03
    for group, members in GROUPS.items():
        rows = list(settings_domains.expand([(f"@{group}", "x")], {}))
        assert [str(domain) for domain, _ in rows] == list(members)
        assert {origin for _, origin in rows} == {f"x, group {group}"}
        assert all("." in domain.name for domain, _ in rows)
        # Everything beneath one registrable name of its owner, and nothing wider.
        assert all(domain.name.count(".") >= 1 for domain, _ in rows if domain.beneath)
        assert [str(domain) for domain, _ in settings_domains.expand([(group, "x")], {})] == list(members)
    assert set(GROUPS) == {"anthropic", "github", "pypi", "npm", "crates", "go", "debian", "nix", "huggingface"}


def test_a_group_of_the_user_is_meant_with_the_sign_too():
    assert [str(row) for row, _ in settings_domains.expand([("@pypi", "x")], {"pypi": ("mirror.example",)})] == [
        "mirror.example"
    ]
    for text in ("@", "@@pypi", "@pypi.org", "@1", "pypi@"):
        with pytest.raises(ClaudeboxError):
            settings_domains.check(text, "x")
