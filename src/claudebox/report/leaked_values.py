"""The tripwire: whether values that were kept out stand in what a session has left behind.

Looked at are conversations and state of the project, files of the project that changed, and new objects of git. What
is found is named by file and line, never by its value. Bounded in time and size, and off the way of every launch.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import time
import zlib
from typing import TYPE_CHECKING, NamedTuple

from claudebox.console import shorten
from claudebox.files import read_small
from claudebox.report.fingerprints import Fingerprints
from claudebox.tables import agent
from claudebox.tables.secret_patterns import looks_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.facts.host import Host
    from claudebox.plan.model import Plan

BUDGET = 3.0  # seconds
_MOST_BYTES = 256 << 20
_PIECE = 1 << 20
_LARGEST_OBJECT = 16 << 20
_SLACK = 0.05  # clocks of filesystems are coarse
_SHOWN = 10
_PATH = 300  # its end tells most
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Hit(NamedTuple):
    """A value of this name stands there."""

    name: str
    path: str
    line: int  # 0: the file has no lines
    encoded: bool


class Result(NamedTuple):
    """What was found, and whether everything was looked at."""

    hits: list[Hit]
    complete: bool


def run(plan: Plan, host: Host, changed: tuple[str, ...], started: float) -> Result:
    """Look for everything that was kept out in everything that was left behind."""
    deadline = time.monotonic() + BUDGET
    instance = host.instance
    directories = [instance.claude, *(f"{instance.directory}/{path}" for path in plan.kept)]
    if host.repository is not None and host.repository.git_dir:
        directories.append(host.repository.git_dir)
    marks = Fingerprints(values(plan, host))
    files = itertools.chain(left_behind(directories, started, deadline), changed)
    return search(marks, files, deadline)


def values(plan: Plan, host: Host) -> Iterator[tuple[str, str]]:
    """Yield name and value of everything that was kept out and looks secret."""
    inside = {row.value for row in plan.variables}
    for name, value in host.environ.items():
        if value not in inside and looks_secret(name, value):
            yield name, value
    for secret in host.held_secrets:
        yield secret.env, secret.value
    if host.login.known:
        yield from _tokens(host.login.path)


def _tokens(path: str) -> Iterator[tuple[str, str]]:
    try:
        document = json.loads(read_small(path, limit=1 << 20) or b"{}")
        tokens = document.get(agent.TOKENS, {})
        for key, name in (("accessToken", "access token of the login"), ("refreshToken", "refresh token of the login")):
            if isinstance(tokens.get(key), str):
                yield name, tokens[key]
    except (ValueError, AttributeError, RecursionError):  # a file that somebody else wrote
        return


def search(marks: Fingerprints, files: Iterable[str], deadline: float) -> Result:
    """Look into files."""
    left = _MOST_BYTES
    hits: dict[tuple[str, str, int], Hit] = {}
    for path in dict.fromkeys(files):
        if time.monotonic() > deadline or left <= 0:
            return Result(list(hits.values()), complete=False)
        try:
            descriptor = os.open(path, _READ)
        except OSError:
            continue
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                for hit, size in _look(marks, descriptor, path, deadline):
                    left -= size
                    if hit is not None:
                        hits.setdefault((hit.name, hit.path, hit.line), hit)
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return Result(list(hits.values()), complete=True)


def _look(marks: Fingerprints, descriptor: int, path: str, deadline: float) -> Iterator[tuple[Hit | None, int]]:
    """Yield hits in one file, and how much was read."""
    if "/objects/" in path:
        yield from _look_into_object(marks, descriptor, path)
        return
    held, line, done = b"", 1, 0
    while piece := os.read(descriptor, _PIECE):
        yield None, len(piece)
        data = held + piece
        for match in marks.search(data):
            binary = b"\0" in data[: _PIECE >> 10]
            where = 0 if binary else line + data.count(b"\n", 0, match.position)
            yield Hit(match.name, path, where, match.encoded), 0
        keep = min(len(data), marks.longest)
        line += data.count(b"\n", 0, len(data) - keep)
        held = data[len(data) - keep :]
        done += len(piece)
        if time.monotonic() > deadline or done > _MOST_BYTES:
            return


def _look_into_object(marks: Fingerprints, descriptor: int, path: str) -> Iterator[tuple[Hit | None, int]]:
    """Look into an object of git: a commit keeps what was deleted again."""
    packed = os.read(descriptor, _LARGEST_OBJECT)
    yield None, len(packed)
    try:
        data = zlib.decompressobj().decompress(packed, _LARGEST_OBJECT)
    except zlib.error:
        data = packed
    for match in marks.search(data):
        yield Hit(match.name, path, 0, match.encoded), 0


def left_behind(directories: Iterable[str], since: float, deadline: float) -> Iterator[str]:
    """Yield the files in these directories that changed since then; no link is followed."""
    for directory in directories:
        for base, inner, names in os.walk(directory):
            if base.endswith("/objects") and "pack" in inner:
                inner.remove("pack")  # compressed several times over
            if time.monotonic() > deadline:
                return
            for name in names:
                path = os.path.join(base, name)
                try:
                    status = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode) and status.st_ctime >= since - _SLACK:
                    yield path


def lines(result: Result, workdir: str) -> Iterator[str]:
    """Yield what to say; nothing if nothing was found and everything looked at."""
    if result.hits:
        yield "claudebox: values that were kept out of the sandbox stand in files that it has written:"
    for hit in result.hits[:_SHOWN]:
        path = hit.path[len(workdir) + 1 :] if hit.path.startswith(f"{workdir}/") else hit.path
        where = f"{shorten(path, _PATH)}:{hit.line}" if hit.line else shorten(path, _PATH)
        yield f"    {shorten(hit.name, 60)} in {where}{', encoded' if hit.encoded else ''}"
    if len(result.hits) > _SHOWN:
        yield f"    and {len(result.hits) - _SHOWN} more"
    if result.hits:
        yield "  Find out how it got there, and have it replaced where it was issued."
    if not result.complete:
        yield "claudebox: not all that was written could be searched for secrets in time"
