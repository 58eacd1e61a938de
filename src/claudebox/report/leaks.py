"""Search what a session wrote for secrets that were withheld from it.

That is the state of the project and every file that changed, loose git objects included. Hits are named by file and
line, never by value. Time and size are limited; what was not searched is named.
"""

from __future__ import annotations

import itertools
import os
import stat
import time

from claudebox.agent.facts import list_secrets, list_tokens
from claudebox.base import trees
from claudebox.base.console import shorten
from claudebox.base.files import Closing
from claudebox.base.records import Value
from claudebox.tables.secrets import encodings, looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.host.records import Host
    from claudebox.plan.records import Plan

    Form = tuple[bytes, str, bool]  # what to look for, the name of the secret, whether it is encoded
    Unseen = list[tuple[str, str]]


BUDGET = 3.0  # seconds
_MOST_BYTES = 256 << 20
_PIECE = 1 << 20
_LARGEST_OBJECT = 16 << 20
_MOST_HITS = 8  # of one form in one piece of a file
_SHOWN = 10
_PATH = 300
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_SHORTEST = 8
_FEWEST_KINDS = 5  # of characters
_PACK = "a pack of git"
_SHORTEST_NUMBER = 12
_PHRASE = 4  # words that are rare together


class Hit(Value):
    """A secret found in a file."""

    name: str
    path: str
    line: int  # 0: the file has no lines
    encoded: bool


class Result(Value):
    """What was found, and what was not searched, with the reason."""

    hits: tuple[Hit, ...]
    unsearched: tuple[tuple[str, str], ...] = ()


def run(plan: Plan, host: Host, changed: Iterable[str], since: float) -> Result | None:
    """Search for everything that was withheld; None if nothing was."""
    secrets = list(values(plan, host))
    if not secrets:
        return None
    deadline = time.monotonic() + BUDGET
    instance = host.instance
    unseen: Unseen = []
    state = tuple(f"{instance.directory}/{path}" for path in plan.kept)
    left = (path for directory in state for path in left_behind(directory, since, unseen, deadline))
    found = search(find_forms(secrets), itertools.chain(left, changed), deadline)
    # Some agents keep snapshots of the project as packs of git, from one session to the next.
    own = tuple(f"{instance.directory}/{place}/" for _, place in plan.policy.agent.state)
    rest = (row for row in found.unsearched if not (row[1] == _PACK and row[0].startswith(own)))
    return found.replace(unsearched=(*unseen, *rest))


def values(plan: Plan, host: Host) -> Iterator[tuple[str, str]]:
    """Yield name and value of each secret that was withheld."""
    inside = {row.value for row in plan.variables}
    for name, value in host.environ.items():
        if value not in inside and looks_secret(name, value):
            yield name, value
    for secret in host.secrets.held:
        yield secret.env, secret.value
    if host.agent.login.known and plan.policy.agent.upstream.login is not None:
        yield from list_tokens(plan.policy.agent.upstream.login, host.agent.login.path)
    yield from list_secrets((plan.policy.agent,), host.home)


def left_behind(directory: str, since: float, unseen: Unseen, deadline: float) -> Iterator[str]:
    """Yield the files below a directory that changed since then."""
    for path, status in trees.walk(directory, unseen, deadline, trees.Opener(0.0)):
        if status.st_mode & trees.KIND == trees.IS_FILE and status.st_ctime >= since:
            yield path


def search(forms: list[Form], files: Iterable[str], deadline: float) -> Result:
    left = _MOST_BYTES
    hits: dict[tuple[str, str, int], Hit] = {}
    unsearched: Unseen = []
    seen: set[str] = set()
    for path in files:
        if path in seen:
            continue
        seen.add(path)
        if time.monotonic() > deadline or left <= 0:
            unsearched.append((path, trees.OUT_OF_TIME))
            continue
        try:
            with Closing(os.open(path, _READ)) as descriptor:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    found = _File(forms, path, deadline, left)
                    for hit in found.search(descriptor):
                        hits.setdefault((hit.name, hit.path, hit.line), hit)
                    left -= found.done
                    unsearched += found.unsearched
        except FileNotFoundError:  # another session is at work
            continue
        except OSError as error:
            unsearched.append((path, error.strerror or str(error)))
    return Result(tuple(hits.values()), tuple(unsearched))


