"""The search of the end, over a page before it is written: no value that was withheld or masked may stand in it."""

from __future__ import annotations

import os

from claudebox import session
from claudebox.agent import kinds
from claudebox.agent.facts import list_secrets
from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import expand
from claudebox.host.machine import current_home
from claudebox.report import leaks
from claudebox.review.records import Story, list_texts
from claudebox.settings.layers import merge
from claudebox.tables.secrets import looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from claudebox.base.state import Instance
    from claudebox.review.batch_page import TaskRow
    from claudebox.review.diffs import FileChange
    from claudebox.settings.layers import Settings
    from claudebox.settings.records import Policy


def list_values(
    story: Story, flags: Settings, environ: dict[str, str], workdir: str
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return names and values that did not enter a session, and the names of those whose value is not known here.

    Commands that print a secret are not run for this.
    """
    home = current_home(environ)
    entered = {name for name, _ in story.entered}
    found = [(name, value) for name, value in environ.items() if name not in entered and looks_secret(name, value)]
    found += list_secrets(kinds.find_kinds(), home)
    os.chdir(workdir)
    policy = _read_policy(flags, environ)
    unknown = [name for name in story.withheld if name not in environ]
    for secret in policy.secrets:
        kind, _, place = secret.source.partition(":")
        value = (
            environ.get(place, "")
            if kind == "env"
            else _read_first(expand(place, workdir, home))
            if kind == "file"
            else ""
        )
        found += [(secret.env, value)] if value else []
        unknown += [] if value else [secret.env]
    if policy.masks_secrets:
        found += _list_masked(policy, base_state.locate(home, workdir), workdir)
    return found, unknown


def _read_policy(flags: Settings, environ: dict[str, str]) -> Policy:
    try:
        settings, _ = session.read_settings(flags.replace(words=()), environ)
    except ClaudeboxError as error:
        console.warn(f"{error.message}: going on without")
        settings = merge(flags.replace(words=()), environ)
    return session.decide_policy(settings, environ)


def _read_first(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(1 << 16).strip()
    except OSError:
        return ""


def _list_masked(policy: Policy, instance: Instance, workdir: str) -> Iterator[tuple[str, str]]:
    """Yield the words of lines that hold secrets, in files of the project that are masked."""
    from claudebox.host import secret_files

    found, _ = secret_files.leaks(policy, (workdir,), instance)
    for row in found:
        name = os.path.basename(row.path)
        try:
            with open(row.path, encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read(1 << 20).split("\n")
        except OSError:
            continue
        for number in row.lines:
            text = lines[number - 1] if number <= len(lines) else ""
            for word in text.replace('"', " ").replace("'", " ").replace(",", " ").replace("=", " ", 1).split():
                yield f"line {number} of {name}", word


def require_clean(source: Story | Sequence[TaskRow], page: bytes, values: Iterable[tuple[str, str]]) -> None:
    """Refuse a page in which a value stands: as it is written, or in a text before markup or line breaks divided it."""
    forms = leaks.find_forms(values)
    text = _join(source) if forms else b""
    for form, name, _ in forms:
        tight = b"".join(form.split())
        if form in page or tight in text:
            changes = [] if not isinstance(source, Story) else [*source.files, *_list_committed(source)]
            places = (f", from `{console.shorten(row.path, 200)}`" for row in changes if tight in _join(row))
            raise ClaudeboxError(
                f"no page was made: the value of `{name}` would stand in it{next(places, '')}",
                hint="find out how it came there, and rotate it",
            )


def _list_committed(story: Story) -> Iterator[FileChange]:
    return (change for commit in story.commits for change in commit.files)


def _join(record: object) -> bytes:
    """Return every text without its white space: encoders break long lines."""
    return b"".join(b"".join(_encode(text).split()) + b"\n" for text in list_texts(record))


def _encode(text: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:  # half a character, from a conversation
        return text.encode("utf-8", "surrogatepass")
