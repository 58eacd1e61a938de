"""Which programs of the wanted toolchains this home has."""

from __future__ import annotations

import os

from claudebox.tables.toolchains import TOOLCHAINS
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.facts.model import PathFact
    from claudebox.facts.paths import Examiner


_LINKS = ".local/bin"  # pipx and uv put links to what they install here; the scripts beside them stay out


class Found(Value):
    """What of the wanted toolchains this home has."""

    programs: tuple[tuple[str, str, PathFact], ...] = ()  # toolchain, path in the home, what is there
    links: tuple[tuple[str, str], ...] = ()  # path in the home, where it leads
    path: tuple[str, ...] = ()


def find_toolchains(names: Iterable[str], home: str, host_path: Iterable[str], examiner: Examiner) -> Found:
    """Look for the programs of these toolchains."""
    wanted = [(name, TOOLCHAINS[name]) for name in names]
    programs = []
    for name, toolchain in wanted:
        for place in toolchain.programs:
            fact = examiner.fact(f"{home}/{place}")
            if fact.kind in ("directory", "file"):
                programs.append((name, f"{home}/{place}", fact))
    roots = tuple(fact.path for _, _, fact in programs if fact.kind == "directory")
    links = tuple(_links(home, roots))
    path = list(dict.fromkeys(entry for entry in host_path if _beneath(entry, roots)))
    for _, toolchain in wanted:
        for pattern in toolchain.path:
            path += _directories(home, pattern, path)
    if not links and not any(place.startswith(f"{home}/{_LINKS}/") for _, place, _ in programs):
        path = [entry for entry in path if entry != f"{home}/{_LINKS}"]
    return Found(tuple(dict.fromkeys(programs)), links, tuple(dict.fromkeys(path)))


def _beneath(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _links(home: str, roots: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the links that lead straight into what is shown."""
    try:
        with os.scandir(f"{home}/{_LINKS}") as entries:
            found = [(entry.path, os.readlink(entry.path)) for entry in entries if entry.is_symlink()]
    except OSError:
        return
    for link, target in sorted(found):
        absolute = os.path.normpath(os.path.join(f"{home}/{_LINKS}", target))
        if _beneath(absolute, roots) and os.path.exists(absolute):
            yield link, absolute


def _directories(home: str, pattern: str, chosen: list[str]) -> list[str]:
    """Return the directory that a pattern stands for: of several versions the newest, unless PATH has chosen one."""
    before, star, after = f"{home}/{pattern}".partition("*")
    if not star:
        return [before] if os.path.isdir(before) else []
    if any(entry.startswith(before) for entry in chosen):
        return []
    try:
        versions = sorted(os.listdir(before), key=_version, reverse=True)
    except OSError:
        return []
    candidates = (f"{before}{version}{after}" for version in versions)
    return next(([path] for path in candidates if os.path.isdir(path)), [])


def _version(name: str) -> list[tuple[int, str]]:
    """Return a key by which 20.9.0 comes before 20.10.0, and names without a number first."""
    words = "".join(char if char.isdigit() else " " for char in name).split()
    return [(int(word[:9]), "") for word in words] or [(-1, name)]
