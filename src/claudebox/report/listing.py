"""What is known about a project from before: its top when a session began, the rest from the end of the last one.

Nothing walks the project before the payload runs. What the end of a session sees is kept beside the project's state,
so that the next one can say what was deleted and what moved. Whoever has a better picture of the start, such as a
snapshot, gives it in the same form: directory -> its inode and the names in it.
"""

from __future__ import annotations

import marshal
import os
import time

from claudebox import syscalls
from claudebox.files import Closing, read_at, replace_file
from claudebox.report import tree
from claudebox.report.sweep import coded
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.report.sweep import Listing

_FORMAT = 1
_LARGEST = 64 << 20
_MOST_NAMES = 500_000  # beyond, only directories are remembered
_MOST_AT_START = 1000  # names at the top that are looked at before the payload runs
_GRAIN = 2.0  # seconds: the coarsest clock of a file system
_STEP = 0.005  # less than this is no change of the clock


class Beginning(Value):
    """A project when a session began."""

    since: float  # the time of its file system
    clock: float
    uptime: float
    top: Listing
    kept: int  # descriptor of the listing that the last session left, -1 if there is none


def begin(workdir: str, directory: str) -> Beginning:
    """Note how a project looks before the payload runs; `directory` is that of its state."""
    return recall(workdir, directory, _moment(workdir), time.time(), _uptime(), _top(workdir))


def recall(workdir: str, directory: str, since: float, clock: float, uptime: float, top: Listing) -> Beginning:
    """Return what a session noted that was killed."""
    try:
        kept = os.open(f"{directory}/{_name(workdir)}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        kept = -1
    return Beginning(since, clock, uptime, top, kept)


def _name(workdir: str) -> str:
    return f"listing-{syscalls.sha256(os.fsencode(workdir))[:16]}"


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _moment(workdir: str) -> float:
    """Return the time now as the file system of the project tells it: a server's clock may differ from ours."""
    try:
        descriptor = os.open(workdir, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        return _named_moment(workdir)
    with Closing(descriptor):
        return os.fstat(descriptor).st_ctime


def _named_moment(workdir: str) -> float:
    """Do the same where a file needs a name."""
    name = f"{workdir}/.claudebox-{os.urandom(8).hex()}"
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError:
        return time.time() - _GRAIN
    try:
        return os.lstat(name).st_ctime
    finally:
        os.unlink(name)


def _top(workdir: str) -> Listing:
    """Return the names at the top and the inodes of directories and repositories there; none if they are too many."""
    top: Listing = {}
    names: list[str] = []
    try:
        with os.scandir(workdir) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                names.append(coded(entry.name, status.st_mode))
                if status.st_mode & tree.KIND == tree.IS_DIRECTORY:
                    top[entry.name] = (status.st_ino, None)
                    _add_repository(top, workdir, entry.name)
                if len(names) > _MOST_AT_START:
                    return {"": (os.lstat(workdir).st_ino, None)}
        top[""] = (os.lstat(workdir).st_ino, tuple(names))
    except OSError:
        return {}
    return top


def _add_repository(top: Listing, workdir: str, name: str) -> None:
    """Add the git directory of a directory at the top: one that moves into its place is not taken for the user's."""
    try:
        status = os.lstat(f"{workdir}/{name}/.git")
    except OSError:
        return
    if status.st_mode & tree.KIND == tree.IS_DIRECTORY:
        top[f"{name}/.git"] = (status.st_ino, None)


def known(beginning: Beginning) -> Listing:
    """Return everything that is known from before."""
    listing = _kept(beginning.kept)
    for path, (inode, names) in beginning.top.items():
        old = listing.get(path)
        same = old is not None and old[0] == inode and names is None
        listing[path] = (inode, old[1] if same and old is not None else names)
    return listing


def _kept(descriptor: int) -> Listing:
    if descriptor < 0:
        return {}
    try:
        with open(descriptor, "rb", closefd=True) as file:
            number, listing = marshal.loads(file.read(_LARGEST))  # noqa: S302 - our own file
    except (ValueError, EOFError, TypeError, OSError):
        return {}
    return listing if number == _FORMAT else {}


def keep(workdir: str, directory: int, listing: Listing) -> None:
    """Keep what the end of this session has seen; a sandbox never sees the file."""
    count = 0
    rows: Listing = {}
    for path, (inode, names) in listing.items():
        count += 1 + len(names or ())
        rows[path] = (inode, names if count < _MOST_NAMES else None)
    content = marshal.dumps((_FORMAT, rows))
    if read_at(directory, _name(workdir), limit=len(content)) != content:
        replace_file(directory, _name(workdir), content)


def since(beginning: Beginning) -> tuple[float, float]:
    """Return from when on something counts, and by how many seconds the clock was set back meanwhile."""
    back = (_uptime() - beginning.uptime) - (time.time() - beginning.clock)
    return (beginning.since - back, back) if back > _STEP else (beginning.since, 0.0)
