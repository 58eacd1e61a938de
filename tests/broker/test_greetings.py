"""What callers say first: TLS, HTTP. Taken apart strictly, or refused."""

from __future__ import annotations

import ssl

import pytest

from claudebox.broker.http import messages
from claudebox.broker.http.messages import MalformedHttp
from claudebox.broker.proxy import gateway, tls


def client_hello(name: str | None) -> bytes:
    """Return what a real client says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    sent = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return sent.read()


def refragmented(data: bytes, size: int) -> bytes:
    """Return the same greeting in records of so many bytes."""
    body = data[5:]
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(data[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def test_the_server_is_found_in_the_greeting_of_a_real_client():
    data = client_hello("api.example.org")

    assert tls.missing(data) == 0
    assert tls.server_name(data) == "api.example.org"
    assert tls.server_name(client_hello(None)) == ""


def test_a_greeting_is_waited_for_until_it_is_complete():
    data = client_hello("api.example.org")
    for whole in (data, refragmented(data, 100), refragmented(data, 1)):
        for end in range(1, len(whole)):
            wanted = tls.missing(whole[:end])
            assert wanted > end
            assert wanted <= len(whole)
        assert tls.missing(whole) == 0
        assert tls.server_name(whole) == "api.example.org"


def with_extensions(*extensions: bytes) -> bytes:
    every = b"".join(extensions)
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(every).to_bytes(2, "big") + every
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\3\1" + len(message).to_bytes(2, "big") + message


def name_extension(*names: bytes) -> bytes:
    rows = b"".join(b"\0" + len(name).to_bytes(2, "big") + name for name in names)
    inner = len(rows).to_bytes(2, "big") + rows
    return b"\0\0" + len(inner).to_bytes(2, "big") + inner


@pytest.mark.parametrize("data", [
    with_extensions(name_extension(b"a.example"), name_extension(b"b.example")),
    with_extensions(name_extension(b"a.example", b"b.example")),
    with_extensions(name_extension("ü.example".encode())),
    with_extensions(b"\0\0\0\x09\0\1\0"),
    with_extensions(b"\0\0\0\0"),
    with_extensions(name_extension(b"a.example"))[:3] + b"\1\0" + with_extensions(name_extension(b"a.example"))[5:],
], ids=["twice", "two names", "not ASCII", "too short", "empty", "something behind it"])  # fmt: skip
def test_an_ambiguous_greeting_is_refused(data):
    assert tls.server_name(with_extensions(name_extension(b"a.example"))) == "a.example"
    with pytest.raises(tls.MalformedHello):
        tls.server_name(data + bytes(256 if tls.missing(data) else 0))


@pytest.mark.parametrize("data", [
    b"\x16\2\0\0\5hello", b"\x17\3\1\0\5hello", b"\x16\3\1\0\0", b"\x16\3\1\0\5\2\0\0\1x", b"\x16\3\1\xff\xff",
    b"\x16\3\1\x40\0\1\xff\xff\xff" + bytes(16380) + (b"\x16\3\1\x40\0" + bytes(16384)) * 3,
])  # fmt: skip
def test_what_is_no_greeting_is_refused_early(data):
    with pytest.raises(tls.MalformedHello):
        tls.missing(data)


@pytest.mark.parametrize("data", [
    b"GET  / HTTP/1.1\r\n\r\n", b"GET / HTTP/2.0\r\n\r\n", b"GET /\r\n\r\n", b"\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", b"GET / HTTP/1.1\r\nA : b\r\n\r\n", b"GET / HTTP/1.1\r\nnothing\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n", b"GET /\0 HTTP/1.1\r\n\r\n", b"G\xc3T / HTTP/1.1\r\n\r\n",
    b"CONNECT a\0.example:443 HTTP/1.1\r\n\r\n", "CONNECT bücher.example:443 HTTP/1.1\r\n\r\n".encode(),
    b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
])  # fmt: skip
def test_an_ambiguous_head_is_refused(data):
    with pytest.raises(MalformedHttp):
        messages.request_framing(messages.parse_request(data[: messages.cut(data)], any_host=True))


def test_an_endless_head_is_refused():
    with pytest.raises(MalformedHttp):
        gateway.missing(b"GET / HTTP/1.1\r\nX: " + b"x" * gateway.LONGEST)


@pytest.mark.parametrize(("text", "found"), [
    ("a.example:443", ("a.example", 443)), ("a.example", ("a.example", 80)), ("[::1]", ("::1", 80)),
    ("[::1]:443", ("::1", 443)),
])  # fmt: skip
def test_an_authority_has_a_host_and_perhaps_a_port(text, found):
    assert gateway.authority(text, 80) == found


@pytest.mark.parametrize("text", ["a.example:", "a.example:0", "a.example:65536", "a.example:x", "a.example:٤٤٣",
                                  "a.example:4430000"])  # fmt: skip
def test_a_port_that_is_none_is_refused(text):
    with pytest.raises(MalformedHttp):
        gateway.authority(text, 80)


@pytest.mark.parametrize("target", ["/x", "https://a.example/", "ftp://a.example/", "a.example:443", "*",
                                    "http://b.example@a.example/"])  # fmt: skip
def test_only_plain_urls_are_forwarded(target):
    with pytest.raises(MalformedHttp):
        gateway.split_url(target)


@pytest.mark.parametrize(("target", "found"), [
    ("http://a.example/x", ("a.example", "/x")), ("HTTP://a.example", ("a.example", "/")),
    ("http://a.example?x", ("a.example", "/?x")), ("http://a.example:81/x#y", ("a.example:81", "/x#y")),
])  # fmt: skip
def test_a_url_is_split_where_its_host_ends(target, found):
    assert gateway.split_url(target) == found


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\n", b"\r\n\r\nGET / HTTP/1.1\n", b"  WHATEVER\t/\thttp/1.0\r\n", b"PRI * HTTP/2.0\r\n",
    b"M-SEARCH * HTTP/1.1\r\n", b"a" * 5000 + b" / HTTP/1.1\r\n", b"GET /\xff\x80 HTTP/1.1\r\n",
    b"\x0b\x1c\xa0GET\x85/ HTTP/1.1\r\n",
])  # fmt: skip
def test_a_request_is_recognised_whatever_its_method(data):
    # proves K11
    for end in range(len(data.lstrip()) and 1, len(data)):
        wanted = gateway.line_missing(data[:end])
        assert wanted == end + 1, data[:end]
    assert gateway.line_missing(data) == 0
    assert gateway.is_request(data)


@pytest.mark.parametrize("data", [
    b"SSH-2.0-OpenSSH_9.2\r\n", b"NICK me\r\n", b"*1\r\n$4\r\nPING\r\n", b"AMQP\0\0\x09\x01",
    b"\0\0\0\x08\4\xd2\x16\x2f",
    b"0033git-upload-pack /project.git\0host=a.example\0", b"\x16\3\1", b"(foo",
])  # fmt: skip
def test_other_protocols_are_told_from_requests_at_once(data):
    assert gateway.line_missing(data) == 0
    assert not gateway.is_request(data)


def record(kind: int, content: bytes) -> bytes:
    return bytes((kind, 3, 3)) + len(content).to_bytes(2, "big") + content


RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def server_hello(random: bytes) -> bytes:
    body = b"\3\3" + random + b"\0\x13\1\0" + b"\0\x0c\0\x2b\0\2\3\4\0\x33\0\2\0\x18"
    return b"\2" + len(body).to_bytes(3, "big") + body


WARNING = record(21, b"\1\x70")


@pytest.mark.parametrize("before", [b"", WARNING, WARNING * 2])
@pytest.mark.parametrize("size", [1000, 50, 7, 1])
def test_a_server_that_wants_another_greeting_is_noticed(before, size):
    # proves K02
    again = before + refragmented(record(22, server_hello(RETRY)), size)
    tail = record(20, b"\1")
    for end in range(1, len(again)):
        wanted, found = tls.look_for_retry(again[:end])
        assert end < wanted <= len(again)
        assert not found
    assert tls.look_for_retry(again + tail) == (0, len(again))
    content = before + refragmented(record(22, server_hello(bytes(32))), size)
    assert tls.look_for_retry(content) == (0, 0)


@pytest.mark.parametrize("said", [record(21, b"\2\x28"), b"HTTP/1.1 400 Bad Request\r\n", record(22, b"\1\0\0\1x"),
                                  record(20, b"\1"), WARNING * 40])  # fmt: skip
def test_a_server_that_says_something_else_is_carried_as_it_is(said):
    assert tls.look_for_retry(said) == (0, 0)


@pytest.mark.parametrize(
    "start", [b"\x14\3\1", b"\x15\3\1\0\2", b"\x17\3\3", b"\x18\3", b"\x16\3", b"\x80\x2e\1", b"\x15"]
)
def test_every_record_of_tls_is_taken_for_tls(start):
    # proves K03
    assert tls.is_tls(start)
    for other in (b"SSH-2", b"\0\0\0\x08", b"\x15\0\0\0", b"\x80\0\0\0"):
        assert not tls.is_tls(other)
