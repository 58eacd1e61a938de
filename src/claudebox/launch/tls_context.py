"""TLS from the host to servers: verified with the authorities that this machine trusts, alike with every Python."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from claudebox.plan.network_model import Trust


def make_context(trust: Trust) -> ssl.SSLContext:
    """Return the settings for a client that speaks HTTP/1.1.

    Python 3.13 began to refuse authorities that do not follow RFC 5280 to the letter, as those of many companies do
    not, and to accept an intermediate authority that was named as trusted. Whom a machine trusts must not depend on
    the version of Python: the letter does not count, who was named does, as in other clients.
    """
    made = ssl.create_default_context(cafile=trust.bundle or None, capath=trust.directory or None)
    made.verify_flags = (made.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    if trust.extra:
        made.load_verify_locations(trust.extra)
    if trust.certificate:
        made.load_cert_chain(trust.certificate, trust.key or None, trust.passphrase or None)
    return made
