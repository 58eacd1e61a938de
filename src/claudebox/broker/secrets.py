"""The values of secrets: from a variable of the host, a file, or what a command prints.

Fetched when the user has agreed, and by the broker again when a host refuses one; never written down. Both `secrets`
and `git_credential` use this notation.
"""

from __future__ import annotations

import os

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import read_small
from claudebox.tables.secrets import VALUE_PREFIXES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.settings.records import GitCredential, SecretRequest

    FindTool = Callable[[str], str | None]  # name -> the absolute path of a program
    Obtain = Callable[[str, str], str]  # source and origin -> value


_TIMEOUT = 20
_LIMIT = 1 << 16
_SHORTEST = 8  # less than this stands in ordinary text by chance
_FEWEST_BITS = 42.0  # of random tokens of 16 hexadecimal digits one in a hundred has fewer


def source_reader(environ: dict[str, str], find_tool: FindTool, *, home: str) -> Obtain:
    """Return what gets the value of a source."""

    def obtain(source: str, origin: str) -> str:
        kind, _, rest = source.partition(":")
        if kind == "env":
            return environ.get(rest, "")
        if kind == "file":
            return _read(f"{home}{rest[1:]}" if rest.startswith("~/") else rest, origin)
        return _run(rest, origin, environ, find_tool)

    return obtain


def _read(path: str, origin: str) -> str:
    content = read_small(path, limit=_LIMIT, follow=True)
    if content is None:
        raise ClaudeboxError(f"`{origin}`: the file `{path}` cannot be read as a small file")
    value = os.fsdecode(content).strip()
    if not value:
        raise ClaudeboxError(f"`{origin}`: the file `{path}` is empty")
    return value


def _run(command: str, origin: str, environ: dict[str, str], find_tool: FindTool) -> str:
    import shlex
    from subprocess import SubprocessError, run

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ClaudeboxError(f"`{origin}`: `{command}` is no command: {error}") from None
    program = words[0] if words[0].startswith("/") else find_tool(words[0])
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


def hold(secrets: Iterable[SecretRequest], obtain: Obtain) -> tuple[SecretRequest, ...]:
    """Return the secrets with their values and placeholders."""
    held: list[SecretRequest] = []
    for secret in secrets:
        value = obtain(secret.source, secret.origin)
        check_value(value, secret)
        taken = tuple(text for other in held for text in (other.value, other.placeholder))
        held.append(secret.replace(value=value, placeholder=shaped_like(value, os.urandom, taken)))
    return tuple(held)


def git_token(credential: GitCredential, obtain: Obtain) -> str:
    """Return the token for git inside."""
    token = obtain(credential.token, credential.origin)
    if not token or not token.isprintable():
        raise ClaudeboxError(f"`{credential.origin}`: `{credential.token}` gave nothing that can be a token")
    return token


def check_value(value: str, secret: SecretRequest) -> None:
    """Refuse what cannot be sent in a header, could not be told from ordinary text, or can be guessed."""
    name, origin = secret.env, secret.origin
    if not value.isascii() or not value.isprintable():
        raise ClaudeboxError(f"`{origin}`: the value for `{name}` has characters that no HTTP header can carry")
    if len(value) < _SHORTEST:
        raise ClaudeboxError(
            f"`{origin}`: the value for `{name}` is shorter than {_SHORTEST} characters",
            hint="so short a placeholder could stand in a request by chance",
        )
    if not has_few_marks(value):
        raise ClaudeboxError(
            f"`{origin}`: the value for `{name}` has more special characters than can be recognised in every spelling"
        )
    if not secret.weak and guessable_bits(value) < _FEWEST_BITS:
        raise ClaudeboxError(
            f"`{origin}`: the value for `{name}` could be guessed, and answers without it would confirm a guess",
            hint='use a longer random value, or add `weak = "accept"` to this secret',
        )


def has_few_marks(value: str) -> bool:
    """Return whether every spelling of a value is one that the broker recognises: a mark may become ten characters."""
    return 9 * sum(not char.isalnum() for char in value) <= len(value) + 64


def guessable_bits(value: str) -> float:
    """Return how many bits of chance the letters and digits of a value show, by how often each occurs."""
    from math import log2

    text = [char for char in value if char.isalnum()]
    return -sum(log2(text.count(char) / len(text)) for char in text)


# What stands inside for a secret: another text of the same shape.
#
# Programs look at prefix, length and alphabet of a token before they use it, so all three stay: a known prefix, the
# marks that divide a text, and the kinds of letters that occur. Which kind stands where is random, as is the rest,
# anew in every session. The length is exactly the same, which lets a response be cleaned without changing its size.


_LOWER, _UPPER, _DIGITS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
_HEX = "abcdef"
_MARKS = "-_.=/+:~ "
_LONGER_PREFIXES = ("sk-ant-api03-", "sk-ant-oat01-", "sk-ant-ort01-", "sk-ant-", "sk-proj-", "sk-or-v1-")
_FEWEST = 6  # random characters below which a shape would not make a text unique
_ATTEMPTS = 64


def shaped_like(value: str, random: Callable[[int], bytes], taken: tuple[str, ...] = ()) -> str:
    """Return a text that looks like the value and is neither it nor part of what is taken, nor the other way round."""
    prefix = public_prefix(value)
    others = (value, *taken)
    for _ in range(_ATTEMPTS):
        made = prefix + _body(value[len(prefix) :], random)
        if not any(made in other or other in made for other in others):
            return made
    raise ValueError("no placeholder differs from the value")


def public_prefix(value: str) -> str:
    """Return what names the kind of a token: `ghp_`, `sk-ant-api03-`, the header of a JWT; nothing of a password."""
    if value.startswith("eyJ") and value.count(".") == 2:
        prefix = value[: value.index(".") + 1]
    else:
        known = (prefix for prefix in (*VALUE_PREFIXES, *_LONGER_PREFIXES) if value.startswith(prefix))
        prefix = max(known, key=len, default="")
    return prefix if _letters_and_digits(value[len(prefix) :]) >= _FEWEST else ""


def _letters_and_digits(text: str) -> int:
    return sum(char in _LOWER or char in _UPPER or char in _DIGITS for char in text)


def _body(text: str, random: Callable[[int], bytes]) -> str:
    alphabet = _alphabet(text)
    divided = _letters_and_digits(text) >= _FEWEST
    return "".join(char if divided and char in _MARKS else _pick(alphabet, random) for char in text)


def _alphabet(text: str) -> str:
    """Return the kinds of letters that occur."""
    found = set(text)
    letters = {char for char in found if char in _LOWER or char in _UPPER}
    lower, upper = (_HEX, _HEX.upper()) if letters <= {*_HEX} or letters <= {*_HEX.upper()} else (_LOWER, _UPPER)
    kinds = ((_LOWER, lower), (_UPPER, upper), (_DIGITS, _DIGITS))
    alphabet = "".join(used for kind, used in kinds if not found.isdisjoint(kind))
    return alphabet or _LOWER


def _pick(alphabet: str, random: Callable[[int], bytes]) -> str:
    while True:
        number = random(1)[0]
        if number < 256 - 256 % len(alphabet):  # every character as likely as any other
            return alphabet[number % len(alphabet)]
