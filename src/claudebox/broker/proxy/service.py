"""The service behind tier `allow`: puts gateway, names and the watch over this machine's addresses together.

Its listeners were opened inside the sandbox's network by the netns holder, and are answered from the host's.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import sys

from claudebox.base.errors import ClaudeboxError
from claudebox.broker.proxy.dial import Dialer, NothingBarred, RangeWatch
from claudebox.broker.proxy.gateway import Gateway
from claudebox.broker.proxy.names import AccessList, EveryName, Names, answer_datagrams, unrecorded
from claudebox.broker.proxy.sockets import Pump
from claudebox.broker.reception import Room
from claudebox.network.records import CONTROL, READY
from claudebox.settings.domains import Permission, parse_domain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.main import Context
    from claudebox.broker.proxy.gateway import Interceptor
    from claudebox.broker.proxy.names import Record
    from claudebox.broker.reception import Visitor
    from claudebox.network.records import ProxyConfig


_LONGEST, _PATIENCE = 1 << 16, 5.0
_USERS = 4  # who let names in at a time; the sandbox cannot take their room
PROXY, REDIRECTED, NAMES = "proxy", "redirected", "names"


class Outbound:
    """Everything that leads out of one sandbox."""

    def __init__(
        self, config: ProxyConfig, *, record: Record = unrecorded,
        intercept: Callable[[str, int], Interceptor | None] | None = None,
    ) -> None:  # fmt: skip
        self.watch = RangeWatch(config.ranges)
        self.pump = Pump()
        self.permission = permission = Permission(parse_domain(row.name, row.origin) for row in config.domains)
        self.dialer = Dialer(NothingBarred() if config.reach == "everything" else self.watch.ranges, config.proxy)
        self.names = Names(permission, record)
        self.listed = [row.name for row in config.domains]
        door = AccessList(permission, record, listed=self.listed, meaning=self.names.meaning)
        if config.reach != "listed":
            door = EveryName(record, addresses=config.reach == "everything")
        self.gateway = Gateway(
            door, self.dialer, self.pump, record=record, intercept=intercept, password=config.password
        )

    def admit(self, text: str) -> tuple[str, ...]:
        """Let more names in; all of them, or none where one is not a pattern."""
        names = tuple(text.split())
        rows = [parse_domain(name, "--now") for name in names]
        self.permission.add(rows)
        self.listed += names
        return names


async def _obey(outbound: Outbound, context: Context, caller: Visitor) -> None:
    """Take up what the user, outside, lets in; the directory is theirs alone, and so must be the caller."""
    loop = asyncio.get_running_loop()
    channel = caller.channel
    owner = int.from_bytes(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8], sys.byteorder)
    text = await asyncio.wait_for(loop.sock_recv(channel, _LONGEST), _PATIENCE)
    if owner != os.getuid():
        return
    try:
        names = outbound.admit(text.decode("ascii"))
    except (ClaudeboxError, UnicodeError) as problem:
        await loop.sock_sendall(channel, str(problem).encode("utf-8", "replace")[:1000])
        return
    context.log.record_opened(names)
    await loop.sock_sendall(channel, READY)


async def open(config: ProxyConfig, context: Context) -> Callable[[], Awaitable[None]]:  # noqa: A001 - what services call it
    """Begin to serve, each listener as soon as it comes."""
    outbound = Outbound(config, record=context.record, intercept=context.intercept)
    loop = asyncio.get_running_loop()
    outbound.watch.start()
    reception, gateway, names = context.reception, outbound.gateway, outbound.names

    def datagrams(channel: socket.socket) -> None:
        channel.setblocking(False)  # noqa: FBT003
        loop.add_reader(channel, answer_datagrams, names, channel)

    servants: dict[str, Callable[[socket.socket], None]] = {
        PROXY: lambda listener: gateway.serve(reception, listener),
        REDIRECTED: lambda listener: gateway.serve(reception, listener, redirected=True),
        NAMES: datagrams,
        CONTROL: lambda one: reception.listen(one, Room(_USERS, 0), functools.partial(_obey, outbound, context)),
    }

    async def begin(name: str, serve: Callable[[socket.socket], None]) -> None:
        serve(await context.wait_listener(name))

    tasks = [loop.create_task(begin(name, serve)) for name, serve in servants.items()]

    async def close() -> None:
        for task in tasks:
            task.cancel()
        outbound.pump.stop()
        outbound.dialer.close()
        outbound.watch.close()
        await asyncio.sleep(0)  # what the pump has just told is written down

    return close
