"""What `--check` and `--verify` are about: the launch that these flags, files and this directory would get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from claudebox import console, session
from claudebox.facts.host import current_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy
    from claudebox.config.settings import Settings


@dataclass(frozen=True)
class Examined:
    """The same settings as those of a launch, and what they ask for."""

    settings: Settings
    policy: Policy
    files: tuple[str, ...]

    def document(self) -> dict[str, object]:
        """Return it for machines."""
        profile = self.settings.all("profile")
        return {
            "project": current_directory(),
            "profile": profile[-1].value if profile else None,
            "files": self.files,
            "network": self.policy.network,
        }

    def lines(self) -> Iterator[str]:
        """Yield it for people."""
        profile = self.settings.all("profile")
        chosen = f", profile {profile[-1].value} (from {profile[-1].origin})" if profile else ""
        yield f"project   {console.shorten(current_directory(), 300)}"
        yield f"settings  {console.clean(', '.join(self.files) or 'no files')}{console.clean(chosen)}"
        yield f"network   {self.policy.network} (from {console.clean(self.policy.network_origin)})"
        yield ""


def read_examined(flags: Settings, environ: dict[str, str]) -> Examined:
    """Read settings as a launch does, and refuse what it refuses; nobody is asked, and nothing is written."""
    settings, reader = session.read_settings(flags, environ)
    files = tuple(dict.fromkeys(reader.opened)) if reader is not None else ()
    policy = session.decide_policy(settings, environ).replace(program="exec", words=("true",))
    return Examined(settings, policy, files)
