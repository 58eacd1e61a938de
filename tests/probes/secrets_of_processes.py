"""Look for a word in everything that the kernel tells about every process: print each place where it stands.

The word itself is given in two halves, so that this program's own command line does not contain it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys

WORD = "".join(sys.argv[1:3]).encode()
SPREAD = 1 << 24  # bytes read at once, and the most that is read of one mapping


def places() -> list[str]:
    """Return the files to read: of each process its variables and its command line."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        found += [f"/proc/{process}/{name}" for name in ("environ", "cmdline", "comm", "auxv")]
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                found.append(f"/proc/{process}/task/{thread}/environ")
    return found


def memory(process: str) -> bytes:
    """Return the writable memory of a process."""
    content = b""
    with open(f"/proc/{process}/maps", encoding="utf-8") as maps, open(f"/proc/{process}/mem", "rb") as mem:
        for start, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps.read(), re.MULTILINE):
            with contextlib.suppress(OSError):
                mem.seek(int(start, 16))
                content += mem.read(min(SPREAD, int(end, 16) - int(start, 16)))
    return content


def main() -> None:
    """Print what was found, and how much was looked at: a probe that saw nothing proves nothing."""
    looked = 0
    for place in places():
        try:
            with open(place, "rb") as file:
                content = file.read()
        except OSError:
            continue
        looked += 1
        if WORD in content:
            print("found", place)  # noqa: T201
    print("looked", looked)  # noqa: T201
    try:
        content = memory("1")
    except OSError as error:
        print("memory of 1", error.strerror)  # noqa: T201
        return
    print("memory", len(content))  # noqa: T201
    if WORD in content:
        print("found memory of 1")  # noqa: T201


main()
