"""Sockets of the host that lie in what the sandbox shows: whoever answers one is outside, and would obey (C19, C33).

Network namespaces do not cover sockets that have a path. The kernel lists those that are bound, with device and inode,
because their names say little: they may be relative, renamed or moved since. Where such a socket is not found under its
name and lies on a device of the project, the project is walked, once for each such socket: most of them have been
deleted, and nobody inside can bring one into the project. Sockets of other network namespaces (containers) are not
listed; of those, the ones at the top of the project are found.
"""

from __future__ import annotations

import os
import stat
from sys import byteorder

from claudebox.base import netlink, syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, mode_of, read_small
from claudebox.base.records import Value
from claudebox.host.machine import MountRow, mount_of
from claudebox.host.records import SocketSearch, ancestors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.base.state import Instance


REMEMBERED = "sockets-elsewhere"  # in the state of the project
_LIMIT = 1 << 20

_MOST_ENTRIES, _MOST_SECONDS = 2_000_000, 20.0  # of a walk that must see everything
_FEWER_ENTRIES, _FEWER_SECONDS = 200_000, 1.0  # of one that may say that it did not
_MOST_UNKNOWN = 256  # sockets that nobody seems to hold, and that are masked all the same
_MOST_BOUND = 1500  # bwrap takes no more options
_BY_FAMILY = 20
_DATAGRAM, _CONNECTED = 2, 1
_AF_UNIX, _SHOW_NAME_AND_PLACE, _NAME, _PLACE = 1, 3, 0, 1


class BoundSocket(Value):
    """A socket that has a path, as the kernel knows it."""

    device: int
    inode: int  # the lower 32 bits
    name: str
    cookie: str  # no other socket has the same, until the machine is started again


def find_sockets(
    workdir: str,
    sources: Iterable[str],
    mounts: tuple[MountRow, ...],
    *,
    strict: bool,
    instance: Instance,
    home: str,
) -> SocketSearch:
    """Return the sockets in the project and in the sources; a `strict` search that cannot be completed is refused.

    In what is shown besides, which no agent can fill, only the places of their names are looked at.
    """
    roots = [workdir, *sources]
    shown = [path for path in ("/usr", "/opt", f"{home}/.claudebox/drop") if os.path.isdir(path)]
    tops = {root.rstrip("/") or "/" for root in roots}
    below = [row.place for row in mounts if _lies_in(row.place, tops)]
    searched = syscalls.sha256(os.fsencode("\0".join((*roots, *below))))[:16]
    known = set(os.fsdecode(read_small(f"{instance.directory}/{REMEMBERED}", limit=_LIMIT) or b"").split("\n"))
    elsewhere: list[str] = []
    bound = _bound()
    found = {place for place in below if stat.S_ISSOCK(mode_of(place))}  # listings show what such a mount covers
    unknown = set(_in_top(workdir))  # of another network namespace, or of nobody
    strays: set[str] = set()  # the same, deeper
    note = ""
    if bound is None or bound:
        table = _Mounts(mounts)
        devices = table.devices(roots)
        rows = [row for row in bound or () if not devices or row.device in devices]
        places = {row: _locate(row, table) for row in rows}
        lost = [row for row, place in places.items() if not place]
        if any(not row.name.startswith("/") for row in lost):
            places |= _locate_relative(lost, table)
        others = table.devices(shown) - devices
        places |= {row: _locate(row, table) for row in bound or () if devices and row.device in others}
        found |= {path for row, place in places.items() if place for path in table.see(row, place)}
        missing = {row: f"{row.device}:{row.inode}:{row.cookie}:{searched}" for row in lost if not places[row]}
        elsewhere = [key for key in missing.values() if key in known]
        if len(elsewhere) < len(missing) or bound is None:
            inodes = {row.inode for row in missing}
            note = _walk(roots, inodes, found, strays, strict=strict)
            elsewhere = [key for row, key in missing.items() if row.inode in inodes] if not note else []
    tops.update(shown)
    found = {path for path in found if _lies_in(path, tops)}
    unknown -= found
    strays -= found
    if bound is None:
        unknown |= strays
    elif len(unknown | strays) <= _MOST_UNKNOWN:  # dead, or of a container: without a walk they were not seen either
        found |= strays
    if len(unknown) > _MOST_UNKNOWN:
        note = _too_many(workdir, len(unknown), strict=strict)
    else:
        found |= unknown
    if len(found) > _MOST_BOUND:
        raise ClaudeboxError(
            f"{len(found)} sockets of the host lie in the project, and no more than {_MOST_BOUND} can be masked",
            hint=f"end what holds them; the first is `{min(found)}`",
        )
    return SocketSearch(tuple(sorted(found)), note, tuple(sorted(elsewhere)))


def _too_many(workdir: str, number: int, *, strict: bool) -> str:
    text = f"{number} sockets in the project seem to belong to no program of this machine"
    remedy = f"`find {workdir} -type s -delete` removes them"
    if strict:
        raise ClaudeboxError(f"{text}, and so many cannot be masked", hint=remedy)
    return f"{text}; they are not masked: {remedy}"


def _walk(roots: list[str], missing: set[int], found: set[str], strays: set[str], *, strict: bool) -> str:
    """Look for sockets everywhere, and return what could not be looked at; `missing` is left with what is nowhere."""
    from claudebox.base.trees import Walk

    seen: set[int] = set()
    most, seconds = (_MOST_ENTRIES, _MOST_SECONDS) if strict else (_FEWER_ENTRIES, _FEWER_SECONDS)
    for root in roots:
        walk = Walk(root, most=most, seconds=seconds)
        for path, entry in walk.entries():
            known = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
            if known or not stat.S_ISSOCK(mode_of(path)):
                continue
            number = entry.inode() & 0xFFFFFFFF
            seen.add(number)
            (found if number in missing else strays).add(path)
        if walk.unfinished and strict:
            raise ClaudeboxError(
                f"sockets of the host could answer inside: {walk.unfinished} could not be searched for them",
                hint="make it readable, move it away or start in a smaller directory; or use `--network full`",
            )
        if walk.unfinished:
            return f"sockets of the host may answer inside: {walk.unfinished} was not searched for them"
    missing -= seen
    return ""


