"""Git over HTTPS inside: one host, one token, one helper of the sandbox's own (SEC-03).

The host's helpers and their stores stay outside. The token is fetched when the user has agreed, and lies inside beside
a helper that answers for this host alone. If it comes from where a secret comes from that stays outside, it is the
placeholder.
"""

from __future__ import annotations

import os

from claudebox.errors import ClaudeboxError
from claudebox.plan.model import GIT_TOKEN, Fetched, Mount, placeholder_key
from claudebox.tables.inside import GIT_HELPER, GIT_TOKEN_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import GitCredential
    from claudebox.facts.host import Host

_SCRIPT = """\
#!/bin/sh
# Answers git for one host alone.
[ "$1" = get ] || exit 0
protocol= host= token=
while IFS='=' read -r name value && [ -n "$name" ]; do
  case $name in protocol) protocol=$value ;; host) host=$value ;; esac
done
[ "$protocol" = https ] && [ "$host" = {host} ] || exit 0
IFS= read -r token <{file}
printf '%s\\n' username={username} "password=$token"
"""


def plan_mounts(credential: GitCredential, host: Host) -> Iterator[Mount]:
    """Return the helper of the sandbox, and its token."""
    if not host.git_token:
        return
    script = _SCRIPT.format(
        host=_quoted(credential.host), username=_quoted(credential.username), file=_quoted(GIT_TOKEN_FILE)
    )
    reason = f"lets git log in to {credential.host}, asked for with {credential.origin}"
    yield Mount(GIT_HELPER, "file", reason, content=os.fsencode(script), mode=0o755)
    yield Mount(GIT_TOKEN_FILE, "file", reason, mode=0o400, fetched=Fetched(_key(credential, host)))


def _key(credential: GitCredential, host: Host) -> str:
    """Return what the token is: where the same value stays outside, git gets the placeholder like everybody else."""
    for secret in host.held_secrets:
        if secret.source == credential.token:
            if credential.host not in secret.places:
                raise ClaudeboxError(
                    f"`{credential.origin}` lets git log in to `{credential.host}` with a value that "
                    f"`{secret.origin}` keeps out",
                    hint=f"add `{credential.host}` to the hosts of `{secret.env}`",
                )
            return placeholder_key(secret.env)
    return GIT_TOKEN


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
