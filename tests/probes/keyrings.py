"""Put keys into the kernel's keyrings, or try every way to read them from somewhere else.

`keyrings.py put PREFIX PROGRAM...` joins a new session keyring, adds a key to it and one to the user's keyring, and
becomes the program. `keyrings.py get PREFIX` prints the content of every key that it could reach.
"""

from __future__ import annotations

import ctypes
import os
import sys

ADD_KEY, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
SESSION, USER, USER_SESSION, PROCESS = -3, -4, -5, -2
JOIN, LINK, UNLINK, SEARCH, READ = 1, 8, 9, 10, 11

library = ctypes.CDLL(None, use_errno=True)


def call(number: int, *words: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call; -1 is a failure."""
    converted = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    return int(library.syscall(ctypes.c_long(number), *converted))


def put(prefix: bytes, program: list[str]) -> None:
    """Add the keys and go on as the program, which inherits the session keyring."""
    if call(KEYCTL, JOIN, prefix + b"-ring") < 0:
        sys.exit(f"no session keyring: {os.strerror(ctypes.get_errno())}")
    for ring, name in ((SESSION, b"-session"), (USER, b"-user")):
        value = prefix + name + b"-secret"
        key = call(ADD_KEY, b"user", prefix + name, value, len(value), ring)
        if key < 0:
            sys.exit(f"no key: {os.strerror(ctypes.get_errno())}")
    os.execv(program[0], program)


def take(prefix: bytes, ring: int) -> list[str]:
    """Return what can be read out of one keyring."""
    found = []
    for name in (b"-session", b"-user"):
        key = call(KEYCTL, SEARCH, ring, b"user", prefix + name, 0)
        if key > 0:
            buffer = ctypes.create_string_buffer(128)
            length = call(KEYCTL, READ, key, buffer, len(buffer))
            found.append(buffer.raw[: max(0, length)].decode())
    return found


def get(prefix: bytes) -> list[str]:
    """Search the rings that a process has, then every ring that /proc/keys names, by linking it to our own."""
    found = [secret for ring in (SESSION, USER, USER_SESSION) for secret in take(prefix, ring)]
    try:
        with open("/proc/keys", encoding="utf-8") as table:
            rings = [int(line.split()[0], 16) for line in table if " keyring " in line]
    except OSError:
        rings = []
    for ring in rings:
        if call(KEYCTL, LINK, ring, PROCESS) == 0:
            found += take(prefix, PROCESS)
            call(KEYCTL, UNLINK, ring, PROCESS)
    return found


def clear(prefix: bytes) -> None:
    """Remove the key from the user's keyring, which outlives every process."""
    key = call(KEYCTL, SEARCH, USER, b"user", prefix + b"-user", 0)
    if key > 0:
        call(KEYCTL, UNLINK, key, USER)


def main() -> None:
    """Do what the first word says."""
    verb, prefix = sys.argv[1], sys.argv[2].encode()
    if verb == "put":
        put(prefix, sys.argv[3:])
    elif verb == "clear":
        clear(prefix)
    else:
        for secret in sorted(set(get(prefix))):
            print("read", secret)  # noqa: T201
        print("done")  # noqa: T201


main()
