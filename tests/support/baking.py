"""Copies of claudebox: to be changed, or with the absolute paths that a packager writes into it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_COPIES: list[str] = []


def copy(checkout: str) -> str:
    """Return a copy of a checkout whose modules may be changed, with the bytecode of those that are not."""
    target = tempfile.mkdtemp(prefix="claudebox-copy-")
    os.chmod(target, 0o755)
    for part in ("bin", "src"):
        shutil.copytree(f"{checkout}/{part}", f"{target}/{part}")
    shutil.copytree(f"{checkout}/.local", f"{target}/.local", copy_function=os.link)  # nobody changes the libraries
    return target


def bake(checkout: str, tools: dict[str, str], **others: object) -> str:
    """Copy a checkout and write paths down in it, as a package build does."""
    target = copy(checkout)
    _COPIES.append(target)
    file = Path(target, "src/claudebox/build_paths.py")
    constants = {"TOOLS": tools, **others}
    lines = []
    for line in file.read_text().splitlines():
        name = line.partition(":")[0]
        lines.append(f"{name} = {constants.pop(name)!r}" if name in constants else line)
    assert not constants, f"build_paths.py has no {', '.join(constants)}"
    file.write_text("\n".join(lines) + "\n")
    return target


def clear() -> None:
    """Remove all copies."""
    while _COPIES:
        shutil.rmtree(_COPIES.pop(), ignore_errors=True)
