"""Copies of claudebox into which a packager has written absolute paths."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_COPIES: list[str] = []


def bake(checkout: str, tools: dict[str, str], **others: object) -> str:
    """Copy a checkout and write paths down in it, as a package build does."""
    target = tempfile.mkdtemp(prefix="claudebox-baked-")
    _COPIES.append(target)
    os.chmod(target, 0o755)
    shutil.copytree(checkout, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    file = Path(target, "src/claudebox/build_paths.py")
    constants = {"TOOLS": tools, **others}
    lines = []
    for line in file.read_text().splitlines():
        name = line.partition(":")[0]
        lines.append(f"{name} = {constants.pop(name)!r}" if name in constants else line)
    assert not constants, f"build_paths.py has no {', '.join(constants)}"
    file.write_text("\n".join(lines) + "\n")
    subprocess.run(["/usr/bin/python3", "-m", "compileall", "-q", f"{target}/src"], check=True)
    return target


def clear() -> None:
    """Remove all copies."""
    while _COPIES:
        shutil.rmtree(_COPIES.pop(), ignore_errors=True)
