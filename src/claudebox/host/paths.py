"""What paths of the host are: which must stay hidden, which are no project, and what stands where a mount is wanted."""

from __future__ import annotations

import os
import stat

from claudebox.agent import kinds
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, mode_of, real_path
from claudebox.host.records import (
    Barrier,
    Destination,
    Hidden,
    Identity,
    KnownPlaces,
    PathFact,
    PinnedDirectory,
    between,
)
from claudebox.tables import paths as tables_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_MOVES = ("", ".", "..")  # names that lead elsewhere
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_KIND = 0o170000  # the bits of a mode that tell what it is
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFSOCK: "socket"}


class Examiner:
    """Tells what paths are, each from the directory that it was found in.

    An agent in another session may swap directories as quickly as it can. What a path is and what lies above it must
    be true at the same time, or something hidden would pass for what had its name a moment before (C10): a name is
    looked up in a directory that is open, and what is above follows from that. Nobody inside can bring a directory into
    a hidden place or out of one, so what was above it once may be remembered.
    """

    def __init__(self) -> None:
        self._lineages: dict[Identity, tuple[Identity, ...]] = {}
        self._open = -1  # the directory of the last path: neighbours follow each other
        self._spelled = self._real = ""
        self._above: tuple[Identity, ...] = ()

    def __del__(self) -> None:
        if self._open >= 0:
            os.close(self._open)

    def fact(self, path: str, *, alone: bool = False) -> PathFact:
        """Return what is at a path, with the identities of all directories above it unless wanted `alone`."""
        try:
            return _describe(path, path, os.stat(path), ()) if alone else self._look(path, path)
        except (OSError, ValueError):
            return PathFact(path, path)

    def _look(self, path: str, asked: str, links: int = 8) -> PathFact:
        parent, _, name = path.rpartition("/")
        if name in _MOVES or not path.startswith("/"):
            real = real_path(path)
            return self._look(real, asked, links) if real != "/" else _describe(asked, real, os.stat("/"), ())
        if parent != self._spelled or self._open < 0:
            self._enter(parent)
        status = os.lstat(name, dir_fd=self._open)
        if status.st_mode & _KIND == stat.S_IFLNK:
            if not links:
                raise FileNotFoundError(path)  # they were swapped for one another
            return self._look(real_path(path), asked, links - 1)
        return _describe(asked, f"{self._real}/{name}", status, self._above)

    def _enter(self, directory: str) -> None:
        opened = os.open(directory or "/", _PLACE)
        try:
            real = os.readlink(f"/proc/self/fd/{opened}").rstrip("/")
            above = self._climb(opened)
        except OSError:  # what is known of the last one stays true
            os.close(opened)
            raise
        if self._open >= 0:
            os.close(self._open)
        self._open, self._spelled, self._real, self._above = opened, directory, real, above

    def _climb(self, directory: int) -> tuple[Identity, ...]:
        """Return a directory and all that are above it."""
        new: list[Identity] = []
        current = os.dup(directory)
        while True:
            with Closing(current) as below:
                status = os.fstat(below)
                identity = status.st_dev, status.st_ino
                if identity in self._lineages or new[-1:] == [identity]:  # nothing is above the root
                    break
                new.append(identity)
                current = os.open("..", _PLACE, dir_fd=below)
        lineage = self._lineages.get(identity, ())
        for identity in reversed(new):
            lineage = self._lineages[identity] = (identity, *lineage)
        return lineage


def _describe(path: str, real: str, status: os.stat_result, above: tuple[Identity, ...]) -> PathFact:
    kind = _KINDS.get(status.st_mode & _KIND, "other")
    return PathFact(path, real, kind, ((status.st_dev, status.st_ino), *above), status.st_uid)  # type: ignore[arg-type]


def find_workdir(examiner: Examiner, path: str) -> PathFact:
    """Return what the working directory is, which the kernel calls by this path."""
    fact, here = examiner.fact(path), os.stat(".")
    if fact.kind != "directory" or not os.access(path, os.R_OK | os.X_OK):
        hint = "change to a project directory, or, if it is yours, open it with `chmod u+rwx .`"
        raise ClaudeboxError(f"the working directory `{path}` cannot be read", hint=hint)
    if fact.real != path or fact.identity != (here.st_dev, here.st_ino):
        raise ClaudeboxError(
            f"the working directory `{path}` was replaced by something else while it was examined",
            hint="change to it again, and start claudebox there",
        )
    return fact


