"""What a pass that disarms repositories is told, what it found, and the words for that; `disarm` is the pass."""

from __future__ import annotations

import os

from claudebox.base.console import shorten
from claudebox.base.files import mode_of
from claudebox.base.process import run_limited
from claudebox.base.records import Value
from claudebox.tables.paths import ASIDE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.git.facts import Nested
    from claudebox.host.records import Identity

    Finding = tuple[str, str, tuple[str, ...]]  # path, what became of it, parts or reasons


_NAME_MAX = 255
CLOSED, RENAMED, DISARMED, LED_AWAY, OTHERWISE, TOLD = "closed", "renamed", "disarmed", "link", "addresses", "told"
OBEYED = "obeyed"  # not by git, but by an agent of the host


class Area(Value):
    """What an agent could write, and what was there before."""

    # Directory, from when on a change counts, and which directory it is, if another will not do; the project first.
    roots: tuple[tuple[str, float, Identity | None], ...]
    mounts: tuple[tuple[str, str, str], ...]  # that can be written, and in those: destination, kind, source
    known: tuple[str, ...] = ()  # git directories of the host, which it could not write
    nested: tuple[Nested, ...] = ()
    home: str = ""
    opened: bool = False  # the user lets it change what git's configuration names


class Disarmed(Value):
    """The result of a pass."""

    findings: tuple[Finding, ...] = ()  # dangerous ones first
    more: int = 0  # not listed
    kept: tuple[str, ...] = ()  # git directories of the user's with settings of their own
    closed: int = 0  # places that could not be examined
    reopened: tuple[tuple[int, int], ...] = ()  # directories whose mode was changed and restored

    @property
    def is_complete(self) -> bool:
        """Whether everything was examined."""
        return not self.closed


def disarm(area: Area) -> Disarmed:
    """Disarm everything that changed, or raise Unfinished; the pass and its code are loaded in a process of its own."""

    def run() -> tuple[object, ...]:
        from claudebox.git.disarm import Pass

        return Pass(area).run()

    return Disarmed(*run_limited(run))


def tabulate(done: Disarmed, root: str) -> list[tuple[str, str, str]]:
    """Return for each finding its path, relative to the `root` if it lies there, what was done, and details."""
    put = f"put aside as *{ASIDE}: "
    texts = {
        CLOSED: ("not examined", "look at it before git of the host does: "),
        OTHERWISE: ("configured", "has another configuration now: "),
        LED_AWAY: ("renamed", "led to a directory of claudebox's own; now "),
        DISARMED: ("disarmed", put),
        RENAMED: ("disarmed", put),
        TOLD: ("changed", ""),
        OBEYED: ("put aside", "an agent would obey it; to keep it: mv "),
    }
    between = {OBEYED: " "}
    return [(relative(path, root), texts[how][0], texts[how][1] + shorten(between.get(how, ", ").join(parts), 300))
            for path, how, parts in done.findings]  # fmt: skip


def describe(done: Disarmed, root: str) -> list[str]:
    """Return the findings as sentences."""
    lines = [f"`{shorten(path, 200)}` {how}: {why}" for path, how, why in tabulate(done, root)]
    return [*lines, *([f"and {done.more} other places"] if done.more else [])]


def relative(place: str, root: str) -> str:
    """Return a path as it is shown, relative to the project where it lies in it."""
    return "." if place == root else place.removeprefix(f"{root}/")


def rename_aside(directory: int, name: str) -> str:
    """Rename an entry of a directory so that nothing obeys it; return the new name."""
    free = f"{name}{ASIDE}"
    if len(os.fsencode(free)) > _NAME_MAX or mode_of(free, directory):
        free = f"{os.fsdecode(os.fsencode(name)[:200])}.{os.urandom(8).hex()}{ASIDE}"
    os.rename(name, free, src_dir_fd=directory, dst_dir_fd=directory)
    return free
