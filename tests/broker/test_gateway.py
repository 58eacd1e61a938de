"""The gateway over loopback: what it hands on, what it waits for, what it writes down.

Loopback stands in for the internet here; that real near addresses are refused is proved in tests/network.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from dataclasses import dataclass, field

import pytest
from tests.broker.test_greetings import RETRY, client_hello, record, server_hello

from claudebox.broker import reception as reception_module
from claudebox.broker.proxy import dial as dialing
from claudebox.broker.proxy import gateway as module
from claudebox.broker.proxy import tls
from claudebox.broker.proxy.dial import Dialer, NoConnection, PrivateRanges
from claudebox.broker.proxy.gateway import Gateway
from claudebox.broker.proxy.names import AccessList, Denied
from claudebox.broker.reception import Reception
from claudebox.network.facts import HostProxy
from claudebox.network.plan import closed_ranges
from claudebox.settings.domains import Permission, parse_domain

RANGES = closed_ranges()


class Everywhere(PrivateRanges):
    """Knows no neighbours, so that a test can be the internet."""

    def problem(self, _address: str, _port: int = 0) -> str:
        return ""


def listening(address: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((address, 0), backlog=512)


@dataclass
class Setting:
    """A server, a gateway before it, and what was written down."""

    server: socket.socket
    listener: socket.socket
    written: list[dict[str, object]] = field(default_factory=list)
    channels: list[socket.socket] = field(default_factory=list)  # that are closed at the end

    @property
    def port(self) -> int:
        return int(self.server.getsockname()[1])

    def record(self, **decision: object) -> None:
        self.written.append(decision)

    async def call(self, text: bytes = b"") -> socket.socket:
        channel = socket.socket()
        channel.setblocking(False)  # noqa: FBT003
        loop = asyncio.get_running_loop()
        await loop.sock_connect(channel, self.listener.getsockname())
        await loop.sock_sendall(channel, text or f"CONNECT a.example:{self.port} HTTP/1.1\r\n\r\n".encode())
        self.channels.append(channel)
        return channel

    async def accept(self) -> socket.socket:
        channel, _ = await asyncio.get_running_loop().sock_accept(self.server)
        self.channels.append(channel)
        return channel

    async def open(self) -> tuple[socket.socket, socket.socket]:
        """Return a caller whom the gateway has let through, and the end of the connection at the server."""
        caller = await self.call()
        assert (await read(caller)).startswith(b"HTTP/1.1 200 ")
        return caller, await self.accept()


async def read(channel: socket.socket, size: int = 65536) -> bytes:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(channel, size), 5)


async def drained(channel: socket.socket) -> bytes:
    data = b""
    while piece := await read(channel):
        data += piece
    return data


@contextlib.asynccontextmanager
async def gateway(intercept=lambda *_: None, addresses=("127.0.0.1",), *, proxied=False):
    """Lead to a server, or to the same as the proxy of this machine."""
    with listening() as server, listening() as listener:
        server.setblocking(False)  # noqa: FBT003
        setting = Setting(server, listener)
        permission = Permission([parse_domain(f"a.example:{port}", "x") for port in (setting.port, 80)])
        proxy = HostProxy("127.0.0.1", setting.port) if proxied else None
        dialer = Dialer(Everywhere(RANGES), proxy, lookup=lambda _: list(addresses))
        door = AccessList(permission, ("a.example",))
        made = Gateway(door, dialer, setting, intercept=intercept)  # type: ignore[arg-type]  # a log
        reception = Reception()
        made.serve(reception, listener)
        try:
            yield setting
        finally:
            for channel in setting.channels:
                channel.close()
            reception.close()
            dialer.close()
            await asyncio.sleep(0.05)


async def test_a_line_is_written_when_a_way_opens_and_one_with_its_bytes_when_it_ends():
    # proves NEW-N2
    async with gateway() as setting:
        caller, far = await setting.open()
        caller.send(b"\0" * 1000)
        assert await read(far) == b"\0" * 1000
        assert [row["verdict"] for row in setting.written] == ["opened"]
        far.send(b"y" * 20)
        far.close()
        assert await drained(caller) == b"y" * 20
        caller.close()
        await asyncio.sleep(0.1)
        place = {"service": "proxy", "host": "a.example", "port": setting.port, "rule": f"a.example:{setting.port}"}
        assert setting.written == [
            {**place, "verdict": "opened", "up": 0, "down": 0},
            {**place, "verdict": "allowed", "up": 1000, "down": 20},
        ]


async def test_what_was_said_early_is_not_lost():
    async with gateway() as setting:
        greeting = client_hello("a.example")
        caller = await setting.call(f"CONNECT a.example:{setting.port} HTTP/1.1\r\n\r\n".encode() + greeting)
        far = await setting.accept()
        assert (await read(caller)).startswith(b"HTTP/1.1 200 ")
        assert await read(far) == greeting


@pytest.mark.parametrize("pieces", [1, 7, 300])
async def test_a_greeting_may_come_in_pieces(pieces):
    async with gateway() as setting:
        greeting = client_hello("a.example")
        caller = await setting.call(b"C")
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for text in (f"ONNECT a.example:{setting.port} HTTP/1.1\r\n\r\n".encode(), greeting):
            for at in range(0, len(text), pieces):
                caller.send(text[at : at + pieces])
                await asyncio.sleep(0)
        far = await setting.accept()
        got = b""
        while len(got) < len(greeting):
            got += await read(far)
        assert got == greeting


async def test_a_connection_that_is_taken_over_arrives_whole_and_unread():
    async def handler(visitor, name, port):
        assert tls.server_name(await read(visitor.channel)) == name == "a.example"
        assert port == setting.port
        visitor.channel.send(b"taken over")

    async with gateway(lambda name, _: handler if name == "a.example" else None) as setting:
        caller = await setting.call()
        assert (await read(caller)).startswith(b"HTTP/1.1 200 ")
        caller.send(client_hello("a.example"))
        assert await drained(caller) == b"taken over"
        assert setting.written == []  # which is up to whoever took it over


@pytest.mark.parametrize("name", ["b.example", None])
async def test_tls_for_another_name_is_never_handed_on(name):
    async with gateway() as setting:
        caller = await setting.call()
        await read(caller)
        caller.send(client_hello(name))
        far = await setting.accept()
        assert await drained(caller) == tls.REFUSAL
        assert await drained(far) == b""
        assert setting.written[-1]["rule"] == "other-server-name"


@pytest.mark.parametrize("second", ["a.example", "b.example", None])
@pytest.mark.parametrize("early", [b"", record(20, b"\1"), record(20, b"\1") + record(23, bytes(40))])
async def test_a_second_greeting_must_name_the_same_server(second, early):
    # proves K02, OLD-B2
    async with gateway() as setting:
        caller = await setting.call()
        await read(caller)
        first = client_hello("a.example")
        caller.send(first)
        far = await setting.accept()
        assert await read(far) == first
        again = record(22, server_hello(RETRY))
        far.send(again)
        assert await read(caller) == again
        caller.send(early + client_hello(second))
        if second == "a.example":
            whole = early + client_hello(second)
            got = b""
            while len(got) < len(whole):
                got += await read(far)
            far.send(b"more")
            assert await read(caller) == b"more"
        else:
            assert await drained(caller) == tls.REFUSAL
            assert await drained(far) == early
            assert setting.written[-1]["rule"] == "other-server-name"


@pytest.mark.parametrize("before", [record(21, b"\1\x5a"), record(20, b"\1"), record(23, b"x"), b"\x80\x2e\1\3\1"])
async def test_nothing_may_stand_in_front_of_a_greeting(before):
    # proves K03, OLD-B2
    async with gateway() as setting:
        caller = await setting.call()
        await read(caller)
        caller.send(before + client_hello("b.example"))
        far = await setting.accept()
        assert await drained(caller) == tls.REFUSAL
        assert await drained(far) == b""


@pytest.mark.parametrize("method", ["GET", "BREW", "M-SEARCH", "X" * 300])
async def test_a_request_on_another_port_is_for_the_host_that_was_asked_for(method):
    # proves K11, OLD-B9
    async with gateway() as setting:
        for host, passes in ((f"a.example:{setting.port}", True), ("b.example", False)):
            caller = await setting.call()
            await read(caller)
            for piece in (method[:2], method[2:], f" / HTTP/1.1\r\nHost: {host}\r\n\r\n"):
                caller.send(piece.encode())
                await asyncio.sleep(0.01)
            assert await drained(await setting.accept()) == b""  # until it is known what the caller speaks
            if passes:
                assert (await read(await setting.accept())).startswith(method.encode())
            else:
                assert (await read(caller)).startswith(b"HTTP/1.1 403 ")
        with pytest.raises(BlockingIOError):
            setting.server.accept()


@pytest.mark.parametrize("target", ["*@192.168.77.50:8099/", "*", "*.b.example/", "@b.example/", ":8099/"])
async def test_what_follows_a_host_in_a_url_cannot_make_another_host_of_it(target):
    async with gateway(proxied=True) as setting:
        for asked in ("/", target):
            caller = await setting.call(b"CONNECT a.example:80 HTTP/1.1\r\n\r\n")
            assert (await read(caller)).startswith(b"HTTP/1.1 200 ")
            caller.send(f"GET {asked} HTTP/1.1\r\nHost: a.example\r\n\r\n".encode())
            if asked == "/":
                assert (await read(await setting.accept())).startswith(b"GET http://a.example/ ")
            else:
                assert (await read(caller)).split()[1] in (b"400", b"403")
        with pytest.raises(BlockingIOError):
            setting.server.accept()


@pytest.mark.parametrize(("target", "passes"), [("/", True), ("*", True), ("*@b.example/", False), ("**", False)])
async def test_a_server_is_asked_for_a_path_or_for_itself(target, passes):
    async with gateway() as setting:
        caller = await setting.call()
        await read(caller)
        caller.send(f"OPTIONS {target} HTTP/1.1\r\nHost: a.example:{setting.port}\r\n\r\n".encode())
        await setting.accept()
        if passes:
            assert (await read(await setting.accept())).startswith(b"OPTIONS ")
        else:
            assert (await read(caller)).startswith(b"HTTP/1.1 400 ")


async def test_an_offer_to_upgrade_is_not_passed_on():
    async with gateway() as setting:
        caller = await setting.call()
        await read(caller)
        head = f"GET / HTTP/1.1\r\nHost: a.example:{setting.port}\r\n"
        caller.send(f"{head}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n".encode())
        await setting.accept()
        assert (await read(await setting.accept())).lower() == head.lower().encode() + b"\r\n"


async def test_a_text_that_ends_without_a_line_end_is_no_request():
    async with gateway() as setting:
        caller = await setting.call()
        await read(caller)
        caller.send(b"just a word")
        caller.shutdown(socket.SHUT_WR)
        far = await setting.accept()
        assert await drained(far) == b"just a word"


async def test_a_server_that_speaks_first_is_heard():
    async with gateway() as setting:
        caller = await setting.call()
        far = await setting.accept()
        far.send(b"220 welcome")
        assert (await read(caller)).startswith(b"HTTP/1.1 200 ")
        assert await read(caller) == b"220 welcome"


@pytest.mark.parametrize("side", ["caller", "far"])
async def test_a_reset_is_a_reset_on_the_other_side(side):
    async with gateway() as setting:
        caller, far = await setting.open()
        caller.send(b"\0")
        await read(far)
        one, other = (caller, far) if side == "caller" else (far, caller)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4))
        one.close()
        with pytest.raises(ConnectionResetError):
            await read(other)
        other.close()


async def test_other_words_than_ours_are_refused_in_their_own_language():
    async with gateway() as setting:
        for text, start in (
            (client_hello("a.example"), tls.REFUSAL),
            (b"BREW / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
            (b"CONNECT a.example:x HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
            (b"CONNECT a.example HTTP/1.1\r\n\r\n", b"HTTP/1.1 403 "),
        ):
            caller = await setting.call(text)
            assert (await drained(caller)).startswith(start), text
            caller.close()


async def test_a_dead_address_does_not_hold_up_a_live_one(monkeypatch):
    monkeypatch.setattr(dialing, "HEAD_START", 10.0)
    with listening() as server:
        start = time.monotonic()
        found = await dialing.connect(["127.0.0.2", "127.0.0.1"], server.getsockname()[1])
        assert found.getpeername()[0] == "127.0.0.1"
        assert time.monotonic() - start < 9
        found.close()
        with pytest.raises(NoConnection, match="refused"):
            await dialing.connect(["127.0.0.2", "127.0.0.3"], server.getsockname()[1])


async def test_one_near_answer_refuses_the_name_and_names_are_asked_for_once():
    # proves F14
    asked: list[str] = []

    def lookup(name: str) -> list[str]:
        asked.append(name)
        return ["203.0.113.80", "10.0.0.1"]

    dialer = Dialer(PrivateRanges(RANGES), lookup=lookup)
    for _ in range(2):
        with pytest.raises(Denied, match=r"points at 10\.0\.0\.1: private networks"):
            await dialer.dial("a.example", 443)
    dialer.close()
    assert asked == ["a.example"]


def test_a_context_of_the_standard_library_understands_the_refusal():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    channel = context.wrap_bio(incoming, outgoing, server_hostname="a.example")
    with pytest.raises(ssl.SSLWantReadError):
        channel.do_handshake()
    incoming.write(tls.REFUSAL)
    with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
        channel.do_handshake()


@pytest.mark.parametrize("text", [b"CONNECT a.exam", b"\x05", b"G"])
async def test_who_never_says_what_they_want_is_sent_away(monkeypatch, text):
    monkeypatch.setattr(module, "GREETING", 0.2)
    async with gateway() as setting:
        caller = await setting.call(text)
        start = time.monotonic()
        with pytest.raises(ConnectionResetError):
            await drained(caller)
        assert 0.1 < time.monotonic() - start < 15


async def test_who_finds_no_room_waits_and_is_served_when_there_is_some(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 2)
    monkeypatch.setattr(reception_module, "_SILENCE", 30)
    async with gateway() as setting:
        loop = asyncio.get_running_loop()
        callers = [await setting.call() for _ in range(3)]
        ends = []
        for caller in callers[:2]:
            await read(caller)
            ends.append((await loop.sock_accept(setting.server))[0])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.sock_recv(callers[2], 100), 0.2)
        callers[0].close()
        ends[0].close()
        assert (await read(callers[2])).startswith(b"HTTP/1.1 200 ")
        ends.append((await loop.sock_accept(setting.server))[0])
        for channel in (*callers[1:], *ends[1:]):
            channel.close()


async def test_on_the_web_a_server_that_speaks_first_opens_nothing(monkeypatch):
    monkeypatch.setattr(module, "WEB", range(1, 65536))
    async with gateway() as setting:
        caller, far = await setting.open()
        far.send(b"HTTP/1.0 408 Request Time-out\r\n\r\n")
        await asyncio.sleep(0.1)
        caller.send(client_hello("b.example"))
        assert await drained(caller) == tls.REFUSAL
        with contextlib.suppress(ConnectionResetError):  # what it said was never taken
            assert await drained(far) == b""


async def test_on_the_web_a_server_that_leaves_first_is_told(monkeypatch):
    monkeypatch.setattr(module, "WEB", range(1, 65536))
    async with gateway() as setting:
        caller, far = await setting.open()
        far.close()
        assert await read(caller) == b""
