"""What comes back from the host of a secret: no spelling of the value, and no trace of a guess that is nearly right."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import string
import urllib.parse
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from claudebox.broker.http.cleaning import Cleaner, Recognizer, longest
from claudebox.broker.http.messages import AnswerBody, Request, Response
from claudebox.broker.secrets import guessable_bits, has_few_marks, shaped_like

if TYPE_CHECKING:
    from collections.abc import Callable

_LETTERS = string.ascii_letters + string.digits
tokens = st.one_of(
    st.text(st.sampled_from(_LETTERS), min_size=16, max_size=60),
    st.text(st.sampled_from(_LETTERS + "-_./+=~!@#$%&*'\"\\<>"), min_size=24, max_size=80),
    st.binary(min_size=12, max_size=40).map(bytes.hex),
    st.binary(min_size=20, max_size=60).map(lambda data: base64.b64encode(data).decode()),
).filter(lambda value: guessable_bits(value) > 42 and has_few_marks(value))  # what a launch accepts
sizes = st.lists(st.integers(1, 90), min_size=1, max_size=12)
noise = st.one_of(st.binary(max_size=150), st.text(st.sampled_from(_LETTERS + " \n+/="), max_size=150).map(str.encode))


def recognizer(value: str) -> tuple[Recognizer, str]:
    placeholder = shaped_like(value, os.urandom)
    return Recognizer([(value.encode(), placeholder.encode())]), placeholder


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    parts, at, turn = [], 0, 0
    while at < len(data):
        parts.append(data[at : at + cuts[turn % len(cuts)]])
        at, turn = at + cuts[turn % len(cuts)], turn + 1
    return parts


def writes(found, parts, how):
    """Return what is written to the agent, one by one."""
    framing = (
        (b"content-length", b"%d" % sum(map(len, parts))) if how == "plain" else (b"transfer-encoding", b"chunked")
    )
    answer = AnswerBody(Request(b"GET", b"/", ()), Response(200, (framing,)), Cleaner(lambda: found))
    return [*map(answer.feed, parts), answer.end()]


def altered(value: str, at: int) -> str:
    """Return the value with another character of the same kind, so that a guess is as long and looks the same."""
    old = value[at]
    kind = next((kind for kind in (string.digits, string.ascii_lowercase, string.ascii_uppercase) if old in kind), "")
    return value[:at] + (kind[(kind.index(old) + 1) % len(kind)] if kind else old) + value[at + 1 :]


@given(tokens, st.data(), noise, noise, sizes, st.sampled_from(["plain", "chunks"]))
def test_what_is_written_is_the_same_for_a_right_and_a_wrong_guess(value, data, before, after, cuts, how):
    # proves SECRET-01, OLD-B1
    known = data.draw(st.integers(1, len(value)), "characters that the agent guesses")
    at = data.draw(st.integers(0, known - 1), "the one that is wrong")
    found, _ = recognizer(value)
    encode = data.draw(st.sampled_from([str.encode, lambda text: base64.b64encode(text.encode()),
                                        lambda text: text.encode().hex().encode()]), "encoding")  # fmt: skip
    right, wrong = value[:known], altered(value, at)[:known]
    assume(right != wrong)

    def shape(guess: str) -> list[int]:
        content = before + encode(guess) + after
        return [len(part) for part in writes(found, pieces(content, cuts), how)]

    assert shape(right) == shape(wrong)


@given(tokens, st.data())
def test_what_is_held_back_follows_from_public_things_alone(value, data):
    # proves SECRET-01
    other = "".join(data.draw(st.sampled_from(_LETTERS)) for _ in value)
    text = data.draw(noise) + data.draw(st.sampled_from([value, other]))[: data.draw(st.integers(0, 80))].encode()

    assert recognizer(value)[0].unfinished(text) == recognizer(other)[0].unfinished(text)


def _every_other(value: str, spell) -> bytes:
    return "".join(char if char.isalnum() else spell(char, index) for index, char in enumerate(value)).encode()


SPELLINGS = {
    "as it is": str.encode,
    "percent": lambda value: urllib.parse.quote(value, safe="").encode(),
    "percent, in small letters": lambda value: _every_other(value, lambda char, _: f"%{ord(char):02x}"),
    "percent, only some": lambda value: _every_other(value, lambda char, at: f"%{ord(char):02X}" if at % 2 else char),
    "percent, twice": lambda value: urllib.parse.quote(urllib.parse.quote(value, safe=""), safe="").encode(),
    "JSON": lambda value: json.dumps(value)[1:-1].encode(),
    "JSON by number": lambda value: _every_other(value, lambda char, _: f"\\u{ord(char):04x}"),
    "JSON with slashes": lambda value: json.dumps(value)[1:-1].replace("/", "\\/").encode(),
    "JSON in JSON": lambda value: json.dumps(json.dumps(value))[3:-3].encode(),
    "HTML": lambda value: html.escape(value).encode(),
    "HTML by number": lambda value: _every_other(value, lambda char, _: f"&#{ord(char)};"),
    "HTML in hexadecimal": lambda value: _every_other(value, lambda char, _: f"&#x{ord(char):02X};"),
    "base64": lambda value: base64.b64encode(value.encode()),
    "base64 after one": lambda value: base64.b64encode(b"?" + value.encode()),
    "base64 after two, for URLs": lambda value: base64.urlsafe_b64encode(b"??" + value.encode() + b"?"),
    "base64, percent": lambda value: urllib.parse.quote(base64.b64encode(b"u:" + value.encode()), safe="").encode(),
    "base64 in lines": lambda value: base64.encodebytes(b"user:" * 7 + value.encode()),
    "base64 in lines of 64": lambda value: _wrapped(value, "\r\n"),
    "base64 in lines, JSON": lambda value: _wrapped(value, "\\n"),
    "hexadecimal": lambda value: value.encode().hex().encode(),
    "HEXADECIMAL": lambda value: value.encode().hex().upper().encode(),
}


def _wrapped(value: str, end: str) -> bytes:
    text = base64.b64encode(b"x" * 31 + value.encode()).decode()
    return end.join(text[at : at + 64] for at in range(0, len(text), 64)).encode()


def clean(found: Recognizer, parts: list[bytes]) -> bytes:
    cleaner = Cleaner(lambda: found)
    return b"".join([*(cleaner.feed(piece) for piece in parts), cleaner.end()])


@given(name=st.sampled_from([*SPELLINGS]), value=tokens, before=noise, after=noise, cuts=sizes)
def test_no_spelling_of_a_value_passes_however_it_is_cut(name, value, before, after, cuts):
    # proves SECRET-03, K05, OLD-B4
    found, _ = recognizer(value)
    content = before + b" " + SPELLINGS[name](value) + b" " + after
    out = clean(found, pieces(content, cuts))

    assert len(out) == len(content)
    changed = sum(a != b for a, b in zip(out, content, strict=True))
    assert changed > len(value) // 2, out


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_of_a_value_is_recognised(name):
    # proves SECRET-03
    value = 'tok_4f9aK2mQ/7xWc+Z8rT=3vB6 nH1j"<&>'
    content = b"<" + SPELLINGS[name](value) + b">"
    assert sum(a != b for a, b in zip(clean(recognizer(value)[0], [content]), content, strict=True)) > len(value) // 2


@given(tokens, noise)
def test_a_value_in_the_name_of_a_field_is_recognised(value, text):
    # proves SECRET-03
    found, _ = recognizer(value)

    head = Response(200, ((b"x-" + value.lower().encode(), b"1"), (b"x-ratelimit-remaining", b"1")))
    assert found.clean_head(head).headers == ((b"x-ratelimit-remaining", b"1"),)


def test_a_value_that_begins_with_another_leaves_nothing_of_itself():
    # proves SECRET-03, OLD-B9
    short, long = b"tok_4f9aK2mQ7xWc", b"tok_4f9aK2mQ7xWcZ8rT3vB6nH1j"
    for pairs in ([(short, b"s" * 16), (long, b"l" * 28)], [(long, b"l" * 28), (short, b"s" * 16)]):
        assert (
            Recognizer(pairs).clean(b"<" + long + b"> <" + short + b">") == b"<" + b"l" * 28 + b"> <" + b"s" * 16 + b">"
        )


def test_the_search_does_not_run_patterns_for_a_guess_of_a_few_characters():
    # proves SECRET-01
    value = b"Qw7Er9Ty2Ui4Op6As8Df1Gh3Jk5Lz0Xc"
    found = Recognizer([(value, b"x" * len(value))])
    for known in range(len(value)):
        for guess in (value[:known], value[-known:] if known else b""):
            suspected = found._suspects(b"." * 5 + guess + b"." * 40)
            assert not suspected or known >= 8
    assert found._suspects(value)


def test_a_stream_of_events_or_lines_is_not_held_up():
    value = "Qw7Er9Ty2Ui4Op6As8Df1Gh3Jk5Lz0Xc"
    cleaner = Cleaner(lambda: recognizer(value)[0])
    for event in (b"data: 1\n\n", b'{"a": "b"}\n', b"event: x\r\ndata: {}\r\n\r\n", b"log line ends\n"):
        assert cleaner.feed(event) == event
    assert longest(len(value)) < 200


def test_an_empty_recognizer_lets_everything_pass():
    cleaner = Cleaner(lambda: Recognizer([]))
    assert cleaner.feed(b"anything") == b"anything"


_CHANCE = "".join(f"{letter}{number % 10}" for number, letter in enumerate(string.ascii_letters))
PARTS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": bytes,
    "base64": base64.b64encode,
    "base64 after one": lambda part: base64.b64encode(b"?" + part),
    "base64 after two, for URLs": lambda part: base64.urlsafe_b64encode(b"??" + part + b"?"),
    "JSON": lambda part: json.dumps(part.decode())[1:-1].encode(),
    "percent": lambda part: urllib.parse.quote(part, safe="").encode(),
}


@given(st.sampled_from([*PARTS]), st.data())
def test_a_run_of_twelve_characters_of_a_value_does_not_come_back(spelling, data):
    # proves NEW-N10
    value = ("ghp_" + "".join(data.draw(st.lists(st.sampled_from(_CHANCE), min_size=30, max_size=60)))).encode()
    assume(not re.search(rb"[A-Za-z]{24}|[0-9]{24}", value))
    found, placeholder = recognizer(value.decode())
    at = data.draw(st.integers(4, len(value) - 12))
    part = value[at : at + data.draw(st.integers(12, len(value)))]
    spelled = PARTS[spelling](part)
    text = b'{"a": "' + spelled + b'", "b": 1}\n'
    out = clean(found, pieces(text, data.draw(sizes)))

    assert len(out) == len(text)
    inside = slice(7, 7 + len(spelled))
    same = "".join(" ="[a == b] for a, b in zip(out[inside], text[inside], strict=True))
    assert max(map(len, same.split())) <= 4 if "=" in same else True, out
    assert placeholder.encode() in out or part != value or spelling != "as it is"


@pytest.mark.parametrize(
    "value",
    [
        b"mycorp-production-token-9aB8cD7eF6gH5iJ4kL3mN2oP1", b"9aB8cD7eF6gH5iJ4kL3mN2oP1-mycorp-production-token",
        b"sk-ant-api03-9aB8cD7eF6gH5iJ4kL3mN2oP1", b"xoxb-123456789012-9aB8cD7eF6gH5iJ4kL3mN2oP1",
        b"eyJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJodHRwczovL2EuZXhhbXBsZSJ9.9aB8cD7eF6gH5iJ4kL3mN2oP1",
    ],
)  # fmt: skip
def test_who_knows_what_can_be_guessed_cannot_try_out_the_next_character(value):
    # proves SECRET-01
    found, _ = recognizer(value.decode())
    at = value.index(b"9aB8")
    for guess in (value[:at], value[: at + 1], value[: at + 11], value[at + 14 :], value[at + 15 :]):
        if b"9aB8cD7eF6gH" not in guess and b"J4kL3mN2oP1" not in guess[:11]:
            assert found.clean(b"<" + guess + b">") == b"<" + guess + b">", guess
    assert found.clean(b"<9aB8cD7eF6gH>") == b"<************>"


def test_a_value_that_comes_in_two_pieces_is_replaced_as_a_whole():
    # proves NEW-N10
    value = b"ghp_9aB8cD7eF6gH5iJ4kL3mN2oP1qR0sT"
    for cut in range(1, len(value)):
        cleaner = Cleaner(lambda: Recognizer([(value, b"p" * len(value))]))
        assert cleaner.feed(b"<" + value[:cut]) + cleaner.feed(value[cut:] + b"> ") + cleaner.end() == (
            b"<" + b"p" * len(value) + b"> "
        )
        long = Cleaner(lambda: Recognizer([(value, b"p" * len(value))]))
        text = b"x" * 300 + value[:cut] + value[cut:] + b"y" * 300
        out = long.feed(text[: 300 + cut]) + long.feed(text[300 + cut :]) + long.end()
        assert out == b"x" * 300 + b"p" * len(value) + b"y" * 300
