"""The interceptor with real connections: programs on one side, a server over TLS on the other, both on loopback."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.certificates import TestAuthority

from claudebox.base.errors import ClaudeboxError
from claudebox.broker import certificates
from claudebox.broker.inject import Interceptor, Permits, Replacement
from claudebox.broker.log import Log
from claudebox.broker.reception import Reception

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Answer = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

VALUE, PLACEHOLDER = b"ghp_" + b"0aA1bB2cC3" * 4, b"ghp_" + b"9zZ8yY7xX6" * 4
HOST = "vault.example"


class Loopback:
    """Leads to the server of the test, whatever the name."""

    def __init__(self, port: int) -> None:
        self.port, self.dialled = port, 0

    async def dial(self, _name: str, _port: int) -> socket.socket:
        self.dialled += 1
        channel = socket.create_connection(("127.0.0.1", self.port))
        channel.setblocking(False)  # noqa: FBT003
        return channel


class Bench:
    """Everything that one test needs."""

    def __init__(self, trusted: bytes, dialer: Loopback, port: int, log, secret: Replacement) -> None:
        self.dialer, self.port, self.log, self.secret = dialer, port, log, secret
        self.context = ssl.create_default_context(cadata=trusted.decode())

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context, server_hostname=HOST)

    async def ask(self, request: bytes) -> bytes:
        """Send one request and return everything that comes until the end."""
        reader, writer = await self.open()
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer

    def decisions(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def request(path: str = "/", *more: str, method: str = "GET", host: str = HOST) -> bytes:
    lines = (f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *more, "", "")
    return "\r\n".join(lines).encode()


TOKEN = f"Authorization: Bearer {PLACEHOLDER.decode()}"


@contextlib.asynccontextmanager
async def bench(
    tmp_path,
    answer: Answer,
    *,
    trusted: bool = True,
    permit: tuple[str, ...] = (),
    read=None,
    rows: tuple[Replacement, ...] = (),
) -> AsyncIterator[Bench]:
    authority = TestAuthority()
    certificate = authority.issue(tmp_path / "server.pem", HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await answer(head, reader, writer)
                await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes((authority if trusted else TestAuthority()).certificate)
    log = tmp_path / "log"
    dialer = Loopback(server.sockets[0].getsockname()[1])
    permits = Permits(permit) if permit else None
    secret = Replacement("TOKEN", VALUE, PLACEHOLDER, frozenset({(HOST, 443)}), frozenset({b"x-mine"}), permits, read)
    record = Log(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    own, contexts = await certificates.obtain([HOST])
    reception = Reception()
    interceptor = Interceptor([secret, *rows], contexts, str(bundle), dialer, record)  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0))
    interceptor.serve(reception, listener, HOST, 443)
    try:
        yield Bench(own, dialer, listener.getsockname()[1], log, secret)
    finally:
        reception.close()
        interceptor.close()
        server.close()


async def plain(head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    text = b"granted" if VALUE in head else b"refused"
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))


async def test_a_value_is_put_in_and_the_use_is_written_down(tmp_path):
    async with bench(tmp_path, plain) as here:
        assert (await here.ask(request("/secret-path", TOKEN))).endswith(b"granted")
        assert (await here.ask(request())).endswith(b"refused")
        first, second = here.decisions()
        assert (first["secrets"], first["verdict"], first["down"]) == (["TOKEN"], "allowed", 7)
        assert "secrets" not in second
        assert "secret-path" not in here.log.read_text()


async def test_events_pass_at_once_and_a_value_in_them_does_not(tmp_path):
    more = asyncio.Event()

    async def events(_head, _reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
        await writer.drain()
        await more.wait()
        writer.write(b"%x\r\n%s\r\n" % (20, VALUE[:20]))
        await writer.drain()
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (26, VALUE[20:] + b"\n\n"))

    async with bench(tmp_path, events) as here:
        reader, writer = await here.open()
        writer.write(request("/", TOKEN))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert b"chunked" in head
        assert b"data: 1\n\n" in await asyncio.wait_for(reader.readuntil(b"\n\n"), 5)
        more.set()
        rest = await asyncio.wait_for(reader.read(), 5)
        assert VALUE not in rest
        assert PLACEHOLDER in rest
        writer.close()


def shape(answer: bytes) -> list[int]:
    """Return the sizes of the chunks in which an answer came."""
    rest, sizes = answer.partition(b"\r\n\r\n")[2], []
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        sizes.append(int(line, 16))
        rest = rest[sizes[-1] + 2 :]
    return sizes


@pytest.mark.parametrize("step", [1, 7, 64])
async def test_a_guess_shows_neither_in_chunks_nor_in_records(tmp_path, step):
    """The host serves what the agent chose: prefixes of the value, and the same with another last character."""

    # proves SECRET-01, K01, OLD-B1
    async def chosen(head, _reader, writer):
        text = head.split(b" ")[1].lstrip(b"/") + b"\ntail\n"
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(text), step):
            piece = text[at : at + step]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.002)
        writer.write(b"0\r\n\r\n")

    async with bench(tmp_path, chosen) as here:
        for known in (5, 12, 30, len(VALUE) - 1):
            right, wrong = VALUE[:known].decode(), VALUE[: known - 1].decode() + "_"
            answers = [await here.ask(request(f"/{guess}")) for guess in (right, wrong)]
            assert shape(answers[0]) == shape(answers[1]), known
            assert len(shape(answers[0])) > 1


async def test_a_host_is_asked_for_the_plain_and_whole_text(tmp_path):
    heads = []

    async def note(head, _reader, writer):
        heads.append(head.lower())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    fields = ("Range: bytes=0-20", "If-Range: x", "Accept-Charset: utf-16", "Accept-Encoding: br")
    async with bench(tmp_path, note) as here:
        assert (await here.ask(request("/", TOKEN, *fields, "X-Other: 1"))).split()[1] == b"200"
    assert not [field for field in fields if field.lower().encode() in heads[0]]
    assert b"x-other: 1" in heads[0]


HOSTILE = {
    "a part": (b"Content-Range: bytes 0-9/20\r\n", True),
    "parts": (b"Content-Type: multipart/byteranges; boundary=x\r\n", True),
    "other letters": (b"Content-Type: text/plain; Charset=ibm037\r\n", True),
    "letters that nobody knows": (b'Content-Type: text/plain; charset="x-own"\r\n', True),
    "usual letters": (b"Content-Type: text/plain; charset=Windows-1252\r\n", False),
    "a coding": (b"Content-Encoding: gzip\r\n", True),
    "the same, one of them nothing": (b"Content-Encoding: identity, br\r\n", True),
    "a value as a field": (b"X-%s: 1\r\n" % VALUE, False),
    "a value in base64 in a field": (b"X-Seen: %s\r\n" % base64.b64encode(b"user:" + VALUE), False),
}


async def test_an_odd_answer_gives_nothing_away(tmp_path):
    # proves SECRET-03, K05, K06, OLD-B4
    async def odd(head, _reader, writer):
        fields, _ = HOSTILE[[*HOSTILE][int(head.split(b" ")[1][1:])]]
        body = gzip.compress(VALUE) if b"gzip" in fields else b"[" + VALUE + b"]"
        status = 206 if b"Content-Range" in fields else 200
        writer.write(b"HTTP/1.1 %d %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, VALUE, fields, len(body), body))

    async with bench(tmp_path, odd) as here:
        for number, (name, (_, refused)) in enumerate(HOSTILE.items()):
            answer = await here.ask(request(f"/{number}", TOKEN))
            assert answer.startswith(b"HTTP/1.1 502 " if refused else b"HTTP/1.1 200 "), name
            assert VALUE.lower() not in answer.lower(), name
            for form in (base64.b64encode(b"user:" + VALUE)[12:-4], gzip.compress(VALUE)[12:-8]):
                assert form not in answer, name
            assert refused or b"[" + PLACEHOLDER + b"]" in answer, name


BROKEN = [
    b"HTTP/1.1 2000 " + VALUE, VALUE + b" nonsense", b"HTTP/1.1 200 OK\r\nContent-Length: " + VALUE,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + VALUE, b"HTTP/1.1 200 OK\r\n" + VALUE + b" x: y",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: " + VALUE, b"", b"HTTP/1.1 200 OK\r\nContent-Le",
]  # fmt: skip


async def test_an_error_of_ours_quotes_nothing(tmp_path):
    # proves K06, OLD-B5
    async def odd(head, _reader, writer):
        text = BROKEN[int(head.split(b" ")[1][1:])]
        writer.write(text + b"\r\n\r\n" if VALUE in text else text)
        writer.close()

    async with bench(tmp_path, odd) as here:
        for number in range(len(BROKEN)):
            answer = await here.ask(request(f"/{number}", TOKEN))
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert VALUE[:12] not in answer


async def test_large_bodies_pass_in_both_directions(tmp_path):
    size = 24 << 20

    async def count(head, reader, writer):
        body = await reader.readexactly(size)
        assert PLACEHOLDER in body
        assert VALUE not in body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for at in range(0, size, 1 << 20):
            writer.write(body[at : at + (1 << 20)])
            await writer.drain()

    async with bench(tmp_path, count) as here:
        body = os.urandom(1 << 16) * (size >> 16)
        body = body[:1000] + PLACEHOLDER + body[1000 + len(PLACEHOLDER) :]
        answer = await here.ask(request("/", TOKEN, f"Content-Length: {size}", method="POST") + body)
        assert answer.endswith(body)
        (line,) = here.decisions()
        assert (line["up"], line["down"]) == (size, size)


async def test_many_programs_are_served_at_a_time_over_few_connections(tmp_path):
    async with bench(tmp_path, plain) as here:
        for _ in range(3):
            answers = await asyncio.gather(*(here.ask(request("/", TOKEN)) for _ in range(40)))
            assert all(answer.endswith(b"granted") for answer in answers)
        assert here.dialer.dialled < 120
        assert len(here.decisions()) == 120


ELSEWHERE = [
    (request(host="other.example"), b"421", "other-host"),
    (request(host=f"{HOST}:8443"), b"421", "other-host"),
    (request().replace(b"\r\nConnection", b"\r\nHost: other.example\r\nConnection"), b"400", ""),
    (request("http://other.example/"), b"400", "not-a-path"),
    (request(method="TRACE"), b"405", "echo"),
    (request("/", "Upgrade: websocket"), b"426", "upgrade"),
    (request(f"{HOST}:443", method="CONNECT"), b"405", "invalid_request_error"),
]


async def test_what_is_not_meant_for_this_host_is_refused_and_written_down(tmp_path):
    async with bench(tmp_path, plain) as here:
        for asked, status, _ in ELSEWHERE:
            answer = await here.ask(asked.replace(b"Connection", TOKEN.encode() + b"\r\nConnection"))
            assert answer.split()[1] == status
            assert b"claudebox: " in answer
        assert here.dialer.dialled == 0
        assert [row["rule"] for row in here.decisions()] == [rule for _, _, rule in ELSEWHERE if rule]
        assert {row["verdict"] for row in here.decisions()} == {"denied"}
        assert (await here.ask(request("/", TOKEN))).endswith(b"granted")  # the control


async def test_a_host_that_is_not_trusted_gets_nothing(tmp_path):
    reached = []

    async def note(head, _reader, _writer):
        reached.append(head)

    async with bench(tmp_path, note, trusted=False) as here:
        answer = await here.ask(request("/", TOKEN))
        assert answer.startswith(b"HTTP/1.1 502")
        assert b"is not one that this machine trusts" in answer
        assert not reached
        assert here.decisions()[0]["verdict"] == "failed"


async def test_a_body_that_breaks_off_is_not_taken_for_a_whole_one(tmp_path):
    async def breaking(_head, _reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async with bench(tmp_path, breaking) as here:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert len((await here.ask(request("/", TOKEN))).partition(b"\r\n\r\n")[2]) < 100


PERMIT = ("GET /repos/acme/**", "POST /graphql", "GET /one/*", "PUT /exact/")
TRICKS = [
    "/repos/acme/../../user", "/repos/acme/%2e%2e/%2e%2e/user", "/repos/acme/..%2f..%2fuser", "/repos/acme/..;/x",
    "/repos/acme/.%2e/x", "/repos//acme/x", "/repos/acme//x", "/repos/acme/", "/repos/acme", "//repos/acme/x",
    "/Repos/acme/x", "/repos/ACME/x", "/repos/acme%2fx", "/repos/acme/x%2f..%2f..%2fy", "/repos/acme/%252e%252e/x",
    "/repos/acme/..\\..\\x", "/repos/acme/%5c..%5cx", "/repos/acme/x#y", "/repos/acme/%c0%ae%c0%ae/x",
    "/repos/acme/x;y=z", "/repos/acme/./x", "/repos/acme/%2E/x", "/repos/acme/...", "/repos/acme/..%20/x",
    "/%72epos/acme/x", "/?/repos/acme/x", "/repos?/acme/x", "*", "/one", "/one/", "/one/a/b", "/one/..", "/exact",
    "/graphql", "/user", "/repos/acmeX/y", "/repos/acme/%00", "/repos/acme/%61", "/one/a%3Fb", "/repos/acme/a%23b", f"https://{HOST}/repos/acme/x",
]  # fmt: skip


OPEN = [
    ("GET", "/repos/acme/x"), ("GET", "/repos/acme/x/compare/main...topic?a=/../b"), ("HEAD", "/repos/acme/x/y.z"),
    ("POST", "/graphql"), ("GET", "/one/two%20words"), ("PUT", "/exact/"), ("GET", "/repos/acme/x/.github"),
]  # fmt: skip


async def test_what_is_plainly_permitted_passes_with_the_value_and_nothing_else_does(tmp_path):
    # proves NEW-N8
    async with bench(tmp_path, plain, permit=PERMIT) as here:
        for path in TRICKS:
            assert (await here.ask(request(path, TOKEN))).split()[1] in (b"400", b"403"), path
        for _, path in OPEN:
            for other in ("DELETE", "PATCH", "get", "OPTIONS"):
                refused = await here.ask(request(path, TOKEN, "Content-Length: 0", method=other))
                assert refused.split()[1] == b"403", path
                assert b"`permit` of TOKEN does not allow this method and path" in refused
        assert here.dialer.dialled == 0
        assert {row["verdict"] for row in here.decisions()} == {"denied"}
        for method, path in OPEN:
            answer = await here.ask(request(path, TOKEN, "Content-Length: 0", method=method))
            assert answer.split()[1] == b"200", path
            assert method == "HEAD" or answer.endswith(b"granted")


FOREIGN = {
    "another token": "Authorization: Bearer mine", "a cookie": "Cookie: session=mine", "a key": "X-Api-Key: mine",
    "Basic": f"Authorization: Basic {base64.b64encode(b'me:mine').decode()}",
    "another method": "X-HTTP-Method-Override: DELETE", "the same, spelled otherwise": "X_HTTP_Method_Override: DELETE",
    "another path": "X-Original-URL: /user", "a path for a rewriter": "X-Rewrite-URL: /user",
    "a method for a proxy": "X-Original-Method: DELETE", "a token of GitLab": "Private_Token: mine",
    "a key, spelled otherwise": "X_API_KEY: mine", "any token": "X-Token: mine", "a field of the row": "X_Mine: mine",
}  # fmt: skip


async def test_a_host_with_permits_takes_no_credential_of_the_agent(tmp_path):
    # proves NEW-N8
    async with bench(tmp_path, plain, permit=PERMIT) as here:
        for name, field in FOREIGN.items():
            for more in ((field,), (TOKEN, field)):
                assert (await here.ask(request("/repos/acme/x", *more))).split()[1] == b"403", name
        assert here.dialer.dialled == 0
        assert (await here.ask(request("/repos/acme/x"))).endswith(b"refused")  # nothing at all: as far as it is open
        assert (await here.ask(request("/user"))).split()[1] == b"403"
    async with bench(tmp_path, plain) as here:  # the control: without permits it is the host's affair
        for name, field in FOREIGN.items():
            assert (await here.ask(request("/user", field))).endswith(b"refused"), name


def in_basic(text: bytes) -> str:
    return f"Authorization: Basic {base64.b64encode(text).decode()}"


KEY = b"glpat-" + b"3eE4rR5tT6yY7uU8iI9o"  # of the agent


BESIDE = [
    (f"Authorization: Bearer {KEY.decode()} {PLACEHOLDER.decode()}", False),
    (f"Authorization: Bearer {KEY.decode()}, Bearer {PLACEHOLDER.decode()}", False),
    (f"Authorization: {KEY.decode()} {PLACEHOLDER.decode()}", False),
    (f"X-Mine: {KEY.decode()}{PLACEHOLDER.decode()}", False), (in_basic(KEY + b":" + PLACEHOLDER), False),
    (in_basic(PLACEHOLDER + b":" + KEY), False), (in_basic(b"a:" + KEY + PLACEHOLDER), False),
    (f"Authorization: Token token={PLACEHOLDER.decode()}", True), (f"X-Mine: {PLACEHOLDER.decode()}", True),
    (in_basic(b"x-access-token:" + PLACEHOLDER), True), (in_basic(b"me@mail.example:" + PLACEHOLDER), True),
    (in_basic(PLACEHOLDER + b":x-oauth-basic"), True), (in_basic(b":" + PLACEHOLDER), True),
    (f"{TOKEN}\r\nIdempotency-Key: 7\r\nX-GitHub-Api-Version: 2022\r\nGit-Protocol: version=2", True),
]  # fmt: skip


async def test_with_permits_nothing_stands_beside_a_placeholder(tmp_path):
    async with bench(tmp_path, plain, permit=PERMIT) as here:
        for field, passes in BESIDE:
            assert (await here.ask(request("/repos/acme/x", field))).split()[1] == (b"200" if passes else b"403"), field


async def test_each_secret_of_a_host_has_its_own_permits(tmp_path):
    # proves NEW-N8
    other = b"tok_" + b"5qQ6wW7eE8" * 4
    row = Replacement("OTHER", VALUE[::-1], other, frozenset({(HOST, 443)}))
    async with bench(tmp_path, plain, permit=PERMIT, rows=(row,)) as here:
        with_other = f"X-Api-Key: {other.decode()}"
        assert (await here.ask(request("/user", with_other))).endswith(b"refused")
        assert (await here.ask(request("/user", TOKEN))).split()[1] == b"403"
        assert (await here.ask(request("/user", TOKEN, with_other))).split()[1] == b"403"
        assert (await here.ask(request("/repos/acme/x", TOKEN, with_other))).endswith(b"granted")


NEXT = b"ghp_" + b"7tT8uU9iI0" * 4


async def moving(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take only the second value, and repeat both."""
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    body = await reader.readexactly(int(length or 0))
    text = b"[%s] %s %s" % (body, VALUE, NEXT)
    status = b"200 OK" if NEXT in head else b"401 Unauthorized"
    writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))


