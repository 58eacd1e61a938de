"""Who is running: tests must leave nobody behind, and so must claudebox."""

from __future__ import annotations

import os
from pathlib import Path


def named(*names: str) -> dict[int, str]:
    """Return the processes whose program or command line contains one of these names; zombies do not count."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if line and any(name in line for name in names):
                found[int(entry)] = line
    return found


def descendants(process: int) -> dict[int, str]:
    """Return every process below one, with its command line."""
    found: dict[int, str] = {}
    waiting = [process]
    while waiting:
        parent = waiting.pop()
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            try:
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            waiting.append(child)
    return found


def alive(process: int) -> bool:
    """Return whether a process still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
