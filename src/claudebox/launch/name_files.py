"""Names as on the host while a session runs: /etc/resolv.conf and /etc/hosts inside follow those outside (tier `full`).

Who brings a VPN up puts a new file where the old one was, and no mount shows that. So the launcher watches their
directories, and replaces the file in the root of the sandbox, which is read-only for everybody in it: a child of ours
enters the sandbox's mounts, takes a copy of them for itself, makes the root writable in the copy alone, and ends. A
launch prepares nothing for it.
"""

from __future__ import annotations

import fcntl
import os
import time

from claudebox import syscalls
from claudebox.files import real_path, write_all
from claudebox.launch.inotify import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_EVERY, _NEVER = 2.0, 3600.0  # seconds between two looks: where nothing can be watched, and elsewhere
_NS_GET_USERNS = 0xB701
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_NOSUID, _NODEV, _REMOUNT, _BIND = 0x2, 0x4, 0x20, 0x1000
_NEW = ".claudebox"


class NameFiles:
    """The files of names of one sandbox; `descriptor` is readable when one of them may have changed."""

    def __init__(self, init: int, read: Callable[[], Mapping[str, bytes]], shown: Mapping[str, bytes]) -> None:
        """Take the first process inside, what reads the files as they should be by now, and what they are."""
        self._init, self._read, self._shown = init, read, shown
        self._first = time.monotonic() + _EVERY  # a launch does not wait for it
        self._watcher = Watcher()
        self.descriptor = self._watcher.descriptor
        self._seen: tuple[object, ...] = ()

    def look(self) -> float:
        """Replace what has changed outside; return in how many seconds to look again at the latest."""
        left = self._first - time.monotonic()
        if left > 0:
            return left
        for _ in self._watcher.events():
            continue
        watched = False not in [self._watch(path) for path in self._shown]  # links may lead elsewhere by now
        seen = tuple(map(_signature, self._shown))
        if seen != self._seen:
            wanted = self._read()
            changed = {path: content for path, content in wanted.items() if content != self._shown[path]}
            self._seen = seen  # where it is not possible, it is not tried again until the next change
            if not changed or _replace(self._init, changed):
                self._shown = wanted
        return _NEVER if watched else _EVERY

    def _watch(self, path: str) -> bool:
        real = real_path(path)
        self._watcher.watch_file(real)
        return False not in [self._watcher.watch(os.path.dirname(place)) for place in (path, real)]


def _signature(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _replace(init: int, files: Mapping[str, bytes]) -> bool:
    """Write files of the sandbox's root anew, each at once; return whether that was possible."""
    child = os.fork()
    if child == 0:
        try:
            _enter(init)
            for path, content in files.items():
                _write(path, content)
            os._exit(0)
        finally:  # nothing may return from here
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _enter(init: int) -> None:
    """Enter a copy of the mounts inside, by the user namespace that owns them, with a root that can be written."""
    mounts = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
    if os.fstat(mounts).st_ino == os.stat("/proc/self/ns/mnt").st_ino:
        raise OSError("the sandbox has no mounts of its own")
    if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:  # root may do without
        _must("setns", owner, _NEW_USER)
    _must("setns", mounts, _NEW_MOUNTS)
    _must("unshare", _NEW_MOUNTS)
    _must("mount", None, b"/\0", None, _REMOUNT | _BIND | _NOSUID | _NODEV, None)


def _must(function: str, *args: int | bytes | None) -> None:
    if syscalls.call(function, *args) != 0:
        raise OSError(function)


def _write(path: str, content: bytes) -> None:
    if os.path.lexists(path + _NEW):  # of one that was killed
        os.unlink(path + _NEW)
    descriptor = os.open(path + _NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    os.fchmod(descriptor, 0o644)
    write_all(descriptor, content)
    os.close(descriptor)
    os.rename(path + _NEW, path)
