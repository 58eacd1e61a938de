"""Authorities and proxies that are named for single programs: what is read, and what enters of it."""

from __future__ import annotations

import binascii

import pytest
from tests.broker.test_held_secrets import HELD
from tests.support import hosts
from tests.support.certificates import TestAuthority

from claudebox.broker import plan as broker_plan
from claudebox.host import gather
from claudebox.host.records import PathFact
from claudebox.network.facts import CompanyNetwork, read_company
from claudebox.plan import compose
from claudebox.plan.records import ENTRANCE
from claudebox.settings.records import NameRequest, Policy
from claudebox.tables.environment import (
    ADDED_AUTHORITIES,
    AUTHORITIES,
    CA_BUNDLE_INSIDE,
    NAMED_AUTHORITIES_INSIDE,
    NPM_AUTHORITIES,
)

ONE, OTHER = TestAuthority("one").certificate, TestAuthority("other").certificate
KEY = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"


@pytest.fixture
def home(tmp_path):
    (tmp_path / "bundle.crt").write_bytes(b"# comment\n" + ONE)
    (tmp_path / "company.pem").write_bytes(KEY + OTHER.replace(b"\n", b"\r\n") + ONE)
    return tmp_path


def read(home, environ, rows=()):
    return read_company(environ, str(home), rows, str(home / "bundle.crt"))


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR", *AUTHORITIES, "git"])
def test_whoever_names_an_authority_makes_it_trusted(home, name):
    # proves NET-06
    path = str(home / "company.pem")
    rows = (("http", "https://git.corp/", "sslcainfo", path),) if name == "git" else ()
    environ = {} if name == "git" else {name: str(home) if name == "SSL_CERT_DIR" else path}

    found = read(home, environ, rows)

    assert found is not None
    assert found.bundle == found.upstream == ONE + OTHER
    assert OTHER in found.named
    assert len(found.sources) == 1
    assert "secret" not in repr(found)


def test_the_system_s_own_bundle_enters_as_it_is(home):
    # proves NET-06
    found = read(home, {"NODE_EXTRA_CA_CERTS": str(home / "bundle.crt")})
    assert (found.bundle, found.named, found.sources) == (b"", b"", ("NODE_EXTRA_CA_CERTS",))

    plan = made({}, company=found)
    assert values(plan)["NODE_EXTRA_CA_CERTS"].value == CA_BUNDLE_INSIDE
    assert not {"DENO_CERT", "PIP_CERT", NPM_AUTHORITIES} & {*values(plan)}, "nobody has told these outside"
    assert {row.kind for row in plan.mounts if row.dest == CA_BUNDLE_INSIDE} == {"symlink"}


def test_who_is_told_to_use_the_system_s_own_bundle_is_told_so_inside_and_nobody_else(home):
    # proves NET-06
    bundle = str(home / "bundle.crt")
    (home / "certs").mkdir()
    (home / "certs/same.pem").write_bytes(ONE)

    found = read(
        home, {"SSL_CERT_DIR": str(home / "certs"), NPM_AUTHORITIES: bundle}, (("http", "", "sslcainfo", bundle),)
    )

    assert (found.bundle, found.named) == (b"", b"")
    assert set(found.told) == {"SSL_CERT_FILE", "GIT_SSL_CAINFO", NPM_AUTHORITIES}
    rows = values(made({}, company=found))
    assert {rows[name].value for name in found.told} == {CA_BUNDLE_INSIDE}
    assert not {"NODE_EXTRA_CA_CERTS", "PIP_CERT"} & {*rows}
    asked = Policy("exec", ("true",), names=(NameRequest(NPM_AUTHORITIES, "--env"),))
    again = compose.make_plan(asked, hosts.debian(environ={NPM_AUTHORITIES: bundle}, company=found))
    assert values(again)[NPM_AUTHORITIES].value == CA_BUNDLE_INSIDE


def test_a_directory_may_hold_more_than_the_bundle_in_it(home):
    # proves NET-06
    assert read(home, {"REQUESTS_CA_BUNDLE": str(home)}).bundle == ONE + OTHER


