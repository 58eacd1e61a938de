"""Spellings of a value, held against the libraries that write them."""

from __future__ import annotations

import html
import json
import urllib.parse

from claudebox.tables import secrets as tables_secrets

EVERY = bytes(range(256))


def test_every_byte_is_spelled_as_the_libraries_do():
    # proves SECRET-02
    quoted = urllib.parse.quote_from_bytes(EVERY, safe="").encode()
    text = EVERY.decode("latin-1")

    _, upper, lower, in_json, in_html, *_ = tables_secrets.encodings(EVERY)

    assert upper == quoted
    assert urllib.parse.unquote_to_bytes(lower) == EVERY
    assert (lower.lower(), lower != upper) == (upper.lower(), True)
    assert in_json == json.dumps(text)[1:-1].encode()
    assert in_html == html.escape(text).encode("latin-1")
