"""What Claude Code needs: its program, its variables, its arguments.

Everything that rests on undocumented behaviour of the client stands in this file.
"""

from __future__ import annotations

from claudebox.environment import CLIENT_DIRECTORY
from claudebox.model import Mount, Variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.host import Host

PROGRAM = f"{CLIENT_DIRECTORY}/claude"
ALWAYS = ("--dangerously-skip-permissions",)  # the sandbox is the permission layer (UX-06)


def plan_mounts(host: Host) -> Iterable[Mount]:
    """Bind the client alone, at a place that no host has."""
    client = host.client
    if client is None:
        return
    if client.path.startswith("/nix/store/") and host.store:
        yield Mount(PROGRAM, "symlink", "the client", client.path)
    elif client.script:  # an older client: a script with its package around it
        yield Mount(client.package, "ro-bind", "the client's package", client.package)
        yield Mount(PROGRAM, "symlink", "the client", client.path)
        yield Mount(f"{CLIENT_DIRECTORY}/node", "ro-bind", "node, for the client", client.node)
    else:
        yield Mount(PROGRAM, "ro-bind", "the client", client.path)


def plan_variables(host: Host) -> Iterable[Variable]:
    """Return the variables that make the client feel at home."""
    rows = [
        ("DISABLE_AUTOUPDATER", "1", "the client is read-only inside"),
        ("DISABLE_INSTALLATION_CHECKS", "1", "the client is not where its installer put it"),
    ]
    if host.uid == 0:
        rows.append(("IS_SANDBOX", "1", "the client refuses root outside of a sandbox"))
    for name, value, reason in rows:
        yield Variable(name, value, "claudebox", reason)
