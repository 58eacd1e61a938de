"""Files of the project that hold secrets, and the same with fake values.

Which files are looked into, their names tell (`project_search`). What was masked before is recognised by device and
inode, whatever it is called now, and so is a file with several names. What git has committed can be read in its
objects: such a file is named, and not masked if it is what git has now.
"""

from __future__ import annotations

import os
import stat

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, read_small, real_path
from claudebox.base.records import Value
from claudebox.base.syscalls import birth_time
from claudebox.host import project_search
from claudebox.host.records import SecretFile
from claudebox.tables.secret_files import find_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.base.state import Instance
    from claudebox.git.facts import CommittedContents
    from claudebox.host.project_search import Found
    from claudebox.host.records import Identity, KnownFile
    from claudebox.settings.records import Policy
    from claudebox.tables.secret_files import FileKind

    Suspects = dict[str, FileKind]


REMEMBERED = "masked"  # in the state of the project
_LIMIT = 4 << 20
_LARGEST = 1 << 20  # bytes of a file that is read; a larger one is masked as a whole
_MOST_BYTES = 8 << 20  # of all together
_KEYS = (b'"private_key"', b'"refresh_token"', b'"client_secret"')  # in JSON that is a credential
_MOST = 20_000  # files
_PRIVATE = (b"PRIVATE", b"SECRET", b"Static")  # in the first lines of keys
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class SecretSearch(Value):
    """What was found."""

    files: tuple[SecretFile, ...] = ()
    unsearched: str = ""
    missing: tuple[KnownFile, ...] = ()  # masked before, and perhaps where was not searched


def find_secrets(
    policy: Policy, searched: Found, tops: tuple[str, ...], instance: Instance, committed: CommittedContents
) -> SecretSearch:
    """Return the files that hold secrets.

    An incomplete search is refused if the user has asked for masking in so many words; by default it is named.
    """
    known = remembered(instance) if policy.masks_secrets else {}
    suspects = {**_find_in_place(known), **dict(searched.suspects)}
    if len(suspects) > _MOST and policy.masks_secrets:
        raise ClaudeboxError(
            f"{len(suspects)} files are named like secrets, and at most {_MOST} are looked into",
            hint=f"the first is `{min(suspects)}`; remove what is not needed, or use `--project-secrets show`",
        )
    found = {row.path: row for row in _examine(suspects, tops, committed)}
    unsearched, missing = searched.unsearched, known.keys() - {row.identity for row in found.values()}
    if policy.masks_secrets:
        linked = {row.identity: row for row in found.values() if row.links > 1}
        again, rest = _find_again(tops, missing | linked.keys(), search_time(policy))
        for path, identity in again:
            if path not in found and identity in linked:
                found[path] = linked[identity].replace(path=path)
            elif path not in found and (kind := find_kind(os.path.basename(path)) or _kind_of_moved(path, instance)):
                found |= {row.path: row for row in _examine({path: kind}, tops, committed)}
        unsearched = unsearched or rest
        missing -= {identity for _, identity in again}
    if unsearched and policy.refuses_unsearched:
        raise ClaudeboxError(
            f"secrets cannot be masked: {unsearched} could not be searched for them",
            hint="make it readable, move it away or start in a smaller directory; or use `--project-secrets show`",
        )
    rows = tuple(row for _, row in sorted(found.items()))
    kept = tuple((identity, path) for identity, path in sorted(known.items()) if unsearched and identity in missing)
    return SecretSearch(rows, unsearched, kept)


def _find_in_place(known: dict[Identity, str]) -> Suspects:
    """Return the files that are where they were masked before, however much there is to search."""
    found: Suspects = {}
    for identity, path in known.items():
        try:
            status = os.lstat(path)
        except OSError:
            continue
        kind = find_kind(os.path.basename(path))
        if kind or (status.st_dev, status.st_ino) == identity:
            found[path] = kind or "bare"
    return found


def _kind_of_moved(path: str, instance: Instance) -> FileKind:
    """Return the kind of a file that was masked under another name; a new one may have the inode of a deleted one."""
    return "bare" if birth_time(path) <= os.stat(f"{instance.directory}/{REMEMBERED}").st_mtime else ""


