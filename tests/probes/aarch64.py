"""Runs under the Python of an emulated aarch64: make every system call of the table there, and build the filter.

Before each call its name is written to standard error, where the emulator then says what it took the number for. The
filter comes last, on standard output. Arguments: where claudebox lies.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, sys.argv[1])
from claudebox.base import syscalls
from claudebox.plan import seccomp

# Newer emulators show a text of these from an address of their own, and crash on any but 0.
SHOWN_RAW = ("fsopen", "fspick", "mount_setattr", "move_mount", "open_tree")
for name, (_, number) in sorted(seccomp.SYSCALLS.items()):
    if number is not None:
        os.write(2, f"\n@{name}\n".encode())
        syscalls.call("syscall", number, *[0 if name in SHOWN_RAW else -1] * 6)
os.write(2, b"\n@\n")
machine = os.uname().machine
os.write(1, f"{machine} {(seccomp.build(machine) or b'').hex()} {syscalls.landlock_abi() >= 0}".encode())
