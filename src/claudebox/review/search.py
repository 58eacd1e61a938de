"""The search of the end, over a page before it is written: no value that was withheld or masked may stand in it."""

from __future__ import annotations

import os

from claudebox import session
from claudebox.agent import kinds
from claudebox.agent.facts import list_secrets
from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import read_small
from claudebox.broker.facts import file_path
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
    from claudebox.settings.layers import Settings
    from claudebox.settings.records import Policy


_MOST = 64 << 20  # bytes of a masked file
_BETWEEN = str.maketrans(dict.fromkeys("\"',", " "))  # what stands around values


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
    unknown = [name for name in story.withheld if name not in environ]
    os.chdir(workdir if os.path.isdir(workdir) else "/")  # the settings of the project are read
    policy = _read_policy(flags, environ)
    for secret in policy.secrets:
        kind, _, rest = secret.source.partition(":")
        content = read_small(file_path(secret.source, home=home), follow=True) if kind == "file" else None
        value = os.fsdecode(content or b"").strip() or (environ.get(rest, "") if kind == "env" else "")
        found += [(secret.env, value)] if value else []
        unknown += [] if value else [secret.env]
    if policy.masks_secrets:
        found += _list_masked(policy, base_state.locate(home, os.getcwd()), os.getcwd(), environ)
    return found, unknown


def _read_policy(flags: Settings, environ: dict[str, str]) -> Policy:
    try:
        settings, _ = session.read_settings(flags.replace(words=()), environ)
    except ClaudeboxError as error:
        console.warn(f"{error.message}: going on without")
        settings = merge(flags.replace(words=()), environ)
    return session.decide_policy(settings, environ)


def _list_masked(
    policy: Policy, instance: Instance, workdir: str, environ: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the values that are masked in files of the project."""
    from claudebox.git import facts as git_facts
    from claudebox.host import project_search, secret_files

    searched = project_search.search((workdir,), seconds=secret_files.search_time(policy))
    repository = git_facts.find_repository(workdir, os.getuid(), current_home(environ), environ)
    found = secret_files.find_secrets(policy, searched, (workdir,), instance, git_facts.CommittedContents(repository))
    yield from secret_files.list_values(row for row in found.files if not row.committed)


def require_clean(source: Story | Sequence[TaskRow], page: bytes, values: Iterable[tuple[str, str]]) -> None:
    """Refuse a page in which a value stands: as it is written, or in a text before markup or line breaks divided it."""
    forms = leaks.find_forms(values)
    text = _join(source) if forms else b""
    for form, name, _ in forms:
        tight = b"".join(form.split())
        if form in page or tight in text:
            changes = source.changes if isinstance(source, Story) else []
            places = (f", from `{console.shorten(row.path, 200)}`" for row in changes if tight in _join(row))
            raise ClaudeboxError(
                f"no page was made: the value of `{name}` would stand in it{next(places, '')}",
                hint="find out how it came there, and rotate it",
            )


def _join(record: object) -> bytes:
    """Return every text without its white space: encoders break long lines."""
    return b"".join(b"".join(_encode(text).split()) + b"\n" for text in list_texts(record))


def _encode(text: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:  # half a character, from a conversation
        return text.encode("utf-8", "surrogatepass")
