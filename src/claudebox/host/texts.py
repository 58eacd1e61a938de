"""The user's own texts for the agent, in its directory: what can come along, and what keeps a part of it out.

Texts are instructions, commands, agents and skills. What the client executes because of settings (hooks, plugins) is
not among them.
"""

from __future__ import annotations

import os

from claudebox.base.files import list_names, read_small, real_path
from claudebox.base.records import Value
from claudebox.tables.secrets import VALUE_PREFIXES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


_MOST_ENTRIES, _MOST_BYTES, _MOST_DEPTH = 2000, 4 << 20, 8
_TOKEN = 20  # characters of a token, at least
_SEPARATORS = str.maketrans("\"'`=,;()<>[]{}", " " * 14)


class Texts(Value):
    """What was found in those parts of the agent's directory that come along."""

    secret: tuple[str, ...] = ()  # files with something like a secret, with the line: `skills/deploy/SKILL.md:12`
    links: tuple[tuple[str, str], ...] = ()  # links that lead elsewhere, and where to
    oversized: tuple[str, ...] = ()  # parts, and links in them, that are more than texts


def find_offered(directory: str, names: Iterable[str]) -> list[str]:
    """Return those of these texts that there are; an empty directory is none."""
    return [name for name in names if _has_content(f"{directory}/{name}")]


def _has_content(path: str) -> bool:
    return bool(list_names(path)) if os.path.isdir(path) else os.path.isfile(path) and os.path.getsize(path) > 0


def examine(directory: str, names: Collection[str]) -> Texts:
    """Look through these parts, and through what links in them lead to."""
    secret: list[str] = []
    links: list[tuple[str, str]] = []
    oversized: list[str] = []
    waiting = [(name, f"{directory}/{name}") for name in names]
    for place, top in waiting:  # grows meanwhile
        found, complete = _look_through(top)
        if not complete:
            oversized.append(place)
        for path, line, target in found:
            relative = place + path[len(top) :]
            if line:
                secret.append(f"{relative}:{line}")
            elif target and place in names:  # one link is followed, not one in what it leads to
                links.append((relative, target))
                waiting.append((relative, target))
    bad = {*oversized, *(text.rpartition(":")[0] for text in secret)}
    kept = tuple(row for row in links if not any(f"{path}/".startswith(f"{row[0]}/") for path in bad))
    return Texts(tuple(secret), kept, tuple(oversized))


def _look_through(top: str) -> tuple[list[tuple[str, int, str]], bool]:
    """Return files with a secret (path, line) and links (path, target) below a part; False if there is too much."""
    found: list[tuple[str, int, str]] = []
    number, left = 0, _MOST_BYTES
    for number, (path, is_link) in enumerate(_walk(top), 1):
        if is_link:
            found.append((path, 0, real_path(path)))
            continue
        content = read_small(path, limit=left, follow=path == top)
        if content is None or number > _MOST_ENTRIES:
            return found, False
        left -= len(content)
        if line := find_secret(content):
            found.append((path, line, ""))
    return found, True


def _walk(top: str) -> Iterator[tuple[str, bool]]:
    """Yield every file below a part, or itself, and whether it is a link; no link is followed but the first."""
    if not os.path.isdir(top):
        if os.path.lexists(top):
            yield top, False
        return
    waiting = [(top, _MOST_DEPTH)]
    while waiting:
        path, depth = waiting.pop()
        try:
            with os.scandir(path) as entries:
                rows = sorted(entries, key=lambda entry: entry.name)
        except OSError:  # closed inside, too
            continue
        for entry in rows:
            if entry.is_dir(follow_symlinks=False) and depth:
                waiting.append((entry.path, depth - 1))
            elif entry.is_symlink() or entry.is_file() or entry.is_dir():
                yield entry.path, entry.is_symlink()


def find_secret(content: bytes) -> int:
    """Return the first line with a private key, a token of a known kind or a password in an address; 0: none."""
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        if "PRIVATE KEY-----" in line or any(map(_is_token, line.translate(_SEPARATORS).split())):
            return number
    return 0


def _is_token(word: str) -> bool:
    if "://" in word:
        user, at, _ = word.partition("://")[2].partition("/")[0].rpartition("@")
        word = user.partition(":")[2] or user if at else ""
        return _is_random(word, 8)
    return _is_random(word, _TOKEN) and word.startswith(VALUE_PREFIXES)


def _is_random(word: str, length: int) -> bool:
    """Return whether this looks random: long, with letters and digits."""
    return len(word) >= length and any(map(str.isdigit, word)) and any(map(str.isalpha, word))
