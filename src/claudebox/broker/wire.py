"""The protocol between launcher and broker: a few words on a socket, and the services as plain data."""

from __future__ import annotations

import marshal

from claudebox.agent.record import LoginFile, Seed, Upstream
from claudebox.base.records import Value
from claudebox.network.facts import HostProxy
from claudebox.network.records import (
    AllowedDomain,
    ApiConfig,
    Barred,
    Budget,
    Credential,
    Endpoint,
    InjectConfig,
    OpenedAddress,
    ProxyConfig,
    Ranges,
    Trust,
)
from claudebox.settings.records import SecretRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


READY, FAILED, LISTENERS, TOTALS = b"ready", b"failed ", b"listeners ", b"totals "
CONTROL = "control"  # the name of the socket by which `claudebox allow` adds domains
_TYPES: dict[str, type[Value]] = {
    kind.__name__: kind
    for kind in (
        AllowedDomain, ApiConfig, Barred, Budget, Credential, Endpoint, InjectConfig, OpenedAddress,
        ProxyConfig, Ranges, Trust, HostProxy, LoginFile, SecretRequest, Seed, Upstream,
    )
}  # fmt: skip


def pack(message: object) -> bytes:
    """Return a message as bytes: values become their fields, under the name of their type."""
    return marshal.dumps(_plain(message))


def unpack(data: bytes) -> Any:
    """Return a message that was packed; only the launcher can have written it."""
    return _values(marshal.loads(data))  # noqa: S302 - written by the launcher


def _plain(part: object) -> Any:
    if isinstance(part, Value):
        name = type(part).__name__
        return {name: tuple(map(_plain, part.as_tuple()))}
    if isinstance(part, tuple | list):
        return tuple(_plain(one) for one in part)
    return part


def _values(part: object) -> object:
    if isinstance(part, dict):
        ((name, fields),) = part.items()
        return _TYPES[name](*(_values(field) for field in fields))
    if isinstance(part, tuple):
        return tuple(_values(one) for one in part)
    return part
