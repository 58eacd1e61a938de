"""What was approved last in a project: kept in its state, out of the agent's reach, for the line `new` of the audit."""

from __future__ import annotations

import os

from claudebox.base.files import OPEN_DIRECTORY, Closing, read_small, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.base.state import Instance


_FILE = "approved"


def read_approved(instance: Instance) -> frozenset[str] | None:
    """Return what was decided by the last launch here that was approved; None where there was none."""
    content = read_small(f"{instance.directory}/{_FILE}", limit=1 << 20)
    return None if content is None else frozenset(content.decode("utf-8", "replace").splitlines())


def keep_approved(instance: Instance, decided: tuple[str, ...]) -> None:
    """Write down what was approved, if it differs; where that is impossible, it is new again next time."""
    if read_approved(instance) == frozenset(decided):
        return
    try:
        with Closing(os.open(instance.directory, OPEN_DIRECTORY)) as directory:
            replace_file(directory, _FILE, "".join(f"{line}\n" for line in decided).encode("utf-8", "replace"))
    except OSError:
        return
