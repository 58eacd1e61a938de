"""The search of the end, over a page before it is written: no value that was withheld or masked may stand in it."""

from __future__ import annotations

import os

from claudebox import session
from claudebox.agent import kinds
from claudebox.agent.facts import list_tokens
from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import expand
from claudebox.host.machine import current_home
from claudebox.report import leaks
from claudebox.review.records import list_texts
from claudebox.settings.layers import merge
from claudebox.tables.secrets import looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.base.state import Instance
    from claudebox.review.records import Story
    from claudebox.settings.layers import Settings
    from claudebox.settings.records import Policy


def list_values(
    story: Story, flags: Settings, environ: dict[str, str], workdir: str
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return names and values that did not enter a session, and the names of those without a value here.

    Commands that print a secret are not run for this.
    """
    home = current_home(environ)
    entered = {name for name, _ in story.entered}
    found = [(name, value) for name, value in environ.items() if name not in entered and looks_secret(name, value)]
    for agent in kinds.find_kinds():
        if agent.login_file:
            for login in (f"{home}/{agent.directory}/{agent.login_file}", f"{home}/.claudebox/login/credentials.json"):
                found += list_tokens(agent.upstream, login)
    os.chdir(workdir)
    policy = _read_policy(flags, environ)
    unknown = []
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


def require_clean(story: Story, page: bytes, values: Iterable[tuple[str, str]]) -> None:
    """Refuse a page in which a value stands: as it would be written, and as it came, before markup divided it."""
    forms = leaks.find_forms(values)
    if not forms:
        return
    text = "\n".join(list_texts(story)).encode("utf-8", "surrogatepass")
    for form, name, _ in forms:
        if form in page or form in text:
            raise ClaudeboxError(
                f"no page was made: the value of `{name}` would stand in it{_place(story, form)}",
                hint="find out how it came there, and rotate it",
            )


def _place(story: Story, form: bytes) -> str:
    for change in (*story.files, *(change for commit in story.commits for change in commit.files)):
        if form in "\n".join(list_texts(change)).encode("utf-8", "surrogatepass"):
            return f", from `{console.shorten(change.path, 200)}`"
    return ""
