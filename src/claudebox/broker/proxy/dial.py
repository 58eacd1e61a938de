"""From a permitted name to a connection: resolved once, every answer checked, connected to exactly what was checked.

Nothing looks the name up a second time, so that an answer that changes between the check and the connection changes
nothing (F14). One answer that is not public refuses the whole name: whoever gives such answers is not trusted with the
others.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from claudebox.base import addresses as base_addresses
from claudebox.base.addresses import NAT64
from claudebox.broker.proxy.names import Denied
from claudebox.network import netlink
from claudebox.network.records import Ranges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.base.addresses import Prefix
    from claudebox.network.facts import HostProxy

    Lookup = Callable[[str], list[str]]


# Which addresses are nobody's but the internet's: not private, not special, not this machine, not its neighbours.
#
# The same table as in tier `inet`, asked before a connection is made. Addresses of this machine are followed for as
# long as the broker runs, and never forgotten: whatever was a neighbour once is not trusted to be a stranger now
# (F04).


_MAPPED = bytes(10) + b"\xff\xff"
_NAT64 = base_addresses.parse_prefix(NAT64)
_MOST_JUDGED = 1024
_OWN, _NEAR = "this machine", "the neighbourhood of this machine"
STALE = "the addresses of this machine cannot be read at the moment"
_PAUSE = 0.5  # seconds before they are tried again


class PrivateRanges:
    """What is too near."""

    def __init__(self, ranges: Ranges, own: Iterable[Prefix] = (), near: Iterable[Prefix] = ()) -> None:
        rows = [(row.always, base_addresses.parse_prefix(row.prefix), row.reason) for row in ranges.barred]
        self._always, self._barred = ([row[1:] for row in rows if row[0] is always] for always in (True, False))
        self._open6 = tuple(base_addresses.parse_prefix(text) for text in ranges.open6)
        self._opened = tuple((base_addresses.parse_prefix(row.prefix), row.port) for row in ranges.opened)
        self._own, self._near = set(own), set(near)
        self.stale = False  # this machine's addresses could not be read: nothing is known to be public
        self._judged: dict[tuple[str, int], str] = {}

    def problem(self, address: str, port: int = 0) -> str:
        """Return why an address may not be reached on a port, or nothing if it is public, or opened by the user."""
        if self.stale:
            return STALE
        if (address, port) not in self._judged:
            if len(self._judged) >= _MOST_JUDGED:
                self._judged.clear()
            self._judged[address, port] = self._judge(address, port)
        return self._judged[address, port]

    def _judge(self, address: str, port: int) -> str:
        try:
            packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address.partition("%")[0])
        except OSError:
            return "no address"
        if packed[:12] == _MAPPED or (len(packed) == 16 and base_addresses.covers(_NAT64, (packed, 128))):
            packed = packed[12:]
        whole = (packed, len(packed) * 8)
        for prefix, reason in self._always:
            if base_addresses.covers(prefix, whole):
                return reason
        if any(base_addresses.covers(prefix, whole) for prefix in self._own):
            return _OWN
        if any(base_addresses.covers(prefix, whole) and only in (0, port) for prefix, only in self._opened):
            return ""
        for prefix, reason in self._barred:
            if base_addresses.covers(prefix, whole):
                return reason
        if len(packed) == 16 and not any(base_addresses.covers(prefix, whole) for prefix in self._open6):
            return "not an address of the internet"
        return _NEAR if any(base_addresses.covers(prefix, whole) for prefix in self._near) else ""

    def add(self, own: Iterable[Prefix], near: Iterable[Prefix] = ()) -> None:
        """Learn of more."""
        self.stale = False
        self._own.update(own)
        self._near.update(near)
        self._judged.clear()


class NothingBarred(PrivateRanges):
    """Tier `full`: whatever the host reaches."""

    def __init__(self) -> None:
        super().__init__(Ranges())

    def problem(self, _address: str, _port: int = 0) -> str:
        """Return nothing."""
        return ""


class RangeWatch:
    """Keeps them true to the kernel's tables, for as long as the loop runs."""

    def __init__(self, ranges: Ranges) -> None:
        self._again: asyncio.TimerHandle | None = None
        self._open()
        self.ranges = PrivateRanges(ranges, *self._read())

    def _open(self) -> None:
        self._changes = netlink.connect(netlink.ROUTE, netlink.CHANGES)
        self._changes.setblocking(False)  # noqa: FBT003
        self._tables = netlink.connect(netlink.ROUTE)

    def _read(self) -> tuple[set[Prefix], set[Prefix]]:
        return netlink.surroundings(netlink.read_tables(self._tables))

    def start(self) -> None:
        """Look again whenever the kernel tells of a change."""
        asyncio.get_running_loop().add_reader(self._changes.fileno(), self.follow)

    def follow(self) -> None:
        """Learn what has appeared since the last look; where that fails, nothing is public until it succeeds."""
        try:
            netlink.drain(self._changes)
            self.ranges.add(*self._read())
        except Exception:  # noqa: BLE001 - whatever it was, what we know may be out of date
            self.ranges.stale = True
            self.close()
            self._again = asyncio.get_running_loop().call_later(_PAUSE, self._retry)

    def _retry(self) -> None:
        """Begin again with new sockets: half an answer may be left in the old ones."""
        try:
            self._open()
            self.start()
        except OSError:
            self._again = asyncio.get_running_loop().call_later(_PAUSE, self._retry)
            return
        self.follow()

    def close(self) -> None:
        """Close the sockets."""
        if self._again is not None:
            self._again.cancel()
        if self._changes.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._changes.fileno())
        self._changes.close()
        self._tables.close()


