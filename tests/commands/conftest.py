"""What the tests of the command line share: a stand-in for the client, and a look at whole trees of files."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Box

# It runs inside, prints its arguments one per line and repeats its input; a real client is started elsewhere.
CLIENT = b'#!/bin/sh\nprintf "<%s>\\n" "$@"\n[ -t 0 ] || cat\nexit 42\n'


@pytest.fixture
def client_box(user_box: Box) -> Box:
    """Return a box with a stand-in for the client on the PATH of its person."""
    path = user_box.write(f"{user_box.base}/bin/claude", CLIENT, mode=0o755)
    user_box.environ["PATH"] = f"{os.path.dirname(path)}:/usr/local/bin:/usr/bin:/bin"
    return user_box


def tree(*tops: str) -> dict[str, tuple[object, ...]]:
    """Return everything beneath some directories, with what would tell that it was changed."""
    found: dict[str, tuple[object, ...]] = {}
    for top in tops:
        for directory, names, files in os.walk(top):
            for name in (".", *names, *files):
                path = os.path.normpath(os.path.join(directory, name))
                status = os.lstat(path)
                link = os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""
                found[path] = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, link)
    return found
