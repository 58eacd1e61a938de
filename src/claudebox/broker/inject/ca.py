"""A certificate authority that exists for a moment and vouches for the hosts of secrets alone.

It signs a certificate for each of them and is forgotten: from then on nobody can sign another. It is trusted only
inside, and its certificate says, in name constraints that every TLS library checks, for which names it may be used.

Runs in a process of its own (see `certificates`), because what it needs is large and is needed only once.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable

_SKEW = dt.timedelta(hours=1)
_LIFE = dt.timedelta(days=90)  # longer than any session; the key of a host ends with the process anyway
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "claudebox, this session only")])
_PEM = serialization.Encoding.PEM


def issue(hosts: Iterable[str]) -> tuple[bytes, dict[str, bytes]]:
    """Return what to trust, and key and certificates of each host; all as PEM."""
    names = sorted(set(hosts))
    key, own_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    permitted = x509.NameConstraints([x509.DNSName(name) for name in names], _no_addresses())
    certificate = (
        _blank(_NAME, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(permitted, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    trusted = certificate.public_bytes(_PEM)
    private = own_key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    chains = {}
    for name in names:
        leaf = (
            _blank(x509.Name([]), own_key.public_key(), issuer=_NAME)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own_key.public_key()), critical=False)
            .add_extension(issuer, critical=False)
            .sign(key, hashes.SHA256())
        )
        chains[name] = private + leaf.public_bytes(_PEM) + trusted
    return trusted, chains


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
