"""Git over HTTPS inside: one host, one token, one helper of the sandbox's own (SEC-03).

The host's helpers and their stores stay outside. The token is fetched before the start, from a variable or from the
output of a command, and lies inside in a helper that answers for this host alone.
"""

from __future__ import annotations

import os

from claudebox import programs
from claudebox.environment import GIT_HELPER
from claudebox.errors import ClaudeboxError
from claudebox.model import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.model import GitCredential

_TIMEOUT = 20
_SCRIPT = """\
#!/bin/sh
# Answers git for one host alone.
[ "$1" = get ] || exit 0
protocol= host=
while IFS='=' read -r name value && [ -n "$name" ]; do
  case $name in protocol) protocol=$value ;; host) host=$value ;; esac
done
[ "$protocol" = https ] && [ "$host" = {host} ] || exit 0
printf '%s\\n' username={username} password={token}
"""


def obtain(credential: GitCredential, environ: dict[str, str], path: tuple[str, ...], *, showing: bool) -> str:
    """Return the token, or nothing if its variable is not set; a command is not run just to show a plan."""
    kind, _, rest = credential.token.partition(":")
    if kind == "env":
        return environ.get(rest, "")
    if showing:
        return "***"
    import shlex  # noqa: PLC0415 - only for those who have such a command
    from subprocess import SubprocessError, run  # noqa: PLC0415

    words = shlex.split(rest)
    program = words[0] if words[0].startswith("/") else programs.find_tool(words[0], path)
    if program is None:
        raise ClaudeboxError(f"`{credential.origin}`: the program `{words[0]}` was not found")
    try:
        answer = run(
            [program, *words[1:]], cwd="/", env=environ, capture_output=True, timeout=_TIMEOUT, check=False, stdin=-3
        )
    except (OSError, SubprocessError):
        raise ClaudeboxError(f"`{credential.origin}`: `{rest}` did not answer") from None
    token = os.fsdecode(answer.stdout).strip()
    if answer.returncode or not token:
        raise ClaudeboxError(f"`{credential.origin}`: `{rest}` gave no token (status {answer.returncode})")
    return token


def plan_mounts(credential: GitCredential, token: str) -> Iterator[Mount]:
    """Return the helper of the sandbox."""
    if not token or not token.isprintable():
        return
    script = _SCRIPT.format(host=_quoted(credential.host), username=_quoted(credential.username), token=_quoted(token))
    reason = f"lets git log in to {credential.host}, asked for with {credential.origin}"
    yield Mount(GIT_HELPER, "file", reason, content=os.fsencode(script), mode=0o755, secret=True)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
