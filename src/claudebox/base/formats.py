"""Numbers as people read them."""

from __future__ import annotations

import time


def describe_age(moment: float) -> str:
    seconds = max(0, int(time.time() - moment))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
