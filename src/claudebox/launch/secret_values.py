"""Where the value of a secret comes from: a variable of the host, a file, or what a command prints.

Fetched once, before the start, and never written down. Both `secrets` and `git_credential` use this notation.
"""

from __future__ import annotations

import os

from claudebox.errors import ClaudeboxError
from claudebox.facts import programs
from claudebox.files import read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import Policy, SecretRequest
    from claudebox.facts.model import HeldSecret

UNKNOWN = "***"  # stands for what a command would print, where a plan is only shown
_TIMEOUT = 20
_SYSTEM = ("/usr", "/opt", "/nix/store")  # of the host, read-only inside
_LIMIT = 1 << 16
_SHORTEST = 8  # less than this stands in ordinary text by chance
_FEWEST_BITS = 42.0  # of random tokens of 16 hexadecimal digits one in a hundred has fewer


def obtain(
    source: str, origin: str, environ: dict[str, str], path: tuple[str, ...], *, home: str, showing: bool
) -> str:
    """Return a value, or nothing if its variable is not set; a command is not run just to show a plan."""
    kind, _, rest = source.partition(":")
    if kind == "env":
        return environ.get(rest, "")
    if kind == "file":
        return _read(f"{home}{rest[1:]}" if rest.startswith("~/") else rest, origin)
    return UNKNOWN if showing else _run(rest, origin, environ, path)


def _read(path: str, origin: str) -> str:
    content = read_small(path, limit=_LIMIT, follow=True)
    if content is None:
        problem = "cannot be read as a small file" if os.path.exists(path) else "does not exist"
        raise ClaudeboxError(f"`{origin}`: the file `{path}` {problem}")
    value = os.fsdecode(content).strip()
    if not value:
        raise ClaudeboxError(f"`{origin}`: the file `{path}` is empty")
    return value


def _run(command: str, origin: str, environ: dict[str, str], path: tuple[str, ...]) -> str:
    import shlex  # noqa: PLC0415 - only for those who have such a command
    from subprocess import SubprocessError, run  # noqa: PLC0415

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ClaudeboxError(f"`{origin}`: `{command}` is no command: {error}") from None
    program = words[0] if words[0].startswith("/") else programs.find_tool(words[0], path)
    if program is None:
        raise ClaudeboxError(f"`{origin}`: the program `{words[0]}` was not found")
    try:
        answer = run(
            [program, *words[1:]], cwd="/", env=environ, capture_output=True, timeout=_TIMEOUT, check=False, stdin=-3
        )
    except (OSError, SubprocessError):
        raise ClaudeboxError(f"`{origin}`: `{command}` did not answer") from None
    value = os.fsdecode(answer.stdout).strip()
    if answer.returncode or not value:
        raise ClaudeboxError(f"`{origin}`: `{command}` gave no token (status {answer.returncode})")
    return value


def hold(
    policy: Policy, environ: dict[str, str], path: tuple[str, ...], *, home: str, workdir: str
) -> tuple[HeldSecret, ...]:
    """Return every secret that the broker will hold, with its placeholder; one whose variable is unset is left out."""
    from claudebox.facts.model import HeldSecret  # noqa: PLC0415
    from claudebox.launch.placeholder import shaped_like  # noqa: PLC0415

    held: list[HeldSecret] = []
    for secret in policy.secrets if policy.network != "none" else ():  # a secret opens no tier
        _check_place(
            secret.source, secret.origin, home=home, visible=(workdir, *(row.source for row in policy.mounts), *_SYSTEM)
        )
        value = obtain(secret.source, secret.origin, environ, path, home=home, showing=policy.showing)
        hosts = _reachable(policy, secret)
        if not value or not hosts:
            continue
        if value != UNKNOWN:
            _check_value(value, secret)
        taken = tuple(text for other in held for text in (other.value, other.placeholder))
        placeholder = shaped_like(value, os.urandom, taken)
        held.append(
            HeldSecret(secret.env, hosts, secret.source, secret.origin, secret.headers, secret.weak, value, placeholder)
        )
    return tuple(held)


def _reachable(policy: Policy, secret: SecretRequest) -> tuple[tuple[str, int], ...]:
    """Return the hosts to which the tier leads: a secret opens no way."""
    if policy.network != "allow":
        return secret.hosts
    from claudebox.config.domains import Permission, parse_domain  # noqa: PLC0415

    permission = Permission(parse_domain(row.name, row.origin) for row in policy.domains)
    return tuple(place for place in secret.hosts if permission.rule(*place) is not None)


def _check_value(value: str, secret: SecretRequest) -> None:
    """Refuse what cannot be sent in a header, could not be told from ordinary text, or can be guessed."""
    name, origin = secret.env, secret.origin
    if not value.isascii() or not value.isprintable():
        raise ClaudeboxError(f"`{origin}`: the value for `{name}` has characters that no HTTP header can carry")
    if len(value) < _SHORTEST:
        raise ClaudeboxError(
            f"`{origin}`: the value for `{name}` is shorter than {_SHORTEST} characters",
            hint="so short a placeholder could stand in a request by chance",
        )
    marks = sum(not char.isalnum() for char in value)
    if 9 * marks > len(value) + 64:
        raise ClaudeboxError(
            f"`{origin}`: the value for `{name}` has more special characters than can be recognised in every spelling"
        )
    if not secret.weak and guessable_bits(value) < _FEWEST_BITS:
        raise ClaudeboxError(
            f"`{origin}`: the value for `{name}` could be guessed, and answers without it would confirm a guess",
            hint='use a longer random value, or add `weak = "accept"` to this secret',
        )


def guessable_bits(value: str) -> float:
    """Return how many bits of chance the letters and digits of a value show, by how often each occurs."""
    from math import log2  # noqa: PLC0415 - only for those who have secrets

    text = [char for char in value if char.isalnum()]
    return -sum(log2(text.count(char) / len(text)) for char in text)


def _check_place(source: str, origin: str, *, home: str, visible: tuple[str, ...]) -> None:
    """Refuse a file that the agent could read by itself."""
    kind, _, rest = source.partition(":")
    if kind != "file":
        return
    path = os.path.realpath(f"{home}{rest[1:]}" if rest.startswith("~/") else rest)
    for directory in visible:
        if f"{path}/".startswith(f"{os.path.realpath(directory)}/"):
            raise ClaudeboxError(
                f"`{origin}`: `{path}` is visible inside, in `{directory}`", hint="keep it elsewhere, in your home, say"
            )
