from __future__ import annotations

import contextlib
import errno
import socket

from claudebox.network.splice import SpliceLoop, Tunnel


class Full:
    """An epoll whose user has no watch left after so many."""

    def __init__(self, poll, room: int) -> None:
        self._poll, self._room = poll, room

    def register(self, *words) -> None:
        if self._room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= 1
        self._poll.register(*words)

    def __getattr__(self, name: str):
        return getattr(self._poll, name)


def test_a_tunnel_that_epoll_has_no_room_for_is_closed_and_the_others_go_on(monkeypatch):
    # proves BROKER-01
    ended: list[Tunnel] = []
    loop = SpliceLoop(ended.append)
    caller, near = socket.socketpair()
    far, callee = socket.socketpair()
    other, more = socket.socketpair(), socket.socketpair()
    kept, refused = Tunnel(near, far), Tunnel(other[0], more[0])
    assert loop.adopt(kept)
    for room in (0, 1):
        poll = loop.poll
        monkeypatch.setattr(loop, "poll", Full(poll, room))
        if room:
            other, more = socket.socketpair(), socket.socketpair()
            refused = Tunnel(other[0], more[0])

        assert not loop.adopt(refused)
        assert ended.pop() is refused
        with contextlib.suppress(ConnectionResetError):
            assert other[1].recv(1) == b""
        monkeypatch.setattr(loop, "poll", poll)
        other[1].close()
        more[1].close()

    caller.sendall(b"word")
    loop.step(loop.poll.poll(1))
    assert callee.recv(4) == b"word"
    loop.close()
    assert ended == [kept]
    caller.close()
    callee.close()
