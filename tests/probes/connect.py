"""Connect to a Unix socket and print what it says, or the name of the error; `@NAME` is an abstract one."""

from __future__ import annotations

import errno
import socket
import sys

name = sys.argv[1]
with socket.socket(socket.AF_UNIX) as client:
    client.settimeout(10)
    try:
        client.connect("\0" + name[1:] if name.startswith("@") else name)
        print(client.recv(100).decode())  # noqa: T201
    except OSError as error:
        print(errno.errorcode.get(error.errno or 0, error))  # noqa: T201
