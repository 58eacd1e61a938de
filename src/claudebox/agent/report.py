"""After a session of the client: how to resume it, and what to do with a login that was made inside."""

from __future__ import annotations

import os

from claudebox.agent.facts import text_at
from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_DIRECTORY, Closing, parse_object, read_at, read_small, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.agent.record import AgentKind
    from claudebox.base.state import Instance


_IDENTIFIER = frozenset("0123456789abcdef-")
_UUID = 36
_MOST = 4096  # entries of a directory that are looked at
_LONGEST = 100


def find_conversation(agent: AgentKind, instance: Instance, started: float) -> tuple[str, ...]:
    """Return the words that resume the conversation that was written to last since the start, if there is one."""
    newest = newest_conversation(agent, instance, started)
    return tuple(word.replace("{id}", identify(newest)) for word in agent.resume) if newest else ()


def identify(path: str) -> str:
    """Return the identifier in the name of a file that was made inside, if it is one."""
    identifier = os.path.basename(path).partition(".")[0][-_UUID:]
    return identifier if set(identifier) <= _IDENTIFIER else ""


def newest_conversation(agent: AgentKind, instance: Instance, started: float) -> str:
    """Return the file of the conversation that was written to last since the start."""
    return next(reversed(list_conversations(agent, instance, started)), "")


def list_conversations(agent: AgentKind, instance: Instance, started: float) -> list[str]:
    """Return the files of conversations that were written to since the start, in this order; no link is followed."""
    found: list[tuple[float, str]] = []
    *parts, last = agent.transcripts.split("/")
    places = [instance.directory]
    for part in parts:
        places = [path for place in places for path in _matching(place, part)]
    for path in (path for place in places for path in _matching(place, last)):
        if "{id}" in agent.resume and not identify(path):
            continue
        try:
            written = os.lstat(path).st_mtime
        except OSError:
            continue
        if written >= started:
            found.append((written, path))
    return [path for _, path in sorted(found)]


def _matching(directory: str, pattern: str) -> list[str]:
    start, star, end = pattern.partition("*")
    if not star:
        path = f"{directory}/{pattern}"
        return [path] if os.path.exists(path) and not os.path.islink(path) else []
    names = ((path, os.path.basename(path)) for path in _names(directory))
    return [path for path, name in names if name.startswith(start) and name.endswith(end)]


def _names(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for _, entry in zip(range(_MOST), entries, strict=False) if not entry.is_symlink()]
    except OSError:
        return []


def offer(agent: AgentKind, instance: Instance) -> None:
    """Ask whether a login made in this project should be that of all of them; it then leaves the project.

    Everything on the way to it can be written inside, so no link is followed, and what is removed is what was read.
    """
    kind = agent.upstream.login
    try:
        store = _open_store(instance)
    except OSError:
        return
    with Closing(store):
        name = os.path.basename(kind.path) if kind is not None else ""
        content = read_at(store, name, limit=1 << 20)
        if kind is None or content is None:
            return
        document = parse_object(content)
        if not (text_at(document, kind.access) and text_at(document, kind.refresh)):
            return
        made = _identity(name, store)
        if not _wanted(agent, instance):
            return
        with Closing(os.open(instance.login, OPEN_DIRECTORY)) as directory:
            replace_file(directory, "credentials.json", content)
        if _identity(name, store) == made:
            os.unlink(name, dir_fd=store)


def _open_store(instance: Instance) -> int:
    """Open the directory of the login made inside, one part after another."""
    descriptor = os.open(instance.directory, OPEN_DIRECTORY)
    for part in ("login", "store"):
        with Closing(descriptor) as above:
            descriptor = os.open(part, OPEN_DIRECTORY, dir_fd=above)
    return descriptor


def _identity(name: str, store: int) -> tuple[int, int] | None:
    try:
        status = os.lstat(name, dir_fd=store)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _wanted(agent: AgentKind, instance: Instance) -> bool:
    path, _, field = agent.upstream.account.partition(":")
    account = text_at(parse_object(read_small(f"{instance.directory}/{path}", limit=64 << 20)), field)[:_LONGEST]
    name = console.clean(account) or "an unnamed account"
    try:
        return console.confirm(
            f"A login was made inside, for {name} (as the sandbox says it). Keep it outside, for all projects? [y/N] ",
            default=False,
        )
    except ClaudeboxError:  # nobody to ask: it stays with this project
        return False
