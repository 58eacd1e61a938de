"""Which requests a secret is good for: method and path, and only where every reader understands the path alike."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# A part of a path that means what it says. Encoded are marks alone: no letter, digit, dot, slash, backslash, percent
# sign, semicolon, question or number sign, and nothing beyond ASCII: servers decode at different moments, and some
# cut parameters off.
_PLAIN = re.compile(
    rb"(?!\.\.)(?:[0-9A-Za-z._~!$&'()*+,=:@-]|%(?:2[0-246-9A-Ca-c]|3[AC-Eac-e]|40|5[BDEbde]|60|7[B-Db-d]))+"
)


class Permits:
    """The rules of one secret, `GET /repos/acme/**`; HEAD goes where GET goes."""

    def __init__(self, rules: Iterable[str]) -> None:
        pairs = (rule.encode("ascii").split(b" ", 1) for rule in rules)
        self._rules = [(method, path[1:].split(b"/")) for method, path in pairs]

    def allow(self, method: bytes, target: bytes) -> bool:
        """Return whether a request is one of these; what is not plainly a path is none."""
        path = target.partition(b"?")[0]
        if not path.startswith(b"/"):
            return False
        asked = (b"*", b"GET" if method == b"HEAD" else method)
        parts = path[1:].split(b"/")
        return any(own in asked and _fits(pattern, parts) for own, pattern in self._rules)


def _fits(pattern: list[bytes], parts: list[bytes]) -> bool:
    for index, wanted in enumerate(pattern):
        if wanted == b"**":
            return len(parts) > index and all(map(_is_plain, parts[index:]))
        if index >= len(parts) or not (_is_plain(parts[index]) if wanted == b"*" else parts[index] == wanted):
            return False
    return len(parts) == len(pattern)


def _is_plain(part: bytes) -> bool:
    return _PLAIN.fullmatch(part) is not None and part.replace(b"%20", b"").strip(b".") != b""
