"""A quick look at the top of the project: sockets that somebody may answer, files that are named like secrets."""

from __future__ import annotations

import os
import stat

from claudebox import guard, secrets
from claudebox.files import read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.git import Repository
    from claudebox.instance import Instance
    from claudebox.model import Leak, Policy

_SCAN_LIMIT = 4096  # entries of a directory that are looked at
_SCAN_DIRECTORIES = 64  # below the project that are looked into for files that are named like secrets
_NOT_LOOKED_INTO = frozenset((".git", "node_modules", ".venv", "venv", "target", "__pycache__", ".tox", ".mypy_cache"))


def look(workdir: str, *, for_secrets: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sockets in the top of the project (C19), and files there and one below that are named like secrets.

    A host's tmux or agent may listen on such a socket.
    """
    sockets: list[str] = []
    suspects: list[str] = []
    below: list[str] = []
    ours = {name for name, _, _ in guard.PROTECTED}
    for directory in (workdir, below):
        for path in (directory,) if isinstance(directory, str) else directory[:_SCAN_DIRECTORIES]:
            try:
                with os.scandir(path) as entries:
                    for _, entry in zip(range(_SCAN_LIMIT), entries, strict=False):
                        if entry.is_file(follow_symlinks=False):
                            if for_secrets and secrets.file_looks_secret(entry.name):
                                suspects.append(entry.path)
                        elif path != workdir or entry.is_symlink():
                            continue
                        elif entry.is_dir(follow_symlinks=False):
                            if for_secrets and entry.name not in _NOT_LOOKED_INTO:
                                below.append(entry.path)
                        elif entry.name not in ours and stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                            sockets.append(entry.path)
            except OSError:
                continue
    return tuple(sorted(sockets)), tuple(sorted(suspects))


def leaks(
    policy: Policy, suspects: tuple[str, ...], repository: Repository | None, instance: Instance
) -> tuple[tuple[Leak, ...], str]:
    """Look into files that are named like secrets, and into the addresses that git knows."""
    if policy.project_secrets == "allow":
        return (), ""
    config = os.path.join(repository.common_dir, "config") if repository and repository.common_dir else ""
    content = read_small(config, limit=1 << 20) or b"" if config else b""
    if (b"://" in content and b"@" in content) or b"extraheader" in content.lower():
        suspects = (*suspects, config)
    if not suspects:
        return (), ""
    from claudebox.leaks import examine  # noqa: PLC0415 - only where something is named like a secret

    return examine(suspects, f"{instance.state}/cache", record=policy.record)