def test_programs_with_authorities_of_their_own_read_only_those_that_were_named(home):
    # proves NET-06
    (home / "other.pem").write_bytes(OTHER)
    environ = {"PIP_CERT": str(home / "other.pem"), "DENO_CERT": str(home / "bundle.crt")}

    plan = made({}, company=read(home, environ))

    assert values(plan)["NODE_EXTRA_CA_CERTS"].value == NAMED_AUTHORITIES_INSIDE
    assert [row.content for row in plan.mounts if row.dest == NAMED_AUTHORITIES_INSIDE] == [OTHER]
    assert values(plan)["DENO_CERT"].value == CA_BUNDLE_INSIDE, "who named all of them gets all of them"

    (home / "same.pem").write_bytes(ONE)  # the system trusts it too, but node does not look there
    plan = made({}, company=read(home, {"NODE_EXTRA_CA_CERTS": str(home / "same.pem")}))
    assert [row.content for row in plan.mounts if row.dest == NAMED_AUTHORITIES_INSIDE] == [ONE]
    assert values(plan)["NODE_EXTRA_CA_CERTS"].value == NAMED_AUTHORITIES_INSIDE
    assert "PIP_CERT" not in values(plan)


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "NIX_SSL_CERT_FILE"])
def test_programs_that_do_not_read_a_variable_lose_nothing_by_it(home, name):
    # proves NET-06
    (home / "other.pem").write_bytes(KEY + OTHER)
    (home / "same.pem").write_bytes(ONE)

    plan = made({}, company=read(home, {name: str(home / "other.pem")}))
    assert {row.content for row in plan.mounts if row.dest == CA_BUNDLE_INSIDE} == {ONE + OTHER}
    plan = made({}, company=read(home, {name: str(home / "same.pem")}))
    assert {row.kind for row in plan.mounts if row.dest == CA_BUNDLE_INSIDE} == {"symlink"}
    assert "NODE_EXTRA_CA_CERTS" not in values(plan), "node would complain of an empty file"


@pytest.mark.parametrize("name", ["npm_config_cafile", "NPM_CONFIG_CAFILE", "GIT_SSL_CAPATH"])
def test_other_spellings_count_as_well(home, name):
    (home / "certs").mkdir()
    (home / "certs/other.pem").write_bytes(OTHER)
    path = str(home / "certs") if name == "GIT_SSL_CAPATH" else str(home / "certs/other.pem")

    rows = values(made({}, company=gather.read_company_facts({name: path}, str(home), (), None)))

    assert rows["GIT_SSL_CAINFO" if name == "GIT_SSL_CAPATH" else NPM_AUTHORITIES].value == CA_BUNDLE_INSIDE


@pytest.mark.parametrize(
    "content",
    [b"SECRET TOKEN, not a certificate", b"\x30\x03\x02\x01\x00", b"\x30\x82\xff\xff", b"\x30", b"", b"\x04\x00"],
)
def test_what_is_no_certificate_does_not_enter_as_one(home, content):
    # proves NET-06, SAND-09
    text = b"-----BEGIN CERTIFICATE-----\n%s-----END CERTIFICATE-----\n" % binascii.b2a_base64(content)
    (home / "bad.pem").write_bytes(text)
    (home / "both.pem").write_bytes(text + OTHER)

    found = read(home, {"AWS_CA_BUNDLE": str(home / "bad.pem"), "PIP_CERT": str(home / "both.pem")})

    assert found.bundle == ONE + OTHER
    assert [problem.split()[0] for problem in found.problems] == ["AWS_CA_BUNDLE"]


def test_a_path_with_an_end_in_it_is_named(home):
    found = read(home, {}, (("http", "", "sslcainfo", "/a\0b"),))
    assert [problem.split()[0] for problem in found.problems] == ["git's"]


