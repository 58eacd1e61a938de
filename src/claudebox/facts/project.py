"""A quick look at the top of the project, for files that are named like secrets."""

from __future__ import annotations

import os

from claudebox.files import read_small
from claudebox.tables import secret_patterns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import Policy
    from claudebox.facts.git import Repository
    from claudebox.facts.model import Leak

_SCAN_LIMIT = 4096  # entries of a directory that are looked at
_SCAN_DIRECTORIES = 64  # below the project that are looked into for files that are named like secrets
_NOT_LOOKED_INTO = frozenset((".git", "node_modules", ".venv", "venv", "target", "__pycache__", ".tox", ".mypy_cache"))


def leaks(policy: Policy, workdir: str, repository: Repository | None) -> tuple[Leak, ...]:
    """Look into files that are named like secrets, and into the addresses that git knows."""
    if policy.project_secrets == "allow":
        return ()
    suspects = _suspects(workdir)
    config = os.path.join(repository.common_dir, "config") if repository and repository.common_dir else ""
    content = read_small(config, limit=1 << 20) or b"" if config else b""
    if (b"://" in content and b"@" in content) or b"extraheader" in content.lower():
        suspects.append(config)
    if not suspects:
        return ()
    from claudebox.facts.secret_scan import examine  # noqa: PLC0415 - only where something is named like a secret

    return examine(tuple(suspects))


def _suspects(workdir: str) -> list[str]:
    """Return files in the project and in its directories that are named like secrets."""
    found: list[str] = []
    below: list[str] = []
    _list(workdir, found, below)
    for directory in sorted(below)[:_SCAN_DIRECTORIES]:
        _list(directory, found, None)
    return sorted(found)


def _list(directory: str, found: list[str], below: list[str] | None) -> None:
    try:
        with os.scandir(directory) as entries:
            for _, entry in zip(range(_SCAN_LIMIT), entries, strict=False):
                if secret_patterns.file_looks_secret(entry.name) and entry.is_file(follow_symlinks=False):
                    found.append(entry.path)
                elif below is not None and entry.is_dir(follow_symlinks=False) and entry.name not in _NOT_LOOKED_INTO:
                    below.append(entry.path)
    except OSError:
        return
