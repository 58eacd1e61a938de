"""Cleaning what a program writes to a terminal, however it is cut into pieces (B09, B11).

A terminal is also an interpreter: sequences write its clipboard, raise notifications, print, and make it type answers
that whoever reads the terminal next takes for keystrokes. Text passes, and a sequence that is complete and in a list of
those that do none of that. Whatever is cut off, malformed or unknown is dropped (B17), so that the terminal is never in
the middle of one.
"""

from __future__ import annotations

import re

_LONGEST = 8192  # bytes of a sequence: titles and links are shorter
# Printable ASCII, bell, backspace, tab, line ends and shifts; whole characters of UTF-8, but for the controls among
# them: some terminals take an eight-bit control from a sloppy spelling of it.
_TEXT = re.compile(
    rb"(?:[\x07-\x0f\x20-\x7e]|\xc2[\xa0-\xbf]|[\xc3-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}"
    rb"|\xf4[\x80-\x8f][\x80-\xbf]{2})+"
)
_BEGUN_CHARACTER = re.compile(rb"[\xc2-\xf4][\x80-\xbf]{0,2}\Z")
# `ESC [ parameters final`; `ESC ] command`, ended by BEL or `ESC \`; other strings; `ESC intermediates final`.
_SEQUENCE = re.compile(
    rb"\x1b(?:\[(?P<body>[\x20-\x3f]*)(?P<final>[\x40-\x7e])|\](?P<command>[^\x07\x18\x1a\x1b]*)(?:\x07|\x1b\\)"
    rb"|[PX^_k][^\x18\x1a\x1b]*\x1b\\|(?P<escape>[\x20-\x2f]+[\x30-\x7e]|(?![]\[PX^_k])[\x30-\x7e]))"
)
_BEGUN = re.compile(rb"\x1b(?:\[[\x20-\x3f]*|\][^\x07\x18\x1a\x1b]*|[PX^_k][^\x18\x1a\x1b]*|[\x20-\x2f]*)")

# What may pass is a list: sequences that full-screen programs are written with, and that make no terminal answer,
# print, copy, resize, or speak another language. `ESC final`: cursor, tab stop, scrolling, keypad, reset; then
# character sets.
_ESCAPES = frozenset((
    *(bytes((final,)) for final in b"78DEHM=>c"), *(f"{place}{name}".encode() for place in "()*+" for name in "0AB"),
    b"%G",
))  # fmt: skip
# `ESC [ parameters intermediates final`, by prefix and intermediates.
_CONTROLS = {
    (b"", b""): b"@ABCDEFGHIJKLMPSTXZ`abdefghlmrsu",  # cursor, erasing, scrolling, tab stops, modes, colours, margins
    (b"?", b""): b"hlJKW",  # modes, selective erasing, tab stops
    (b">", b""): b"mu",  # keys that are reported with modifiers; the keyboard of kitty
    (b"<", b""): b"u",
    (b"=", b""): b"u",
    (b"", b" "): b"q",  # the shape of the cursor
    (b"", b"!"): b"p",  # soft reset
    (b"", b"$"): b"rtvxz{",  # rectangles
    (b"", b"'"): b"}~",  # columns
}
_PARTS = re.compile(rb"([<=>?]?)([0-9:;]*)([\x20-\x2f]*)")
_ANSI_MODES = frozenset((b"4", b"20"))  # insertion, line ends; not the keyboard's lock, nor local echo
_MODES = frozenset(
    b"%d" % mode
    for mode in (
        1, 5, 6, 7, 9, 12, 25, 45, 47, 66, 67, 69,  # keys, reverse video, origin, wrapping, cursor, screens, margins
        1000, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016,  # mouse and focus
        1034, 1036, 1039, 1047, 1048, 1049,  # the Alt key, screens
        2004, 2026, 2027, 2031, 2048,  # pasted text, synchronised output, widths, scheme, size
    )
)  # fmt: skip
_KEY_RESOURCES = frozenset((b"1", b"2", b"4"))  # of cursor keys, function keys, others
# `ESC ] number`: titles, links, colours (unless asked for with `?`). Marks of prompts are not among them: a terminal
# runs or copies what stands between them again.
_COMMANDS = frozenset((b"0", b"1", b"2", b"4", b"8", b"10", b"11", b"12", b"104", b"110", b"111", b"112"))
_COLOURS = frozenset((b"4", b"10", b"11", b"12"))
_LINK = re.compile(rb"[^;]*;(?:(?:https?|mailto|file):|\Z)", re.IGNORECASE)  # an empty one ends a link


class TerminalFilter:
    """Cleans one stream of output."""

    def __init__(self) -> None:
        self._held = b""  # the beginning of a sequence or a character

    def feed(self, piece: bytes) -> bytes:
        """Return what of this piece, and of what was held back, may be shown."""
        data, self._held = self._held + piece, b""
        shown, at = [], 0
        while at < len(data):
            if text := _TEXT.match(data, at):
                shown.append(text[0])
                at = text.end()
            elif sequence := _SEQUENCE.match(data, at):
                shown.append(_permit(sequence))
                at = sequence.end()
            elif begun := _BEGUN.match(data, at):
                if begun.end() == len(data) or data[begun.end() :] == b"\x1b":
                    self._hold(data[at:])
                    break
                at = begun.end()
            elif _BEGUN_CHARACTER.match(data, at):
                self._held = data[at:]
                break
            else:
                at += 1
        return b"".join(shown)

    def _hold(self, begun: bytes) -> None:
        """Keep the beginning of a sequence; of one that is too long, a beginning that is in no list."""
        end = b"\x1b" if begun.endswith(b"\x1b") else b""
        self._held = begun if len(begun) <= _LONGEST else begun[:2] + b"!!" + end


def _permit(sequence: re.Match[bytes]) -> bytes:
    """Return a sequence as far as it may pass."""
    if len(sequence[0]) > _LONGEST:
        return b""
    body, final, command, escape = sequence.group("body", "final", "command", "escape")
    if final is not None:
        return _permit_control(body, final)
    if command is not None:
        return b"\x1b]" + command + b"\x1b\\" if _is_harmless(command) else b""
    return sequence[0] if escape in _ESCAPES else b""


def _permit_control(body: bytes, final: bytes) -> bytes:
    parts = _PARTS.fullmatch(body)
    if parts is None or final not in _CONTROLS.get((parts[1], parts[3]), b""):
        return b""
    prefix, numbers = parts[1], parts[2].split(b";")
    if final in b"hl":
        numbers = [mode for mode in numbers if mode in (_MODES if prefix else _ANSI_MODES)]
    elif ((prefix, final) == (b">", b"m") and numbers[0] not in _KEY_RESOURCES) or (final == b"T" and len(numbers) > 1):
        numbers = []
    return b"\x1b[" + prefix + b";".join(numbers) + parts[3] + final if numbers else b""


def _is_harmless(command: bytes) -> bool:
    number, _, rest = command.partition(b";")
    asks = number in _COLOURS and b"?" in rest
    leads = number == b"8" and not _LINK.match(rest)
    plain = _TEXT.fullmatch(command) is not None and min(command) >= 0x20
    return number in _COMMANDS and plain and not asks and not leads