HEAD_START = 0.25  # seconds that one address has before the next is tried beside it (RFC 8305)
_PATIENCE = 15.0
_KEPT = 10.0  # seconds for which an answer is used again; addresses are checked again each time
_MOST_KEPT = 1024
_UNKNOWN = 60.0  # seconds for which a name that only the proxy can resolve is not looked up again
_RESOLVERS = 8
_PENDING = 32  # names that are looked up or wait for it; a sandbox that asks for more is refused
_NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)
_LONGEST_REPLY = 16384


class NoConnection(Exception):  # noqa: N818
    """A permitted name that does not answer."""


class NoSuchName(NoConnection):
    """A name of which the resolver says that there is none, or none with an address."""


def look_up(name: str) -> list[str]:
    """Ask this machine's resolver, for exactly this name and none beneath its search domains."""
    found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


class Dialer:
    """Makes connections to names that somebody else has permitted."""

    def __init__(self, ranges: PrivateRanges, proxy: HostProxy | None = None, lookup: Lookup = look_up) -> None:
        self._ranges, self.proxy, self._lookup = ranges, proxy, lookup
        self._threads = ThreadPoolExecutor(_RESOLVERS, "resolver")
        self._own_thread = ThreadPoolExecutor(1, "proxy-resolver")  # no sandbox can keep it busy
        self._asked: dict[str, asyncio.Future[list[str]]] = {}
        self._known: dict[str, tuple[float, list[str]]] = {}
        self._answered: dict[str, str] = {}
        self._unknown: dict[str, float] = {}

    def close(self) -> None:
        """Shut the resolver threads down."""
        for threads in (self._threads, self._own_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    async def addresses(self, name: str, port: int = 0) -> list[str]:
        """Return the addresses of a name, public or opened for this port, in the order in which to try them."""
        self._check()
        kept, found = self._known.get(name, (0.0, []))
        if kept < time.monotonic():
            try:
                found = await asyncio.wait_for(asyncio.shield(self._ask(name)), _PATIENCE)
            except TimeoutError:
                raise NoConnection(f"the name `{name}` cannot be resolved: no answer") from None
            except (OSError, UnicodeError) as error:
                kind = NoSuchName if getattr(error, "errno", 0) in _NO_SUCH_NAME else NoConnection
                raise kind(f"the name `{name}` cannot be resolved: {error}") from None
        for address in found:
            if problem := self._ranges.problem(address, port):
                raise Denied("not-public", f"`{name}` points at {address}: {problem}")
        order = interleaved(found)
        answered = self._answered.get(name, "")
        return [answered, *(address for address in order if address != answered)] if answered in order else order

    def _check(self) -> None:
        """Refuse to dial while it is not known which addresses are this machine's."""
        if self._ranges.stale:
            raise NoConnection(STALE)

    def _ask(self, name: str) -> asyncio.Future[list[str]]:
        """Return the answer of the resolver to come; whoever asks for the same name shares it."""
        if name not in self._asked:
            if len(self._asked) >= _PENDING:
                raise NoConnection(f"the name `{name}` cannot be resolved: too many others are being looked up")
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
        """Return whether plain HTTP goes to the proxy of this machine as a whole URL.

        Not where it wants a login: that would stand in each request, and an error page or `TRACE` would show it.
        """
        return self.proxy is not None and not self.proxy.login and self.proxy.serves(name, port)

    async def dial(self, name: str, port: int) -> socket.socket:
        """Return a connection to a name."""
        if self.proxy is not None and self.proxy.serves(name, port):
            return await self._through(self.proxy, name, port)
        channel = await connect(await self.addresses(name, port), port)
        if len(self._answered) >= _MOST_KEPT:
            self._answered.clear()
        self._answered[name] = str(channel.getpeername()[0])  # the others may be slow, or nobody may be there
        return channel

    async def approach(self, name: str, port: int) -> socket.socket:
        """Return a connection to the proxy of this machine that is to ask for a name.

        The proxy is asked for what this machine's resolver knows and finds public, and for what it knows not to exist:
        behind such a proxy that is usual. No answer is not an answer: the name may be near.
        """
        assert self.proxy is not None  # noqa: S101 - for the type checker
        self._check()
        if self._unknown.get(name, 0.0) < time.monotonic():
            try:
                await self.addresses(name, port)
            except NoSuchName:
                if len(self._unknown) >= _MOST_KEPT:
                    self._unknown.clear()
                self._unknown[name] = time.monotonic() + _UNKNOWN
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._own_thread, lambda host, port: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
                self.proxy.host, self.proxy.port,
            )  # fmt: skip
        except OSError as error:
            raise NoConnection(f"the proxy of this machine, `{self.proxy.host}`: {error}") from None
        return await connect(list(dict.fromkeys(str(row[4][0]) for row in found)), self.proxy.port)

    async def _through(self, proxy: HostProxy, name: str, port: int) -> socket.socket:
        """Ask the proxy of this machine for a connection."""
        loop = asyncio.get_running_loop()
        channel = await self.approach(name, port)
        try:
            request = f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n".encode()
            if proxy.login:
                request += b"Proxy-Authorization: " + proxy.authorization + b"\r\n"
            request += b"\r\n"
            await loop.sock_sendall(channel, request)
            reply = b""
            while not reply.endswith(b"\r\n\r\n"):  # byte by byte: what follows belongs to the connection
                piece = await asyncio.wait_for(loop.sock_recv(channel, 1), _PATIENCE)
                if not piece or len(reply) > _LONGEST_REPLY:
                    raise NoConnection(f"the proxy of this machine does not lead to `{name}`")
                reply += piece
            status = reply[9:12]
            if status != b"200":  # what else it says may repeat our login
                said = f": status {status.decode()}" if status.isdigit() else ""
                raise NoConnection(f"the proxy of this machine does not lead to `{name}`, port {port}{said}")
        except BaseException as error:
            channel.close()
            if isinstance(error, (OSError, TimeoutError)):
                raise NoConnection(f"the proxy of this machine does not answer: {error}") from None
            raise
        return channel


