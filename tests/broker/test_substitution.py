"""Values put into requests and taken out of answers, and the authority that answers for their hosts."""

from __future__ import annotations

import asyncio
import base64
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from claudebox.broker import certificates
from claudebox.broker.certificates import issue
from claudebox.broker.http.cleaning import Cleaner, Recognizer
from claudebox.broker.inject import Replacement, Substitution

VALUE, PLACEHOLDER = b"ghp_0123456789abcdefghij/BCDEFGHIJ+12345", b"ghp_abcdefghijklmnopqrst/VWXYZABCD+FGHIJ"
SECRET = Replacement("GH_TOKEN", VALUE, PLACEHOLDER, frozenset({("github.com", 443)}), frozenset({b"cookie"}))
HERE = Substitution([SECRET], "github.com", 443)


def basic(text: bytes) -> bytes:
    return b"Basic " + base64.b64encode(b"user:" + text)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (b"authorization", b"token " + PLACEHOLDER, b"token " + VALUE),
        (b"authorization", basic(PLACEHOLDER), basic(VALUE)),
        (b"private-token", PLACEHOLDER, VALUE),
        (b"cookie", b"a=1; b=" + PLACEHOLDER, b"a=1; b=" + VALUE),
        (b"authorization", b"Basic !!!", b"Basic !!!"),
        (b"authorization", basic(b"other"), basic(b"other")),
    ],
)
def test_values_are_put_into_headers_and_basic_authentication(name, before, after):
    headers, used = HERE.insert([(name, before)])

    assert headers == [(name, after)]
    assert used == ({"GH_TOKEN"} if before != after else set())


@pytest.mark.parametrize(
    "name",
    [b"User-Agent", b"referer", b"content-type", b"if-none-match", b"x-amz-meta-a", b"host", b"x-amz-tagging",
     b"X-Bz-Info-a", b"upload-metadata", b"x-title", b"forwarded", b"x_api_key", b"authorization_", b"x-anything"],
)  # fmt: skip
def test_fields_that_are_not_there_for_credentials_get_no_value(name):
    # proves SECRET-02, K04, OLD-B3
    assert HERE.insert([(b"X-Api-Key", PLACEHOLDER)]) == ([(b"X-Api-Key", VALUE)], {"GH_TOKEN"})
    assert HERE.insert([(name, PLACEHOLDER)]) == ([(name, PLACEHOLDER)], set())


def test_another_host_or_port_gets_no_value():
    for host, port in (("other.example", 443), ("github.com", 8443), ("www.github.com", 443)):
        there = Substitution([SECRET], host, port)
        assert there.insert([(b"authorization", PLACEHOLDER)]) == ([(b"authorization", PLACEHOLDER)], set())


def test_every_form_of_a_value_is_replaced_by_as_many_bytes():
    assert HERE.recognizer.clean(VALUE) == PLACEHOLDER
    for before in (b"", b"x", b"xy"):
        coded = base64.b64encode(before + VALUE + b"tail")
        assert base64.b64encode(VALUE)[4:-8] not in HERE.recognizer.clean(coded)
        assert len(HERE.recognizer.clean(coded)) == len(coded)
    for text in (VALUE, VALUE.hex().encode(), b"ghp_0123456789abcdefghij%2FBCDEFGHIJ%2B12345", b"%2fBCDEFGHIJ%2b12345"):
        assert (b"BCDEFGHIJ" in text) <= (HERE.recognizer.clean(b"ghp_0123456789abcdefghij" + text) != text)


def test_what_cannot_be_the_beginning_of_a_value_passes_at_once():
    cleaner = Cleaner(lambda: HERE.recognizer)

    assert cleaner.feed(b"data: 1\n\n") == b"data: 1\n\n"
    assert cleaner.feed(b"data: " + VALUE[:7]) == b"data: "
    assert cleaner.feed(b"!\n") == VALUE[:7] + b"!\n"
    assert cleaner.feed(b'{"json": 1}\n') == b'{"json": 1}\n'
    assert cleaner.end() == b""


