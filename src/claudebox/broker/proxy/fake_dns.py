"""Names for programs that know nothing of a proxy: an address for each permitted name, given out when it is asked for.

The answers come from here and from nowhere else; no question leaves the machine, so that names carry nothing out.
Addresses are of a range that no network uses, and the kernel leads what is sent there to the gateway, which asks here
for the name again. A name that is not permitted does not exist.
"""

from __future__ import annotations

import contextlib
import socket
from collections import OrderedDict
from typing import TYPE_CHECKING

from claudebox.config.domains import canonical
from claudebox.network.redirect import FIRST, POOL

if TYPE_CHECKING:
    from claudebox.broker.proxy.acl import Record
    from claudebox.config.domains import Permission

_FIRST = int.from_bytes(FIRST, "big")
_MOST = 8192  # names; the least recently used one makes room
_LIFE = 60  # seconds for which an answer may be kept
_A, _AAAA, _IN = 1, 28, 1
_NO_SUCH_NAME, _NOT_IMPLEMENTED, _MALFORMED = 3, 4, 1
_HEAD = 12
_LONGEST = 512
_TURN = 16  # datagrams that are answered before others have their turn
_LOCAL = {_A: socket.inet_aton("127.0.0.1"), _AAAA: bytes(15) + b"\x01"}


class Names:
    """Maps permitted names to addresses and back."""

    def __init__(self, permission: Permission, record: Record, *, most: int = _MOST) -> None:
        self._permission, self._record = permission, record
        self._most = min(most, POOL)
        self._numbers: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._names: dict[int, str] = {}

    def address(self, name: str) -> str:
        """Return the address that stands for a permitted name, in its one spelling."""
        if name not in self._numbers:
            number = len(self._numbers)
            if number >= self._most:
                _, number = self._numbers.popitem(last=False)
            self._numbers[name], self._names[number] = number, name
        self._numbers.move_to_end(name)
        return socket.inet_ntoa((_FIRST + self._numbers[name]).to_bytes(4, "big"))

    def meaning(self, address: str) -> str:
        """Return the name for which an address stands, or nothing."""
        try:
            number = int.from_bytes(socket.inet_pton(socket.AF_INET, address), "big") - _FIRST
        except (OSError, ValueError):
            return ""
        name = self._names.get(number, "")
        if name:
            self._numbers.move_to_end(name)
        return name

    def answer(self, question: bytes) -> bytes:
        """Return the answer to a message of DNS, or nothing if it is none."""
        if len(question) < _HEAD or question[2] & 0x80:  # an answer is not answered
            return b""
        counts = [int.from_bytes(question[at : at + 2], "big") for at in (4, 6, 8)]
        if question[2] & 0x78:
            return _reply(question, b"", _NOT_IMPLEMENTED)
        text, end = _question_name(question)
        if not end or counts != [1, 0, 0]:
            return _reply(question, b"", _MALFORMED)
        kind, group = (int.from_bytes(question[at : at + 2], "big") for at in (end, end + 2))
        asked = question[_HEAD : end + 4]
        name = canonical(text)
        if name == "localhost" or name.endswith(".localhost"):
            return _reply(question, asked, 0, _LOCAL.get(kind, b""), kind)
        if not name or group != _IN or not self._permission.ports(name):
            if kind != _AAAA:  # programs ask for both kinds: one line is enough
                self._record(host=_printable(text), port=53, verdict="denied", rule="not-listed")
            return _reply(question, asked, _NO_SUCH_NAME)
        found = socket.inet_aton(self.address(name)) if kind == _A else b""
        return _reply(question, asked, 0, found, kind)


def _printable(text: str) -> str:
    return "".join(char if "!" <= char <= "~" else "?" for char in text[:253])


def _question_name(message: bytes) -> tuple[str, int]:
    """Return the name that is asked for, and where it ends; nowhere if it is malformed."""
    labels, at = [], _HEAD
    while at < len(message) and 0 < message[at] < 64:
        label = message[at + 1 : at + 1 + message[at]]
        if b"." in label:
            label = b"?"  # a dot within a label: no name of a host
        labels.append(label.decode("latin-1"))
        at += 1 + message[at]
    if at + 5 > len(message) or message[at]:
        return "", 0
    return ".".join(labels), at + 1


def _reply(question: bytes, asked: bytes, code: int, found: bytes = b"", kind: int = _A) -> bytes:
    flags = bytes((0x84 | (question[2] & 0x01), 0x80 | code))
    counts = bytes((0, 1 if asked else 0, 0, 1 if found else 0, 0, 0, 0, 0))
    record = b""
    if found:
        words = ((kind, 2), (_IN, 2), (_LIFE, 4), (len(found), 2))
        record = b"\xc0\x0c" + b"".join(number.to_bytes(size, "big") for number, size in words) + found
    return question[:2] + flags + counts + asked + record


def answer_datagrams(names: Names, channel: socket.socket) -> None:
    """Answer a few of the questions that have come; the loop calls again while there are more."""
    for _ in range(_TURN):
        try:
            question, sender = channel.recvfrom(_LONGEST)
        except BlockingIOError:
            return
        except OSError:  # whoever asked has gone
            continue
        if reply := names.answer(question):
            with contextlib.suppress(OSError):  # whoever asked takes nothing
                channel.sendto(reply, sender)