def test_what_an_agent_can_write_is_no_authority_for_the_broker(home):
    # proves NET-06
    project = home / "project"
    project.mkdir()
    (project / "dev.pem").write_bytes(OTHER)

    def look(**environ):
        bundle = PathFact(str(home / "bundle.crt"), str(home / "bundle.crt"), "file")
        return gather.read_company_facts(environ, str(home), (), bundle, str(project))

    named = look(NODE_EXTRA_CA_CERTS=str(project / "dev.pem"))
    assert (named.bundle, named.upstream) == (ONE + OTHER, b"")
    facts = hosts.debian(company=named, held_secrets=(HELD,), libraries=("/lib",))
    wishes = Policy("exec", ("true",), network="inet", secrets=(HELD,))
    inject = broker_plan.plan_injection(wishes, facts)
    assert (inject.authorities, inject.inside) == (b"", ONE + OTHER), "programs inside trust it all the same"
    assert look(PIP_CERT=str(home / "company.pem")).upstream == ONE + OTHER, "the positive control"


def test_where_nothing_is_named_nothing_is_read(home):
    assert gather.read_company_facts({}, str(home), (("user", "", "name", "x"),), None) is None


def test_a_file_without_certificates_is_named(home):
    (home / "company.pem").write_bytes(KEY)
    found = read(home, {"PIP_CERT": str(home / "company.pem"), "CURL_CA_BUNDLE": "/nonexistent"})

    assert found is not None
    assert found.bundle == b""
    assert [text.split()[0] for text in found.problems] == ["CURL_CA_BUNDLE", "PIP_CERT"]


def made(environ, **options):
    return compose.make_plan(Policy("exec", ("true",)), hosts.debian(environ=environ, **options))


def values(plan):
    return {row.name: row for row in plan.variables}


def test_all_programs_find_the_bundle(home):
    # proves NET-06
    company = CompanyNetwork(ONE + OTHER, ("PIP_CERT",))
    plan = made({"PIP_CERT": "/x"}, company=company)

    whole = {"SSL_CERT_FILE", *AUTHORITIES} - {*ADDED_AUTHORITIES}
    assert {values(plan)[name].value for name in whole} == {CA_BUNDLE_INSIDE}
    bundles = {row.dest for row in plan.mounts if row.content == ONE + OTHER}
    assert bundles == {CA_BUNDLE_INSIDE, "/etc/ssl/certs/ca-certificates.crt"}
    asked = Policy("exec", ("true",), names=(NameRequest("PIP_CERT", "--env"),))
    again = compose.make_plan(asked, hosts.debian(environ={"PIP_CERT": "/x"}, company=company))
    assert values(again)["PIP_CERT"].value == CA_BUNDLE_INSIDE


def test_in_tier_full_a_proxy_enters_as_it_is_unless_it_has_a_password():
    # proves NET-06
    plain = made({"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "corp"})
    assert {name: row.value for name, row in values(plain).items() if "roxy" in name.lower()} == {
        "HTTPS_PROXY": "http://proxy:3128", "no_proxy": "corp,claudebox.invalid",
    }  # fmt: skip
    assert plain.broker is None

    hidden = made({"HTTPS_PROXY": "http://me:pass-word@proxy:3128", "http_proxy": "http://proxy:3128"})
    assert values(hidden)["HTTPS_PROXY"].deferred.key == ENTRANCE
    assert values(hidden)["http_proxy"].value == "http://proxy:3128"
    assert hidden.broker.proxy.reach == "everything"
    assert "pass-word" not in repr(hidden)


@pytest.mark.parametrize("address", ["socks5://me:pass-word@proxy:1080", "https://me:pass-word@proxy"])
def test_a_password_that_the_broker_cannot_keep_stays_outside_with_its_proxy(address):
    # proves NET-06
    plan = made({"HTTPS_PROXY": address})

    assert "HTTPS_PROXY" not in values(plan)
    assert any("is not used" in text for text in plan.warnings)
    assert plan.broker is None


def test_the_proxy_of_git_enters_in_tier_full_alone():
    # proves NET-06
    company = CompanyNetwork(git_proxy="http://proxy:1")
    plan = made({}, company=company)
    config = next(row.content for row in plan.mounts if row.dest.endswith("/.gitconfig"))
    assert b'[http]\n\tproxy = "http://proxy:1"' in config
    assert not plan.warnings

    hidden = CompanyNetwork(git_proxy="http://me:pass-word@proxy:1")
    plan = made({}, company=hidden)
    assert "pass-word" not in repr(plan)
    assert [text.split(" is not used")[0] for text in plan.warnings] == ["git's http.proxy"]
