"""Which secrets are available, and where the broker's libraries are. No value is read, no command is run."""

from __future__ import annotations

import os
import stat
import sys

from claudebox import build_paths
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import PACKAGE, real_path
from claudebox.base.records import Value
from claudebox.base.syscalls import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.settings.records import Policy, SecretRequest


_SYSTEM = ("/usr", "/opt", "/nix/store")  # of the host, read-only inside


def find_secrets(policy: Policy, environ: dict[str, str], *, home: str, workdir: str) -> tuple[SecretRequest, ...]:
    """Return every secret that the broker will hold; one whose variable is unset is left out."""
    visible = (workdir, *(row.source for row in policy.mounts), *_SYSTEM)
    found: list[SecretRequest] = []
    for secret in policy.secrets if not policy.tier.isolated else ():  # a secret gives no network
        _check_place(secret, home=home, visible=visible)
        hosts = _reachable(policy, secret)
        if hosts and available(secret.source, secret.origin, environ, home=home):
            found.append(secret.replace(hosts=hosts))
    return tuple(found)


def available(source: str, origin: str, environ: dict[str, str], *, home: str) -> bool:
    """Return whether a variable is set; refuse a file that is missing: a setting names it."""
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
            raise ClaudeboxError(f"`{origin}`: the file `{path}` cannot be read, or is too large")
    return True


def file_path(source: str, *, home: str) -> str:
    path = source.removeprefix("file:")
    return _at_home(path, home)


def _reachable(policy: Policy, secret: SecretRequest) -> tuple[tuple[str, int], ...]:
    """Return the hosts that the tier permits anyway."""
    if policy.tier.routed:
        return secret.hosts
    from claudebox.settings.domains import Permission, parse_domain

    permission = Permission(parse_domain(row.name, row.origin) for row in policy.domains)
    return tuple(place for place in secret.hosts if permission.rule(*place) is not None)


def _check_place(secret: SecretRequest, *, home: str, visible: tuple[str, ...]) -> None:
    """Refuse a file that the agent could read."""
    if not secret.source.startswith("file:"):
        return
    path = real_path(file_path(secret.source, home=home))
    for directory in visible:
        if f"{path}/".startswith(f"{real_path(directory)}/"):
            raise ClaudeboxError(
                f"`{secret.origin}`: `{path}` is visible inside, in `{directory}`",
                hint="keep it elsewhere, for example in your home",
            )


class ModelLogin(Value):
    """A file of an agent on this machine that holds a key or a login for one of its APIs; no token is kept."""

    api: str
    path: str
    field: str = ""  # with the key; of a login none
    address: str = ""  # of the API, if the file says it as well


def find_model_logins(policy: Policy, environ: dict[str, str], home: str) -> tuple[ModelLogin, ...]:
    """Return where the keys and logins are that no variable holds."""
    from claudebox.agent.facts import read_field

    found = []
    for api in policy.agent.upstreams if policy.auth == "broker" else ():
        if any(environ.get(name) for name in api.keys):
            continue
        if api.login is not None:
            path = _at_home(api.login.path, home)
            if read_field(path, api.login.access) and read_field(path, api.login.refresh):
                found.append(ModelLogin(api.name, path))
                continue
        places = (row.rpartition(":") for row in api.files)
        held = ((_at_home(path, home), field) for path, _, field in places)
        held = ((path, field) for path, field in held if read_field(path, field))
        found += [ModelLogin(api.name, *row, read_field(row[0], api.base_url)) for row in list(held)[:1]]
    return tuple(found)


def _at_home(path: str, home: str) -> str:
    return f"{home}{path[1:]}" if path.startswith("~/") else path


def find_free_ports(count: int) -> tuple[int, ...]:
    """Return ports of this machine's loopback on which nobody listens; the next to ask gets others."""
    trials = [socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) for _ in range(count)]
    try:
        for trial in trials:
            trial.bind(("127.0.0.1", 0))
        return tuple(trial.getsockname()[1] for trial in trials)
    finally:
        for trial in trials:
            trial.close()


def find_libraries() -> tuple[str, ...]:
    """Return where `cryptography` is, which issues certificates for `[[secrets]]`; the launcher never imports it."""
    for place in _places():
        if os.path.isfile(f"{place}/cryptography/__init__.py"):
            return (place,)
    raise ClaudeboxError(
        "the broker needs the Python library `cryptography` for `[[secrets]]`",
        hint="install it: `pipx reinstall claudebox`, `scripts/libraries` in a checkout, or your distribution's "
        "package `python3-cryptography`",
    )


def _places() -> tuple[str, ...]:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    prefix = os.path.dirname(os.path.dirname(sys.executable))  # of a virtual environment too, even under `-S`
    return (
        *build_paths.LIBRARIES,
        PACKAGE,  # `scripts/install`, and an environment made by an installer
        f"{os.path.dirname(PACKAGE)}/.local/libraries",  # a checkout
        f"{prefix}/lib/{version}/site-packages",
        f"{sys.base_prefix}/lib/{version}/site-packages",
        f"{sys.base_prefix}/local/lib/{version}/dist-packages",  # Debian
        f"{sys.base_prefix}/lib/python3/dist-packages",
        f"{sys.base_prefix}/lib64/{version}/site-packages",  # Fedora
    )


def look_for_libraries() -> tuple[str, ...] | ClaudeboxError:
    """Return them, or what to tell a user who needs them."""
    try:
        return find_libraries()
    except ClaudeboxError as problem:
        return problem
