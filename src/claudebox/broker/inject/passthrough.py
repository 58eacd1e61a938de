"""Connections to the hosts of secrets on other ports: they pass as they are, and nothing is put in.

Inside, the name of such a host means an address of the broker's, whatever it is used for.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from claudebox.broker.proxy.acl import Admission, Denied
from claudebox.broker.proxy.dial import NoConnection
from claudebox.broker.proxy.tunnel import Passage, Pump
from claudebox.broker.reception import Room

if TYPE_CHECKING:
    import socket

    from claudebox.broker.log import Log
    from claudebox.broker.proxy.dial import Dialer
    from claudebox.broker.reception import Reception, Visitor

_MOST, _DESCRIPTORS = 128, 6  # at a time; two ends and two pipes each


class Passages:
    """Leads connections on."""

    def __init__(self, dialer: Dialer, log: Log) -> None:
        self._dialer = dialer
        self._record = functools.partial(log.record, service="secrets")
        self._pump = Pump()
        self._room = Room(_MOST, _DESCRIPTORS)

    def serve(self, reception: Reception, listener: socket.socket, host: str, port: int) -> None:
        """Take callers in."""
        reception.listen(listener, self._room, lambda caller: self._lead(caller, host, port))

    async def _lead(self, caller: Visitor, host: str, port: int) -> None:
        caller.heard()
        passage = Passage(self._record, Admission(host, port, "passage"))
        try:
            await passage.dial(self._dialer.dial(host, port))
        except (Denied, NoConnection):
            return
        self._pump.lead(caller, passage)

    def close(self) -> None:
        """End everything."""
        self._pump.stop()
