"""An upstream for `--verify` in place of the model's: it says what it was told, as an error, in small pieces.

So a program inside can have the broker clean a text of its own choice, and look at how the answer is cut (K01).
"""

from __future__ import annotations

import socket
import sys
import time

_PIECE, _PAUSE = 9, 0.003
_HEAD = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"


def main(descriptor: int) -> None:
    """Serve one connection after the other on a listening socket."""
    listener = socket.socket(fileno=descriptor)
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                connection.settimeout(5)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _answer(connection)
            except (OSError, ValueError):
                continue


def _answer(connection: socket.socket) -> None:
    said = b""
    while b"\r\n\r\n" not in said and (piece := connection.recv(65536)):
        said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields[b"content-length"]) and (piece := connection.recv(65536)):
        body += piece
    connection.sendall(_HEAD)
    for start in range(0, len(body), _PIECE):
        piece = body[start : start + _PIECE]
        connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        time.sleep(_PAUSE)
    connection.sendall(b"0\r\n\r\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
