"""The service behind `[[secrets]]`: holds the values, answers for their hosts, and makes those inside trust it.

Its listeners have addresses of the sandbox's own loopback, to which /etc/hosts leads inside; in tier `allow` the
gateway hands connections over as well.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from claudebox import syscalls
from claudebox.broker.inject import tls
from claudebox.broker.inject.passthrough import Passages
from claudebox.broker.inject.permits import Permits
from claudebox.broker.inject.substitute import Replacement
from claudebox.broker.inject.tls_proxy import Interceptor
from claudebox.broker.proxy.dial import Dialer
from claudebox.broker.proxy.private_ranges import RangeWatch
from claudebox.files import Closing, write_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from claudebox.broker.main import Context
    from claudebox.config.model import SecretRequest
    from claudebox.plan.network_model import InjectConfig

AUTHORITY, NAMED = "authority", "named"  # what bwrap makes files of: all authorities, and only those that are added


async def open(config: InjectConfig, context: Context) -> Callable[[], Awaitable[None]]:  # noqa: A001 - what services call it
    """Begin to serve."""
    secrets = [
        Replacement(
            row.env, row.value.encode("ascii"), row.placeholder.encode("ascii"), frozenset(row.hosts),
            frozenset(field.encode("ascii") for field in row.headers), Permits(row.permit) if row.permit else None,
            functools.partial(_read_again, config, row) if row.source.startswith(("command:", "file:")) else None,
        )
        for row in config.secrets
    ]  # fmt: skip
    watch = RangeWatch(config.ranges)
    watch.start()
    dialer = Dialer(watch.ranges, config.proxy)
    issued = await tls.obtain(host for secret in secrets for host, _ in secret.hosts)
    own = config.authorities or _bundle(config.bundle)
    trusted = syscalls.memory_file(own)
    place = f"/proc/self/fd/{trusted}" if own else ""
    interceptor = Interceptor(secrets, issued.contexts, place, dialer, context.log, context.reception)
    os.close(trusted)
    context.interceptor = interceptor
    for name, others in ((AUTHORITY, config.inside or own), (NAMED, config.named)):
        for descriptor in context.files(name):
            threading.Thread(target=_write, args=(descriptor, others + issued.trusted), daemon=True).start()
    for name, host, port in config.listeners:
        interceptor.serve(await context.wait_listener(name), host, port)
    passages = Passages(dialer, context.log)
    for name, host, port in config.passages:
        passages.serve(context.reception, await context.wait_listener(name), host, port)

    async def close() -> None:
        watch.close()
        interceptor.close()
        passages.close()
        await asyncio.sleep(0)  # what has just ended is written down

    return close


def _read_again(config: InjectConfig, row: SecretRequest) -> str:
    """Return the present value of a secret, in a thread: its command may take a while."""
    from claudebox.facts import programs
    from claudebox.launch import secret_values

    environ = dict(config.environ)
    path = programs.search_path(environ, config.workdir)
    obtain = secret_values.source_reader(environ, lambda name: programs.find_tool(name, path), home=config.home)
    value = obtain(row.source, row.origin)
    secret_values.check_value(value, row)
    return value


def _bundle(path: str) -> bytes:
    """Return the authorities that this machine trusts."""
    try:
        return Path(path).read_bytes().rstrip(b"\n") + b"\n" if path else b""
    except OSError:
        raise OSError(f"the certificate authorities of this machine, in {path}, cannot be read") from None


def _write(descriptor: int, text: bytes) -> None:
    """Write what bwrap makes a file of; it reads while it builds the sandbox."""
    with Closing(descriptor):
        try:
            write_all(descriptor, text)
        except OSError:  # bwrap has ended, and the launcher says why
            pass