@pytest.mark.parametrize("charset", ["utf-8", "utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("step", [1, 3, 50, 4096])
def test_a_value_in_wide_letters_does_not_come_back(charset, step):
    text = b"%s\n" * 3 % (VALUE, base64.b64encode(b"a:" + VALUE), VALUE[4:16])
    sent = text.decode().encode(charset)
    cleaner = Cleaner(lambda: HERE.recognizer)
    out = b"".join((*(cleaner.feed(sent[at : at + step]) for at in range(0, len(sent), step)), cleaner.end()))
    assert len(out) == len(sent)
    first, second, third = out.decode(charset).encode().splitlines()
    assert (first, third) == (PLACEHOLDER, b"*" * 12)
    assert base64.b64encode(b"a:" + VALUE)[8:20] not in second


def test_letters_between_which_nothing_stands_pass_as_they_are():
    cleaner = Cleaner(lambda: HERE.recognizer)
    binary = bytes(range(256)) * 9 + bytes(5000)
    assert cleaner.feed(binary) + cleaner.feed(binary) + cleaner.end() == binary * 2
    assert cleaner.feed(bytes(100)) == bytes(100)


def test_the_rest_of_a_masked_part_is_masked_where_a_piece_ends_in_it():
    value = b"ghp_q7Rk2ZpW9xLm4TnB8vCs1YdH6jFa3GeU5oNt"
    found = Recognizer([(value, b"p" * len(value))])
    for more in range(100, 170):
        cleaner = Cleaner(lambda: found)
        text = value[4:24] + b"-" * more
        assert cleaner.feed(text) + cleaner.feed(b" end") + cleaner.end() == b"*" * 20 + text[20:] + b" end"


def test_the_authority_is_bound_to_its_hosts_and_leaves_no_key_of_its_own():
    trusted, chains = issue(["github.com"])
    certificate = x509.load_pem_x509_certificate(trusted)
    constraints = certificate.extensions.get_extension_for_class(x509.NameConstraints)
    key = serialization.load_pem_private_key(chains["github.com"], None)

    assert constraints.critical
    assert constraints.value.permitted_subtrees == [x509.DNSName("github.com")]
    assert b"PRIVATE" not in trusted
    assert list(chains) == ["github.com"]
    assert chains["github.com"].count(b"PRIVATE KEY") == 2  # one begins and ends
    assert key.public_key() != certificate.public_key()
    assert trusted != issue(["github.com"])[0]


def handshake(contexts: dict[str, ssl.SSLContext], host: str, asked: str, trusted: bytes) -> ssl.SSLObject:
    """Let a client and a server speak through memory."""
    client_context = ssl.create_default_context(cadata=trusted.decode())
    client_context.set_alpn_protocols(["h2", "http/1.1"])
    upward, downward = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(downward, upward, server_hostname=asked)
    server = contexts[host].wrap_bio(upward, downward, server_side=True)
    waiting = [client, server]
    for _ in range(20):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    assert not waiting
    return client


def test_a_program_that_trusts_the_session_gets_through_to_this_host_alone():
    trusted, contexts = asyncio.run(certificates.obtain(["github.com", "api.github.com"]))
    other, _ = asyncio.run(certificates.obtain(["github.com"]))

    assert handshake(contexts, "github.com", "github.com", trusted).selected_alpn_protocol() == "http/1.1"
    with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name|callback.failed"):
        handshake(contexts, "github.com", "api.github.com", trusted)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(contexts, "github.com", "github.com", other)


def test_certificates_that_cannot_be_made_are_a_failure():
    with pytest.raises(OSError, match="could not be made"):
        asyncio.run(certificates.obtain(["not a name\u2603"]))


def test_the_real_host_is_always_verified(tmp_path):
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(issue(["a.example"])[0])
    context = certificates.upstream_context(str(bundle))

    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    bundle.write_bytes(b"nothing of the kind")
    with pytest.raises(OSError, match=r"cannot be read"):
        certificates.upstream_context(str(bundle))
