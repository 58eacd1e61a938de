"""Looking for files of the project that are named like secrets.

To warn, a look at the top is enough. To mask, the whole project is walked: a file that is not found is a file that is
shown, so whatever cannot be looked at stops the launch. Files that were masked before are recognised by device and
inode, under whatever name.
"""

from __future__ import annotations

import os

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import read_small
from claudebox.tables import secrets as tables_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.base.state import Instance
    from claudebox.host.records import Identity, SecretFile
    from claudebox.settings.records import Policy


REMEMBERED = "masked"  # in the state of the project: the files that were masked, by identity
_LIMIT = 4 << 20
_SCAN_LIMIT = 4096  # entries of a directory that are looked at
_SCAN_DIRECTORIES = 64  # below the project that are looked into for files that are named like secrets
_MOST_ENTRIES, _MOST_SECONDS = 2_000_000, 20.0  # of a walk that must see everything
_MOST_MASKED = 1000  # bwrap takes no more options
_NOT_LOOKED_INTO = frozenset((".git", "node_modules", ".venv", "venv", "target", "__pycache__", ".tox", ".mypy_cache"))


def leaks(policy: Policy, directories: tuple[str, ...], instance: Instance) -> tuple[tuple[SecretFile, ...], str]:
    """Look into files that are named like secrets."""
    if policy.project_secrets == "allow":
        return (), ""
    mask = policy.masks_secrets
    found_in = [(_everywhere(path, instance), "") if mask else _near_the_top(path) for path in directories]
    suspects = sorted({path for paths, _ in found_in for path in paths})
    note = next((note for _, note in found_in if note), "")
    if not suspects:
        return (), note
    from claudebox.host.secret_scan import examine

    found = examine(tuple(suspects))
    if mask and len(found) > _MOST_MASKED:
        raise ClaudeboxError(
            f"{len(found)} files of the project would have to be masked, and no more than {_MOST_MASKED} can be",
            hint=f"the first is `{found[0].path}`; remove what is not needed, or use `--set project_secrets=warn`",
        )
    return found, note


def remembered(instance: Instance) -> frozenset[Identity]:
    """Return the files that earlier sessions masked."""
    content = read_small(f"{instance.directory}/{REMEMBERED}", limit=_LIMIT) or b""
    rows = (line.split() for line in content.split(b"\n"))
    return frozenset((int(row[0]), int(row[1])) for row in rows if len(row) == 2)


def _everywhere(workdir: str, instance: Instance) -> list[str]:
    """Return every file that is named like a secret or was masked before, or refuse."""
    known = set(remembered(instance))
    found = _search(workdir, known, lambda entry: tables_secrets.file_looks_secret(entry.name), _NOT_LOOKED_INTO)
    if known:  # moved into what is passed over, or gone
        found += _search(workdir, known, lambda _: False, frozenset())
    return sorted(found)


def _search(
    workdir: str, known: set[Identity], suspect: Callable[[os.DirEntry[str]], bool], skipped: frozenset[str]
) -> list[str]:
    """Return the files that are suspect, and those that are known, which are then struck off."""
    from claudebox.base.trees import Walk

    found: list[str] = []
    inodes = {inode for _, inode in known}
    walk = Walk(workdir, most=_MOST_ENTRIES, seconds=_MOST_SECONDS)
    for path, entry in walk.entries(lambda name: name not in skipped):
        if entry.inode() in inodes and (identity := _identity(entry)) in known:
            known.discard(identity)
            found.append(path)
        elif suspect(entry) and entry.is_file(follow_symlinks=False):
            found.append(path)
    if walk.unfinished:
        raise ClaudeboxError(
            f"secrets cannot be masked: {walk.unfinished} could not be searched for them",
            hint="make it readable, move it away or start in a smaller directory; or use `--set project_secrets=warn`",
        )
    return found


def _identity(entry: os.DirEntry[str]) -> Identity:
    status = entry.stat(follow_symlinks=False)
    return status.st_dev, status.st_ino


def _near_the_top(workdir: str) -> tuple[list[str], str]:
    """Return files in the project and in its directories that are named like secrets, and how far that went."""
    found: list[str] = []
    below: list[str] = []
    whole = _list(workdir, found, below)
    for directory in sorted(below)[:_SCAN_DIRECTORIES]:
        whole = _list(directory, found, None) and whole
    whole = whole and len(below) <= _SCAN_DIRECTORIES
    return sorted(found), "" if whole else "not everything was looked at"


def _list(directory: str, found: list[str], below: list[str] | None) -> bool:
    """Look through one directory, and return whether all of it was seen."""
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= _SCAN_LIMIT:
                    return False
                if tables_secrets.file_looks_secret(entry.name) and entry.is_file(follow_symlinks=False):
                    found.append(entry.path)
                elif below is not None and entry.is_dir(follow_symlinks=False) and entry.name not in _NOT_LOOKED_INTO:
                    below.append(entry.path)
    except OSError:
        return False
    return True
