"""Placeholders become values in the header fields of a request that are there for credentials, and nowhere else.

Not in a body, not in an address, and not in any other field: servers keep most of them and show them to others. Basic
authentication is taken apart and put together again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from typing import TYPE_CHECKING

from claudebox.broker.http.recognition import Recognizer
from claudebox.errors import ClaudeboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from claudebox.broker.http.messages import Request
    from claudebox.broker.inject.permits import Permits

    Headers = list[tuple[bytes, bytes]]

# Fields in which servers expect a credential and nothing else; a row of settings can name more.
CREDENTIAL_FIELDS = frozenset((
    b"api-key", b"apikey", b"authorization", b"circle-token", b"dd-api-key", b"dd-application-key", b"deploy-token",
    b"job-token", b"ocp-apim-subscription-key", b"private-token", b"x-access-token", b"x-api-key", b"x-api-token",
    b"x-auth-key", b"x-auth-token", b"x-consul-token", b"x-figma-token", b"x-gitlab-token", b"x-goog-api-key",
    b"x-jfrog-art-api", b"x-nuget-apikey", b"x-rapidapi-key", b"x-shopify-access-token", b"x-subscription-token",
    b"x-vault-token", b"xi-api-key",
))  # fmt: skip

# Names of fields, with hyphens alone, that carry credentials or lead a server to another method or path than asked for.
_TELLING = re.compile(
    rb"token|key|auth|secret|passw|cookie|credential|jwt|^(?:x-)?session(?:-id)?$"
    rb"|method|override|original|rewrite|forwarded|(?:^|-)(?:url|uri|path)(?:-|$)"
)
_HARMLESS = (b"idempotency-key", b"npm-auth-type")
_ALONE = rb"(?:[A-Za-z-]{1,20} +)?(?:[A-Za-z_.-]{1,40}=)?\"?(?:%s)\"?"  # a scheme, a name, a placeholder
_USER = re.compile(
    rb"[\w.+-]{0,19}|[\w.+-]{1,64}@[\w.-]{1,64}(?:/token)?"
)  # shorter than a token, or an address of mail
_NO_PASSWORD = (b"", b"x", b"X", b"x-oauth-basic")  # what stands behind a token in the place of the user
_AGAIN = 60.0  # seconds in which a value is not read again


class Replacement:
    """A value, what stands for it inside, where it may go, and how it is read again."""

    def __init__(
        self, name: str, value: bytes, placeholder: bytes, hosts: frozenset[tuple[str, int]],
        fields: frozenset[bytes] = frozenset(), permits: Permits | None = None, read: Callable[[], str] | None = None,
    ) -> None:  # fmt: skip
        """Take header fields beside the usual ones, and what returns the present value and may take its time."""
        self.name, self.value, self.placeholder, self.hosts, self.fields = name, value, placeholder, hosts, fields
        self.permits = permits
        self.known: tuple[bytes, ...] = (value,)  # and those that it had before: they must not come back either
        self._read, self._again = read, 0.0
        self._lock = asyncio.Lock()

    async def renew(self, refused: bytes) -> bool:
        """Return whether there is another value than this one, which was not taken; read it once a minute at most."""
        async with self._lock:
            if self.value == refused and self._read is not None and time.monotonic() >= self._again:
                try:
                    found = await asyncio.get_running_loop().run_in_executor(None, self._read)
                    self.value = found.encode("ascii")
                    self.known = tuple(dict.fromkeys((*self.known, self.value)))
                except (ClaudeboxError, OSError):  # the answer of the host says that it is not taken
                    pass
                self._again = time.monotonic() + _AGAIN
        return self.value != refused


class Substitution:
    """What is put in and taken out again on the way to one host."""

    def __init__(self, secrets: Iterable[Replacement], host: str, port: int) -> None:
        self._secrets = [secret for secret in secrets if (host, port) in secret.hosts]
        self._host = host
        self._found: tuple[object, Recognizer] = (None, Recognizer(()))
        self.recognizer.prepare()

    @property
    def recognizer(self) -> Recognizer:
        """Return what finds every value that was used up to now."""
        pairs = tuple((value, secret.placeholder) for secret in self._secrets for value in secret.known)
        if self._found[0] != pairs:
            self._found = pairs, Recognizer(pairs)
        return self._found[1]

    async def renew(self, sent: Mapping[str, bytes]) -> bool:
        """Return whether any of these secrets, which were sent with these values, has another one by now."""
        found = [await secret.renew(sent[secret.name]) for secret in self._secrets if secret.name in sent]
        return any(found)

    def values(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the present values of these secrets."""
        return {secret.name: secret.value for secret in self._secrets if secret.name in names}

    def refusal(self, request: Request, filled: Headers, used: set[str]) -> str:
        """Return why a request does not pass, which uses these secrets; nothing if it does.

        Where every secret of a host is for some requests only, so is the host: no other credential passes, and what
        carries none must be one of these requests, too.
        """
        named = [secret for secret in self._secrets if secret.name in used] or self._secrets
        fits = [secret.permits is None or secret.permits.allow(request.method, request.target) for secret in named]
        if not (all(fits) if used else any(fits)):
            names = " and ".join(secret.name for secret in named)
            return (
                f"`permit` of {names} does not open this method and path of {self._host}; only the user can change that"
            )
        if any(secret.permits is None for secret in named):
            return ""
        for (field, before), (_, after) in zip(request.headers, filled, strict=True):
            if not (self._is_alone(before) if before != after else self._is_harmless(field)):
                return (
                    f"the field `{field.decode('ascii')}`, as it is, does not pass to {self._host}, whose secrets have "
                    "`permit`"
                )
        return ""

    def _is_harmless(self, field: bytes) -> bool:
        """Return whether a field without a secret names neither a credential nor another request; `_` may mean `-`."""
        name = field.replace(b"_", b"-")
        own = {own.replace(b"_", b"-") for secret in self._secrets for own in secret.fields}
        return name in _HARMLESS or not (_TELLING.search(name) or name in own or name in CREDENTIAL_FIELDS)

    def _is_alone(self, text: bytes) -> bool:
        """Return whether a credential has nothing in it beside a placeholder that could be another one."""
        placeholders = [secret.placeholder for secret in self._secrets]
        scheme, _, rest = text.partition(b" ")
        inner = _decode_base64(rest) if scheme.lower() == b"basic" else None
        if inner is None:
            return re.fullmatch(_ALONE % b"|".join(map(re.escape, placeholders)), text) is not None
        user, _, password = inner.partition(b":")
        if password in placeholders:
            return user in placeholders or _USER.fullmatch(user) is not None
        return user in placeholders and password in _NO_PASSWORD

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
