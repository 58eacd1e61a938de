"""The one exception that users see: what happened, what to do, and the exit status."""

from __future__ import annotations

import os

FAILED = 125  # claudebox refused, or could not set up the sandbox
NOT_EXECUTABLE = 126  # the client was found but cannot run
NOT_FOUND = 127  # there is no client
DECLINED = 130  # the user said no


class ClaudeboxError(Exception):
    """A failure with its remedy; `cli` prints it and exits with `status`."""

    def __init__(self, message: str, *, hint: str = "", status: int = FAILED, more: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.more = more  # other failures found on the way
        self.hint = hint
        self.status = status


# errno: what is wrong, in clearer words than the kernel's, and what to do.
_KNOWN = {
    11: ("another process cannot be started", "raise the limit on processes (`ulimit -u unlimited`), or end some"),
    12: ("not enough memory", "raise the limit (`ulimit -v unlimited`), or free some"),
    23: ("this machine has too many open files", "close some programs, or raise the sysctl fs.file-max"),
    24: ("the limit on open files is too low", "raise it: `ulimit -n 4096`"),
    27: ("the limit on the size of files is too low", "raise it: `ulimit -f unlimited`"),
    28: ("the disk is full", "free disk space"),
    122: ("your disk quota is used up", "free disk space"),
}


def describe_failure(error: OSError | MemoryError) -> ClaudeboxError:
    """Return the error for a failed system call, with a hint where one is known."""
    if isinstance(error, MemoryError):
        return ClaudeboxError(_KNOWN[12][0], hint=_KNOWN[12][1])
    what, hint = _KNOWN.get(error.errno or 0, ("", ""))
    said = error.strerror or str(error)
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""  # it may be a descriptor
    where = f" `{name}`" if name and not name.startswith("/proc/self/fd/") else ""
    return ClaudeboxError(f"{what}: {said}{where}" if what else f"{said}{where}", hint=hint)
