"""The one reader of the proxy variables: every spelling, and who else reads them (nobody)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from claudebox.network.facts import HostProxy, find_proxy

SOURCE = Path(__file__).resolve().parent.parent.parent / "src/claudebox"


@pytest.mark.parametrize(("address", "found"), [
    ("http://proxy.corp:8080", HostProxy("proxy.corp", 8080)),
    ("http://proxy.corp:8080/", HostProxy("proxy.corp", 8080)),
    ("  http://Proxy.Corp:8080 ", HostProxy("proxy.corp", 8080)),
    ("HTTP://proxy.corp:8080/path?query#part", HostProxy("proxy.corp", 8080)),
    ("proxy.corp:8080", HostProxy("proxy.corp", 8080)),
    ("proxy.corp", HostProxy("proxy.corp", 80)),
    ("http://proxy.corp", HostProxy("proxy.corp", 80)),
    ("https://proxy.corp", HostProxy("proxy.corp", 443, tls=True)),
    ("https://proxy.corp:3129", HostProxy("proxy.corp", 3129, tls=True)),
    ("http://10.0.0.1:3128", HostProxy("10.0.0.1", 3128)),
    ("http://[fd00::1]:8080", HostProxy("fd00::1", 8080)),
    ("http://[fd00::1]", HostProxy("fd00::1", 80)),
    ("http://me:secret@proxy.corp:8080", HostProxy("proxy.corp", 8080, login="me:secret")),
    ("http://me@proxy.corp:8080", HostProxy("proxy.corp", 8080, login="me")),
    ("http://m%40e:s%3Ae%2fc@proxy.corp:8080", HostProxy("proxy.corp", 8080, login="m@e:s:e/c")),
    ("http://me:100%@proxy.corp:8080", HostProxy("proxy.corp", 8080, login="me:100%")),
    ("http://me:a@b@proxy.corp:8080", HostProxy("proxy.corp", 8080, login="me:a@b")),
])  # fmt: skip
def test_every_spelling_of_an_address_is_read(address, found):
    # proves HOUSE-04
    assert find_proxy({"HTTPS_PROXY": address}) == (found, "")


@pytest.mark.parametrize(("address", "problem"), [
    ("socks5://me:secret@proxy.corp:1080", "names a socks5 proxy"),
    ("socks5h://proxy.corp:1080", "names a socks5h proxy"),
    ("ftp://proxy.corp", "names a ftp proxy"),
    ("\x1b[2J://secret", "names no HTTP proxy"),
    ("http://proxy.corp:x", "not of the form"), ("http://proxy.corp:0", "not of the form"),
    ("http://proxy.corp:65536", "not of the form"), ("http://proxy.corp:99999999", "not of the form"),
    ("http://:80", "not of the form"), ("http://", "not of the form"), ("http://me:secret@", "not of the form"),
    ("http://a b:80", "not of the form"), ("http://a\r\nx: y:80", "not of the form"),
    ("http://[fd00::1", "not of the form"), ("http://[fd00::1]x", "not of the form"), ("http://[g::1]:80", "not of"),
    ("http://pröxy:80", "not of the form"),
])  # fmt: skip
def test_what_cannot_be_used_is_said_without_being_shown(address, problem):
    proxy, said = find_proxy({"HTTPS_PROXY": address})

    assert proxy is None
    assert problem in said
    assert said.startswith("HTTPS_PROXY of this machine ")
    assert "secret" not in said
    assert said.isprintable()


@pytest.mark.parametrize(("environ", "host"), [
    ({}, ""),
    ({"HTTPS_PROXY": ""}, ""), ({"HTTPS_PROXY": " "}, ""),
    ({"HTTPS_PROXY": "upper"}, "upper"), ({"https_proxy": "lower"}, "lower"),
    ({"HTTPS_PROXY": "upper", "https_proxy": "lower"}, "lower"),
    ({"HTTPS_PROXY": "upper", "https_proxy": ""}, "upper"),
    ({"ALL_PROXY": "all"}, "all"), ({"all_proxy": "all"}, "all"),
    ({"ALL_PROXY": "all", "HTTPS_PROXY": "upper"}, "upper"),
    ({"HTTP_PROXY": "plain"}, ""), ({"http_proxy": "plain"}, ""),
])  # fmt: skip
def test_the_variable_that_counts(environ, host):
    # proves HOUSE-04
    proxy, problem = find_proxy(environ)

    assert (proxy.host if proxy else "") == host
    assert problem == ""


def test_plain_requests_have_a_proxy_of_their_own():
    environ = {"HTTP_PROXY": "plain", "HTTPS_PROXY": "secure"}

    assert [proxy.host for proxy, _ in (find_proxy(environ, "http"), find_proxy(environ)) if proxy] == [
        "plain", "secure",
    ]  # fmt: skip


@pytest.mark.parametrize(("without", "host", "port", "served"), [
    ("", "a.example", 443, True),
    ("*", "a.example", 443, False),
    ("a.example", "a.example", 443, False), ("A.Example", "a.example", 443, False),
    ("a.example.", "a.example", 443, False),
    ("a.example", "A.EXAMPLE.", 443, False),
    ("example", "a.example", 443, False), (".example", "a.example", 443, False), ("*.example", "a.example", 443, False),
    (".example", "example", 443, False),
    ("ample", "a.example", 443, True), ("b.example", "a.example", 443, True), ("example", "xexample.org", 443, True),
    ("a.example:443", "a.example", 443, False), ("a.example:8443", "a.example", 443, True),
    (".example:8443", "a.example", 8443, False),
    ("b.example,a.example", "a.example", 443, False), ("b.example a.example", "a.example", 443, False),
    (" b.example ,\ta.example , ", "a.example", 443, False), (",", "a.example", 443, True),
    (".", "a.example", 443, True),
    ("10.1.2.3", "10.1.2.3", 443, False), ("[fd00::1]", "fd00::1", 443, False), ("fd00::1", "fd00::1", 443, False),
    ("[fd00::1]:8443", "fd00::1", 443, True),
    ("", "localhost", 443, False), ("", "x.localhost", 443, False), ("", "127.0.0.1", 443, False),
    ("", "127.9.9.9", 443, False), ("", "::1", 443, False), ("", "127.example.org", 443, True),
])  # fmt: skip
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_exceptions_are_reached_directly(name, without, host, port, served):
    # proves HOUSE-04
    proxy, _ = find_proxy({"HTTPS_PROXY": "http://proxy:1", name: without})

    assert proxy is not None
    assert proxy.serves(host, port) is served


def test_the_login_is_sent_and_not_shown():
    proxy = HostProxy("proxy", 1, login="me:sécret")

    assert proxy.authorization == b"Basic bWU6c8OpY3JldA=="
    assert HostProxy("proxy", 1).authorization == b""
    assert "cret" not in str(proxy) + repr(proxy)
    assert str(HostProxy("fd00::1", 1)) == "[fd00::1]:1"


def test_nobody_else_reads_these_variables():
    # proves HOUSE-04
    names = {f"{kind}_proxy" for kind in ("https", "all", "no")}
    readers = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            keys = [node.slice] if isinstance(node, ast.Subscript) else node.args if isinstance(node, ast.Call) else []
            if any(isinstance(key, ast.Constant) and str(key.value).lower() in names for key in keys):
                readers.add(path.relative_to(SOURCE).as_posix())

    assert readers == {"network/facts.py"}
