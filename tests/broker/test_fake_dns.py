"""Addresses that stand for names, and the answers in which they are given out."""

from __future__ import annotations

import contextlib
import socket
import struct

import pytest

from claudebox.broker.proxy.names import Names, answer_datagrams
from claudebox.settings.domains import Permission, parse_domain


def names(*patterns: str, most: int = 100, written: list[str] | None = None) -> Names:
    def record(**decision: object) -> None:
        if written is not None:
            written.append(f"{decision['host']} {decision['verdict']}")

    return Names(Permission([parse_domain(text, "x") for text in patterns]), record, most=most)


def question(name: str, kind: int = 1, group: int = 1, flags: int = 0x0100, extra: bytes = b"") -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".")) + b"\0"
    head = struct.pack(">HHHHHH", 0x1234, flags, 1, 0, 0, 1 if extra else 0)
    return head + labels + struct.pack(">HH", kind, group) + extra


def outcome(reply: bytes) -> tuple[int, bytes]:
    """Return the code and the address in a reply."""
    _, flags, _, answers, _, _ = struct.unpack(">HHHHHH", reply[:12])
    return flags & 15, reply[-4:] if answers else b""


def test_a_permitted_name_has_one_address_and_it_means_the_name():
    known = names("a.example", "*.b.example:22")
    code, packed = outcome(known.answer(question("a.example")))
    address = ".".join(map(str, packed))

    assert (code, address[:7]) == (0, "198.18.")
    assert known.meaning(address) == "a.example"
    assert outcome(known.answer(question("A.Example"))) == (0, packed)
    assert outcome(known.answer(question("x.b.example"))) != (0, packed)


def test_what_is_not_permitted_does_not_exist():
    # proves F13
    written: list[str] = []
    known = names("a.example", written=written)
    assert outcome(known.answer(question("a.example")))[0] == 0

    for name in ("b.example", "x.a.example", "example", "a.example.evil.example", "127.0.0.1", "a\0.example"):
        assert outcome(known.answer(question(name))) == (3, b""), name
    assert "b.example denied" in written
    assert "a.example denied" not in written
    assert outcome(known.answer(question("a.example", group=3))) == (3, b"")


@pytest.mark.parametrize("kind", [28, 65, 64, 15, 16, 33, 255])
def test_other_questions_about_a_permitted_name_have_no_answer(kind):
    assert outcome(names("a.example").answer(question("a.example", kind))) == (0, b"")


def test_a_question_comes_back_as_it_was_asked():
    asked = question("A.eXample", extra=b"\0\0\x29\x10\0\0\0\0\0\0\0")
    reply = names("a.example").answer(asked)

    assert reply[:2] == asked[:2]
    assert b"\1A\7eXample\0" in reply
    assert reply[2] & 0x81 == 0x81


def test_localhost_is_here():
    known = names()
    assert outcome(known.answer(question("localhost"))) == (0, b"\x7f\0\0\1")
    assert known.answer(question("x.localhost", 28)).endswith(bytes(15) + b"\1")


@pytest.mark.parametrize("data", [b"", b"x" * 11, question("a.example", flags=0x8180)])
def test_what_is_no_question_is_not_answered(data):
    assert names("a.example").answer(data) == b""


@pytest.mark.parametrize(("data", "code"), [
    (question("a.example", flags=0x2800), 4), (question("a.example")[:-3], 1), (bytes(12), 1),
    (question("a.example")[:12] + b"\xc0\x0c\0\1\0\1", 1), (question("a.example")[:12] + b"\x09a", 1),
    (b"\0\0\1\0\0\2\0\0\0\0\0\0" + question("a.example")[12:], 1),
])  # fmt: skip
def test_a_malformed_question_is_told_so(data, code):
    assert outcome(names("a.example").answer(data)) == (code, b"")


def test_the_name_that_was_not_used_for_longest_makes_room():
    known = names("*.a.example", most=3)
    first, second, third = (known.address(f"{label}.a.example") for label in "xyz")
    assert known.meaning(first) == "x.a.example"  # which is a use

    fourth = known.address("w.a.example")

    assert fourth == second
    assert known.meaning(fourth) == "w.a.example"
    assert known.meaning(first) == "x.a.example"
    assert known.meaning(third) == "z.a.example"
    for index in range(10000):
        known.address(f"{index}.a.example")
    assert len(known._numbers) == len(known._names) == 3


@pytest.mark.parametrize("address", ["198.18.0.1", "198.19.255.255", "127.0.0.1", "::1", "a.example", "",
                                     "198.18.0.2\0", "198.18.2"])  # fmt: skip
def test_other_addresses_mean_nothing(address):
    assert names("a.example").meaning(address) == ""


def test_a_flood_of_questions_is_answered_a_few_at_a_time():
    # proves BROKER-01
    with socket.socket(type=socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as caller:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)  # noqa: FBT003
        for _ in range(100):
            caller.sendto(question("a.example"), server.getsockname())
        answer_datagrams(names("a.example"), server)
        left = 0
        with contextlib.suppress(BlockingIOError):
            while server.recv(512):
                left += 1
        assert 50 < left < 100
        assert caller.recv(512)
