"""After a session of the client: how to resume it, and what to do with a login that was made inside."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from claudebox import console
from claudebox.errors import ClaudeboxError
from claudebox.files import read_small
from claudebox.plan import claude_code
from claudebox.state import replace

_IDENTIFIER = frozenset("0123456789abcdef-")

if TYPE_CHECKING:
    from claudebox.state import Instance


def say(instance: Instance, started: float, *, login_known: bool) -> None:
    """Say what is left to say on the terminal."""
    if os.isatty(1) and os.isatty(2):
        session = _newest_session(instance, started)
        if session:
            console.note(f"resume this session with `claudebox --resume {session}`")
    if not login_known:
        offer(instance)


def _newest_session(instance: Instance, started: float) -> str:
    """Return the conversation that was written to last since the start; names come from inside and are checked."""
    newest, session = started, ""
    for base, _, names in os.walk(f"{instance.claude}/{claude_code.TRANSCRIPTS}"):
        for name in names:
            identifier, dot, suffix = name.partition(".")
            if (dot, suffix) != (".", "jsonl") or not identifier or not set(identifier) <= _IDENTIFIER:
                continue
            try:
                written = os.lstat(os.path.join(base, name)).st_mtime
            except OSError:
                continue
            if written >= newest:
                newest, session = written, identifier
    return session


def offer(instance: Instance) -> None:
    """Ask whether a login made in this project should be that of all of them; it then leaves the project."""
    made = f"{instance.own_login}/store/.credentials.json"
    content = read_small(made, limit=1 << 20)
    if content is None or not _is_login(content):
        return
    try:
        wanted = console.confirm(
            "You logged in inside. Keep this login for all projects, outside of the sandbox? [Y/n] ", default=True
        )
    except ClaudeboxError:  # nobody to ask: it stays with this project
        return
    if not wanted:
        return
    directory = os.open(instance.login, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        replace(directory, "credentials.json", content)
    finally:
        os.close(directory)
    os.unlink(made)


def _is_login(content: bytes) -> bool:
    import json  # noqa: PLC0415 - hardly ever needed

    try:
        document = json.loads(content)
    except ValueError:
        return False
    tokens = document.get(claude_code.TOKENS) if isinstance(document, dict) else None
    return isinstance(tokens, dict) and all(isinstance(tokens.get(n), str) for n in ("accessToken", "refreshToken"))
