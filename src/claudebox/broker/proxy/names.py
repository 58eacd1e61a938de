"""Names in tier `allow`: which may be reached, the refusals, and a DNS server that answers for them.

Programs that use no proxy get an address for each permitted name. It is from a range that no network uses; the kernel
redirects connections there to the gateway, which looks the name up here. No query leaves the machine, so DNS cannot
exfiltrate data. Names that are not permitted do not exist.
"""

from __future__ import annotations

import contextlib
import socket
from collections import OrderedDict
from typing import Protocol

from claudebox.base.console import list_some
from claudebox.base.records import Value
from claudebox.settings.domains import Permission, canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from claudebox.broker.log import Verdict


# Of the addresses that stand for names; the two in front of the first are for a trial of the redirection.
_FIRST, _POOL = 0xC6120002, (1 << 17) - 4  # 198.18.0.2
_LISTED = 30  # names in a refusal
_ADDRESS = frozenset("0123456789abcdefABCDEF:.[]")
_SHOWN = 100  # characters of a caller's text that we repeat


class Denied(Exception):  # noqa: N818 - an answer, not an error
    """A refused connection: the rule, and the answer for the caller."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule, self.text = rule, text


class Record(Protocol):
    """Logs a decision: `allowed`, `denied`, or `failed` for a permitted name that did not answer."""

    def __call__(self, *, host: str, port: int, verdict: Verdict, rule: str, up: int = 0, down: int = 0) -> None: ...


class Admission(Value):
    """A permitted connection, and the pattern that permits it."""

    name: str
    port: int
    rule: str


class AccessList:
    """Decides by name and port; the dialer checks addresses."""

    looks = True  # the first message must be meant for the name

    def __init__(
        self, permission: Permission, listed: Sequence[str] = (), meaning: Callable[[str], str] = lambda _: ""
    ) -> None:
        """`meaning` returns the name for one of the addresses that we gave out."""
        self._permission, self._listed, self._meaning = permission, listed, meaning

    def admit(self, host: str, port: int) -> Admission:
        """Return the permission for a host as a caller wrote it, or raise Denied."""
        name = canonical(self._meaning(host) or host)
        if "." not in name:
            raise self.denial(host, port, "no-name", "only full names can be reached from here, no addresses")
        rule = self._permission.rule(name, port)
        if rule is None:
            if ports := self._permission.ports(name):
                listed = ", ".join(map(str, ports))
                raise self.denial(name, port, "port", f"of `{name}` only port {listed} can be reached from here")
            raise self.denial(
                name, port, "not-listed", f"`{name}` is not among the names that can be reached from here"
            )
        return Admission(name, port, str(rule))

    def denial(self, host: str, port: int, rule: str, why: str) -> Denied:
        """Return a refusal in words for an agent."""
        listed = list_some(self._listed, _LISTED) or "none"
        where = f"{shown(host)}:{port}" if rule == "port" or port not in (80, 443) else shown(host)
        ask = f" with `claudebox --allow-domain {where}`" if rule in ("port", "not-listed") else ""
        return Denied(
            rule,
            f"{why} ({shown(host)}:{port}). Permitted are: {listed}. That is intended and cannot be changed from "
            f"inside: do not try to work around it. If the task needs it, say so: the user can allow it{ask}.",
        )


class EveryName(AccessList):
    """For the way through the host's proxy: permits every name, in tier `full` every address too."""

    looks = False

    def __init__(self, *, addresses: bool) -> None:
        super().__init__(Permission(()))
        self._addresses = addresses

    def admit(self, host: str, port: int) -> Admission:
        name = canonical(host)
        if self._addresses and (name or set(host) <= _ADDRESS):
            return Admission(name or host.strip("[]"), port, "proxy")
        if "." not in name:
            raise Denied("no-name", f"the proxy takes full names only; connect to `{shown(host)}` directly")
        return Admission(name, port, "proxy")


def shown(text: str) -> str:
    """Return a caller's text as it may be repeated."""
    return "".join(char if "!" <= char <= "~" and char != "`" else "?" for char in text[:_SHOWN])


_MOST = 8192  # names; the least recently used one makes room
_LIFE = 60  # seconds for which an answer may be cached
_A, _AAAA, _IN = 1, 28, 1
_NO_SUCH_NAME, _NOT_IMPLEMENTED, _MALFORMED = 3, 4, 1
_HEAD = 12
_LONGEST = 512
_TURN = 16  # datagrams answered per turn of the loop
_LOCAL = {_A: socket.inet_aton("127.0.0.1"), _AAAA: bytes(15) + b"\x01"}


class Names:
    """Maps permitted names to addresses and back."""

    def __init__(self, permission: Permission, record: Record, *, most: int = _MOST) -> None:
        self._permission, self._record = permission, record
        self._most = min(most, _POOL)
        self._numbers: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._names: dict[int, str] = {}

    def address(self, name: str) -> str:
        """Return the address for a canonical name."""
        if name not in self._numbers:
            number = len(self._numbers)
            if number >= self._most:
                _, number = self._numbers.popitem(last=False)
            self._numbers[name], self._names[number] = number, name
        self._numbers.move_to_end(name)
        return socket.inet_ntoa((_FIRST + self._numbers[name]).to_bytes(4, "big"))

    def meaning(self, address: str) -> str:
        """Return the name for an address, or ""."""
        try:
            number = int.from_bytes(socket.inet_pton(socket.AF_INET, address), "big") - _FIRST
        except (OSError, ValueError):
            return ""
        name = self._names.get(number, "")
        if name:
            self._numbers.move_to_end(name)
        return name

    def answer(self, question: bytes) -> bytes:
        """Return the response to a DNS message, b"" if it is none."""
        if len(question) < _HEAD or question[2] & 0x80:  # a response
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
            if kind != _AAAA:  # programs ask for A and AAAA: log one line
                self._record(host=shown(text), port=53, verdict="denied", rule="not-listed")
            return _reply(question, asked, _NO_SUCH_NAME)
        found = socket.inet_aton(self.address(name)) if kind == _A else b""
        return _reply(question, asked, 0, found, kind)


def _question_name(message: bytes) -> tuple[str, int]:
    """Return the name in the question, and where it ends; 0 if it is malformed."""
    labels, at = [], _HEAD
    while at < len(message) and 0 < message[at] < 64:
        label = message[at + 1 : at + 1 + message[at]]
        if b"." in label:
            label = b"?"  # a dot within a label: not a host name
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
    """Answer a few queries; the loop calls again while there are more."""
    for _ in range(_TURN):
        try:
            question, sender = channel.recvfrom(_LONGEST)
        except BlockingIOError:
            return
        except OSError:  # the sender has gone
            continue
        if reply := names.answer(question):
            with contextlib.suppress(OSError):
                channel.sendto(reply, sender)
