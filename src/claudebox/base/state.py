"""The state of a project under ~/.claudebox: create it, and answer an agent's first questions.

Only what agents keep (`instances/ID/claude`, `instances/ID/home`) is mounted; what the launcher relies on lies beside
it, out of their reach. No link is
followed in what the agent can write: each file is opened by name in an open directory, and replaced as a whole (C04,
C05, C28, C29).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from claudebox.base import console, syscalls
from claudebox.base.errors import ClaudeboxError, describe_failure
from claudebox.base.files import (
    OPEN_DIRECTORY,
    OPEN_LOCK,
    Closing,
    mode_of,
    open_up,
    others_write,
    read_at,
    read_small,
    reopen,
    replace_file,
    write_file,
)
from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


_DIGITS = 16
FORMAT_FILE = "format"
_FORMAT = 2  # of ~/.claudebox; 1 was that of 0.1 and 0.2, which wrote no number and is read as it is
MANIFEST = "project"  # in the state of a project: its path
_SEEDED = "seeded"
_CONFIG_LIMIT = 64 << 20
_APPROVED, _APPROVED_LAUNCHES, _APPROVED_LIMIT = "approved", 8, 1 << 20
_TOLD = "told"
_LOCK_STALE, _LOCK_WAIT, _LOCK_POLL = 10.0, 3.0, 0.02
_WELCOME = b"""\
<!-- What you write here reaches the agent in every sandbox of claudebox. It is never overwritten. -->
"""


class Instance(Value):
    """Where the state of a project lies; none of it need exist yet."""

    root: str  # the project: the main repository if there is one
    state: str  # ~/.claudebox
    name: str  # of the directory of this instance

    @property
    def directory(self) -> str:
        return f"{self.state}/instances/{self.name}"

    @property
    def cover(self) -> str:
        """The directory that is mounted over a stub."""
        return f"{self.directory}/cover"

    @property
    def login(self) -> str:
        """The login that all projects share."""
        return f"{self.state}/login"

    @property
    def own_login(self) -> str:
        """Where an agent can log in while there is no other login."""
        return f"{self.directory}/login"


def locate(home: str, root: str, state: str = "") -> Instance:
    """Return the instance of a project (INST-01); `state` replaces ~/.claudebox."""
    return Instance(root, state or f"{home}/.claudebox", syscalls.sha256(os.fsencode(root))[:_DIGITS])


def name_git_directory(path: str, checkout: str) -> str:
    """Return the name of the state for a checkout: by inodes, since a reboot changes devices and a rename paths."""
    numbers = [f"{os.stat(place).st_ino}" for place in dict.fromkeys((path, f"{path}/objects", checkout))]
    name = os.path.basename(checkout) if checkout != path else ""
    return syscalls.sha256(os.fsencode(":".join((*numbers, name))))[:_DIGITS]


def open_state(state: str, name: str) -> int:
    """Open a directory of ours in ~/.claudebox, made if it is missing."""
    with Closing(os.open(os.path.dirname(state), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as home:
        own = _enter(home, os.path.basename(state))
    with Closing(own):
        return _enter(own, name)


def create(
    instance: Instance,
    *,
    seeds: tuple[tuple[str, str, str], ...] = (),
    mountpoints: tuple[tuple[str, bool], ...] = (),
    kept: tuple[str, ...] = (),
) -> None:
    """Create what is missing, and answer the agent's first questions. All paths are below the instance.

    `kept` are directories; `seeds` are files in them, with what they must say and the agent's lock for each;
    `mountpoints` are there to mount something on, with whether that is a directory.
    """
    try:
        try:
            _create(instance, seeds, mountpoints, kept)
        except PermissionError:  # an agent may have closed its directories
            open_again(instance.directory, kept)
            _create(instance, seeds, mountpoints, kept)
    except OSError as error:
        raise ClaudeboxError(
            f"the state of this project cannot be kept in `{instance.directory}`: {error.strerror}",
            hint=describe_failure(error).hint or "fix the directory's permissions; nothing was changed",
        ) from None


def open_again(directory: str, kept: tuple[str, ...]) -> None:
    """Open the directories that an agent can write and may have closed."""
    for path in ("login", "login/store", *kept):
        reopen(f"{directory}/{path}")


def read_approved(instance: Instance) -> tuple[frozenset[str], ...]:
    """Return the launches that the user approved here, each as its decisions, the last one first."""
    content = read_small(f"{instance.directory}/{_APPROVED}", limit=_APPROVED_LIMIT) or b""
    blocks = content.decode("utf-8", "replace").split("\n\n")
    return tuple(frozenset(block.splitlines()) for block in blocks if block.strip())


def keep_approved(instance: Instance, decided: tuple[str, ...]) -> None:
    """Record what was approved as the last launch; if that fails, the next one shows it as new again."""
    before, now = read_approved(instance), frozenset(decided)
    if before[:1] == (now,):
        return
    kept = (now, *(one for one in before if one != now))[:_APPROVED_LAUNCHES]
    _replace(f"{instance.directory}/{_APPROVED}", "\n\n".join("\n".join(sorted(one)) for one in kept) + "\n")


def read_told(directory: str) -> frozenset[str]:
    """Return the notes that were given: in a project by the directory of its instance, in any by ~/.claudebox."""
    content = read_small(f"{directory}/{_TOLD}", limit=_APPROVED_LIMIT) or b""
    return frozenset(content.decode("utf-8", "replace").splitlines())


def keep_told(directory: str, notes: Iterable[str]) -> None:
    """Record notes that were given; if that fails, they are given again."""
    before = read_told(directory)
    if not before.issuperset(notes):
        _replace(f"{directory}/{_TOLD}", "".join(f"{line}\n" for line in sorted(before.union(notes))))


def hand_down(instance: Instance, other: Instance) -> None:
    """Let what was approved and told in a project count in a worktree that is made of it."""
    create(other)
    for name in (_APPROVED, _TOLD):
        content = read_small(f"{instance.directory}/{name}", limit=_APPROVED_LIMIT) or b""
        _replace(f"{other.directory}/{name}", content.decode("utf-8", "replace"))


def _replace(path: str, text: str) -> None:
    try:
        write_file(path, text.encode("utf-8", "replace"))
    except OSError:
        pass


def _create(
    instance: Instance,
    seeds: tuple[tuple[str, str, str], ...],
    mountpoints: tuple[tuple[str, bool], ...],
    kept: tuple[str, ...],
) -> None:
    home = os.open(os.path.dirname(instance.state), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    opened = [home]

    def enter(parent: int, path: str) -> int:
        for name in path.split("/"):
            parent = _enter(parent, name)
            opened.append(parent)
        return parent

    try:
        state = enter(home, os.path.basename(instance.state))
        _check_format(state)
        _create_file(state, "CLAUDE.md", _WELCOME)
        enter(enter(state, "login"), "store")
        own = enter(enter(state, "instances"), instance.name)
        _claim(own, instance)
        login = enter(own, "login")
        _make_mountpoint(login, "store", directory=True)  # writable for an agent that logs in
        enter(login, "store")
        for path in kept:
            open_up(enter(own, path))  # root enters what is closed; nobody inside can
        for path, directory in mountpoints:
            above, _, name = path.rpartition("/")
            _make_mountpoint(enter(own, above), name, directory=directory)
        for path, content, lock in seeds:
            above, _, name = path.rpartition("/")
            _seed(own, enter(own, above), Answer(path, name, content, lock))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _check_format(state: int) -> None:
    """Refuse state that a later version has written; record ours where there is none."""
    content = read_at(state, FORMAT_FILE)
    if content is None:
        replace_file(state, FORMAT_FILE, b"%d\n" % _FORMAT)
    elif not content.strip().isdigit() or int(content) > _FORMAT:
        raise ClaudeboxError(
            f"`{os.readlink(f'/proc/self/fd/{state}')}` was written by a later version of claudebox",
            hint="use that version, or move the directory away",
        )


def _enter(parent: int, name: str) -> int:
    """Open a directory of ours, made if it is missing; refuse one of another user."""
    try:
        try:
            descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            _mkdir(parent, name)
            descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise ClaudeboxError(f"`{_path(parent, name)}` is not a directory", hint="move it away") from None
        raise
    status = os.fstat(descriptor)
    if status.st_uid != os.getuid() or others_write(descriptor, status):
        os.close(descriptor)
        path = _path(parent, name)
        raise ClaudeboxError(
            f"`{path}` belongs to another user, or others can write to it",
            hint=f"`chmod -R go-w {path}` if it is yours; move it away if it is not",
        )
    return descriptor


def _mkdir(parent: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:  # another launch was quicker
        pass


def _path(parent: int, name: str) -> str:
    return os.path.join(os.readlink(f"/proc/self/fd/{parent}"), name)


def _claim(own: int, instance: Instance) -> None:
    """Record which project this is; refuse if the name stands for another (C28)."""
    root = os.fsencode(instance.root)
    recorded = read_at(own, MANIFEST)
    if recorded is None:
        replace_file(own, MANIFEST, root)
    elif recorded != root:
        raise ClaudeboxError(
            f"`{instance.directory}` is the state of `{os.fsdecode(recorded)}`, not of `{instance.root}`",
            hint="move that directory away",
        )
    os.utime(MANIFEST, dir_fd=own, follow_symlinks=False)  # the time of the last use


def _create_file(directory: int, name: str, content: bytes) -> None:
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory)
    except FileExistsError:
        return
    with Closing(descriptor):
        os.write(descriptor, content)


def _make_mountpoint(parent: int, name: str, *, directory: bool) -> None:
    """Make a file or directory to mount something on; an agent may have put something else there."""
    try:
        mode = os.lstat(name, dir_fd=parent).st_mode
    except FileNotFoundError:
        mode = 0
    if mode and stat.S_ISDIR(mode) == directory and not stat.S_ISLNK(mode):
        return
    if mode:
        os.rename(name, f"{name}.replaced.{time.time_ns()}", src_dir_fd=parent, dst_dir_fd=parent)
    if directory:
        _mkdir(parent, name)
    else:
        _create_file(parent, name, b"")


class Answer(Value):
    """A file of an agent's state, and what it must say."""

    path: str  # below the instance
    name: str
    content: str  # a JSON document is merged into what there is, other text is written where there is nothing
    lock: str = ""  # the agent's own, beside it


