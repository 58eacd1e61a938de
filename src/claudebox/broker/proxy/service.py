"""The service behind tier `allow`: puts gateway, names and the watch over this machine's addresses together.

Its listeners were opened inside the sandbox's network by the warden, and are answered from the host's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from claudebox.broker.proxy.acl import Doorkeeper, unrecorded
from claudebox.broker.proxy.dial import Dialer, Upstream
from claudebox.broker.proxy.fake_dns import Names, serve_datagrams, serve_streams
from claudebox.broker.proxy.gateway import Gateway
from claudebox.broker.proxy.private_ranges import Watch
from claudebox.broker.proxy.tunnel import Pump
from claudebox.config.domains import Permission, parse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.main import Context
    from claudebox.broker.proxy.acl import Record
    from claudebox.broker.proxy.gateway import Interceptor

PROXY, REDIRECTED, NAMES, NAMES_STREAM = "proxy", "redirected", "names", "names-stream"


class Outbound:
    """Everything that leads out of one sandbox."""

    def __init__(
        self, config: dict[str, Any], *, record: Record = unrecorded,
        intercept: Callable[[str, int], Interceptor | None] | None = None,
    ) -> None:  # fmt: skip
        self.watch = Watch()
        self.pump = Pump()
        permission = Permission(
            (parse(text, "allow_domains") for text in config["domains"]), everything=config.get("everything", False)
        )
        self.dialer = Dialer(self.watch.vicinity, upstream(config.get("upstream", ""), config.get("without", "")))
        self.names = Names(permission, record)
        door = Doorkeeper(permission, record, listed=tuple(config["domains"]), meaning=self.names.meaning)
        self.gateway = Gateway(door, self.dialer, self.pump, record=record, intercept=intercept)


def upstream(url: str, without: str) -> Upstream | None:
    """Return the proxy of this machine that a URL means."""
    if not url:
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    user, password = (unquote(word) if word else "" for word in (parts.username, parts.password))
    names = tuple(name.strip().lower() for name in without.split(",") if name.strip())
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if not parts.hostname or not port:
        raise ValueError("HTTPS_PROXY of this machine is not the address of a proxy")
    return Upstream(parts.hostname, port, f"{user}:{password}" if user or password else "", names)


async def open(config: dict[str, Any], context: Context) -> Callable[[], Awaitable[None]]:  # noqa: A001 - what services call it
    """Begin to serve, each listener as soon as it comes."""
    outbound = Outbound(config, record=context.record, intercept=context.intercept)
    loop = asyncio.get_running_loop()
    loop.add_reader(outbound.watch.channel.fileno(), outbound.watch.follow)

    async def proxy() -> None:
        await outbound.gateway.serve(await context.handed(PROXY))

    async def redirected() -> None:
        await outbound.gateway.serve(await context.handed(REDIRECTED), redirected=True)

    async def names() -> None:
        await serve_datagrams(outbound.names, await context.handed(NAMES))

    async def names_stream() -> None:
        await serve_streams(outbound.names, await context.handed(NAMES_STREAM))

    tasks = [loop.create_task(serving()) for serving in (proxy, redirected, names, names_stream)]

    async def close() -> None:
        loop.remove_reader(outbound.watch.channel.fileno())
        for task in tasks:
            task.cancel()
        outbound.pump.stop()
        outbound.dialer.close()
        outbound.watch.close()
        await asyncio.sleep(0)  # what the pump has just told is written down

    return close