def interleaved(addresses: list[str]) -> list[str]:
    """Return addresses of the two families by turns, beginning with the one that the resolver prefers."""
    first = [address for address in addresses if (":" in address) == (":" in addresses[0])]
    second = [address for address in addresses if address not in first]
    mixed: list[str] = []
    while first or second:
        mixed += [*first[:1], *second[:1]]
        first, second = first[1:], second[1:]
    return mixed


async def connect(addresses: list[str], port: int) -> socket.socket:
    """Return the first connection that comes about; a slow address does not hold the others up."""
    attempts: set[asyncio.Task[socket.socket]] = set()
    made: list[socket.socket] = []
    problem: BaseException | None = None
    left = list(addresses)
    end = time.monotonic() + _PATIENCE
    try:
        while (left or attempts) and not made and time.monotonic() < end:
            if left:
                attempts.add(asyncio.ensure_future(_attempt(left.pop(0), port)))
            wait = min(HEAD_START, end - time.monotonic()) if left else end - time.monotonic()
            done, attempts = await asyncio.wait(attempts, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            made += [task.result() for task in done if task.exception() is None]
            problem = next((task.exception() for task in done), problem)
    finally:
        for task in attempts:
            task.add_done_callback(_discard)
            task.cancel()
    for other in made[1:]:
        other.close()
    if not made:
        raise NoConnection(f"no connection to port {port}: {problem or 'no answer in time'}")
    return made[0]


def _discard(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


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