async def test_a_value_that_is_not_taken_any_more_is_read_again(tmp_path):
    # proves NEW-N10
    reads = []

    def read() -> str:
        reads.append(1)
        return NEXT.decode()

    async with bench(tmp_path, moving, read=read) as here:
        asks = [request("/", TOKEN, "Content-Length: 4", method="POST") + b"body" for _ in range(6)]
        answers = await asyncio.gather(*map(here.ask, asks))
        for answer in answers:
            assert answer.split()[1] == b"200"
            assert b"[body] " in answer
            assert VALUE not in answer
            assert NEXT not in answer
        assert len(reads) == 1
        assert (await here.ask(request())).split()[1] == b"401"  # who has no placeholder has nothing read
        assert len(reads) == 1
    async with bench(tmp_path, moving) as here:  # the control: a value that comes from a variable stays what it is
        assert (await here.ask(request("/", TOKEN))).split()[1] == b"401"


async def test_a_body_that_began_before_a_value_was_read_again_is_cleaned_of_it(tmp_path):
    read = asyncio.Event()

    async def slow(head, reader, writer):
        if b" /slow " not in head:
            await moving(head, reader, writer)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n")
        await writer.drain()
        await asyncio.wait_for(read.wait(), 10)
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(NEXT), NEXT))

    async with bench(tmp_path, slow, read=NEXT.decode) as here:
        reader, writer = await here.open()
        writer.write(request("/slow", TOKEN))
        await asyncio.wait_for(reader.readuntil(b"\n\r\n"), 5)
        assert (await here.ask(request("/", TOKEN))).split()[1] == b"200"
        read.set()
        assert PLACEHOLDER in await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_a_value_is_read_again_once_a_minute_at_most(tmp_path):
    # proves NEW-N10
    reads = []

    def read() -> str:
        reads.append(1)
        if len(reads) == 2:
            raise ClaudeboxError("it did not answer")
        return (VALUE if len(reads) < 4 else NEXT).decode()

    async with bench(tmp_path, moving, read=read) as here:
        for _ in range(4):
            assert (await here.ask(request("/", TOKEN))).split()[1] == b"401"
        assert len(reads) == 1
        statuses = []
        for count in (2, 3, 4):  # as if minutes had passed
            here.secret._retry = 0.0
            statuses.append((await here.ask(request("/", TOKEN))).split()[1])
            assert len(reads) == count
        assert statuses == [b"401", b"401", b"200"]
