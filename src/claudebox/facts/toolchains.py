"""Which programs of the wanted toolchains this home has."""

from __future__ import annotations

import os

from claudebox.files import list_names, real_path
from claudebox.tables.toolchains import TOOLCHAINS
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.config.model import MountRequest
    from claudebox.facts.model import PathFact
    from claudebox.facts.paths import Examiner


_SYSTEM = ("/usr/", "/bin/", "/lib/", "/opt/", "/nix/store/")
_LINKS = ".local/bin"  # pipx and uv put links to what they install here; the scripts beside them stay out


class Found(Value):
    """What of the wanted toolchains this home has."""

    programs: tuple[tuple[str, str, PathFact], ...] = ()  # toolchain, path in the home, what is there
    links: tuple[tuple[str, str], ...] = ()  # path in the home, where it leads
    path: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # directories in it that are not shown


def find_toolchains(names: Iterable[str], home: str, host_path: Iterable[str], examiner: Examiner) -> Found:
    """Look for the programs of these toolchains."""
    wanted = [(name, TOOLCHAINS[name]) for name in names]
    programs: dict[str, tuple[str, str, PathFact]] = {}  # two toolchains may have a directory in common
    for name, toolchain in wanted:
        for place in toolchain.programs:
            fact = examiner.fact(f"{home}/{place}")
            if fact.kind in ("directory", "file"):
                programs.setdefault(place, (name, f"{home}/{place}", fact))
    roots = tuple(fact.path for _, _, fact in programs.values() if fact.kind == "directory")
    links = tuple(_links(home, roots))
    path = list(dict.fromkeys(entry for entry in host_path if _beneath(entry, roots)))
    for _, toolchain in wanted:
        for pattern in toolchain.path:
            path += _directories(home, pattern, path)
    if not links and not any(place.startswith(f"{home}/{_LINKS}/") for _, place, _ in programs.values()):
        path = [entry for entry in path if entry != f"{home}/{_LINKS}"]
    without = (f"{home}/{place}" for _, toolchain in wanted for place in toolchain.without)
    present = tuple(place for place in dict.fromkeys(without) if os.path.isdir(place) and not os.path.islink(place))
    return Found(tuple(programs.values()), links, tuple(dict.fromkeys(path)), present)


class ProgramDirectory(Value):
    """A directory for PATH that was asked for."""

    source: str  # as it was asked for
    below: str = ""  # where the programs are in it
    strays: tuple[str, ...] = ()  # directories that links to programs lead to, out of it and of the system


def find_directories(requests: Iterable[MountRequest], sources: dict[str, PathFact]) -> Iterator[ProgramDirectory]:
    """Look where the programs of directories are, and whether they are really there."""
    for request in requests:
        if request.programs:
            fact = sources[request.source]
            below = "/bin" if os.path.isdir(f"{fact.real}/bin") else ""
            yield ProgramDirectory(request.source, below, tuple(dict.fromkeys(_strays(fact.real, below))))


def _strays(top: str, below: str) -> Iterator[str]:
    try:
        with os.scandir(top + below) as entries:
            links = sorted(entry.path for entry in entries if entry.is_symlink())
    except OSError:
        return
    for target in map(real_path, links):
        if not target.startswith((f"{top}/", *_SYSTEM)) and os.path.exists(target):
            yield os.path.dirname(target)


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
    if "*" in after:
        tools = (pattern.replace("*", tool, 1) for tool in list_names(before))
        return [path for tool in tools for path in _directories(home, tool, chosen)]
    if any(entry.startswith(before) for entry in chosen):
        return []
    versions = sorted(list_names(before), key=_version, reverse=True)
    candidates = (f"{before}{version}{after}" for version in versions)
    return next(([path] for path in candidates if os.path.isdir(path)), [])


def _version(name: str) -> list[tuple[int, str]]:
    """Return a key by which 20.9.0 comes before 20.10.0, names without a number first, and a choice last."""
    if name == "current":
        return [(1 << 30, name)]
    words = "".join(char if char.isdigit() else " " for char in name).split()
    return [(int(word[:9]), "") for word in words] or [(-1, name)]
