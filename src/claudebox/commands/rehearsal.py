"""What `--check` and `--verify` share: the launch that these flags, files and this directory would get."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass

from claudebox import session
from claudebox.base import console
from claudebox.base import state as base_state
from claudebox.host.machine import current_directory
from claudebox.run import live_sessions, start
from claudebox.run.launch import Launch
from claudebox.run.terminal import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.base.state import Instance
    from claudebox.settings.layers import Settings
    from claudebox.settings.records import Policy


@dataclass(frozen=True)
class Examined:
    """The settings and the policy of a launch."""

    settings: Settings
    policy: Policy
    files: tuple[str, ...]

    def document(self) -> dict[str, object]:
        profile = self.settings.all("profile")
        return {
            "project": current_directory(),
            "profile": profile[-1].value if profile else None,
            "files": self.files,
            "network": self.policy.network,
        }

    def lines(self) -> Iterator[str]:
        profile = self.settings.all("profile")
        chosen = f", profile {profile[-1].value} (from {profile[-1].origin})" if profile else ""
        yield f"project   {console.shorten(current_directory(), 300)}"
        yield f"settings  {console.clean(', '.join(self.files) or 'no files')}{console.clean(chosen)}"
        yield f"network   {self.policy.network} (from {console.clean(self.policy.network_origin)})"
        yield ""


def read_examined(flags: Settings, environ: dict[str, str]) -> Examined:
    """Read settings as a launch does; nothing is asked or written."""
    settings, reader = session.read_settings(flags, environ)
    return Examined(settings, session.decide_policy(settings, environ), tuple(dict.fromkeys(reader.opened)))


def try_out(planned: session.Planned, values: session.FetchedValues) -> int:
    """Launch without a question and a log."""
    try:
        return Launch(planned, values, Terminal()).run()
    except start.Interrupted:
        raise KeyboardInterrupt from None
    finally:
        start.release_signals()


@contextlib.contextmanager
def temporary_state(instance: Instance) -> Iterator[None]:
    """Remove at the end what was made in ~/.claudebox meanwhile, unless a session uses it."""
    made = (instance.state, f"{instance.state}/{base_state.FORMAT_FILE}", f"{instance.state}/CLAUDE.md", instance.login,
            f"{instance.login}/store", f"{instance.state}/{live_sessions.DIRECTORY}",
            os.path.dirname(instance.directory), instance.directory)  # fmt: skip
    new = [path for path in made if not os.path.lexists(path)]
    try:
        yield
    finally:
        for path in new if not live_sessions.is_in_use(instance.state) else ():
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.lexists(path):
                os.unlink(path)
