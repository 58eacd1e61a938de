"""TLS towards the model's hosts, with the authorities that the host's own client would trust."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from claudebox.plan.model import Trust


def make_context(trust: Trust) -> ssl.SSLContext:
    """Return the settings for a client."""
    made = ssl.create_default_context(cafile=trust.bundle or None, capath=trust.directory or None)
    made.set_alpn_protocols(["http/1.1"])
    if trust.extra:
        made.load_verify_locations(trust.extra)
    if trust.certificate:
        made.load_cert_chain(trust.certificate, trust.key or None)
    return made
