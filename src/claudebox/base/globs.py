"""Patterns of paths as git has them: `*` and `?` stay in one part, `**` stands for any number of parts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Glob = Callable[[str], object]


_compiled: dict[str, Glob] = {}


def compile_glob(text: str) -> Glob:
    """Return a test for the pattern of one part of a path; it takes linear time for each star."""
    import fnmatch
    import re

    if text not in _compiled:
        plain = re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[\\" else found[1], text)
        # For each bracket that is not closed, fnmatch would search to the end: minutes for a long line of them.
        closed, mark, rest = plain.replace("[^", "[!").rpartition("]")
        _compiled[text] = re.compile(fnmatch.translate(closed + mark + rest.replace("[", "[[]"))).match
    return _compiled[text]


def compile_path(pattern: str) -> list[Glob | None]:
    """Return a test for each part of a path; None stands for any number of parts."""
    return [None if part == "**" else compile_glob(part) for part in pattern.split("/")]


def fits_path(parts: Sequence[str], globs: Sequence[Glob | None]) -> bool:
    """Return whether the parts of a path fit what `compile_path` returned."""
    here, at, retry, star = 0, 0, 0, -1
    while here < len(parts):
        glob = globs[at] if at < len(globs) else None
        if at < len(globs) and glob is None:
            star, retry = at, here
            at += 1
        elif glob is not None and glob(parts[here]):
            here, at = here + 1, at + 1
        elif star >= 0:  # back to the last star, never beyond it
            retry += 1
            here, at = retry, star + 1
        else:
            return False
    return all(glob is None for glob in globs[at:])
