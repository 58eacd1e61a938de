"""The rows of the table of settings that are about tasks: one, many of them, and what came of them."""

from __future__ import annotations

from claudebox.config.model import Setting

TASKS: tuple[Setting, ...] = (
    Setting(
        "task", ("--task",), "text", "Tasks",
        "do the task of this JSON file (`--schema task`) without asking anything: clone, let the agent work, and leave "
        "patch, bundle, conversation and receipt in `--result`; the exit status tells an engine whether to try again",
        metavar="FILE", verb=True,
    ),
    Setting(
        "result", ("--result",), "text", "Tasks", "with --task: the directory of its result, made whole at the end",
        metavar="DIR",
    ),
    Setting(
        "tasks", ("--tasks",), "list", "Tasks",
        "do the tasks of these files (`'tasks/*.json'`) with GNU parallel; a second run goes on where the first was "
        "interrupted; repeatable",
        metavar="FILES", verb=True,
    ),
    Setting(
        "jobs", ("--jobs",), "text", "Tasks", "with --tasks: how many at once; without it two", metavar="COUNT",
    ),
    Setting(
        "results", ("--results",), "text", "Tasks",
        "with --tasks: where the results go, a directory each; alone: show the table of what is there",
        metavar="DIR",
    ),
)  # fmt: skip
