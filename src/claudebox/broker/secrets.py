"""Values of secrets, read from a variable, a file or the output of a command; and placeholders of the same shape.

Values are read after the user has agreed, and by the broker again when a host refuses one; never written to disk.
`secrets` and `git_credential` use the same notation of sources.
"""

from __future__ import annotations

import os

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import read_small
from claudebox.broker.facts import file_path
from claudebox.tables.secrets import VALUE_PREFIXES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.settings.records import GitCredential, SecretRequest

    FindTool = Callable[[str], str | None]  # name -> the absolute path of a program
    Obtain = Callable[[str, str], str]  # source, origin -> value


_TIMEOUT = 20
_LIMIT = 1 << 16
_SHORTEST = 8  # fewer characters occur in ordinary text by chance
_FEWEST_BITS = 42.0  # one in a hundred random tokens of 16 hexadecimal digits has fewer


def source_reader(environ: dict[str, str], find_tool: FindTool, *, home: str) -> Obtain:
    """Return a function that reads the value of a source."""

    def obtain(source: str, origin: str) -> str:
        kind, _, rest = source.partition(":")
        if kind == "env":
            return environ.get(rest, "")
        if kind == "file":
            return _read(file_path(source, home=home), origin)
        return _run(rest, origin, environ, find_tool)

    return obtain


def _read(path: str, origin: str) -> str:
    content = read_small(path, limit=_LIMIT, follow=True)
    if content is None:
        raise ClaudeboxError(f"`{origin}`: the file `{path}` cannot be read, or is too large")
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
        raise ClaudeboxError(f"`{origin}`: `{command}` cannot be split into arguments: {error}") from None
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
    token = obtain(credential.token, credential.origin)
    if not token or not token.isprintable():
        raise ClaudeboxError(f"`{credential.origin}`: `{credential.token}` gave no printable token")
    return token


def check_value(value: str, secret: SecretRequest) -> None:
    """Refuse values that a header cannot carry, that occur in ordinary text, or that can be guessed."""
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
            f"`{origin}`: the value for `{name}` has too many special characters to be recognised in every encoding"
        )
    if not secret.weak and is_guessable(value):
        raise ClaudeboxError(
            f"`{origin}`: the value for `{name}` could be guessed, and answers without it would confirm a guess",
            hint='use a longer random value, or add `weak = "accept"` to this secret',
        )


def has_few_marks(value: str) -> bool:
    """Return whether the broker recognises every encoding of a value: a special character can become ten characters."""
    return 9 * sum(not char.isalnum() for char in value) <= len(value) + 64


def is_guessable(value: str) -> bool:
    """Return whether a value is a word rather than a token: `ollama`, `EMPTY`, `not-needed`."""
    return guessable_bits(value) < _FEWEST_BITS


def guessable_bits(value: str) -> float:
    """Return the entropy of the letters and digits of a value, by their frequencies."""
    from math import log2

    text = [char for char in value if char.isalnum()]
    return -sum(log2(text.count(char) / len(text)) for char in text)


# Placeholders, random in every session. Programs check prefix, length and alphabet of a token before they use it, so a
# placeholder keeps a known prefix, the separators and the kinds of characters. It has exactly the length of the value,
# so that responses can be cleaned without changing their size.


_LOWER, _UPPER, _DIGITS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
_HEX = "abcdef"
_MARKS = "-_.=/+:~ "
_LONGER_PREFIXES = ("sk-ant-api03-", "sk-ant-oat01-", "sk-ant-ort01-", "sk-ant-", "sk-proj-", "sk-or-v1-")
_FEWEST = 6  # random characters that make a text unique
_ATTEMPTS = 64


def shaped_like(value: str, random: Callable[[int], bytes], taken: tuple[str, ...] = ()) -> str:
    """Return a text of the same shape that neither contains nor is part of the value or another taken text."""
    prefix = public_prefix(value)
    others = (value, *taken)
    for _ in range(_ATTEMPTS):
        made = prefix + _body(value[len(prefix) :], random)
        if not any(made in other or other in made for other in others):
            return made
    raise ValueError("no placeholder differs from the value")


def public_prefix(value: str) -> str:
    """Return the prefix that names the kind of a token: `ghp_`, the header of a JWT; "" for a password."""
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
    """Return all characters of the kinds that occur."""
    found = set(text)
    letters = {char for char in found if char in _LOWER or char in _UPPER}
    lower, upper = (_HEX, _HEX.upper()) if letters <= {*_HEX} or letters <= {*_HEX.upper()} else (_LOWER, _UPPER)
    kinds = ((_LOWER, lower), (_UPPER, upper), (_DIGITS, _DIGITS))
    alphabet = "".join(used for kind, used in kinds if not found.isdisjoint(kind))
    return alphabet or _LOWER


def _pick(alphabet: str, random: Callable[[int], bytes]) -> str:
    while True:
        number = random(1)[0]
        if number < 256 - 256 % len(alphabet):  # equal probabilities
            return alphabet[number % len(alphabet)]
