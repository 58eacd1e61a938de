"""After a session in which a person logged in inside: keep that login for all projects, if they say so."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from claudebox import client, console
from claudebox.errors import ClaudeboxError
from claudebox.files import read_small
from claudebox.instance import replace

if TYPE_CHECKING:
    from claudebox.instance import Instance


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
    try:
        document = json.loads(content)
    except ValueError:
        return False
    tokens = document.get(client.TOKENS) if isinstance(document, dict) else None
    return isinstance(tokens, dict) and all(isinstance(tokens.get(n), str) for n in ("accessToken", "refreshToken"))
