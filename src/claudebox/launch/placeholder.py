"""What stands inside for a secret: another text of the same shape.

Programs look at prefix, length and alphabet of a token before they use it, so all three stay: a known prefix, the
marks that divide a text, and the kinds of letters that occur. Which kind stands where is random, as is the rest, anew
in every session. The length is exactly the same, which lets a response be cleaned without changing its size.
"""

from __future__ import annotations

from claudebox.tables.secret_patterns import VALUE_PREFIXES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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
