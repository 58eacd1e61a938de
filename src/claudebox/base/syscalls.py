"""System calls that Python does not wrap, or wraps at a price.

`socket`, `signal` and `ctypes` cost a launch 14 ms together; the C modules beneath them cost nothing. This is
the only file that touches those modules, so that the rest of claudebox reads as if it used the ordinary ones.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    import _ctypes
    import signal
    import socket
    from collections.abc import Callable
    from hashlib import sha1 as new_sha1
    from hashlib import sha256 as _sha256
else:
    import _ctypes
    import _signal as signal
    import _socket as socket
    from _sha1 import sha1 as new_sha1

    try:
        from _sha2 import sha256 as _sha256
    except ImportError:  # before Python 3.12
        from _sha256 import sha256 as _sha256

__all__ = [
    "birth_time", "call", "landlock_abi", "memory_file", "new_sha1", "new_sha256", "parse_json", "render_json",
    "sha256", "signal", "socket",
]  # fmt: skip

_LANDLOCK_CREATE_RULESET = 444  # the same on every architecture
_LANDLOCK_VERSION = 1
_MFD_EXEC = 0x10  # since Linux 6.3
LANDLOCK_ABI_WITH_SCOPES = 6
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_STATX_BTIME, _STATX_SIZE = 0x800, 256


def call(function: str, *args: int | bytes | None) -> int:
    """Call a C function of the running program; -1 is a failure."""
    program = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]  # None is the program itself
    address = _ctypes.dlsym(program, function)
    result: int = _ctypes.call_function(address, args)
    return result


def landlock_abi() -> int:
    """Return the version of Landlock in this kernel, 0 where there is none."""
    return max(0, call("syscall", _LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION))


def birth_time(path: str) -> float:
    """Return when a file was made, in seconds since 1970; 0 if its file system does not know."""
    status = bytes(_STATX_SIZE)  # of nobody else, so the kernel may write into it
    try:
        failed = call("statx", _AT_FDCWD, os.fsencode(path) + b"\0", _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, status)
    except OSError:  # the C library has no such function
        return 0.0
    if failed or not int.from_bytes(status[:4], sys.byteorder) & _STATX_BTIME:
        return 0.0
    seconds, fraction = (int.from_bytes(status[at : at + size], sys.byteorder) for at, size in ((80, 8), (88, 4)))
    return seconds + fraction / 1e9


new_sha256 = _sha256


def sha256(content: bytes) -> str:
    """Return the digest in hexadecimal."""
    return _sha256(content).hexdigest()


class _Json:
    """The options of a `json.JSONDecoder` that its C scanner reads."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def parse_json(content: bytes | str) -> object:
    """Parse a document, None if it is not valid; `json` costs a launch 10 ms, the scanner beneath it nothing."""
    scan: Callable[[str, int], tuple[object, int]]
    try:
        import _json

        scan = _json.make_scanner(_Json)  # type: ignore[arg-type]  # it only reads it
    except (ImportError, AttributeError, TypeError):  # a Python with another scanner
        import json

        scan = json.JSONDecoder().raw_decode
    try:
        text = (content.decode() if isinstance(content, bytes) else content).strip(" \t\r\n")
        document, end = scan(text, 0)
    except (ValueError, StopIteration, RecursionError, SystemError):
        return None
    return document if end == len(text) else None


def render_json(document: object) -> str:
    """Return a document as JSON in ASCII, by the encoder beneath `json`."""
    try:
        import _json

        # No check for circles, `repr` for other types, no indent, the separators, not sorted, no key left out.
        options = (None, repr, _json.encode_basestring_ascii, None, ": ", ", ", False, False, True)
        return "".join(_json.make_encoder(*options)(document, 0))
    except (ImportError, AttributeError, TypeError):  # a Python with another encoder
        import json

        return json.dumps(document)


def memory_file(content: bytes, *, executable: bool = False) -> int:
    """Return a descriptor on a nameless file with this content, at its start."""
    try:
        descriptor = os.memfd_create("claudebox", os.MFD_CLOEXEC | (_MFD_EXEC if executable else 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.memfd_create("claudebox", os.MFD_CLOEXEC)  # an older kernel runs any of them
    view = memoryview(content)
    while view:
        view = view[os.pwrite(descriptor, view, len(content) - len(view)) :]
    return descriptor