class _File:
    """One file that is searched, piece by piece."""

    def __init__(self, forms: list[Form], path: str, deadline: float, most: int) -> None:
        self._forms, self._path, self._deadline, self._most = forms, path, deadline, most
        self.done = 0  # bytes
        self.unsearched: Unseen = []

    def search(self, descriptor: int) -> Iterator[Hit]:
        longest = max((len(form) for form, _, _ in self._forms), default=0)
        held, line = b"", 1  # the end of the last piece, and where it begins
        while piece := os.read(descriptor, _PIECE):
            # A loose object of git, compressed by zlib: a commit keeps what was deleted again.
            if not self.done and piece[:1] == b"\x78" and len(piece) > 1 and not int.from_bytes(piece[:2], "big") % 31:
                yield from self._search_object(piece)
            elif not self.done and piece.startswith(b"PACK"):
                self.unsearched.append((self._path, _PACK))
            self.done += len(piece)
            data = held + piece
            binary = b"\0" in data[: _PIECE >> 10]
            for position, name, encoded in self._find(data):
                yield Hit(name, self._path, 0 if binary else line + data.count(b"\n", 0, position), encoded)
            end = len(data) - min(len(data), longest)
            line += data.count(b"\n", 0, end)
            held = data[end:]
            if time.monotonic() > self._deadline or self.done > self._most:
                self.unsearched.append((self._path, trees.OUT_OF_TIME))
                return

    def _find(self, data: bytes) -> Iterator[tuple[int, str, bool]]:
        for form, name, encoded in self._forms:
            at = -1
            for _ in range(_MOST_HITS):
                at = data.find(form, at + 1)
                if at < 0:
                    break
                yield at, name, encoded

    def _search_object(self, piece: bytes) -> Iterator[Hit]:
        import zlib

        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(piece, _LARGEST_OBJECT)
        except zlib.error:  # not compressed after all
            return
        if inflater.unconsumed_tail or not inflater.eof:
            self.unsearched.append((self._path, "too large to be decompressed"))
        for _, name, encoded in self._find(data):
            yield Hit(name, self._path, 0, encoded)


def lines(result: Result, workdir: str) -> Iterator[str]:
    """Yield the report; nothing if nothing was found and everything was searched."""
    if result.unsearched:
        path, why = result.unsearched[0]
        more = f" and {len(result.unsearched) - 1} more" if len(result.unsearched) > 1 else ""
        yield (
            "claudebox: not everything that the session wrote could be searched for secrets: "
            f"{shorten(path.removeprefix(f'{workdir}/'), _PATH)} ({shorten(why, 80)}){more}"
        )
    if result.hits:
        yield "claudebox: withheld secrets were found in files written by this session:"
    for hit in result.hits[:_SHOWN]:
        path = shorten(hit.path.removeprefix(f"{workdir}/"), _PATH)
        where = f"{path}:{hit.line}" if hit.line else path
        yield f"    {shorten(hit.name, 60)} in {where}{', encoded' if hit.encoded else ''}"
    if len(result.hits) > _SHOWN:
        yield f"    and {len(result.hits) - _SHOWN} more"
    if result.hits:
        yield "  Find the source and rotate the secret."


def find_forms(values: Iterable[tuple[str, str]]) -> list[Form]:
    """Return everything to look for, given names and values of secrets."""
    known: dict[bytes, Form] = {}
    for name, value in values:
        for part in _parts(value):
            for form in encode(part):
                if len(form) >= _SHORTEST:
                    known.setdefault(form, (form, name, form != part))
    return list(known.values())


def encode(value: bytes) -> list[bytes]:
    """Return the encodings of a value, itself first."""
    return list(dict.fromkeys(form for form in encodings(value) if len(form) >= len(value) // 2))


def is_telling(value: str) -> bool:
    """Return whether a value is worth looking for: no path, and no word or number that is found anywhere."""
    if len(value) < _SHORTEST or len(set(value)) < _FEWEST_KINDS:
        return False
    if value.startswith(("/", "~/", "unix:")) or (value.isdigit() and len(value) < _SHORTEST_NUMBER):
        return False
    words = value.translate({ord(mark): " " for mark in "-_."}).split(" ")
    plain = all(word.isalpha() and (word.islower() or word.isupper() or word.istitle()) for word in words)
    return not plain or len(words) >= _PHRASE or len(value) >= 2 * _SHORTEST * len(words)


def _parts(value: str) -> Iterator[bytes]:
    """Yield a value, and the password in it if it is a URL."""
    if is_telling(value):
        yield os.fsencode(value)
    _, scheme, rest = value.partition("://")
    for end in "/?#":
        rest = rest.partition(end)[0]
    password = rest.rpartition("@")[0].partition(":")[2]
    if scheme and is_telling(password):
        yield os.fsencode(password)
