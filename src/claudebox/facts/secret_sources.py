"""Which secrets can be had here: their variable is set, or their file is there. No value is read, no command is run."""

from __future__ import annotations

import os
import stat

from claudebox.errors import ClaudeboxError
from claudebox.files import real_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import Policy, SecretRequest

_SYSTEM = ("/usr", "/opt", "/nix/store")  # of the host, read-only inside


def find_secrets(policy: Policy, environ: dict[str, str], *, home: str, workdir: str) -> tuple[SecretRequest, ...]:
    """Return every secret that the broker will hold; one whose variable is unset is left out."""
    visible = (workdir, *(row.source for row in policy.mounts), *_SYSTEM)
    found: list[SecretRequest] = []
    for secret in policy.secrets if not policy.tier.isolated else ():  # a secret opens no tier
        _check_place(secret, home=home, visible=visible)
        hosts = _reachable(policy, secret)
        if hosts and available(secret.source, secret.origin, environ, home=home):
            found.append(secret.replace(hosts=hosts))
    return tuple(found)


def available(source: str, origin: str, environ: dict[str, str], *, home: str) -> bool:
    """Return whether a value can be had; a file that is missing is refused, since somebody named it."""
    kind, _, rest = source.partition(":")
    if kind == "env":
        return bool(environ.get(rest))
    if kind == "file":
        path = file_path(source, home=home)
        try:
            regular = stat.S_ISREG(os.stat(path).st_mode)
        except OSError:
            raise ClaudeboxError(f"`{origin}`: the file `{path}` does not exist") from None
        if not regular:
            raise ClaudeboxError(f"`{origin}`: the file `{path}` cannot be read as a small file")
    return True


def file_path(source: str, *, home: str) -> str:
    """Return the path of a source `file:PATH`."""
    path = source.removeprefix("file:")
    return f"{home}{path[1:]}" if path.startswith("~/") else path


def _reachable(policy: Policy, secret: SecretRequest) -> tuple[tuple[str, int], ...]:
    """Return the hosts to which the tier leads: a secret opens no way."""
    if policy.tier.routed:
        return secret.hosts
    from claudebox.config.domains import Permission, parse_domain

    permission = Permission(parse_domain(row.name, row.origin) for row in policy.domains)
    return tuple(place for place in secret.hosts if permission.rule(*place) is not None)


def _check_place(secret: SecretRequest, *, home: str, visible: tuple[str, ...]) -> None:
    """Refuse a file that the agent could read by itself."""
    if not secret.source.startswith("file:"):
        return
    path = real_path(file_path(secret.source, home=home))
    for directory in visible:
        if f"{path}/".startswith(f"{real_path(directory)}/"):
            raise ClaudeboxError(
                f"`{secret.origin}`: `{path}` is visible inside, in `{directory}`",
                hint="keep it elsewhere, for example in your home",
            )
