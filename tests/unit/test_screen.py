"""What a program writes to a private terminal: shown, or dropped, byte by byte."""

from __future__ import annotations

import pytest

from claudebox.launch.pty_filter import TerminalFilter

ESC = b"\x1b"
ST = b"\x1b\\"


def shown(data: bytes, *, piece: int = 0) -> bytes:
    """Return what is shown, fed at once or in pieces."""
    screen = TerminalFilter()
    if not piece:
        return screen.feed(data)
    return b"".join(screen.feed(data[start : start + piece]) for start in range(0, len(data), piece))


KEPT = {
    "text": b"plain text, tabs\tand\r\nlines\b\x07",
    "UTF-8": "grüße, 你好, 😀, \u203a".encode(),
    "colours": b"\x1b[1;38;2;10;20;30mred\x1b[0m\x1b[4:3m",
    "cursor": b"\x1b[2J\x1b[H\x1b[10;20H\x1b[K\x1b7\x1b8\x1b[s\x1b[u",
    "cursor shape": b"\x1b[2 q",
    "modes": b"\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[?1000;1006h\x1b[?2026h\x1b[4l",
    "character sets": b"\x1b(B\x1b)0\x1b%G\x0e\x0f",
    "scrolling": b"\x1b[1;20r\x1bM\x1b[3S",
    "keyboard modes": b"\x1b[>1u\x1b[<u\x1b[=1;1u\x1b[>4;2m",
    "soft reset": b"\x1b[!p\x1bc",
    "rectangles": b"\x1b[1;1;2;2$x\x1b[1;1;2;2;1$t",
}
KEPT_COMMANDS = {
    "title": b"0;a title \xc3\xbc",
    "link": b"8;;https://example.org/a",
    "end of link": b"8;;",
    "colour of the background": b"11;rgb:00/00/00",
    "palette": b"4;1;rgb:ff/00/00",
    "prompt mark": b"133;A",
    "reset of colours": b"104",
}
DROPPED = {
    "clipboard": b"\x1b]52;c;ZXZpbA==\x07",
    "clipboard, other end": b"\x1b]52;c;ZXZpbA==" + ST,
    "clipboard, leading zero": b"\x1b]052;c;ZXZpbA==\x07",
    "notification": b"\x1b]9;hello\x07",
    "notification of urxvt": b"\x1b]777;notify;a;b\x07",
    "notification of kitty": b"\x1b]99;;hello\x07",
    "file of iTerm": b"\x1b]1337;File=name=eA==:AAAA\x07",
    "colour query": b"\x1b]11;?\x07",
    "palette query": b"\x1b]4;1;?\x07",
    "what are you": b"\x1b[c\x1b[0c\x1b[>c\x1b[=c\x1b[>0;1c",
    "where is the cursor": b"\x1b[6n\x1b[?6n\x1b[5n\x1b[?996n",
    "which version": b"\x1b[>q\x1b[>0q",
    "which mode": b"\x1b[?2026$p\x1b[4$p",
    "which keyboard": b"\x1b[?u",
    "which key modes": b"\x1b[?4m",
    "title query": b"\x1b[21t",
    "size query": b"\x1b[14t\x1b[18t",
    "title stack": b"\x1b[22;0t\x1b[23;0t",
    "printer": b"\x1b[5i\x1b[4i\x1b[i",
    "parameters": b"\x1b[x\x1b[1x",
    "checksum": b"\x1b[1;1;1;1;1;1*y",
    "locator": b"\x1b[1'|",
    "answerback": b"\x05",
    "identify": b"\x1bZ",
    "DCS": b"\x1bP$qm" + ST,
    "terminfo": b"\x1bP+q544e" + ST,
    "passthrough of tmux": b"\x1bPtmux;\x1b\x1b]52;c;ZXZpbA==\x07" + ST,
    "APC": b"\x1b_Gi=1,a=q;AAAA" + ST,
    "PM and SOS": b"\x1b^x" + ST + b"\x1bXx" + ST,
    "title of screen": b"\x1bktitle" + ST,
    "other languages": b"\x1b[?2l\x1b[?38h",
    "eight-bit controls": b"\x9b\x9d\x90\x84",
    "eight-bit controls in UTF-8": b"\xc2\x9b\xc2\x9d\xc2\x90",
    "eight-bit controls, overlong": b"\xc1\x9b\xe0\x82\x9b\xf0\x80\x82\x9b",
    "half of a character": b"\xe4\xbd",
    "unfinished": b"\x1b[12;",
    "unfinished string": b"\x1b]0;title",
    "malformed": b"\x1b[1<2h",
}


