"""From a permitted name to a connection: resolved once, every address checked, connected to a checked address.

The name is never resolved a second time, so DNS rebinding has no effect (F14). One private address refuses the whole
name: a name that resolves to private addresses is not trusted with its public ones.

Private means: the table of tier `inet`, the addresses of this machine and its networks. Those are followed while the
broker runs and never forgotten: a former neighbour is not trusted as a stranger (F04).
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import time
from asyncio.staggered import staggered_race
from concurrent.futures import ThreadPoolExecutor

from claudebox.base import netlink
from claudebox.base.addresses import NAT64, covers, parse_prefix
from claudebox.broker.proxy.names import Denied
from claudebox.network import routes
from claudebox.network.records import Ranges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.base.addresses import Prefix
    from claudebox.network.facts import HostProxy

    Lookup = Callable[[str], list[str]]


_MAPPED = bytes(10) + b"\xff\xff"
_NAT64 = parse_prefix(NAT64)
_OWN, _NEAR = "this machine", "a network of this machine"
STALE = "the addresses of this machine cannot be read at the moment"
_PAUSE = 0.5  # seconds before the next attempt


class PrivateRanges:
    """Addresses that are not the public internet's."""

    def __init__(self, ranges: Ranges, own: Iterable[Prefix] = (), near: Iterable[Prefix] = ()) -> None:
        rows = [(row.always, parse_prefix(row.prefix), row.reason) for row in ranges.barred]
        self._always, self._barred = ([row[1:] for row in rows if row[0] is always] for always in (True, False))
        self._open6 = tuple(parse_prefix(text) for text in ranges.open6)
        self._opened = tuple((parse_prefix(row.prefix), row.port) for row in ranges.opened)
        self._own, self._near = set(own), set(near)
        self.stale = False  # this machine's addresses cannot be read: refuse everything

    def problem(self, address: str, port: int = 0) -> str:
        """Return why an address may not be reached on a port, "" if it is public or opened by the user."""
        if self.stale:
            return STALE
        try:
            packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address.partition("%")[0])
        except OSError:
            return "not an address"
        if packed[:12] == _MAPPED or (len(packed) == 16 and covers(_NAT64, (packed, 128))):
            packed = packed[12:]
        whole = (packed, len(packed) * 8)
        for prefix, reason in self._always:
            if covers(prefix, whole):
                return reason
        if any(covers(prefix, whole) for prefix in self._own):
            return _OWN
        if any(covers(prefix, whole) and only in (0, port) for prefix, only in self._opened):
            return ""
        for prefix, reason in self._barred:
            if covers(prefix, whole):
                return reason
        if len(packed) == 16 and not any(covers(prefix, whole) for prefix in self._open6):
            return "not an address of the internet"
        return _NEAR if any(covers(prefix, whole) for prefix in self._near) else ""

    def add(self, own: Iterable[Prefix], near: Iterable[Prefix] = ()) -> None:
        self.stale = False
        self._own.update(own)
        self._near.update(near)


class NothingBarred(PrivateRanges):
    """Tier `full`: every address may be reached."""

    def __init__(self) -> None:
        super().__init__(Ranges())

    def problem(self, _address: str, _port: int = 0) -> str:
        return ""


class RangeWatch:
    """Keeps PrivateRanges up to date with the kernel's addresses and routes."""

    def __init__(self, ranges: Ranges) -> None:
        self._again: asyncio.TimerHandle | None = None
        self._open()
        self.ranges = PrivateRanges(ranges, *self._read())

    def _open(self) -> None:
        self._changes = netlink.connect(netlink.ROUTE, routes.CHANGES)
        self._changes.setblocking(False)  # noqa: FBT003
        self._tables = netlink.connect(netlink.ROUTE)

    def _read(self) -> tuple[set[Prefix], set[Prefix]]:
        return routes.surroundings(routes.read_tables(self._tables))

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._changes.fileno(), self.follow)

    def follow(self) -> None:
        """Read the tables again; while that fails, every address is refused."""
        try:
            netlink.drain(self._changes)
            self.ranges.add(*self._read())
        except Exception:  # noqa: BLE001 - whatever it was, the ranges may be out of date
            self.ranges.stale = True
            self.close()
            self._again = asyncio.get_running_loop().call_later(_PAUSE, self._retry)

    def _retry(self) -> None:
        """Start over with new sockets: the old ones may hold half an answer."""
        try:
            self._open()
            self.start()
        except OSError:
            self._again = asyncio.get_running_loop().call_later(_PAUSE, self._retry)
            return
        self.follow()

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._changes.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._changes.fileno())
        self._changes.close()
        self._tables.close()


HEAD_START = 0.25  # seconds before the next address is tried in parallel (RFC 8305)
_PATIENCE = 15.0
_KEPT = 10.0  # seconds for which a DNS answer is cached; its addresses are checked each time
_MOST_KEPT = 1024
_RESOLVERS = 8
_PENDING = 32  # lookups at a time, queued ones included; more are refused
_NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)
_LONGEST_REPLY = 16384


class NoConnection(Exception):  # noqa: N818
    """A permitted name that does not answer."""


def look_up(name: str) -> list[str]:
    """Ask this machine's resolver, without its search domains; return [] if the name does not exist."""
    try:
        found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NO_SUCH_NAME:
            return []
        raise
    return list(dict.fromkeys(str(row[4][0]) for row in found))


