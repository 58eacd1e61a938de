"""Programs on the host's PATH that a sandbox does not have, and the flag that brings them in."""

from __future__ import annotations

import os

from claudebox.console import list_some
from claudebox.tables.toolchains import TOOLCHAINS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        names = [name for name in _entries(directory) if name not in present and name != "claude"]
        names = [name for name in names if os.access(f"{directory}/{name}", os.X_OK)]
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
    return f"`--path {shown}`"
