"""Whatever a caller sends: it is understood, waited for, or refused, and never anything else."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st
from tests.broker.test_greetings import client_hello, refragmented

from claudebox.broker.http import messages
from claudebox.broker.http.messages import MalformedHttp
from claudebox.broker.proxy import gateway, tls
from claudebox.broker.proxy.names import Names
from claudebox.settings.domains import Permission, canonical, parse_domain

HELLO = client_hello("api.example.org")
TOKENS = st.sampled_from((
    b"GET ", b"CONNECT ", b"http://", b"a.example", b":443", b" HTTP/1.1", b"\r\n", b"Host: ", b"\0", b"\r\n\r\n",
    b"Content-Length: 1", b"Transfer-Encoding: chunked", b" ", b"@", b"\n",
))  # fmt: skip


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """Return the same with some bytes changed."""
    changes = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=4)

    def apply(found: list[tuple[int, int]]) -> bytes:
        copy = bytearray(data)
        for at, value in found:
            copy[at] = value
        return bytes(copy)

    return changes.map(apply)


@given(
    st.one_of(
        st.binary(min_size=1, max_size=400), st.integers(1, 200).flatmap(lambda n: damaged(refragmented(HELLO, n)))
    )
)
def test_a_greeting_of_tls_is_complete_incomplete_or_malformed(data):
    with contextlib.suppress(tls.MalformedHello):
        wanted = tls.missing(data)
        assert wanted == 0 or len(data) < wanted <= tls.LONGEST
        if not wanted:
            assert tls.server_name(data).isascii()


@given(st.binary(min_size=1, max_size=300).map(lambda data: bytes((data[0] % 4 + 20, 3)) + data[1:]))
def test_whatever_a_server_says_is_waited_for_or_carried(data):
    with contextlib.suppress(tls.MalformedHello):
        wanted, found = tls.look_for_retry(data)
        assert wanted == 0 or len(data) < wanted <= tls.LONGEST
        assert 0 <= found <= len(data)


@given(st.binary(min_size=1, max_size=300))
def test_first_bytes_are_a_request_or_not_or_awaited(data):
    wanted = gateway.line_missing(data)
    assert wanted in (0, len(data) + 1)
    assert not (wanted and gateway.is_request(data))


@given(st.one_of(st.binary(max_size=200), st.lists(TOKENS, max_size=20).map(b"".join)))
def test_a_head_is_complete_incomplete_or_malformed(data):
    with contextlib.suppress(MalformedHttp):
        if gateway.missing(data):
            assert gateway.missing(data) == len(data) + 1
            return
        request = messages.parse_request(data[: messages.cut(data)], any_host=True)
        sent = messages.render_request(request)
        assert b"\0" not in sent
        assert sent.endswith(b"\r\n\r\n")
        assert sent.count(b"\r\n\r\n") == 1


@given(st.binary(max_size=300))
def test_every_message_of_dns_has_an_answer_that_fits_or_none(data):
    names = Names(Permission([parse_domain("*.example.org", "x")]), lambda **_: None)
    reply = names.answer(data)

    assert len(reply) <= max(512, len(data) + 16)
    assert not reply or (reply[:2] == data[:2] and reply[2] & 0x80)


@given(st.lists(st.text("abc.ABC-_", min_size=1, max_size=12), max_size=30))
def test_an_address_means_exactly_the_name_for_which_it_was_given_out(texts):
    names = Names(Permission([]), lambda **_: None, most=64)
    given_out = {name: names.address(name) for name in map(canonical, texts) if name}

    assert len(set(given_out.values())) == len(given_out)
    assert {names.meaning(address): address for address in given_out.values()} == given_out