def _seed(own: int, directory: int, answer: Answer) -> None:
    """Answer the agent's first questions, once for each thing to say."""
    stamp = syscalls.sha256(os.fsencode(answer.path) + b"\0" + os.fsencode(answer.content)).encode() + b"\n"
    if stamp in (read_at(own, _SEEDED) or b"") and stat.S_ISREG(mode_of(answer.name, directory)):
        return
    with Closing(os.open("lock", OPEN_LOCK, 0o600, dir_fd=own)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _locked(directory, answer.lock, lambda: _merge(directory, answer)):
            console.warn(
                "another session of this project is writing the client's settings: it may ask its first questions"
            )
            return
        replace_file(own, _SEEDED, (read_at(own, _SEEDED) or b"")[-65536:] + stamp)


def _merge(directory: int, answer: Answer) -> None:
    name = answer.name
    content = read_at(directory, name, limit=_CONFIG_LIMIT)
    if content is None and os.path.lexists(f"/proc/self/fd/{directory}/{name}"):
        os.rename(name, f"{name}.replaced.{time.time_ns()}", src_dir_fd=directory, dst_dir_fd=directory)
    if answer.content.startswith("{"):
        replace_file(directory, name, answer_questions(content, answer))
    elif content is None:
        replace_file(directory, name, os.fsencode(answer.content))


def answer_questions(content: bytes | None, answer: Answer) -> bytes:
    """Return a JSON file of the agent with the answers that a first start would ask for."""
    import json

    try:
        document = json.loads(content) if content else {}
        _add(document, _without_empty(json.loads(answer.content, strict=False)))
        return json.dumps(document, indent=2).encode()
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # an agent may have written it
        problem = str(error) if isinstance(error, ValueError) else "it is not what the client writes"
        raise ClaudeboxError(
            f"the client's `{answer.name}` of this project is damaged: {problem}",
            hint="move it away, or put back a copy from `backups` beside it (`claudebox projects` tells where)",
        ) from None


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        rows = {name: _without_empty(row) for name, row in value.items()}
        return {name: row for name, row in rows.items() if row not in ({}, [])}
    return [word for word in value if word] if isinstance(value, list) else value


def _add(document: dict[str, Any], more: dict[str, Any]) -> None:
    """Add to a document what it does not say yet; lists grow."""
    for name, value in more.items():
        if isinstance(value, dict):
            _add(document.setdefault(name, {}), value)
        elif isinstance(value, list):
            known = document.setdefault(name, [])
            known.extend(word for word in value if word not in known)
        else:
            document.update({name: value})


def _locked(directory: int, name: str, action: Callable[[], None]) -> bool:
    """Act under the agent's own lock, if it has one; return whether that was possible."""
    if not name:
        action()
        return True
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
            break
        except FileExistsError:
            age = time.time() - os.lstat(name, dir_fd=directory).st_mtime if mode_of(name, directory) else 0
            if not -_LOCK_STALE < age < _LOCK_STALE:
                break  # abandoned: its owner would have renewed it
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOCK_POLL)
    try:
        action()
        return True
    finally:
        try:
            os.rmdir(name, dir_fd=directory)
        except OSError:
            pass
