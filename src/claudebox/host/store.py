"""A machine whose programs all lie in the Nix store: what stands for its PATH, its shells and its loader inside."""

from __future__ import annotations

import os

from claudebox import build_paths
from claudebox.base.files import real_path
from claudebox.host import programs
from claudebox.tables import paths as tables_paths

_PT_INTERP = 3  # kind of an ELF program header


def find_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the directories of a PATH that lies wholly in the store (SAND-10)."""
    if build_paths.STORE_PATH:
        return build_paths.STORE_PATH
    found = (programs.find_tool(tool, path) for tool in tables_paths.STORE_TOOLS)
    directories = (os.path.dirname(real_path(tool)) for tool in found if tool)
    return tuple(dict.fromkeys(directory for directory in directories if directory.startswith("/nix/store/")))


def find_links(path: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return what scripts expect at fixed places, on a machine without /usr."""
    wanted = (("/bin/sh", "bash"), ("/bin/bash", "bash"), ("/usr/bin/env", "env"))
    found = ((dest, programs.find_tool(tool, path)) for dest, tool in wanted)
    rows = tuple((dest, real_path(tool)) for dest, tool in found if tool)
    loader = build_paths.LOADER or _loader(dict(rows).get("/bin/bash", ""))
    return (*rows, loader) if loader else rows


def _loader(program: str) -> tuple[str, str] | None:
    """Return where a client that was built elsewhere expects the dynamic loader, and where a program of ours has it."""
    expected = tables_paths.LOADERS.get(os.uname().machine)
    found = _interpreter(program) if program else ""
    return (expected, found) if expected and found.startswith("/nix/store/") else None


def _interpreter(program: str) -> str:
    """Return the dynamic loader that a 64-bit ELF program names, if it does."""
    try:
        with open(program, "rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01":
                return ""
            file.seek(int.from_bytes(head[32:40], "little"))
            size, count = (int.from_bytes(head[at : at + 2], "little") for at in (54, 56))
            table = file.read(size * count)
            for row in (table[at : at + size] for at in range(0, len(table), size or 1)):
                if int.from_bytes(row[:4], "little") == _PT_INTERP:
                    offset, length = (int.from_bytes(row[at : at + 8], "little") for at in (8, 32))
                    file.seek(offset)
                    return os.fsdecode(file.read(min(length, 4096)).rstrip(b"\0"))
    except OSError:
        return ""
    return ""
