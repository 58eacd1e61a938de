"""Connections to the hosts of secrets on other ports: they pass as they are, and nothing is put in.

Inside, the name of such a host means an address of the broker's, whatever it is used for.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from claudebox.broker.proxy import acl, dial
from claudebox.broker.proxy.peek import Reception
from claudebox.broker.proxy.tunnel import Pump

if TYPE_CHECKING:
    import socket

    from claudebox.broker.log import Log, Verdict
    from claudebox.broker.proxy.dial import Dialer

_MOST = 128  # at a time


class Passages:
    """Leads connections on."""

    def __init__(self, dialer: Dialer, log: Log) -> None:
        self._dialer, self._log = dialer, log
        self._pump = Pump()
        self._reception = Reception(_MOST)

    async def serve(self, listener: socket.socket, host: str, port: int) -> None:
        """Take callers in until cancelled."""
        await self._reception.serve(listener, lambda caller: self._lead(caller, host, port))

    async def _lead(self, caller: socket.socket, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()

        def ended(verdict: Verdict, up: int = 0, down: int = 0) -> None:
            self._reception.leave()
            self._log.record(service="secrets", host=host, port=port, verdict=verdict, rule="passage", up=up, down=down)

        def told(up: int, down: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended, "allowed", up, down)

        try:
            far = await self._dialer.dial(host, port)
        except (acl.Denied, dial.NoConnection, OSError) as error:
            caller.close()
            ended("denied" if isinstance(error, acl.Denied) else "failed")
            return
        self._pump.carry(caller, far, told)

    def close(self) -> None:
        """End everything."""
        self._reception.close()
        self._pump.stop()
