"""A certificate authority that lives as long as a session and vouches for the hosts of secrets alone.

It is trusted only inside. Its key exists in the memory of this process and nowhere else; its certificate says, in name
constraints that every TLS library checks, for which names it may be used at all.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import ssl
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable

_SKEW = dt.timedelta(hours=1)
_LIFE = dt.timedelta(days=90)  # longer than any session; it ends with the process anyway
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "claudebox, this session only")])


class Authority:
    """Makes certificates for some names."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = frozenset(hosts)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        own = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
        permitted = x509.NameConstraints([x509.DNSName(host) for host in sorted(self._hosts)], _no_addresses())
        self._certificate = (
            _blank(_NAME, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(permitted, critical=True)
            .add_extension(own, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """Return what to trust, as PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """Return the settings to answer as this host: HTTP/1.1 only, and no other name."""
        if host not in self._hosts:
            raise ValueError(f"{host} is not a host of a secret")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.sni_callback = _only(host)
        _load(context, self._chain(host))
        return context

    def _chain(self, host: str) -> bytes:
        leaf = (
            _blank(x509.Name([]), self._leaf_key.public_key(), issuer=_NAME)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key()), critical=False)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return key + leaf.public_bytes(serialization.Encoding.PEM) + self.certificate


def _blank(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, *, issuer: x509.Name | None = None
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _no_addresses() -> list[x509.GeneralName]:
    """Return what is excluded: names are permitted one by one, addresses not at all."""
    return [x509.IPAddress(ipaddress.ip_network("0.0.0.0/0")), x509.IPAddress(ipaddress.ip_network("::/0"))]


def _only(host: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - ssl's own type is private
    def check(_connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
        # Who asked for one name and then speaks to another wants a server to confuse the two.
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME if name is not None and name.lower() != host else None

    return check


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Give a context its key: it takes files only, so it gets one that is nothing but memory."""
    descriptor = os.memfd_create("claudebox", os.MFD_CLOEXEC)
    try:
        view = memoryview(chain)
        while view:
            view = view[os.write(descriptor, view) :]
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def upstream_context(bundle: str) -> ssl.SSLContext:
    """Return the settings to speak with a real host: verified with the authorities that this machine trusts."""
    context = ssl.create_default_context(cafile=bundle or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
