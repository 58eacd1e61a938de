"""A path across the world for the network benchmark: two devices, and between them 25 ms at 100 Mbit/s."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

RATE, DELAY, QUEUE = 100e6, 0.025, 0.2  # bits per second, seconds one way, seconds of buffer
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
_CLONE_NEWNET = 0x40000000
_MTU = 1500


def tunnel(namespace: str) -> int:
    """Make a device `wan0` in a network namespace, and return what carries its packets."""
    library = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if library.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", b"wan0", _IFF_TUN | _IFF_NO_PI))
    return descriptor


def main(one: str, other: str) -> None:
    """Carry packets between two namespaces."""
    ends = [tunnel(one), tunnel(other)]
    waiting: list[deque[tuple[float, bytes]]] = [deque(), deque()]
    free = [0.0, 0.0]
    print("ready", flush=True)
    while True:
        due = min((line[0][0] for line in waiting if line), default=None)
        timeout = None if due is None else max(0.0, due - time.monotonic())
        for descriptor in select.select(ends, [], [], timeout)[0]:
            side = ends.index(descriptor)
            for _ in range(64):
                try:
                    packet = os.read(descriptor, _MTU + 100)
                except BlockingIOError:
                    break
                now = time.monotonic()
                free[side] = max(now, free[side])
                if free[side] - now < QUEUE:
                    free[side] += len(packet) * 8 / RATE
                    waiting[side].append((free[side] + DELAY, packet))
        now = time.monotonic()
        for side, line in enumerate(waiting):
            while line and line[0][0] <= now:
                os.write(ends[1 - side], line.popleft()[1])


main(*sys.argv[1:])
