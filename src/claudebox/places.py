"""Hosts and ports as people write them."""

from __future__ import annotations


def read_port(text: str) -> int:
    """Return a port, or 0 where the text is none."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return number if number < 65536 else 0


def split_place(text: str) -> tuple[str, str | None]:
    """Return host and port of `HOST[:PORT]`; IPv6 with a port stands in brackets. No host: it is malformed."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            return "", None
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None
