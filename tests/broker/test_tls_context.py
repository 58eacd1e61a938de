"""Whom the broker trusts: the same with every version of Python, tried with certificates that openssl makes."""

from __future__ import annotations

import datetime as dt
import ssl
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from claudebox.agent import renewal
from claudebox.broker.certificates import upstream_context
from claudebox.network.facts import make_context
from claudebox.network.records import Trust

NAME = "model.example"
# Python 3.13 and newer set these in `ssl.create_default_context`.
NEWER = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
PLAIN = "[x]\nbasicConstraints=CA:true\n"  # as companies make them: no key usage, no identifiers of keys
STRICT = (
    "[x]\nbasicConstraints=critical,CA:true\nkeyUsage=critical,keyCertSign,cRLSign\n"
    "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
)
SERVER = f"[x]\nsubjectAltName=DNS:{NAME}\n"
CONTEXTS = [
    lambda path: make_context(Trust(path)),
    upstream_context,
    lambda path: renewal.host_context({"SSL_CERT_FILE": path}),
    lambda path: renewal.host_context({"NODE_EXTRA_CA_CERTS": path}),
]


class Pki:
    """Certificates in a directory, made by openssl."""

    def __init__(self, directory) -> None:
        self._directory = directory

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def make(self, name: str, extensions: str, issuer: str = "") -> str:
        """Make a key and its certificate, signed by itself or by another; return the path of the certificate."""
        (self._directory / f"{name}.cnf").write_text(extensions)
        key, request, made = self.path(f"{name}.key"), self.path(f"{name}.csr"), self.path(f"{name}.pem")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        self._openssl("req", "-new", *curve, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", self.path(f"{issuer}.pem"), "-CAkey", self.path(f"{issuer}.key"), "-CAcreateserial")
        self._openssl(
            "x509", "-req", "-in", request, "-out", made, "-days", "2", "-extfile", self.path(f"{name}.cnf"),
            "-extensions", "x", *(signer if issuer else ("-signkey", key)),
        )  # fmt: skip
        return made

    def expire(self, name: str, issuer: str) -> None:
        """Sign a certificate again, for days that are over: openssl 3.5 refuses to."""
        made = x509.load_pem_x509_certificate((self._directory / f"{name}.pem").read_bytes())
        key = serialization.load_pem_private_key((self._directory / f"{issuer}.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        builder = x509.CertificateBuilder(made.issuer, made.subject, made.public_key(), made.serial_number)
        now = dt.datetime.now(dt.UTC)
        builder = builder.not_valid_before(now - dt.timedelta(days=3)).not_valid_after(now - dt.timedelta(days=1))
        for extension in made.extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        signed = builder.sign(key, hashes.SHA256())
        (self._directory / f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def pki(tmp_path_factory) -> Pki:
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.make("company", PLAIN)
    made.make("server", SERVER, "company")
    made.make("other", STRICT)
    made.make("middle", PLAIN, "company")
    made.make("below", SERVER, "middle")
    made.make("expired", SERVER, "company")
    made.expire("expired", "company")
    return made


@pytest.fixture(params=["older", "newer"])
def python(request, monkeypatch):
    """Make contexts as Python 3.13 and newer make them, or as older ones do."""
    made = ssl.create_default_context

    def create(*args, **options):
        context = made(*args, **options)
        context.verify_flags = (context.verify_flags & ~NEWER) | (NEWER if request.param == "newer" else 0)
        return context

    monkeypatch.setattr(ssl, "create_default_context", create)
    return request.param


def handshake(context: ssl.SSLContext, pki: Pki, server: str, name: str = NAME) -> str:
    """Speak TLS with a server in memory, and return why the client did not trust it."""
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(pki.path(f"{server}.pem"), pki.path(f"{server}.key"))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(back, there, server_hostname=name)
    other = own.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (client, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return str(error.verify_message)
    assert client.version() in ("TLSv1.2", "TLSv1.3")
    return ""


@pytest.mark.parametrize("make", CONTEXTS)
def test_an_authority_that_is_not_made_to_the_letter_is_trusted_with_every_python(pki, python, make):
    # proves HOST-01, SAND-13
    control = ssl.create_default_context(cafile=pki.path("company.pem"))
    assert bool(handshake(control, pki, "server")) == (python == "newer")  # what the standard library decides by itself

    assert handshake(make(pki.path("company.pem")), pki, "server") == ""


@pytest.mark.parametrize("make", CONTEXTS)
def test_an_intermediate_authority_that_was_named_is_trusted_with_every_python(pki, python, make):
    # proves HOST-01
    control = ssl.create_default_context(cafile=pki.path("middle.pem"))
    assert handshake(control, pki, "below")  # neither way: no root for the one, no identifiers for the other

    assert handshake(make(pki.path("middle.pem")), pki, "below") == ""
    assert python


@pytest.mark.parametrize("make", CONTEXTS)
@pytest.mark.parametrize(
    ("authority", "server", "name", "complaint"),
    [
        ("other", "server", NAME, "unable to get local issuer"),
        ("middle", "server", NAME, "unable to get local issuer"),
        ("company", "server", "thief.example", "Hostname mismatch"),
        ("company", "expired", NAME, "expired"),
        ("company", "below", NAME, "unable to get local issuer"),
    ],
)
def test_everybody_else_is_refused_with_every_python(pki, python, make, authority, server, name, complaint):
    # proves HOST-01
    assert python
    assert complaint in handshake(make(pki.path(f"{authority}.pem")), pki, server, name)


@pytest.mark.parametrize("make", CONTEXTS)
def test_old_versions_of_tls_are_not_spoken(pki, make):
    assert make(pki.path("company.pem")).minimum_version == ssl.TLSVersion.TLSv1_2
