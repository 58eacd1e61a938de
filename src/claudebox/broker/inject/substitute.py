"""Placeholders become values in the header fields of a request that are there for credentials, and nowhere else.

Not in a body, not in an address, and not in any other field: servers keep most of them and show them to others. Basic
authentication is taken apart and put together again.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, NamedTuple

from claudebox.broker.http.recognition import Recognizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    Headers = list[tuple[bytes, bytes]]

# Fields in which servers expect a credential and nothing else; a row of settings can name more.
CREDENTIAL_FIELDS = frozenset((
    b"api-key", b"apikey", b"authorization", b"circle-token", b"dd-api-key", b"dd-application-key", b"deploy-token",
    b"job-token", b"ocp-apim-subscription-key", b"private-token", b"x-access-token", b"x-api-key", b"x-api-token",
    b"x-auth-key", b"x-auth-token", b"x-consul-token", b"x-figma-token", b"x-gitlab-token", b"x-goog-api-key",
    b"x-jfrog-art-api", b"x-nuget-apikey", b"x-rapidapi-key", b"x-shopify-access-token", b"x-subscription-token",
    b"x-vault-token", b"xi-api-key",
))  # fmt: skip


class Replacement(NamedTuple):
    """A value, what stands for it inside, and where it may go."""

    name: str
    value: bytes
    placeholder: bytes
    hosts: frozenset[tuple[str, int]]
    fields: frozenset[bytes] = frozenset()  # header fields beside the usual ones


class Substitution:
    """What is put in and taken out again on the way to one host."""

    def __init__(self, secrets: Iterable[Replacement], host: str, port: int) -> None:
        self._secrets = [secret for secret in secrets if (host, port) in secret.hosts]
        self.recognizer = Recognizer((secret.value, secret.placeholder) for secret in self._secrets)
        self.recognizer.prepare()

    def insert(self, headers: Headers) -> tuple[Headers, set[str]]:
        """Return the headers with values in them, and the names of the secrets that were used."""
        used: set[str] = set()
        return [(name, self._inserted(name.lower(), value, used)) for name, value in headers], used

    def _inserted(self, field: bytes, text: bytes, used: set[str]) -> bytes:
        secrets = [secret for secret in self._secrets if field in CREDENTIAL_FIELDS or field in secret.fields]
        scheme, _, rest = text.partition(b" ")
        if secrets and scheme.lower() == b"basic":
            inner = _decode_base64(rest)
            if inner is not None:
                put = _replaced(inner, secrets, used)
                return text if put == inner else scheme + b" " + base64.b64encode(put)
        return _replaced(text, secrets, used)


def _replaced(text: bytes, secrets: list[Replacement], used: set[str]) -> bytes:
    for secret in secrets:
        if secret.placeholder in text:
            text = text.replace(secret.placeholder, secret.value)
            used.add(secret.name)
    return text


def _decode_base64(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        return None
