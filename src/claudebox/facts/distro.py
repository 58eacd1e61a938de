"""How this distribution is laid out: /usr or a store, which parts of /etc, where the certificates are."""

from __future__ import annotations

import os

from claudebox import build_paths
from claudebox.facts import programs
from claudebox.files import read_small, real_path
from claudebox.tables import host_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.facts.model import PathFact
    from claudebox.facts.paths import Examiner

_PT_INTERP = 3  # kind of an ELF program header


def roots() -> tuple[tuple[str, str], ...]:
    """Return /bin and its like: the target of a link, or nothing for a directory."""
    rows = []
    for root in host_paths.SYSTEM_ROOTS:
        if os.path.islink(root):
            rows.append((root, os.readlink(root)))
        elif os.path.isdir(root):
            rows.append((root, ""))
    # Where /usr is an image, as on Silverblue, what the administrator installs lies outside of it.
    if os.path.islink("/usr/local") and real_path("/usr/local") == host_paths.USR_LOCAL_ELSEWHERE:
        rows.append((host_paths.USR_LOCAL_ELSEWHERE, ""))
    return tuple(rows)


def read_resolv_conf() -> bytes:
    """Return which servers the host asks for names."""
    return read_small("/etc/resolv.conf", follow=True) or b""


def read_etc_hosts() -> bytes:
    """Return the names that the host knows by itself."""
    return read_small("/etc/hosts", limit=4 << 20, follow=True) or b""


def etc(examiner: Examiner) -> tuple[tuple[str, str, str], ...]:
    """Return the parts of /etc that are there, where they really are, and what for."""
    rows = []
    names: list[str] | None = None
    for pattern, reason in host_paths.ETC:
        paths = [pattern]
        if pattern.endswith("*"):
            names = os.listdir("/etc") if names is None else names
            paths = sorted(f"/etc/{name}" for name in names if f"/etc/{name}".startswith(pattern[:-1]))
        facts = (examiner.fact(path) for path in paths)
        rows += [(fact.path, fact.real, reason) for fact in facts if fact.kind != "missing"]
    return tuple(rows)


def containers() -> tuple[str, ...]:
    """Return the programs for containers that the system has."""
    names = ("docker", "docker-compose", "podman", "podman-compose", "nerdctl")
    return tuple(
        name for name in names if os.path.exists(f"/usr/bin/{name}") or os.path.exists(f"/usr/local/bin/{name}")
    )


def has_nix(environ: dict[str, str]) -> bool:
    """Return whether this machine has Nix."""
    return bool(environ.get("NIX_REMOTE")) or any(map(os.path.isdir, ("/nix/store", "/nix/var/nix/daemon-socket")))


def store_path(path: tuple[str, ...], *, usr: bool = False) -> tuple[str, ...]:
    """Return the directories of a PATH that lies wholly in the store (SAND-10); beside /usr only what was baked."""
    if build_paths.STORE_PATH or usr:
        return build_paths.STORE_PATH
    found = (programs.find_tool(tool, path) for tool in host_paths.STORE_TOOLS)
    directories = (os.path.dirname(real_path(tool)) for tool in found if tool)
    return tuple(dict.fromkeys(directory for directory in directories if directory.startswith("/nix/store/")))


def store_links(path: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return what scripts expect at fixed places, on a machine without /usr."""
    wanted = (("/bin/sh", "bash"), ("/bin/bash", "bash"), ("/usr/bin/env", "env"))
    found = ((dest, programs.find_tool(tool, path)) for dest, tool in wanted)
    rows = tuple((dest, real_path(tool)) for dest, tool in found if tool)
    loader = build_paths.LOADER or _loader(dict(rows).get("/bin/bash", ""))
    return (*rows, loader) if loader else rows


def _loader(program: str) -> tuple[str, str] | None:
    """Return where a client that was built elsewhere expects the dynamic loader, and where a program of ours has it."""
    expected = host_paths.LOADERS.get(os.uname().machine)
    found = interpreter(program) if program else ""
    return (expected, found) if expected and found.startswith("/nix/store/") else None


def interpreter(program: str) -> str:
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


def ca_bundle(examiner: Examiner) -> PathFact | None:
    """Return the system's bundle of certificate authorities (SAND-13). What a variable names may hold anything."""
    facts = (examiner.fact(path) for path in host_paths.CA_BUNDLES)
    return next((fact for fact in facts if fact.kind == "file"), None)


def managed() -> tuple[tuple[str, str], ...]:
    """List what the administrator manages; CLAUDE.md is joined with ours, drop-ins stand beside ours."""
    rows: list[tuple[str, str]] = []
    for directory in ("/etc/claude-code", "/etc/claude-code/managed-settings.d"):
        names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
        paths = [f"{directory}/{name}" for name in names if name not in ("CLAUDE.md", "managed-settings.d")]
        rows += [(path, real_path(path)) for path in paths if os.path.exists(path)]
    return tuple(rows)
