"""System calls that Python does not wrap, or wraps at a price.

`socket`, `signal` and `ctypes` cost a launch 14 ms together; the C modules beneath them cost nothing. This is
the only file that touches those modules, so that the rest of claudebox reads as if it used the ordinary ones.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _ctypes
    import signal
    import socket
    from hashlib import sha256 as _sha256
else:
    import _ctypes
    import _signal as signal
    import _socket as socket

    try:
        from _sha2 import sha256 as _sha256
    except ImportError:  # before Python 3.12
        from _sha256 import sha256 as _sha256

__all__ = [
    "call", "join_new_keyring", "landlock_abi", "memory_file", "parse_json", "quote_json", "restrict_scope", "sha256",
    "signal", "socket",
]  # fmt: skip

# The same on every architecture since Linux 5.0.
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_RESTRICT_SELF = 446
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_VERSION = 1
# struct landlock_ruleset_attr: handled_access_fs, handled_access_net, scoped. Only scoped is used, because a
# domain that handles file access may not mount any more, and bwrap must.
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = bytes(16) + (1 | 2).to_bytes(8, sys.byteorder)
LANDLOCK_ABI_WITH_SCOPES = 6


def call(function: str, *args: int | bytes | None) -> int:
    """Call a C function of the running program; -1 is a failure."""
    program = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]  # None is the program itself
    address = _ctypes.dlsym(program, function)
    result: int = _ctypes.call_function(address, args)
    return result


def landlock_abi() -> int:
    """Return the version of Landlock in this kernel, 0 where there is none."""
    return max(0, call("syscall", _LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION))


def restrict_scope() -> bool:
    """Cut this process and its children off from abstract sockets and signals of everybody else (F15)."""
    attributes = _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS
    ruleset = call("syscall", _LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    restricted = (
        call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        and call("syscall", _LANDLOCK_RESTRICT_SELF, ruleset, 0) == 0
    )
    os.close(ruleset)
    return restricted


def join_new_keyring() -> None:
    """Leave the session keyring of the login; seccomp denies the rest (A08), this is the second lock."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        call("syscall", number, _JOIN_SESSION_KEYRING, None)


def sha256(content: bytes) -> str:
    """Return the digest in hexadecimal."""
    return _sha256(content).hexdigest()


class _Json:
    """How the scanner beneath `json` is told what to make of values."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def parse_json(content: bytes) -> object:
    """Return the value of a document, None if it has none; `json` itself costs a launch 10 ms."""
    import _json  # noqa: PLC0415 - for those who have a login

    try:
        value: object = _json.make_scanner(_Json)(content.decode(), 0)[0]  # type: ignore[arg-type]  # it only reads it
    except (ValueError, StopIteration, RecursionError, SystemError):
        return None
    return value


def quote_json(text: str) -> str:
    """Return a text as it stands in a document."""
    import _json  # noqa: PLC0415 - for those who have a repository

    return _json.encode_basestring_ascii(text)


def memory_file(content: bytes) -> int:
    """Return a descriptor on a nameless file with this content, at its start."""
    descriptor = os.memfd_create("claudebox", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
