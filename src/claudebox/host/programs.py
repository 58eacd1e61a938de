"""Finding programs on the host: tools by trusted absolute path, and the client wherever people have it.

Nothing is ever looked up in the project, or through a PATH entry that is not absolute (threats E01, E02).
"""

from __future__ import annotations

import os
import stat

from claudebox import build_paths
from claudebox.base.console import list_some
from claudebox.base.files import real_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from claudebox.host.records import KeptOut


USUAL = ("/usr/local/bin", "/usr/bin", "/bin")  # always on PATH inside
_TRUSTED = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/sbin", "/run/current-system/sw/bin")


def search_path(environ: Mapping[str, str], workdir: str) -> tuple[str, ...]:
    """Return the directories of the host's PATH that are absolute and not of the project."""
    inside = workdir.rstrip("/") + "/"
    return tuple(entry for entry in find_entries(environ) if not (real_path(entry) + "/").startswith(inside))


def find_entries(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories of the host's PATH that are absolute, each once."""
    entries = (os.path.normpath(entry) for entry in environ.get("PATH", "").split(":") if entry.startswith("/"))
    return tuple(dict.fromkeys(entries))


def find_tool(name: str, path: Sequence[str] = ()) -> str | None:
    """Return the absolute path of a host tool."""
    if name in build_paths.TOOLS:
        return build_paths.TOOLS[name]
    for directory in (*_TRUSTED, *path):
        candidate = f"{directory}/{name}"
        if executable(candidate):
            return candidate
    return None


def is_of_system(command: str) -> bool:
    """Return whether a command begins with a program that every sandbox on this machine has."""
    name = (command.split() or [""])[0]
    return bool(name) and any(executable(f"{directory}/{os.path.basename(name)}") for directory in _TRUSTED)


def executable(path: str) -> bool:
    """Return whether this is a program that we may run."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)
    except OSError:
        return False


# Programs on the host's PATH that a sandbox does not have, and the flag that brings them in.


_NAMED = 4
_MOST = 4096  # entries of a directory
# Whoever has one of these misses it first.
_WANTED = (
    "node", "npm", "pnpm", "yarn", "bun", "deno", "uv", "python3", "poetry", "pipx", "cargo", "rustc", "go", "java",
    "mvn", "gradle", "ruby", "ghc", "just", "mise", "gh", "rg",
)  # fmt: skip


def find_outside(
    environ: Mapping[str, str], home: str, shown: Iterable[str] = (), kept_out: Iterable[str] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what is not inside of the home's directories on PATH, with the programs in it."""
    entries = [entry for entry in find_entries(environ) if entry.startswith(f"{home}/")]
    for path in dict.fromkeys((*kept_out, *entries)):
        if path not in shown:
            names = _entries(path)
            yield path, tuple(name for name in names if executable(f"{path}/{name}")) or (os.path.basename(path),)


def describe_absent(kept_out: Iterable[KeptOut], inside: Iterable[str], home: str) -> Iterator[str]:
    """Yield a sentence for each directory of programs, and each script, that is not inside."""
    inside = tuple(inside)
    present: set[str] | None = None
    for row in kept_out:
        if os.path.isfile(row.path):
            yield f"{spell(row.path, home)} is not inside: {describe(row, home)}"
            continue
        if present is None:
            present = {name for directory in inside for name in _entries(directory)}
        names = [name for name in _entries(row.path) if name not in present and name not in ("claude", "claudebox")]
        names = [name for name in names if os.access(os.path.join(row.path, name), os.X_OK)]
        if names:
            names.sort(key=lambda name: (_WANTED.index(name) if name in _WANTED else len(_WANTED), name))
            verb = "is" if len(names) == 1 else "are"
            shown = spell(row.path, home)
            yield f"{list_some(names, _NAMED)} of {shown} {verb} not inside: {describe(row, home)}"


def describe(row: KeptOut, home: str) -> str:
    """Return why something is not inside, and the words that bring it in."""
    flags = f"`{row.flags}{spell(row.path, home)}`" if row.flags else ""
    return ": ".join(filter(None, (row.why, flags)))


def spell(path: str, home: str) -> str:
    """Return a path as a user writes it."""
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


def _entries(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for _, entry in zip(range(_MOST), entries, strict=False) if entry.name[:1] != "."]
    except OSError:
        return []
