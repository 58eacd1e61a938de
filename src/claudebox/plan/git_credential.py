"""Git over HTTPS inside: one host, one token, one helper of the sandbox's own (SEC-03).

The host's helpers and their stores stay outside. The token is fetched before the start, from a variable or from the
output of a command, and lies inside in a helper that answers for this host alone. If it comes from where a secret
comes from that stays outside, the helper has the placeholder.
"""

from __future__ import annotations

import os

from claudebox.errors import ClaudeboxError
from claudebox.launch import secret_values
from claudebox.plan.model import Mount
from claudebox.tables.inside import GIT_HELPER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import GitCredential, Policy
    from claudebox.facts.model import HeldSecret

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


def obtain(
    policy: Policy, environ: dict[str, str], path: tuple[str, ...], *, home: str, secrets: tuple[HeldSecret, ...]
) -> str:
    """Return the token, or nothing if its variable is not set.

    Where the same value is a secret that stays outside, git gets the placeholder like everybody else.
    """
    credential = policy.credential
    if credential is None:
        return ""
    for secret in secrets:
        if secret.source == credential.token:
            if credential.host not in secret.places:
                raise ClaudeboxError(
                    f"`{credential.origin}` lets git log in to `{credential.host}` with a value that "
                    f"`{secret.origin}` keeps out",
                    hint=f"add `{credential.host}` to the hosts of `{secret.env}`",
                )
            return secret.placeholder
    return secret_values.obtain(credential.token, credential.origin, environ, path, home=home, showing=policy.showing)


def plan_mounts(credential: GitCredential, token: str) -> Iterator[Mount]:
    """Return the helper of the sandbox."""
    if not token or not token.isprintable():
        return
    script = _SCRIPT.format(host=_quoted(credential.host), username=_quoted(credential.username), token=_quoted(token))
    reason = f"lets git log in to {credential.host}, asked for with {credential.origin}"
    yield Mount(GIT_HELPER, "file", reason, content=os.fsencode(script), mode=0o755, secret=True)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
