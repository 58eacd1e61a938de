"""Finding programs on the host: tools by trusted absolute path, and the client wherever people have it.

Nothing is ever looked up in the project, or through a PATH entry that is not absolute (threats E01, E02).
"""

from __future__ import annotations

import os
import stat

from claudebox import build_paths
from claudebox.base.console import list_some
from claudebox.base.files import real_path
from claudebox.tables.tools import TOOLCHAINS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_TRUSTED = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/sbin", "/run/current-system/sw/bin")


def search_path(environ: Mapping[str, str], workdir: str) -> tuple[str, ...]:
    """Return the directories of the host's PATH that are absolute and not of the project."""
    inside = workdir.rstrip("/") + "/"
    entries = (os.path.normpath(entry) for entry in environ.get("PATH", "").split(":") if entry.startswith("/"))
    return tuple(entry for entry in dict.fromkeys(entries) if not (real_path(entry) + "/").startswith(inside))


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


def describe_absent(directories: Iterable[str], inside: Iterable[str], home: str) -> Iterator[str]:
    """Yield a sentence for each directory of programs, `inside` being those of the sandbox."""
    present = set()
    for directory in inside:
        present.update(_entries(directory))
    for directory in directories:
        names = [name for name in _entries(directory) if name not in present and name not in ("claude", "claudebox")]
        names = [name for name in names if os.access(os.path.join(directory, name), os.X_OK)]
        if not names:
            continue
        names.sort(key=lambda name: (_WANTED.index(name) if name in _WANTED else len(_WANTED), name))
        shown = f"~{directory[len(home) :]}" if directory.startswith(f"{home}/") else directory
        verb = "is" if len(names) == 1 else "are"
        yield f"{list_some(names, _NAMED)} of {shown} {verb} not inside: {_flag(directory, shown, home)}"


def _entries(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for _, entry in zip(range(_MOST), entries, strict=False) if entry.name[:1] != "."]
    except OSError:
        return []


def _flag(directory: str, shown: str, home: str) -> str:
    relative = directory.removeprefix(f"{home}/")
    for name, toolchain in TOOLCHAINS.items():
        if any(relative == place or relative.startswith(f"{place}/") for place in toolchain.programs):
            return f"`--toolchain {name}`"
    return f"`--set path={shown}`"
