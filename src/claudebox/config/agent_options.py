"""The rows of the table of settings that are about several agents: sessions without a terminal, copies, limits."""

from __future__ import annotations

from claudebox.config.model import Setting

AGENT_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "detach", ("--detach",), "switch", "Agents",
        "start the session without a terminal: it runs on when you leave; needs tmux",
    ),
    Setting(
        "new", ("--new",), "text", "Agents",
        "start an agent in a worktree of its own, on a branch of this name; continues one that exists",
        metavar="AGENT",
    ),
    Setting(
        "from", ("--from",), "text", "Agents",
        "with --new: the branch, tag or commit to begin with; without it, what is checked out", metavar="BRANCH",
    ),
    Setting(
        "copy", ("--copy",), "list", "Agents",
        "with --new: a path of the project that git ignores and the agent needs; repeatable; `node_modules` and "
        "`.venv` unless you say otherwise, `none` for nothing",
        metavar="PATH", in_files="project",
    ),
    Setting(
        "copy_size", ("--copy-size",), "text", "Agents",
        "with --new: how much may be copied where the file system cannot share blocks, as `10G`; 2G unless you say "
        "otherwise", metavar="SIZE", default="2G", in_files="user",
    ),
    Setting(
        "finish", ("--finish",), "switch", "Agents",
        "`--finish NAME`: show what an agent did in its worktree, ask, and remove it; the branch stays. "
        "`--finish NAME merge` or `rebase` merges it first", verb=True,
    ),
    Setting(
        "drop", ("--drop",), "switch", "Agents",
        "`--drop NAME`: show what would be lost, ask, and remove the worktree of an agent with its branch", verb=True,
    ),
    Setting(
        "attach", ("--attach",), "switch", "Agents",
        "show a session without a terminal on this one: `--attach NAME`, or the only one here; Ctrl+Z leaves it again",
        verb=True,
    ),
    Setting(
        "sessions", ("--sessions",), "switch", "Agents",
        "list the sessions: state, since when, memory, spent, project, last line", verb=True,
    ),
    Setting(
        "stop", ("--stop",), "switch", "Agents",
        "`--stop NAME`: end a session without a terminal, politely and then by force; take an ended one off the list",
        verb=True,
    ),
    Setting(
        "notify", (), "words", "Agents",
        "a command of yours that tells you when a session without a terminal waits for you or has ended: two words are "
        "added to it, `claudebox` and what happened", in_files="user",
    ),
    Setting(
        "time_limit", ("--time-limit",), "text", "Limits",
        "end the session after this time, as `30m` or `8h`: politely, then by force; its status is 124 then",
        metavar="TIME", in_files="user", effect="tightens",
    ),
    Setting(
        "pids", ("--pids",), "text", "Limits",
        "how many processes and threads there can be inside", metavar="COUNT", in_files="user", default="16384",
    ),
    Setting(
        "scratch_size", ("--scratch-size",), "text", "Limits",
        "how much /tmp, the home and /dev/shm inside can hold, each, in memory",
        metavar="SIZE", in_files="user", effect="tightens",
    ),
    Setting(
        "memory", ("--memory",), "text", "Limits",
        "how much memory everything inside can take; refused where this machine cannot enforce it",
        metavar="SIZE", in_files="user", effect="tightens",
    ),
    Setting(
        "cpus", ("--cpus",), "text", "Limits",
        "how many processors everything inside can take, as `2` or `0.5`; refused where it cannot be enforced",
        metavar="COUNT", in_files="user", effect="tightens",
    ),
)  # fmt: skip
