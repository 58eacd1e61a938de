"""What the launcher and the broker say to each other: a few words on a socket, and the services as plain data."""

from __future__ import annotations

import marshal

from claudebox.config.model import SecretRequest
from claudebox.host_proxy import HostProxy
from claudebox.plan import network_model as model
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READY, FAILED, NOTE, LISTENERS, TOTALS = b"ready", b"failed ", b"note ", b"listeners ", b"totals "
CONTROL = "control"  # the name of the socket by which the user, outside, lets domains in
_TYPES: dict[str, type[Value]] = {
    kind.__name__: kind
    for kind in (
        model.AllowedDomain, model.ApiConfig, model.Barred, model.Budget, model.Endpoint, model.InjectConfig,
        model.OpenedAddress, model.ProxyConfig, model.Ranges, model.Trust, HostProxy, SecretRequest,
    )
}  # fmt: skip


def pack(message: object) -> bytes:
    """Return the bytes that carry a message: values become their fields, under the name of their type."""
    return marshal.dumps(_plain(message))


def unpack(data: bytes) -> Any:
    """Return the message again, with the very values that were packed; only the launcher can have written it."""
    return _values(marshal.loads(data))  # noqa: S302 - the launcher wrote it, and nobody else could


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