def _in_top(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_symlink() or entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
                    continue
                if stat.S_ISSOCK(mode_of(entry.path)):
                    yield entry.path
    except OSError:
        return


def _locate(row: BoundSocket, table: _Mounts) -> str:
    """Return where a socket lies if it is still where its name says, and nowhere else."""
    if not row.name.startswith("/"):
        return ""
    parent, name = os.path.split(row.name)
    try:
        # The kernel follows 40 links and no more; what an agent puts on the way cannot keep us busy.
        with Closing(os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
            real = os.path.join(os.readlink(f"/proc/self/fd/{directory}"), name)
            alone = os.lstat(name, dir_fd=directory).st_nlink == 1
    except (OSError, ValueError):
        return ""
    return real if alone and table.is_at(row, real) else ""


def _locate_relative(rows: list[BoundSocket], table: _Mounts) -> dict[BoundSocket, str]:
    """Look for sockets with a relative name where processes are: who binds one mostly stays there."""
    directories = set()
    for process in os.listdir("/proc"):
        try:
            directories.add(os.readlink(f"/proc/{process}/cwd") if process.isdigit() else "")
        except OSError:
            continue
    found: dict[BoundSocket, str] = {}
    for row in rows:
        tried = (_locate(row.replace(name=f"{directory}/{row.name}"), table) for directory in directories - {""})
        found[row] = "" if row.name.startswith("/") else next(filter(None, tried), "")
    return found


class _Mounts:
    """The mounts of this machine, and what of which device is seen where."""

    def __init__(self, rows: tuple[MountRow, ...]) -> None:
        self._rows = rows
        self._by_place = {row.place: row.device for row in rows}

    def devices(self, roots: list[str]) -> set[int]:
        """Return the devices of directories and of what is mounted below them; none if they cannot be told."""
        devices = {self._device(root) for root in roots}
        if -1 in devices:
            return set()
        tops = {root.rstrip("/") or "/" for root in roots}
        return devices | {row.device for row in self._rows if row.place in tops or _lies_in(row.place, tops)}

    def see(self, row: BoundSocket, place: str) -> Iterator[str]:
        """Yield where a socket that lies at a place can be seen: a part of its device may be mounted twice."""
        yield place
        same = [mount for mount in self._rows if mount.device == row.device]
        for mount in same if len(same) > 1 else ():
            inner = _below(place, mount.place)
            for other in same if inner is not None else ():
                rest = _below(f"{mount.root.rstrip('/')}{inner}", other.root)
                path = f"{other.place.rstrip('/')}{rest}"
                if rest is not None and path != place and self.is_at(row, path):
                    yield path

    def is_at(self, row: BoundSocket, path: str) -> bool:
        """Return whether it is this very socket that lies there."""
        try:
            status = os.lstat(path)
        except (OSError, ValueError):
            return False
        same = stat.S_ISSOCK(status.st_mode) and status.st_ino & 0xFFFFFFFF == row.inode
        return same and self._device(path) == row.device

    def _device(self, path: str) -> int:
        """Return the device of what is at a real path as the kernel numbers it, -1 if it cannot be told."""
        try:
            own = os.lstat(path).st_dev
        except OSError:
            return -1
        nearest = next((self._by_place[place] for place in ancestors(path) if place in self._by_place), -1)
        if nearest == os.major(own) << 20 | os.minor(own):
            return nearest  # as nearly always: nothing covers that mount, and its filesystem has no numbers of its own
        number = mount_of(path)
        return next((row.device for row in self._rows if row.number == number), -1)


def _lies_in(path: str, tops: set[str]) -> bool:
    return not tops.isdisjoint(ancestors(path)[1:])


def _below(path: str, top: str) -> str | None:
    """Return what comes after `top` in a path that is it or lies below it."""
    top = top.rstrip("/")
    return path[len(top) :] if path == top or path.startswith(f"{top}/") else None


def _bound() -> list[BoundSocket] | None:
    """Return the sockets of this network namespace that have a path, None if the kernel does not list them."""
    body = bytes((_AF_UNIX, 0, 0, 0)) + b"".join(
        number.to_bytes(4, byteorder) for number in (0xFFFFFFFF, 0, _SHOW_NAME_AND_PLACE, 0, 0)
    )
    try:
        channel = netlink.connect(netlink.SOCKETS)
        try:
            answers = netlink.dump(channel, _BY_FAMILY, body)
        finally:
            channel.close()
    except OSError:
        return None
    found: dict[tuple[int, int], BoundSocket] = {}
    for _, answer in answers:
        kind, state, cookie = answer[1], answer[2], answer[8:16]
        fields = {name: value for name, _, value in netlink.attributes(answer[16:])}
        place = fields.get(_PLACE, b"")
        # One end of a connection has the name of the listener, and answers nobody.
        if len(place) >= 8 and (kind == _DATAGRAM or state != _CONNECTED):
            inode, device = int.from_bytes(place[:4], byteorder), int.from_bytes(place[4:8], byteorder)
            name = os.fsdecode(fields.get(_NAME, b"").rstrip(b"\0"))
            found[device, inode] = BoundSocket(device, inode, name, cookie.hex())
    return list(found.values())
