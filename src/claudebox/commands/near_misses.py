"""Flags that are nearly ours: refused with what was probably meant, unless the installed client has them itself."""

from __future__ import annotations

import os

from claudebox.config.options import SETTINGS
from claudebox.errors import ClaudeboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_ALIKE = 0.65  # of 1
# Flags of the client that people use, and those of `--shell`: nothing is imported or searched for because of them.
KNOWN = frozenset((
    "--add-dir", "--agent", "--agents", "--allowed-tools", "--allowedTools", "--append-system-prompt", "--background",
    "--betas", "--bg", "--channels", "--chrome", "--cloud", "--continue", "--dangerously-skip-permissions", "--debug",
    "--debug-file", "--disable-slash-commands", "--disallowed-tools", "--disallowedTools", "--effort",
    "--fallback-model", "--file", "--fork-session", "--from-pr", "--ide", "--include-hook-events",
    "--include-partial-messages", "--input-format", "--json-schema", "--maintenance", "--max-budget-usd", "--max-turns",
    "--mcp-config", "--model", "--name", "--no-chrome", "--no-session-persistence", "--output-format",
    "--permission-mode", "--permission-prompt-tool", "--plugin-dir", "--prefill", "--print", "--remote-control",
    "--replay-user-messages", "--resume", "--session-id", "--setting-sources", "--settings", "--strict-mcp-config",
    "--system-prompt", "--teleport", "--tmux", "--tools", "--verbose", "--worktree",
    "--init-file", "--login", "--noediting", "--noprofile", "--norc", "--posix", "--rcfile",
))  # fmt: skip


def check_flags(unknown: Iterable[str], environ: dict[str, str]) -> None:
    """Refuse a flag that is probably mistyped: as a word for the client it would have no effect, or another one."""
    for flag in unknown:
        meant = [] if flag in KNOWN else find_similar(flag)
        if meant and not _client_has(flag, environ):
            named = " or ".join(f"`{name}`" for name in meant)
            raise ClaudeboxError(
                f"neither claudebox nor the client has a flag `{flag}`: did you mean {named}?",
                hint="write it after `--` if it is for the program inside",
            )


def find_similar(flag: str) -> list[str]:
    """Return our flags that are spelled nearly so."""
    import difflib

    ours = [name[2:] for row in SETTINGS for name in row.flags if name.startswith("--")]
    return [f"--{name}" for name in difflib.get_close_matches(flag[2:], ours, 2, _ALIKE)]


def _client_has(flag: str, environ: dict[str, str]) -> bool:
    from claudebox.facts import host, programs

    workdir = host.current_directory()
    try:
        client = programs.find_client(host.current_home(environ), programs.search_path(environ, workdir), workdir)
    except ClaudeboxError:
        return False
    return defines(client.path, flag)


def defines(path: str, flag: str) -> bool:
    """Return whether a program defines this flag in the way of the library that the client reads its own with."""
    import mmap
    import re

    wanted = os.fsencode(flag)
    pattern = re.compile(rb'(?:\.option\(|new [\w$]+\()"(?:-\w, |--[\w-]+, )?' + re.escape(wanted) + rb'[ ",]')
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = content.find(wanted)
        while place >= 0:
            if pattern.search(content[max(0, place - 80) : place + len(wanted) + 1]):
                return True
            place = content.find(wanted, place + 1)
    return False
