"""Cleaning what a program writes to a terminal, byte by byte, however it is cut into pieces (B09, B11).

A terminal is also an interpreter: sequences write its clipboard, raise notifications, print, and make it type answers
that whoever reads the terminal next takes for keystrokes. Each sequence is collected whole and passed on only if it is
known to do none of that; whatever is cut off, malformed or unknown is dropped. The modes that a program has switched
are remembered, so that they can be undone when it leaves.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    State = Literal["ground", "escape", "intermediate", "control", "string", "string-escape"]

_ESC, _BEL, _CAN, _SUB, _DEL, _ENQ = 0x1B, 0x07, 0x18, 0x1A, 0x7F, 0x05
_PLAIN = re.compile(rb"[\x20-\x7e\t\r\n\b]+")
_LONGEST = 256  # of a control sequence
_LONGEST_STRING = 8192  # of an operating system command: titles and links are shorter

# Sequences `ESC [ prefix ... intermediates final` that make the terminal answer, print or move its window.
_DROPPED_FINALS = frozenset(b"cnitx")  # identify, report, print, window, parameters; with any prefix
_DROPPED = frozenset((
    ("?", "", "u"),  # which keyboard mode?
    ("?", "", "m"),  # which key modes?
    ("?", "", "S"),  # which graphics?
    (">", "", "q"),  # which version?
    ("", "$", "p"), ("?", "$", "p"),  # which mode?
    ("", "$", "w"), ("", "$", "u"), ("", "&", "u"), ("", "*", "y"),  # state, character set, checksum
    ("", "'", "|"), ("", "'", "z"), ("", "#", "R"), ("", "#", "S"),  # locator, colours
))  # fmt: skip
# Kept although they end in one of the finals above: these answer nothing.
_KEPT = frozenset(((">", "", "n"), ("", "$", "t"), ("", "$", "x")))
# Commands `ESC ] number` that are passed on: titles, links, colours (unless asked for with `?`), prompt marks.
_COMMANDS = frozenset((b"0", b"1", b"2", b"4", b"8", b"10", b"11", b"12", b"104", b"110", b"111", b"112", b"133"))
_COLOURS = frozenset((b"4", b"10", b"11", b"12"))
_STRINGS = frozenset(b"]PX^_k")  # what introduces a string; only `]` is ever passed on
_FORBIDDEN_MODES = frozenset((b"2", b"38"))  # other languages altogether: VT52, Tektronix
_ON_BY_DEFAULT = frozenset((b"7", b"25"))  # wrapping, the cursor
_UNIMPORTANT = frozenset((b"12", b"1048"))  # blinking; saving the cursor is no state


class TerminalFilter:
    """The state of one stream of output."""

    def __init__(self) -> None:
        self._state: State = "ground"
        self._held = bytearray()  # the sequence so far, without its ESC
        self._introducer = 0
        self._character = bytearray()  # of UTF-8, so far
        self._modes: dict[bytes, bool] = {}
        self._keyboard = 0  # how many keyboard modes were pushed
        self._keyboard_set = False
        self._other_keys = False
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
        """Return what takes back every mode that is not as it was at the start."""
        out = b"".join(
            b"\x1b[?" + mode + (b"h" if mode in _ON_BY_DEFAULT else b"l")
            for mode, on in self._modes.items()
            if on != (mode in _ON_BY_DEFAULT)
        )
        out += b"\x1b[<u" * min(self._keyboard, 16)
        out += b"\x1b[=0u" if self._keyboard_set else b""
        out += b"\x1b[>4;0m" if self._other_keys else b""
        return out + b"\x1b[0m"

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
        elif byte != _ENQ:  # ENQ asks for an answer
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
        """End a sequence where the terminal would; tell whether that was so."""
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
            if byte not in b"Z\\":  # who are you; the end of a string that was dropped
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
            self._out += bytes((_ESC, *self._held, byte))
        elif byte > _DEL:
            self._state = "ground"
            self._ground(byte)

    def _control_inside(self, byte: int) -> None:
        if byte != _ENQ:
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
            if len(self._held) <= _LONGEST and self._permitted(bytes(self._held), byte):
                self._out += b"\x1b[" + self._held + bytes((byte,))
        elif byte > _DEL:
            self._state = "ground"
            self._ground(byte)

    def _permitted(self, body: bytes, final: int) -> bool:
        """Tell whether a control sequence is harmless, and remember what it switches."""
        prefix = body[:1] if body[:1] in (b"<", b"=", b">", b"?") else b""
        rest = body[len(prefix) :]
        parameters = rest.rstrip(b" !\"#$%&'()*+,-./")
        intermediates = rest[len(parameters) :]
        if not set(parameters) <= set(b"0123456789:;"):
            return False
        form = (prefix.decode(), intermediates.decode(), chr(final))
        if form in _DROPPED or (final in _DROPPED_FINALS and form not in _KEPT):
            return False
        numbers = parameters.split(b";")
        if prefix == b"?" and final in b"hl" and not intermediates:
            if _FORBIDDEN_MODES & set(numbers):
                return False
            for mode in numbers:
                if mode not in _UNIMPORTANT:
                    self._modes[mode] = final == ord("h")
        elif final == ord("u") and prefix == b">":
            self._keyboard += 1
        elif final == ord("u") and prefix == b"=":
            self._keyboard_set = True
        elif final == ord("u") and prefix == b"<":
            self._keyboard = max(0, self._keyboard - int(parameters[:3] or b"1"))
        elif final == ord("m") and prefix == b">":
            self._other_keys = numbers[:1] == [b"4"] and numbers[1:2] not in ([], [b"0"])
        return True

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
        if len(body) <= _LONGEST_STRING and number in _COMMANDS and not asks and _is_plain(body):
            self._out += b"\x1b]" + body + b"\x1b\\"


def _is_plain(body: bytes | bytearray) -> bool:
    """Tell whether no terminal can see a control in this."""
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
