"""Patterns of names and paths, matched in time that no pattern can make long: both may come from an agent."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    Item = TypeVar("Item")
    Token = TypeVar("Token")
    Glob = tuple[str | None, ...]  # None: any characters; otherwise one of these, or with `^` in front none of these


def parse_glob(text: str) -> Glob:
    """Return the parts of a pattern for one name: `*`, `?`, `[abc]`, `[!abc]`, and characters."""
    found: list[str | None] = []
    at = 0
    while at < len(text):
        char, end = text[at], text.find("]", at + 2)
        if char == "*":
            found.append(None)
        elif char == "?":
            found.append("^")
        elif char == "[" and end > 0:
            inside = text[at + 1 : end]
            found.append(_span(f"^{inside[1:]}" if inside[0] in "!^" else inside))
            at = end
        else:
            at += char == "\\" and at + 1 < len(text)
            found.append("\\^" if text[at] == "^" else text[at])
        at += 1
    return tuple(found)


def _span(inside: str) -> str:
    """Return a class of characters with its ranges written out."""
    found, at = "", 0
    while at < len(inside):
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside) and ord(inside[at + 2]) < 0x3000:
            found += "".join(map(chr, range(ord(inside[at]), ord(inside[at + 2]) + 1)))
            at += 3
        else:
            found += inside[at]
            at += 1
    return found


def _is_one_of(char: str, token: str) -> bool:
    return char not in token[1:] if token.startswith("^") else char in token


def fits(name: str, glob: Glob) -> bool:
    """Return whether a name is as a pattern says."""
    return _fits(name, glob, _is_one_of)


def fits_path(parts: Sequence[str], globs: Sequence[Glob | None]) -> bool:
    """Return whether the parts of a path are as a pattern for each says; None stands for any parts."""
    return _fits(parts, globs, fits)


def _fits(items: Sequence[Item], tokens: Sequence[Token | None], is_one: Callable[[Item, Token], bool]) -> bool:
    """Go on after each star with the shortest that fits: never back beyond the last star."""
    here, at, retry, star = 0, 0, 0, -1
    while here < len(items):
        token = tokens[at] if at < len(tokens) else None
        if at < len(tokens) and token is None:
            star, retry = at, here
            at += 1
        elif token is not None and is_one(items[here], token):
            here, at = here + 1, at + 1
        elif star >= 0:
            retry += 1
            here, at = retry, star + 1
        else:
            return False
    return all(token is None for token in tokens[at:])
