"""The list of sessions, from our own records and the processes of this machine; tmux adds last line and title."""

from __future__ import annotations

import time


def _ago(moment: float) -> str:
    seconds = max(0, int(time.time() - moment))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
