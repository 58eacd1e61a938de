"""Links that lead out of the project, as the kernel follows them."""

from __future__ import annotations

import os
import sys

from claudebox import syscalls
from claudebox.files import Closing
from claudebox.report import tree

_OPENAT2 = 437
# struct open_how: flags, mode, resolve. A link that leaves the tree on its way is not followed.
_BENEATH = b"".join(part.to_bytes(8, sys.byteorder) for part in (os.O_PATH | os.O_CLOEXEC, 0, 0x08 | 0x02))
_UNKNOWN = "a place that cannot be read ({})"


def find_target(workdir: str, path: str) -> str:
    """Return where a link below the project leads if that is not within it."""
    try:
        target = os.readlink(f"{workdir}/{path}")
    except OSError as error:
        return _UNKNOWN.format(error.strerror)
    within = target.startswith(f"{workdir}/")
    start = target[len(workdir) + 1 :] if within else path
    try:
        top = os.open(workdir or "/", tree.DIRECTORY)
    except OSError as error:
        return _UNKNOWN.format(error.strerror)
    with Closing(top):
        encoded = os.fsencode(start) + b"\0"
        descriptor = syscalls.call("syscall", _OPENAT2, top, encoded, _BENEATH, len(_BENEATH))
        if descriptor >= 0:
            os.close(descriptor)
            return ""
    return target
