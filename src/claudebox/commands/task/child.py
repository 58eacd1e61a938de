"""A session of claudebox as a child of the task: begun without a terminal, waited for, and ended in time."""

from __future__ import annotations

import os
import select
import signal
from typing import NoReturn

from claudebox import console, session, syscalls
from claudebox.commands.task.model import FAILED, OVER_TIME
from claudebox.config.settings import parse_arguments
from claudebox.errors import ClaudeboxError, describe_failure
from claudebox.files import Closing

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_GRACE = 30.0  # seconds between the polite end of a session and the forced one
_PR_SET_PDEATHSIG = 1


class Cancelled(BaseException):
    """Somebody wants the task to end."""


def play(
    words: list[str], work: str, environ: dict[str, str], state: str, *, limit: float, files: tuple[str, str, str]
) -> int:
    """Run a session and wait for its end; return its status, or that it took too long.

    `files` are its standard input, which may be nothing, its output and its messages.
    """
    process = os.fork()
    if not process:
        _become_session(words, work, environ, state, files)
    with Closing(os.pidfd_open(process)) as ending:
        try:
            if _ended(ending, limit):
                return _status(process)
            _end(process, ending)
            return OVER_TIME
        except Cancelled:
            _end(process, ending)
            raise


def _become_session(
    words: list[str], work: str, environ: dict[str, str], state: str, files: tuple[str, str, str]
) -> NoReturn:
    """In the child: be a session of claudebox without a terminal, and end with whoever waits for it."""
    status = FAILED
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.setsid()
        syscalls.call("prctl", _PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        os.dup2(os.open(files[0] or "/dev/null", os.O_RDONLY), 0)
        for descriptor, path in ((1, files[1]), (2, files[2])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
        os.chdir(work)
        status = session.run(parse_arguments(words), environ, state=state)
    except ClaudeboxError as error:
        console.report(error)
        status = error.status
    except OSError as error:
        console.report(describe_failure(error))
        status = 125
    except BaseException as error:  # noqa: BLE001 - nothing may return from here
        console.warn(f"the session ended with {type(error).__name__}")
        status = 125
    finally:
        os._exit(status)


def _ended(descriptor: int, limit: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(limit * 1000))


def _end(process: int, descriptor: int) -> None:
    """End a session politely, then by force."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    os.kill(process, signal.SIGTERM)
    if not _ended(descriptor, _GRACE):
        os.kill(process, signal.SIGKILL)
    _status(process)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _status(process: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if code >= 0 else 128 - code
