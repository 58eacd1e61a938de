"""Cleaning what a program writes to a terminal, byte by byte, however it is cut into pieces (B09, B11).

A terminal is also an interpreter: sequences write its clipboard, raise notifications, print, and make it type answers
that whoever reads the terminal next takes for keystrokes. Each sequence is collected whole and passed on only if it is
in a list of those that do none of that; whatever is cut off, malformed or unknown is dropped (B17). The modes that a
program has switched are remembered, so that they can be undone when it leaves.
"""

from __future__ import annotations

import re

from claudebox.run import terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    State = Literal["ground", "escape", "intermediate", "control", "string", "string-escape"]


_ESC, _BEL, _CAN, _SUB, _DEL = 0x1B, 0x07, 0x18, 0x1A, 0x7F
_PLAIN = re.compile(rb"[\x20-\x7e\t\r\n\b]+")
_LONGEST = 256  # of a control sequence
_LONGEST_STRING = 8192  # of an operating system command: titles and links are shorter

# What may pass is a list: sequences that full-screen programs are written with, and that make no terminal answer,
# print, copy, resize, or speak another language. `ESC final`: cursor, tab stop, scrolling, keypad, reset.
_CONTROLS = frozenset(b"\a\b\t\n\v\f\r\x0e\x0f")
_ESCAPES = frozenset(b"78DEHM=>c")
_CHARACTER_SETS = frozenset((*(f"{place}{name}".encode() for place in "()*+" for name in "0AB"), b"%G"))
# `ESC [ parameters intermediates final`, by prefix and intermediates.
_SEQUENCES = {
    ("", ""): "@ABCDEFGHIJKLMPSTXZ`abdefghlmrsu",  # cursor, erasing, scrolling, tab stops, modes, colours, margins
    ("?", ""): "hlJKW",  # modes, selective erasing, tab stops
    (">", ""): "mu",  # keys that are reported with modifiers; the keyboard of kitty
    ("<", ""): "u",
    ("=", ""): "u",
    ("", " "): "q",  # the shape of the cursor
    ("", "!"): "p",  # soft reset
    ("", "$"): "rtvxz{",  # rectangles
    ("", "'"): "}~",  # columns
}
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
# Commands `ESC ] number` that are passed on: titles, links, colours (unless asked for with `?`). Marks of
# prompts are not: a terminal runs or copies what stands between them again.
_COMMANDS = frozenset((b"0", b"1", b"2", b"4", b"8", b"10", b"11", b"12", b"104", b"110", b"111", b"112"))
_LINK = re.compile(rb"[^;]*;(?:(?:https?|mailto|file):|\Z)", re.IGNORECASE)  # an empty one ends a link
_COLOURS = frozenset((b"4", b"10", b"11", b"12"))
_STRINGS = frozenset(b"]PX^_k")  # what introduces a string; only `]` is ever passed on
_RESETS = {b"4": b"104", b"10": b"110", b"11": b"111", b"12": b"112"}  # what takes a colour back
_ON_BY_DEFAULT = frozenset((b"7", b"25"))  # wrapping, the cursor
# Blinking, scrolling by the wheel; saving the cursor is no state; margins and origin are undone together.
_UNIMPORTANT = frozenset((b"6", b"12", b"67", b"69", b"1007", b"1034", b"1036", b"1039", b"1048"))


