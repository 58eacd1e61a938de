"""The rows of the table of settings that are about several agents: sessions without a terminal, copies, limits."""

from __future__ import annotations

from claudebox.config.model import Setting

AGENT_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "detach", ("--detach",), "switch", "Agents",
        "start the session without a terminal: it runs on when you leave; needs tmux",
    ),
    Setting(
        "attach", ("--attach",), "switch", "Agents",
        "show a session without a terminal on this one: `--attach NAME`, or the only one here; Ctrl+Z leaves it again",
        verb=True,
    ),
    Setting(
        "sessions", ("--sessions",), "switch", "Agents",
        "list the sessions: state, since when, memory, project, last line", verb=True,
    ),
    Setting("watch", ("--watch",), "switch", "Agents", "with --sessions: stay, and refresh the list"),
    Setting(
        "stop", ("--stop",), "switch", "Agents",
        "`--stop NAME`: end a session without a terminal, politely and then by force; take an ended one off the list",
        verb=True,
    ),
)  # fmt: skip
