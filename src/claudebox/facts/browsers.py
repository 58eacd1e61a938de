"""Which browsers there are for a launch that asks for one."""

from __future__ import annotations

import os

from claudebox.facts import programs
from claudebox.files import real_path
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.facts.model import PathFact
    from claudebox.facts.paths import Examiner

_PROGRAMS = (
    "chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable",
    "microsoft-edge", "brave-browser",
)  # fmt: skip
_VISIBLE = ("/usr/", "/opt/", "/nix/store/", "/bin/")
_SETTINGS = ("/etc/chromium.d", "/etc/chromium")


class Browsers(Value):
    """What of them was found."""

    programs: tuple[str, ...] = ()  # of the system
    settings: tuple[str, ...] = ()  # that they read in /etc
    downloaded: PathFact | None = None  # the directory of Playwright's


def find_browsers(home: str, path: tuple[str, ...], examiner: Examiner) -> Browsers:
    """Look for browsers of the system, and for those that Playwright has downloaded."""
    found = (programs.find_tool(name, path) for name in _PROGRAMS)
    downloaded = examiner.fact(f"{home}/.cache/ms-playwright")
    return Browsers(
        tuple(program for program in found if program and real_path(program).startswith(_VISIBLE)),
        tuple(place for place in _SETTINGS if os.path.isdir(place) and not os.path.islink(place)),
        downloaded if downloaded.kind == "directory" else None,
    )