@pytest.mark.parametrize("piece", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("name", KEPT)
def test_what_harms_nobody_is_shown_as_it_is(name, piece):
    assert shown(KEPT[name], piece=piece) == KEPT[name]


@pytest.mark.parametrize("piece", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("end", [b"\x07", ST], ids=["BEL", "ST"])
@pytest.mark.parametrize("name", KEPT_COMMANDS)
def test_titles_links_and_colours_are_shown(name, end, piece):
    assert shown(b"a\x1b]" + KEPT_COMMANDS[name] + end + b"b", piece=piece) == (
        b"a\x1b]" + KEPT_COMMANDS[name] + ST + b"b"
    )


@pytest.mark.parametrize("piece", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("name", DROPPED)
def test_what_the_terminal_would_obey_or_answer_is_dropped(name, piece):
    # proves B09, B11
    assert shown(DROPPED[name], piece=piece) == b""
    if not name.startswith(("unfinished", "half")):
        assert shown(b"before" + DROPPED[name] + b"after", piece=piece) == b"beforeafter"


@pytest.mark.parametrize("inside", [b"\n", b"\x00", b"\x7f", b"\x05"])
def test_a_query_is_not_hidden_by_a_control_in_the_middle_of_it(inside):
    # proves B09
    # A terminal acts on the control and goes on with the sequence.
    assert b"n" not in shown(b"\x1b[6" + inside + b"n").replace(b"\n", b"")
    assert b"\x1b" not in shown(b"\x1b[6" + inside + b"n")


def test_a_sequence_that_starts_anew_is_judged_anew():
    # proves B09
    assert shown(b"\x1b[1\x1b[6n") == b""
    assert shown(b"\x1b[6\x18n") == b"n"
    assert shown(b"\x1b]0;x\x1b[6n") == b""
    assert shown(b"\x1b]0;x\x1b]52;c;eA==\x07y") == b"y"
    assert shown(b"\x1bP\x1b[31mred") == b"\x1b[31mred"
    assert shown(b"\x1b]0;x\x18\x1b[31m") == b"\x1b[31m"


@pytest.mark.parametrize("body", [b"0;a\x9cb", b"0;a\xc2\x9cb", b"0;\xff", b"0;a\nb", b"0;\x7f"])
def test_a_title_that_some_terminal_could_see_the_end_of_too_early_is_dropped(body):
    # proves B09
    assert shown(b"\x1b]" + body + b"\x07x") == b"x"


def test_a_sequence_without_an_end_takes_no_memory():
    screen = TerminalFilter()

    for start in (b"\x1b[", b"\x1b]0;", b"\x1bP", b"\x1b("):
        assert screen.feed(start + b"1" * 1_000_000) in (b"", screen.feed(b""), b"\x1b(1" + b"1" * 999_999)
        assert len(screen._held) < 10_000
        screen.feed(b"\x18")


def test_every_mode_that_was_left_switched_is_undone():
    # proves B08, B11
    screen = TerminalFilter()
    screen.feed(b"\x1b[?1049h\x1b[?1003h\x1b[?25l\x1b[?2004h\x1b[?2004l\x1b[>1u\x1b[>4;2m")

    undone = screen.undo()

    for part in (b"\x1b[?1049l", b"\x1b[?1003l", b"\x1b[?25h", b"\x1b[<u", b"\x1b[>4;0m", b"\x1b[0m"):
        assert part in undone
    assert b"2004" not in undone


def test_where_nothing_was_switched_the_screen_stays_as_it_is():
    screen = TerminalFilter()
    screen.feed(b"\x1b[?1049h\x1b[?25lx\x1b[?25h\x1b[?1049l")

    assert screen.undo() == b"\x1b[0m"


def test_a_flood_of_text_is_carried_quickly():
    import time

    text = (b"x" * 79 + b"\n") * 50_000
    begin = time.monotonic()

    assert shown(text) == text
    assert time.monotonic() - begin < 0.5
