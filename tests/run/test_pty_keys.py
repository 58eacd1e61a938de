from __future__ import annotations

import pytest

from claudebox.agent.claude import CLAUDE
from claudebox.run.pty import Keys, _erase_hint


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        (["\x03", "\x1a", "\x03\x1a"], ["c", "z", "cz"]),
        (["\x1b[99;5u", "\x1b[122;5u", "\x1b[99;133u"], ["c", "z", "c"]),
        (["\x1b[99:67;5:1u", "\x1b[122;5:3u", "\x1b[57442;5u"], ["c", "", ""]),
        (["\x1b[27;5;99~", "\x1b[27;6;99~", "\x1b[27;5;100~"], ["c", "", ""]),
        (["\x1b[99;1u", "\x1b[99;6u", "\x1b[99u", "\x1b[u", "\x1b[;u"], ["", "", "", "", ""]),
        (["\x1b[12;4", "0R\x03"], ["", "c"]),
        (["\x1b]11;rgb:0", "/0/0\x1b\\\x1a", "\x1b]52;c;x\x07\x03"], ["", "z", "c"]),
        (["\x1b[M ab\x03"], ["c"]),
        (["\x1b[A\x1bOP\x1bx\x03"], ["c"]),
        (["x", "x\x03", "\x03x"], [None, None, None]),
        (["\x1b[200~\x03\x1a\x1b[201~"], [None]),
        (["\x03\x1a" * 20], [None]),
        (["\x1b", "\x03"], ["", ""]),  # Alt+Ctrl+C
    ],
)
def test_the_two_keys_are_found_in_every_spelling_and_nothing_else_is_taken_for_them(pieces, found):
    # proves PTY-01
    keys = Keys()

    assert [keys.find(piece.encode()) for piece in pieces] == found


def test_a_sequence_that_never_ends_is_not_kept():
    keys = Keys()
    for _ in range(100):
        assert keys.find(b"\x1b]" + b"x" * 1000) == ""

    assert len(keys._cut) < 4096


@pytest.mark.parametrize("title", [b"", b"\x1b]0;Scripted session\x07"])
def test_the_client_s_hint_how_to_resume_is_erased_whatever_it_sends_after_it(title):
    # proves SHOW-01, NEW-D13
    hint = b"\x1b[2mResume this session with:\x1b[22m\r\n\x1b[2mclaude --resume 136a2d4b\x1b[22m\r\n\x1b[2m\x1b[22m"

    mark = CLAUDE.extras.resume_hint
    assert _erase_hint(b"some output\r\n" + hint + title, mark, 80) == b"\x1b[2A\x1b[J"
    assert _erase_hint(hint + b"\r\n" + title, mark, 20) == b"\x1b[4A\x1b[J"  # as of 2.1.197; wrapped
    assert _erase_hint(hint + title + b"more output", mark, 80) == b""
