"""Certificates for the hosts of secrets, from an authority that exists for a moment, and TLS on both sides.

The authority signs one certificate per host in a child process and disappears with it: nobody can sign another. It is
trusted only inside, and its name constraints limit it to these hosts in every TLS library.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import marshal
import os
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from claudebox.base import syscalls
from claudebox.base.files import Closing, write_all
from claudebox.network.facts import make_context
from claudebox.network.records import Trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


_SKEW = dt.timedelta(hours=1)
_LIFE = dt.timedelta(days=90)  # longer than any session
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "claudebox, this session only")])
_PEM = serialization.Encoding.PEM


def issue(hosts: Iterable[str]) -> tuple[bytes, dict[str, bytes]]:
    """Return the certificate of an authority, and key and certificates of each host, all as PEM."""
    names = sorted(set(hosts))
    key, own_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    addresses = [x509.IPAddress(ipaddress.ip_network(network)) for network in ("0.0.0.0/0", "::/0")]  # excluded
    constraints = x509.NameConstraints([x509.DNSName(name) for name in names], addresses)
    certificate = (
        _blank(_NAME, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(constraints, critical=True)
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
            .add_extension(_usage("digital_signature"), critical=True)
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


def _usage(*names: str) -> x509.KeyUsage:
    every = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
    return x509.KeyUsage(**{name: name in names for name in every})


async def obtain(hosts: Iterable[str]) -> tuple[bytes, dict[str, ssl.SSLContext]]:
    """Return an authority's certificate, and TLS contexts for each host; the authority's key ends with a child."""
    names = tuple(hosts)
    outlet, inlet = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            write_all(inlet, marshal.dumps(issue(names)))
        finally:
            os._exit(0)
    os.close(inlet)

    def read() -> bytes:
        with open(outlet, "rb") as file:
            text = file.read()
        os.waitpid(child, 0)
        return text

    text = await asyncio.get_running_loop().run_in_executor(None, read)
    if not text:
        raise OSError("the certificates for the hosts of secrets could not be made")
    trusted, chains = marshal.loads(text)  # noqa: S302 - our own child wrote it
    return trusted, {host: server_context(host, chain) for host, chain in chains.items()}


def server_context(host: str, chain: bytes) -> ssl.SSLContext:
    """Return the context to answer as this host: HTTP/1.1 only, and no other name."""

    def check(_connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
        # A client that asks for one name and then speaks to another wants a server to confuse the two.
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME if name is not None and name.lower() != host else None

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.sni_callback = check
    with Closing(syscalls.memory_file(chain)) as descriptor:  # it loads keys from files only
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context


def upstream_context(bundle: str) -> ssl.SSLContext:
    """Return the context for the real hosts, verified with the authorities that this machine trusts."""
    try:
        return make_context(Trust(bundle))
    except (OSError, ssl.SSLError):
        raise OSError("the certificate authorities of this machine cannot be read") from None
