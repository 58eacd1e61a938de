"""Pasting a picture: Ctrl+V in the real client shows to the model what the user has dropped."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from itertools import starmap

from tests.support.client import conversation, equip, flags, variables


def png(size: int) -> bytes:
    """Return a picture of so many grey pixels on each side."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = (b"\0" + bytes((row * 7 + column) % 256 for column in range(size)) for row in range(size))
    parts = ((b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(b"".join(rows))),
             (b"IEND", b""))  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(starmap(chunk, parts))


def test_ctrl_v_shows_the_newest_picture_that_was_dropped(user_box, model, real_client, terminal):
    # proves TOOL-10
    equip(user_box, real_client)
    picture = png(40)
    seen = base64.b64encode(picture).decode()[40:90]
    served = model(conversation("look", {"say": "I see it"}), canaries={"picture": seen})
    env = variables(served)
    user_box.mkdir(f"{user_box.home}/.claudebox/drop")
    os.chmod(f"{user_box.home}/.claudebox", 0o700)
    os.chmod(f"{user_box.home}/.claudebox/drop", 0o700)
    screen = terminal(user_box, env)

    screen.shell(user_box.program, "-y", "--quiet", *flags(env))
    screen.expect("bypass permissions on")
    screen.key("C-v")
    screen.expect("No image found in clipboard")
    path = user_box.write(f"{user_box.home}/shot one.png", picture)
    assert "Ctrl+V" in user_box.claudebox("show", path).stderr
    screen.key("C-v")
    screen.expect("[Image #1]")
    screen.type(" look at it")
    screen.expect("I see it")
    screen.type("/exit")

    assert screen.status() == 0
    assert served.leaks == ["picture"]
