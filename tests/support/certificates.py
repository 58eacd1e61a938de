"""A certificate authority for tests, and the certificates that it gives."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

_NOW = dt.datetime.now(dt.UTC)


class TestAuthority:
    """Somebody whom the host of a test trusts, or does not."""

    __test__ = False

    def __init__(self, name: str = "tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))

    @property
    def certificate(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - dt.timedelta(hours=1))
            .not_valid_after(_NOW + dt.timedelta(days=2))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())

    def issue(self, path: Path, *names: str) -> Path:
        """Write key and certificate for some names into one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        certificate = self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])]), key, alternatives)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        return path
