"""Connections to the hosts of secrets on other ports: they pass as they are, and nothing is put in.

Inside, the name of such a host means an address of the broker's, whatever it is used for.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from claudebox.broker.proxy import acl, dial
from claudebox.broker.proxy.tunnel import Pump
from claudebox.broker.reception import Room

if TYPE_CHECKING:
    import socket

    from claudebox.broker.log import Log, Verdict
    from claudebox.broker.proxy.dial import Dialer
    from claudebox.broker.reception import Reception, Visitor

_MOST, _DESCRIPTORS = 128, 6  # at a time; two ends and two pipes each


class Passages:
    """Leads connections on."""

    def __init__(self, dialer: Dialer, log: Log) -> None:
        self._dialer, self._log = dialer, log
        self._pump = Pump()
        self._room = Room(_MOST, _DESCRIPTORS)

    def serve(self, reception: Reception, listener: socket.socket, host: str, port: int) -> None:
        """Take callers in."""
        reception.listen(listener, self._room, lambda caller: self._lead(caller, host, port))

    async def _lead(self, caller: Visitor, host: str, port: int) -> None:
        caller.heard()
        loop = asyncio.get_running_loop()

        def ended(verdict: Verdict, up: int = 0, down: int = 0) -> None:
            caller.leave()
            self._log.record(service="secrets", host=host, port=port, verdict=verdict, rule="passage", up=up, down=down)

        def told(up: int, down: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended, "allowed", up, down)

        try:
            far = await self._dialer.dial(host, port)
        except (acl.Denied, dial.NoConnection, OSError) as error:
            ended("denied" if isinstance(error, acl.Denied) else "failed")
            return
        caller.stays = True
        self._pump.carry(caller.channel, far, told)

    def close(self) -> None:
        """End everything."""
        self._pump.stop()
