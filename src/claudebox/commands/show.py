"""`claudebox show FILE...`: copy files to a directory that every session can read."""

from __future__ import annotations

import errno
import os
import shutil
import stat

from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, open_beneath
from claudebox.host.machine import current_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.settings.layers import Settings


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Copy the files, and print the path of each inside."""
    words = flags.words
    for word in words:
        os.close(_open(word))  # refuse before anything is made
    home = current_home(environ)
    place = f"{home}/.claudebox/drop"
    is_new = not os.path.lexists(place)
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY) if os.path.islink(place) else -1
    if directory < 0:
        directory = base_state.open_state(f"{home}/.claudebox", "drop")
    with Closing(directory):
        for word in words:
            name = _copy(word, directory)
            console.write([console.clean(f"{place}/{name}")], descriptor=1)
    unseen = "; sessions that run already do not see the directory" if is_new else ""
    console.note(f"press Ctrl+V in the client for the newest picture, or give it the path{unseen}")
    return 0


def _copy(path: str, directory: int) -> str:
    """Copy one file atomically."""
    name = os.path.basename(path.rstrip("/"))
    try:
        source = _open(path)
        with os.fdopen(source, "rb") as content:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise ClaudeboxError(f"`{path}` is not a file")
            new = f".{name}.{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(new, flags, 0o600, dir_fd=directory), "wb") as copy:
                shutil.copyfileobj(content, copy)
            os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        raise ClaudeboxError(f"`{path}`: {error.strerror}") from None
    return name


def _open(path: str) -> int:
    """Open a path through no link: an agent could make one and ask the user to show it."""
    parent, name = os.path.split(os.path.abspath(path))
    try:
        with Closing(os.open("/", os.O_PATH | os.O_CLOEXEC)) as top:
            directory = open_beneath(top, parent.strip("/"))
        with Closing(directory):
            return os.open(name or ".", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.realpath(path) != os.path.abspath(path):
            raise _leads_elsewhere(path) from None
        raise ClaudeboxError(f"`{path}`: {error.strerror}") from None


def _leads_elsewhere(path: str) -> ClaudeboxError:
    real = console.clean(os.path.realpath(path))
    return ClaudeboxError(f"`{path}` leads to `{real}` through a link", hint=f"name `{real}` if you mean that")
