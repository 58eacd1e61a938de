"""Which sockets of this machine could answer inside, as the kernel lists them."""

from __future__ import annotations

import os
import socket

from claudebox.facts import sockets


def test_only_sockets_that_can_answer_are_looked_for(tmp_path):
    # proves C33
    path = f"{tmp_path}/s"
    listener, datagrams = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with listener, datagrams, socket.socket(socket.AF_UNIX) as caller:
        listener.bind(path)
        datagrams.bind(f"{tmp_path}/d")
        bound_only = {row.name for row in sockets._bound() or ()}
        listener.listen()
        caller.connect(path)
        with listener.accept()[0]:
            listening = {row.name for row in sockets._bound() or ()}
            listener.close()
            os.unlink(path)
            connected = {row.name for row in sockets._bound() or ()}

    assert {path, f"{tmp_path}/d"} <= bound_only & listening
    assert path not in connected  # nobody finds it: a search of the project would be for nothing
    assert f"{tmp_path}/d" in connected
