"""TLS on both sides of the broker: as the hosts of secrets towards programs, as any client towards the real ones."""

from __future__ import annotations

import asyncio
import marshal
import os
import ssl
from typing import TYPE_CHECKING, NamedTuple

from claudebox import syscalls
from claudebox.files import Closing, write_all
from claudebox.launch.tls_context import make_context
from claudebox.plan.network_model import Trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Issued(NamedTuple):
    """What an authority has left."""

    trusted: bytes  # its certificate
    contexts: dict[str, ssl.SSLContext]  # to answer as each host


async def obtain(hosts: Iterable[str]) -> Issued:
    """Have certificates made by a child, which takes the key of the authority with it when it ends."""
    names = tuple(hosts)
    outlet, inlet = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _make(names, inlet)
    os.close(inlet)
    text = await asyncio.get_running_loop().run_in_executor(None, _read, outlet, child)
    if not text:
        raise OSError("the certificates for the hosts of secrets could not be made")
    trusted, chains = marshal.loads(text)  # noqa: S302 - our own child wrote it
    return Issued(trusted, {host: server_context(host, chain) for host, chain in chains.items()})


def _make(hosts: tuple[str, ...], inlet: int) -> None:
    """In the child: make them, hand them over, and end."""
    try:
        from claudebox.broker.inject.ca import issue

        write_all(inlet, marshal.dumps(issue(hosts)))
    finally:
        os._exit(0)


def _read(outlet: int, child: int) -> bytes:
    """Take what the child says until it ends."""
    text = b""
    while piece := os.read(outlet, 1 << 16):
        text += piece
    os.close(outlet)
    os.waitpid(child, 0)
    return text


def server_context(host: str, chain: bytes) -> ssl.SSLContext:
    """Return the settings to answer as this host: HTTP/1.1 only, and no other name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.sni_callback = _only(host)
    _load(context, chain)
    return context


def _only(host: str) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], int | None]:
    def check(_connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
        # Who asked for one name and then speaks to another wants a server to confuse the two.
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME if name is not None and name.lower() != host else None

    return check


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Give a context its key: it takes files only, so it gets one that is nothing but memory."""
    with Closing(syscalls.memory_file(chain)) as descriptor:
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


def upstream_context(bundle: str) -> ssl.SSLContext:
    """Return the settings to speak with a real host: verified with the authorities that this machine trusts."""
    try:
        return make_context(Trust(bundle))
    except (OSError, ssl.SSLError):
        raise OSError("the certificate authorities of this machine cannot be read") from None