class Dialer:
    """Connects to permitted names."""

    def __init__(self, ranges: PrivateRanges, proxy: HostProxy | None = None, lookup: Lookup = look_up) -> None:
        self._ranges, self.proxy, self._lookup = ranges, proxy, lookup
        self._threads = ThreadPoolExecutor(_RESOLVERS, "resolver")
        self._own_thread = ThreadPoolExecutor(1, "proxy-resolver")  # lookups for the sandbox cannot delay it
        self._asked: dict[str, asyncio.Future[list[str]]] = {}
        self._known: dict[str, tuple[float, list[str]]] = {}

    def close(self) -> None:
        for threads in (self._threads, self._own_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    async def check(self, name: str, port: int) -> list[str]:
        """Return the addresses of a name, all public or opened for this port; none if only the proxy may know it.

        Names that do not exist for this machine are left to the host's proxy, which often has a DNS of its own. If the
        lookup fails in any other way the name is refused: it may be private.
        """
        if self._ranges.stale:  # it is unknown which addresses are this machine's
            raise NoConnection(STALE)
        kept, found = self._known.get(name, (0.0, []))
        if kept < time.monotonic():
            try:
                found = await asyncio.wait_for(asyncio.shield(self._ask(name)), _PATIENCE)
            except TimeoutError:
                raise NoConnection(f"the name `{name}` cannot be resolved: no answer") from None
            except (OSError, UnicodeError) as error:
                raise NoConnection(f"the name `{name}` cannot be resolved: {error}") from None
        if not found and not self._is_proxied(name, port):
            raise NoConnection(f"the name `{name}` cannot be resolved: it does not exist, or has no address")
        for address in found:
            if problem := self._ranges.problem(address, port):
                raise Denied("not-public", f"`{name}` points at {address}: {problem}")
        return found

    def _is_proxied(self, name: str, port: int) -> bool:
        return self.proxy is not None and self.proxy.serves(name, port)

    def _ask(self, name: str) -> asyncio.Future[list[str]]:
        """Start a lookup, or join one for the same name."""
        if name not in self._asked:
            if len(self._asked) >= _PENDING:
                raise NoConnection(f"the name `{name}` cannot be resolved: too many lookups are pending")
            self._asked[name] = asyncio.get_running_loop().run_in_executor(self._threads, self._lookup, name)
            self._asked[name].add_done_callback(lambda answer: self._learn(name, answer))
        return self._asked[name]

    def _learn(self, name: str, answer: asyncio.Future[list[str]]) -> None:
        del self._asked[name]
        if not answer.cancelled() and answer.exception() is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[name] = time.monotonic() + _KEPT, answer.result()

    def asks_by_url(self, name: str, port: int) -> bool:
        """Return whether the host's proxy gets plain HTTP by URL; never with a login, which its errors could quote."""
        return self.proxy is not None and not self.proxy.login and self._is_proxied(name, port)

    async def dial(self, name: str, port: int, *, plain: bool = False) -> socket.socket:
        """Connect to a name, or for `plain` HTTP to a proxy that is asked by URL."""
        found = await self.check(name, port)
        if self.proxy is None or not self._is_proxied(name, port):
            return await connect(found, port)
        try:
            rows = await asyncio.get_running_loop().run_in_executor(
                self._own_thread, lambda host, port: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
                self.proxy.host, self.proxy.port,
            )  # fmt: skip
        except OSError as error:
            raise NoConnection(f"the proxy of this machine, `{self.proxy.host}`: {error}") from None
        channel = await connect(list(dict.fromkeys(str(row[4][0]) for row in rows)), self.proxy.port)
        return channel if plain and self.asks_by_url(name, port) else await _tunnel(channel, self.proxy, name, port)


async def _tunnel(channel: socket.socket, proxy: HostProxy, name: str, port: int) -> socket.socket:
    """Ask the host's proxy for a connection, and return it."""
    loop = asyncio.get_running_loop()
    login = b"Proxy-Authorization: %s\r\n" % proxy.authorization if proxy.login else b""
    request = f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n".encode() + login + b"\r\n"
    reply = b""
    try:
        await loop.sock_sendall(channel, request)
        while not reply.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the connection's
            piece = await asyncio.wait_for(loop.sock_recv(channel, 1), _PATIENCE)
            if not piece or len(reply) > _LONGEST_REPLY:
                raise NoConnection(f"the proxy of this machine does not lead to `{name}`")
            reply += piece
        status = reply[9:12]
        if status != b"200":  # its other words may quote our login
            said = f": status {status.decode()}" if status.isdigit() else ""
            raise NoConnection(f"the proxy of this machine does not lead to `{name}`, port {port}{said}")
    except BaseException as error:
        channel.close()
        if isinstance(error, OSError | TimeoutError):
            raise NoConnection(f"the proxy of this machine does not answer: {error}") from None
        raise
    return channel


async def connect(addresses: list[str], port: int) -> socket.socket:
    """Return the first connection that succeeds; a slow address does not delay the others."""
    attempts = [functools.partial(_attempt, address, port) for address in addresses]
    try:
        async with asyncio.timeout(_PATIENCE):
            made: socket.socket | None
            made, _, problems = await staggered_race(attempts, HEAD_START)
    except TimeoutError:
        raise NoConnection(f"no connection to port {port}: no answer in time") from None
    if made is None:
        raise NoConnection(f"no connection to port {port}: {problems[-1]}")
    return made


async def _attempt(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    channel = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(channel, (address, port))
    except BaseException as error:
        channel.close()
        if isinstance(error, OSError) and error.errno:
            raise OSError(error.errno, os.strerror(error.errno)) from None  # in plain words
        raise
    return channel