def find_places(examiner: Examiner, home: str, homes: list[str], environ: dict[str, str]) -> KnownPlaces:
    """Return the directories that mounts are judged by; the account's home may be another than HOME."""
    in_homes = [f"{each}/{place}".rstrip("/") for each in homes for place in tables_paths.NOT_A_PROJECT_IN_HOME]
    return KnownPlaces(
        home=examiner.fact(home),
        hidden=find_hidden(examiner, homes, environ),
        not_projects=find_present(examiner, (*tables_paths.NOT_A_PROJECT, *in_homes)),
        not_beneath=find_present(examiner, tables_paths.NOT_A_PROJECT_BENEATH),
        allowed_beneath=find_present(examiner, tables_paths.ALLOWED_BENEATH),
    )


def find_hidden(examiner: Examiner, homes: list[str], environ: dict[str, str]) -> tuple[Hidden, ...]:
    """Return the places that must never be visible inside."""
    rows = [
        (place if place[0] == "/" else f"{home}/{place}", why) for home in homes for place, why in kinds.list_hidden()
    ]
    for name, why in tables_paths.AGENT_SOCKETS:
        value = environ.get(name, "")
        socket = value[value.find("/") :].split(",")[0] if "/" in value else ""
        if socket:
            rows.append((socket, why))
    there = ((path, why) for path, why in dict(rows).items() if os.access(path, os.F_OK))  # few are
    found = tuple(Hidden(examiner.fact(path), why) for path, why in there)
    for row in found:
        if row.fact.kind == "missing" and os.access(row.fact.path, os.F_OK):
            raise ClaudeboxError(
                f"`{row.fact.path}` ({row.why}) must stay hidden, and could not be examined",
                hint="start claudebox again; if that does not help, see that you can enter what is above",
            )
    return tuple(row for row in found if row.fact.kind != "missing")


def find_present(examiner: Examiner, paths: tuple[str, ...]) -> tuple[PathFact, ...]:
    """Return those that exist."""
    facts = (examiner.fact(path, alone=True) for path in paths if os.access(path, os.F_OK))
    return tuple(fact for fact in facts if fact.kind != "missing")


def find_destination(dest: str) -> Destination:
    """Walk to a destination without following a link: bwrap would follow it, even out of the sandbox (C01)."""
    current, mode = "", 0
    for part in dest.strip("/").split("/"):
        current = f"{current}/{part}"
        mode = mode_of(current)
        if not mode:
            return Destination()
        if stat.S_ISLNK(mode):
            return Destination(through_link=True)
    return Destination(exists=True, directory=stat.S_ISDIR(mode))


def without_refused(sources: Iterable[PathFact], places: KnownPlaces) -> list[str]:
    """Return the directories worth a search: a launch in a home or in /proc is refused anyway."""
    barred = {fact.identity for fact in places.not_beneath}
    fine = {fact.identity for fact in places.allowed_beneath}
    around = frozenset(places.home.lineage)
    return [
        fact.real
        for fact in sources
        if fact.kind == "directory"
        and fact.lineage[0] not in around
        and (barred.isdisjoint(fact.lineage) or not fine.isdisjoint(fact.lineage))
    ]


def find_barrier(path: str) -> Barrier:
    """Return what keeps root out of a project of another user, or from writing to it.

    In a user namespace root has no power over files of other users: what counts are the bits of the mode.
    """
    groups = {os.getgid(), *os.getgroups()}
    current = ""
    for part in ("", *path.strip("/").split("/")):
        current = f"{current.rstrip('/')}/{part}"
        status = os.stat(current)
        bits = 7 if status.st_uid == 0 else status.st_mode >> (3 if status.st_gid in groups else 0)
        wanted = 5 if current == path else 1
        if bits & wanted != wanted:
            return Barrier(current, _owner(status.st_uid), entered=False)
        if current == path and not bits & 2:
            return Barrier(current, _owner(status.st_uid))
    return Barrier()


def _owner(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def pin_above(paths: Iterable[str], workdir: str) -> Iterator[PinnedDirectory]:
    """Yield the directories between the project and these paths: who moves one of them moves what lies in it (C22)."""
    for place in dict.fromkeys(place for path in paths for place in between(path, workdir)):
        if "/.git/" in f"{place[len(workdir.rstrip('/')) :]}/":  # mounts of their own, or not shown at all
            continue
        try:
            status = os.lstat(place)
        except OSError:
            continue
        yield PinnedDirectory(place, (status.st_dev, status.st_ino))


def find_spelling(path: str, workdir: PathFact) -> str:
    """Return a path that leads to the working directory through a link; nothing if it is another one or the same."""
    if path == workdir.real or not path.startswith("/") or path != os.path.normpath(path) or path.startswith("//"):
        return ""
    return path if real_path(path) == workdir.real else ""
