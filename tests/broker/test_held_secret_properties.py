"""Placeholders and the forms of values, for values of every kind."""

from __future__ import annotations

import base64
import json
import os
import urllib.parse

from hypothesis import given
from hypothesis import strategies as st

from claudebox.broker.http.cleaning import Cleaner, Recognizer
from claudebox.broker.secrets import shaped_like
from claudebox.report.leaks import find_forms, is_telling
from claudebox.tables.secrets import VALUE_PREFIXES

_PRINTABLE = st.characters(min_codepoint=33, max_codepoint=126)
_TOKENS = st.text(
    st.sampled_from("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"), min_size=20, max_size=60
)
tokens = st.builds("{}{}".format, st.sampled_from(("", *VALUE_PREFIXES)), _TOKENS)
values = st.one_of(
    tokens, st.text(_PRINTABLE, min_size=8, max_size=80), st.uuids().map(str), st.binary(min_size=16).map(bytes.hex)
)


@given(values)
def test_a_placeholder_has_the_shape_of_the_value_and_nothing_else_of_it(value):
    made = shaped_like(value, os.urandom)

    assert made != value
    assert len(made) == len(value)
    assert made.isascii()
    assert made.isprintable()
    for kind in (str.isdigit, str.islower, str.isupper):
        if any(map(kind, made[6:])) and sum(map(str.isalnum, value)) > 12:
            assert any(map(kind, value)) or not any(map(str.isalnum, value))
    assert made not in value
    assert shaped_like(value, os.urandom, (made,)) != made


@given(_TOKENS.filter(lambda text: sum(map(str.isalnum, text)) >= 12), st.sampled_from(VALUE_PREFIXES))
def test_a_placeholder_keeps_the_prefix_of_a_known_kind(rest, prefix):
    assert shaped_like(prefix + rest, os.urandom).startswith(prefix)


def test_a_placeholder_keeps_nothing_of_a_password():
    value = "correct-horse-battery-staple"
    kept = [sum(a == b for a, b in zip(value, shaped_like(value, os.urandom), strict=True)) for _ in range(50)]

    assert sum(kept) / 50 < 8  # three marks, and what chance brings


@given(values, st.binary(max_size=200), st.binary(max_size=200), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_a_body_is_cleaned_however_it_is_cut_and_keeps_its_size(value, before, after, sizes):
    placeholder = shaped_like(value, os.urandom)
    body = before + value.encode() + after
    cleaner, out, at, turn = Cleaner(lambda: Recognizer([(value.encode(), placeholder.encode())])), b"", 0, 0
    while at < len(body):
        size = sizes[turn % len(sizes)]
        out += cleaner.feed(body[at : at + size])
        at, turn = at + size, turn + 1
    out += cleaner.end()

    assert len(out) == len(body)
    assert value.encode() not in out


_FORMS = (
    lambda value: value.encode(),
    lambda value: base64.b64encode(value.encode()),
    lambda value: base64.b64encode(b"?" + value.encode() + b"??"),
    lambda value: base64.urlsafe_b64encode(b"??" + value.encode()),
    lambda value: urllib.parse.quote(value, safe="").encode(),
    lambda value: json.dumps({"key": value}).encode(),
    lambda value: value.encode().hex().encode(),
)


@given(values.filter(is_telling), st.binary(max_size=300), st.binary(max_size=300), st.sampled_from(_FORMS))
def test_every_planted_value_is_found_in_every_form(value, before, after, form):
    text = before + form(value) + after

    assert {name for known, name, _ in find_forms([("NAME", value)]) if known in text} == {"NAME"}


@given(st.lists(tokens, min_size=1, max_size=5), st.lists(tokens, max_size=20), st.binary(max_size=2000))
def test_nothing_is_found_where_nothing_was_planted(planted, others, noise):
    text = b"\n".join((noise, *(other.encode() for other in others)))
    forms = find_forms((f"N{index}", value) for index, value in enumerate(planted))
    there = {f"N{index}" for index, value in enumerate(planted) if any(form(value) in text for form in _FORMS)}

    assert {name for known, name, _ in forms if known in text} <= there | {
        f"N{index}" for index, value in enumerate(planted) if planted.count(value) > 1 or value.encode() in text
    }
