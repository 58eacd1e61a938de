"""The user's own settings of claudebox where they lie in the project: a repository of dotfiles (C09).

They are links in ~/.claudebox then. An agent that could change them would write the rules of the next session.
"""

from __future__ import annotations

import os

from claudebox.facts.model import Guarded
from claudebox.facts.paths import above
from claudebox.files import list_names, real_path
from claudebox.tables.project_paths import OWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.facts.model import Held


def find_own_settings(state: str, workdir: str) -> tuple[tuple[Guarded, ...], tuple[Held, ...]]:
    """Return the files in the project that settings are read from, and the directories on the way to them."""
    inside = workdir.rstrip("/") + "/"
    guarded: dict[str, Guarded] = {}
    for path in _places(state):
        real = real_path(path)
        if not real.startswith(inside) or not os.path.exists(real):
            continue
        reason = f"claudebox reads it as {os.path.basename(state)}/{os.path.relpath(path, state)}"
        guarded[real] = Guarded(OWN, real, reason, "none", "present", _identity(real))
    return tuple(guarded.values()), tuple(above(guarded, workdir))


def _places(state: str) -> Iterator[str]:
    profiles = f"{state}/profiles"
    yield from (f"{state}/config.toml", f"{state}/CLAUDE.md", profiles)
    yield from (f"{profiles}/{name}" for name in list_names(profiles))


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
