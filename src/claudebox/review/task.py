"""The page of one task, from the files of its result; it becomes one of them."""

from __future__ import annotations

import os

from claudebox.agent.conversation import Conversation, read_conversation
from claudebox.base.files import read_small
from claudebox.review.allowance import Allowance
from claudebox.review.diffs import read_patch
from claudebox.review.gather import add_conversation, read_facts, read_log
from claudebox.review.records import Story
from claudebox.review.session_page import render_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


PAGE = "review.html"
_PATCH, _LOG, _TRANSCRIPT = "work.patch", "log.jsonl", "transcript.jsonl"
_MOST_PATCH, _MOST_COUNTED = 32 << 20, 1 << 18
_COUNTED = ("files", "added", "removed")


def gather_task(result: dict[str, Any], directory: str) -> Story:
    """Return what a task did."""
    story = Story(str(result.get("id", "")), str(result.get("id", "")))
    lines, damaged = read_log(directory, _LOG)
    read_facts(story, lines, damaged)
    story.place, story.name = "", story.title
    status = str(result.get("status", "?"))
    story.state, story.is_good = status, status == "done"
    story.facts = [(name, str(value)) for name, value in (
        ("Base", result.get("base")), ("Head", result.get("head")), ("Tries", result.get("tries")),
        ("Ran on", result.get("host"))) if value]  # fmt: skip
    story.outcome = [str(result["why"])] if result.get("why") else []
    found = Conversation()
    if os.path.lexists(f"{directory}/{_TRANSCRIPT}"):
        read_conversation(f"{directory}/{_TRANSCRIPT}", found)
    add_conversation(story, found)
    story.said = str(result.get("said") or story.said)
    story.commands = [("Take the work over", f"git apply {_PATCH}"),
                      ("Or with its commits", "git fetch work.bundle claudebox-task-result")]  # fmt: skip
    patch = read_small(f"{directory}/{_PATCH}", limit=_MOST_PATCH)
    if patch is None and os.path.lexists(f"{directory}/{_PATCH}"):
        story.missing.append(f"{_PATCH} is too large to be shown")
    allowance = Allowance()
    files = read_patch(patch or b"", allowance.lines_of_file)
    shown = allowance.take_files(len(files))
    story.files, story.files_cut = files[:shown], len(files) - shown
    for change in story.files:
        allowance.limit(change)
    added, removed = (sum(getattr(row, name) for row in files) for name in ("added", "removed"))
    story.outcome += [f"{len(files)} files, {added} lines added, {removed} removed"] if files else ["changed nothing"]
    return story


def render_task(result: dict[str, Any], directory: str) -> tuple[Story, bytes]:
    """Return the page of a task, and what it was made of."""
    story = gather_task(result, directory)
    return story, render_session(story)


def sum_changes(story: Story) -> dict[str, int]:
    """Return how much a task changed, for its result."""
    return {"files": len(story.files) + story.files_cut, "added": sum(row.added for row in story.files),
            "removed": sum(row.removed for row in story.files)}  # fmt: skip


def count_changes(result: dict[str, Any], directory: str) -> dict[str, int]:
    """Return how much a task changed, as its result or else its patch says."""
    known = result.get("changed")
    if isinstance(known, dict) and all(type(known.get(name)) is int and known[name] >= 0 for name in _COUNTED):
        return {name: known[name] for name in _COUNTED}
    files = read_patch(read_small(f"{directory}/{_PATCH}", limit=_MOST_COUNTED) or b"", 0)
    return {"files": len(files), "added": sum(row.added for row in files), "removed": sum(row.removed for row in files)}
