"""What a program writes to a private terminal: shown, or dropped, byte by byte."""

from __future__ import annotations

import subprocess
import sys

import pytest

from claudebox.run.terminal_filter import TerminalFilter

ST = b"\x1b\\"


def shown(data: bytes, *, piece: int = 0) -> bytes:
    """Return what is shown, fed at once or in pieces."""
    screen = TerminalFilter()
    if not piece:
        return screen.feed(data)
    return b"".join(screen.feed(data[start : start + piece]) for start in range(0, len(data), piece))


CAPABILITIES = (
    "bold", "cbt", "civis", "clear", "cnorm", "cub", "cub1", "cud", "cud1", "cuf", "cuf1", "cup", "cuu", "cuu1", "dch",
    "dch1", "dim", "dl", "dl1", "ech", "ed", "el", "el1", "home", "hpa", "hts", "ich", "il", "il1", "ind", "indn",
    "invis", "op", "rc", "rev", "ri", "rin", "ritm", "rmacs", "rmam", "rmir", "rmkx", "rmso", "rmul", "sc", "setab",
    "setaf", "sgr0", "sitm", "smacs", "smam", "smir", "smkx", "smso", "smul", "tbc", "vpa",
)  # fmt: skip
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
    "link with an identity": b"8;id=a:b;HTTP://example.org/?a;b",
    "link to a file": b"8;;file:///tmp/x",
    "link to an address": b"8;;mailto:a@example.org",
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
    "prompt mark": b"\x1b]133;A\x07",
    "link that starts a program": b"\x1b]8;;ssh://-oProxyCommand=x\x07",
    "link that is a program": b"\x1b]8;;javascript:alert(1)" + ST,
    "link without a scheme": b"\x1b]8;;/etc/passwd\x07",
    "link without parameters": b"\x1b]8;ssh:x\x07\x1b]8\x07",
    "link behind a space": b"\x1b]8;; https:x\x07",
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
    "answers of other terminals": b'\x1bG\x1bQ\x1b["v\x1b[1"v',
    "another encoding": b"\x1b%@\x1b%/I",
    "eight-bit answers": b'\x1b G\x1b[62;0"p',
    "locking shifts": b"\x1bn\x1bo\x1b|\x1b}\x1b~",
    "memory lock": b"\x1bl\x1bm",
    "line sizes": b"\x1b#3\x1b#6\x1b#8",
    "keyboard lock and local echo": b"\x1b[2h\x1b[12l",
    "width of the window": b"\x1b[?3h\x1b[?40h\x1b[132$|\x1b[10*|",
    "saved modes": b"\x1b[?1000s\x1b[?1000r",
    "colour stack": b"\x1b[#P\x1b[#Q\x1b[#R",
    "key resources of the terminal": b"\x1b[>0;1m\x1b[>7;1m\x1b[>1p\x1b[>2t",
    "highlighting by the mouse": b"\x1b[?1001h\x1b[1;1;1;1;1T",
    "lights and bells": b"\x1b[1q\x1b[8 t\x1b[8 u",
    "flow control": b"\x11\x13\x00\x7f",
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

    for start in (b"\x1b[", b"\x1b]0;", b"\x1bP", b"\x1b( "):
        assert len(screen.feed(start + b"1" * 1_000_000)) in (0, 999_999)  # the last ends with its first digit
        assert len(screen._held) < 10_000
        screen.feed(b"\x18")


def test_of_several_modes_only_the_known_ones_are_switched():
    # proves B17
    assert shown(b"\x1b[?25;38;1000h") == b"\x1b[?25;1000h"
    assert shown(b"\x1b[2;4h") == b"\x1b[4h"


def test_nothing_passes_that_is_not_in_the_list():
    # proves B17, OLD-A29
    passed = {bytes((byte,)) for byte in range(0x20, 0x7F) if shown(b"\x1b" + bytes((byte,)))}
    assert passed == {bytes((byte,)) for byte in b"78DEHM=>c"}
    sequences = [
        (prefix + intermediate + bytes((final,)))
        for prefix in (b"", b"<", b"=", b">", b"?")
        for intermediate in (b"", *(bytes((byte,)) for byte in range(0x20, 0x30)))
        for final in range(0x40, 0x7F)
    ]
    known = [body for body in sequences if shown(b"\x1b[" + body)]
    assert len(sequences) == 5 * 17 * 63
    assert len(known) < 60


# The cursor's looks on the Linux console and in screen are dropped: elsewhere the same bytes ask for something.
LOOKS = (b"\x1b[34h", b"\x1b[34l", b"\x1b[?0c", b"\x1b[?1c", b"\x1b[?8c")
# Python sets up one terminal per process, and every later one is the first.
CAPABILITIES_OF = """
import curses, os, sys
curses.setupterm(sys.argv[1], os.open(os.devnull, os.O_WRONLY))
for name in sys.argv[2:]:
    sequence = curses.tigetstr(name)
    if sequence:
        print(name, (curses.tparm(sequence, 2, 3) if b"%" in sequence else sequence.replace(b"$<100/>", b"")).hex())
print("cup", curses.tparm(curses.tigetstr("cup"), 5, 7).hex())
"""


@pytest.mark.parametrize("term", ["xterm-256color", "tmux-256color", "screen-256color", "linux"])
def test_what_full_screen_programs_are_written_with_is_shown(term):
    # proves B17
    words = [sys.executable, "-Ic", CAPABILITIES_OF, term, *CAPABILITIES]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if "could not find terminal" in result.stderr:
        pytest.skip(f"this machine does not know {term}")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert len(rows) > 30, result.stderr
    for name, digits in rows:
        expected = bytes.fromhex(digits)
        for looks in LOOKS:
            expected = expected.replace(looks, b"")
        assert shown(bytes.fromhex(digits)) == expected, name
    assert shown(bytes.fromhex(rows[-1][1])) == b"\x1b[6;8H"


def test_a_flood_of_text_is_carried_quickly():
    import time

    text = (b"x" * 79 + b"\n") * 50_000
    begin = time.process_time()  # of this process, however busy the machine is

    assert shown(text) == text
    assert time.process_time() - begin < 1