class TerminalFilter:
    """The state of one stream of output."""

    def __init__(self) -> None:
        self._state: State = "ground"
        self._held = bytearray()  # the sequence so far, without its ESC
        self._introducer = 0
        self._character = bytearray()  # of UTF-8, so far
        self._modes: dict[bytes, bool] = {}
        self._insertion: set[bytes] = set()
        self._keyboard = 0  # how many keyboard modes were pushed
        self._keyboard_set = False
        self._keys: set[bytes] = set()
        self._margins = self._cursor_shape = False
        self._colours: set[bytes] = set()
        self._out = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Return what of this piece, and of what was held back, may be shown."""
        position = 0
        while position < len(data):
            if self._state == "ground" and (plain := _PLAIN.match(data, position)):  # most of what is ever written
                self._character.clear()
                self._out += plain[0]
                position = plain.end()
                continue
            getattr(self, _STEPS[self._state])(data[position])
            position += 1
        out = bytes(self._out)
        self._out.clear()
        return out

    def undo(self) -> bytes:
        """Return what takes back everything that is not as it was at the start."""
        out = terminal.MARGINS if self._margins else b""
        out += b"".join(
            b"\x1b[?" + mode + (b"h" if mode in _ON_BY_DEFAULT else b"l")
            for mode, on in self._modes.items()
            if on != (mode in _ON_BY_DEFAULT)
        )
        out += b"".join(b"\x1b[" + mode + b"l" for mode in sorted(self._insertion))
        out += b"\x1b[<u" * min(self._keyboard, 16)
        out += b"\x1b[=0u" if self._keyboard_set else b""
        out += b"".join(b"\x1b[>" + keys + (b";0m" if keys == b"4" else b"m") for keys in sorted(self._keys))
        out += b"\x1b[0 q" if self._cursor_shape else b""
        out += b"".join(b"\x1b]" + _RESETS[colour] + b"\x1b\\" for colour in sorted(self._colours))
        return out + terminal.ATTRIBUTES

    def redo(self) -> bytes:
        """Return what brings the modes back after `undo`, but for those of the keyboard, which programs set anew."""
        self._keyboard = 0
        return b"".join(b"\x1b[?" + mode + (b"h" if on else b"l") for mode, on in self._modes.items())

    def _ground(self, byte: int) -> None:
        if byte >= 0x80:
            self._multibyte(byte)
            return
        self._character.clear()
        if byte == _ESC:
            self._state = "escape"
            self._held.clear()
        elif byte in _CONTROLS:
            self._out.append(byte)

    def _multibyte(self, byte: int) -> None:
        """Pass on whole characters of UTF-8: some terminals take an eight-bit control from a sloppy spelling of it."""
        if byte >= 0xC0:
            self._character[:] = bytes((byte,))
            return
        if not self._character:
            return
        self._character.append(byte)
        lead = self._character[0]
        if len(self._character) == (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4):
            if _is_plain(self._character):
                self._out += self._character
            self._character.clear()

    def _restart(self, byte: int) -> bool:
        """End a sequence where the terminal would; return whether that was so."""
        if byte == _ESC:
            self._held.clear()
            self._state = "escape"
        elif byte in (_CAN, _SUB):
            self._state = "ground"
        else:
            return False
        return True

    def _escape(self, byte: int) -> None:
        if self._restart(byte):
            return
        if byte < 0x20:  # acted upon in the middle of a sequence
            self._control_inside(byte)
        elif byte == ord("["):
            self._state = "control"
        elif byte in _STRINGS:
            self._state = "string"
            self._introducer = byte
        elif byte < 0x30:
            self._held.append(byte)
            self._state = "intermediate"
        elif byte < _DEL:
            self._state = "ground"
            if byte in _ESCAPES:
                self._out += bytes((_ESC, byte))
        elif byte > _DEL:
            self._state = "ground"
            self._ground(byte)

    def _intermediate(self, byte: int) -> None:
        if self._restart(byte):
            return
        if byte < 0x20:
            self._control_inside(byte)
        elif byte < 0x30 and len(self._held) < _LONGEST:
            self._held.append(byte)
        elif byte < _DEL:
            self._state = "ground"
            if bytes((*self._held, byte)) in _CHARACTER_SETS:
                self._out += bytes((_ESC, *self._held, byte))
        elif byte > _DEL:
            self._state = "ground"
            self._ground(byte)

    def _control_inside(self, byte: int) -> None:
        if byte in _CONTROLS:
            self._out.append(byte)

    def _control(self, byte: int) -> None:
        if self._restart(byte):
            return
        if byte < 0x20:
            self._control_inside(byte)
        elif byte < 0x40:
            if len(self._held) <= _LONGEST:
                self._held.append(byte)
        elif byte < _DEL:
            self._state = "ground"
            if len(self._held) <= _LONGEST:
                self._sequence(bytes(self._held), chr(byte))
        elif byte > _DEL:
            self._state = "ground"
            self._ground(byte)

    def _sequence(self, body: bytes, final: str) -> None:
        """Pass on a control sequence that is in the list, and remember what it switches."""
        prefix = body[:1] if body[:1] in (b"<", b"=", b">", b"?") else b""
        rest = body[len(prefix) :]
        parameters = rest.rstrip(b" !\"#$%&'()*+,-./")
        intermediates = rest[len(parameters) :]
        kind = (prefix.decode(), intermediates.decode())
        if final not in _SEQUENCES.get(kind, "") or not set(parameters) <= set(b"0123456789:;"):
            return
        numbers = parameters.split(b";")
        if final in "hl" and kind in (("", ""), ("?", "")):
            numbers = self._switch(numbers, private=bool(prefix), on=final == "h")
        elif not self._note(kind, final, numbers):
            return
        if numbers:
            self._out += b"\x1b[" + prefix + b";".join(numbers) + intermediates + final.encode()

    def _switch(self, numbers: list[bytes], *, private: bool, on: bool) -> list[bytes]:
        """Return those modes that may be switched, and remember them."""
        permitted = [mode for mode in numbers if mode in (_MODES if private else _ANSI_MODES)]
        for mode in permitted:
            if not private:
                (self._insertion.add if on else self._insertion.discard)(mode)
            elif mode not in _UNIMPORTANT:
                self._modes[mode] = on
            if private and mode in (b"6", b"69"):
                self._margins = True
        return permitted

    def _note(self, kind: tuple[str, str], final: str, numbers: list[bytes]) -> bool:
        """Remember what else must be taken back; return whether the sequence may pass."""
        if kind == (">", "") and final == "m":
            if numbers[0] not in _KEY_RESOURCES:
                return False
            (self._keys.discard if numbers[1:2] in ([], [b"0"]) else self._keys.add)(numbers[0])
        elif final == "u" and kind[0]:
            self._keyboard_set = self._keyboard_set or kind[0] == "="
            pushed = 1 if kind[0] == ">" else -int(numbers[0][:3] or b"1") if kind[0] == "<" else 0
            self._keyboard = max(0, self._keyboard + pushed)
        elif kind == ("", " "):
            self._cursor_shape = True
        elif final in "rs" and kind == ("", "") and numbers != [b""]:
            self._margins = True
        return not (kind == ("", "") and final == "T" and len(numbers) > 1)  # five numbers start a kind of mouse report

    def _string(self, byte: int) -> None:
        if byte == _BEL and self._introducer == ord("]"):
            self._state = "ground"
            self._command()
        elif byte == _ESC:
            self._state = "string-escape"
        elif byte in (_CAN, _SUB):
            self._state = "ground"
        elif len(self._held) <= _LONGEST_STRING:
            self._held.append(byte)

    def _string_escape(self, byte: int) -> None:
        if byte == ord("\\"):
            self._state = "ground"
            if self._introducer == ord("]"):
                self._command()
        else:  # the terminal gives the string up and starts anew
            self._held.clear()
            self._state = "escape"
            self._escape(byte)

    def _command(self) -> None:
        body = bytes(self._held)
        number, _, rest = body.partition(b";")
        asks = number in _COLOURS and b"?" in rest
        strange = number == b"8" and not _LINK.match(rest)
        if len(body) <= _LONGEST_STRING and number in _COMMANDS and not asks and not strange and _is_plain(body):
            self._out += b"\x1b]" + body + b"\x1b\\"
            if number in _COLOURS:
                self._colours.add(number)


def _is_plain(body: bytes | bytearray) -> bool:
    """Return whether no terminal can see a control in this."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(char >= " " and not "\x7f" <= char <= "\x9f" for char in text)


_STEPS: dict[State, str] = {
    "ground": "_ground",
    "escape": "_escape",
    "intermediate": "_intermediate",
    "control": "_control",
    "string": "_string",
    "string-escape": "_string_escape",
}
