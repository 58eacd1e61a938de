"""The one exception that a user sees: what happened, what to do, and the exit status."""

from __future__ import annotations

FAILED = 125  # claudebox refused, or could not set up the sandbox
NOT_EXECUTABLE = 126  # the client was found but cannot run
NOT_FOUND = 127  # there is no client
DECLINED = 130  # the user said no


class ClaudeboxError(Exception):
    """A failure with its remedy; `cli` prints it and leaves with `status`."""

    def __init__(self, message: str, *, hint: str = "", status: int = FAILED, more: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.more = more  # other failures that were found on the way
        self.hint = hint
        self.status = status