def list_values(files: Iterable[SecretFile]) -> Iterator[tuple[str, str]]:
    """Yield the words that masked copies do not show, each with its file and line."""
    from claudebox.host import secret_scan

    for row in files:
        content = read_small(row.path, limit=_LARGEST) if row.lines else None
        if content is not None:
            name, text = os.path.basename(row.path), content.decode("utf-8", "surrogateescape")
            masked = _mask(content, find_kind(name, top=True) or "bare")[1].decode("utf-8", "surrogateescape")
            yield from ((f"{name}:{line}", value) for value, line in secret_scan.find_values(text, masked).items())


def search_time(policy: Policy) -> float:
    """Return how many seconds a launch may search."""
    return project_search.MOST_PATIENT if policy.refuses_unsearched else project_search.MOST_SECONDS


def remembered(instance: Instance) -> dict[Identity, str]:
    """Return the files that the last session masked, and where they were."""
    content = read_small(f"{instance.directory}/{REMEMBERED}", limit=_LIMIT) or b""
    rows = (os.fsdecode(row).split(" ", 2) for row in content.split(b"\0"))
    return {(int(row[0]), int(row[1])): row[2] for row in rows if len(row) == 3 and row[1].isdigit()}


def render_remembered(files: Iterable[KnownFile]) -> bytes:
    """Return what `remembered` reads."""
    rows = (f"{identity[0]} {identity[1]} {path}\0" for identity, path in sorted(files))
    return os.fsencode("".join(rows))


def _find_again(tops: tuple[str, ...], wanted: set[Identity], seconds: float) -> tuple[list[tuple[str, Identity]], str]:
    """Return where files with these identities lie, also in what is passed over otherwise."""
    if not wanted:
        return [], ""
    searches = [project_search.find_known(top, wanted, seconds=seconds) for top in tops]
    return [row for rows, _ in searches for row in rows], next((rest for _, rest in searches if rest), "")


def _examine(suspects: Suspects, tops: tuple[str, ...], committed: CommittedContents) -> Iterator[SecretFile]:
    """Yield the files that hold secrets."""
    left = _MOST_BYTES
    for path, kind in _follow(suspects, tops):
        try:
            status, content = _read(path, min(left, _LARGEST))
        except OSError:  # it has gone, or is of another user
            continue
        left -= len(content or b"")
        if content == b"" or (kind == "maybe" and not any(key in (content or b"") for key in _KEYS)):
            continue
        lines: tuple[int, ...] = ()
        masked = b""
        if content is not None and b"\0" not in content:
            lines, masked = _mask(content, kind)
            if not lines:
                continue
        is_committed = content is not None and committed.has(content)
        is_stored = content is not None and not is_committed and committed.keeps(content)
        identity, mode = (status.st_dev, status.st_ino), stat.S_IMODE(status.st_mode) & 0o755 | stat.S_IRUSR
        yield SecretFile(path, lines, masked, identity, mode, status.st_nlink, is_committed, is_stored)


def _mask(content: bytes, kind: FileKind) -> tuple[tuple[int, ...], bytes]:
    """Return the lines that hold secrets, and the content with fake ones."""
    if b"-----BEGIN " in content and kind == "bare" and not any(word in content for word in _PRIVATE):
        return (), content  # a certificate or a public key
    from claudebox.host import secret_scan

    text = content.decode("utf-8", "surrogateescape")
    masked = secret_scan.mask_text(text, kind if kind != "maybe" else "keyed")
    return secret_scan.find_lines(text, masked), masked.encode("utf-8", "surrogateescape")


def _follow(suspects: Suspects, tops: tuple[str, ...]) -> Iterator[tuple[str, FileKind]]:
    """Yield each file once; a link stands for what it leads to in the project."""
    inside = tuple(f"{top.rstrip('/')}/" for top in tops)
    found = {path: kind for path, kind in suspects.items() if path.startswith(inside)}
    for path, kind in [row for row in found.items() if os.path.islink(row[0])]:
        real = real_path(path)
        if real.startswith(inside) and "/.git/" not in real:
            found.setdefault(real, find_kind(os.path.basename(real)) or kind)
        del found[path]
    yield from sorted(found.items())


def _read(path: str, limit: int) -> tuple[os.stat_result, bytes | None]:
    """Return status and content of a regular file, None for the content of one that is too large or closed to us.

    An owner can open a file that is closed, inside too.
    """
    try:
        opened = os.open(path, _READ)
    except PermissionError:
        status = os.lstat(path)
        if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
            raise
        return status, None
    with Closing(opened) as file:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(path)
        content = os.read(file, limit + 1) if status.st_size <= limit else None
        return status, content if content is None or len(content) <= limit else None
