"""What an agent made huge: the page stays small, says what it left out, and takes little time and memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tests.conftest import REPOSITORY

from claudebox.agent.conversation import Conversation, read_conversation
from claudebox.report.changes import ChangedPath, Report
from claudebox.report.kinds import Kind
from claudebox.review import gather
from claudebox.review.commits import Committed
from claudebox.review.diffs import FileChange, Hunk, read_patch
from claudebox.review.records import Allowance, Commit, Event, HostTraffic, Story
from claudebox.review.session_page import render_session

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
MEMORY = 512 << 20  # of address space
SECONDS = 20  # of the processor
PAGE_OF_TASK = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
sys.path.insert(0, sys.argv[1])
from claudebox.review.gather import gather_task
from claudebox.review.session_page import render_session
story = gather_task({{"id": "x", "status": "done"}}, sys.argv[2])
print(story.changed, story.files_cut, story.missing, len(render_session(story)))
"""
HEAD = b"diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -0,0 +1,%d @@\n"


def page_of_task(directory: Path) -> str:
    """Make the page of a task in little memory and time, and return what it says of itself."""
    words = [sys.executable, "-I", "-c", PAGE_OF_TASK, str(REPOSITORY / "src"), str(directory)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_patch_of_two_gigabytes(tmp_path):
    # proves REVIEW-01
    with open(tmp_path / "work.patch", "wb") as file:
        file.write(HEAD % 500_000 + b"+line\n" * 500_000)
        file.truncate(2 << 30)
    told = page_of_task(tmp_path)

    assert "'added': 500000" in told
    assert "only the first 8 MiB of work.patch are shown and counted" in told
    assert int(told.split()[-1]) < 1 << 20


def test_a_patch_of_a_million_files(tmp_path):
    # proves REVIEW-01
    (tmp_path / "work.patch").write_bytes(b"".join(b"diff --git a/%d b/%d\n" % (at, at) for at in range(1_000_000)))
    told = page_of_task(tmp_path)

    assert "'files': 296925" in told
    assert "only the first 8 MiB" in told


def test_a_conversation_with_a_line_of_500_megabytes(tmp_path):
    # proves REVIEW-01
    said = {"type": "assistant", "timestamp": "2026-11-19T01:00:00Z",
            "message": {"content": [{"type": "text", "text": "Done. " * 5000}]}}  # fmt: skip
    with open(tmp_path / "transcript.jsonl", "wb") as file:
        file.truncate(500 << 20)
        file.seek(0, 2)
        file.write(b"\n" + json.dumps(said).encode() + b"\n" + b"x" * (9 << 20) + b"\n{broken\n")
    told = page_of_task(tmp_path)
    assert "all but the last 64 MiB of transcript.jsonl" in told
    assert "2 lines of the conversation are damaged" in told  # that of 9 MiB, and the broken one

    found = Conversation()
    read_conversation(str(tmp_path / "transcript.jsonl"), found)
    assert found.said.endswith("and 25,999 more characters")


def test_a_conversation_of_many_prompts_and_tools(tmp_path):
    # proves REVIEW-01
    rows = [
        {"type": "user", "timestamp": "2026-11-19T01:00:00Z", "message": {"content": "again"}},
        {"type": "assistant", "timestamp": "2026-11-19T01:00:00Z",
         "message": {"content": [{"type": "tool_use", "name": "Bash", "input": {"command": "x" * 9999}}]}},
    ]  # fmt: skip
    content = "".join(json.dumps(row) + "\n" for row in rows) * 25_000
    (tmp_path / "transcript.jsonl").write_text(content[: 60 << 20].rpartition("\n")[0])
    found = Conversation()
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    read_conversation(str(tmp_path / "transcript.jsonl"), found)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - begun < SECONDS
    assert (len(found.prompts), len(found.uses)) == (20, found.parts // 2 if found.cut == 0 else 20_000)
    assert found.cut_prompts == (found.parts + 1) // 2 - 20
    story = Story("x", "x")
    gather.add_conversation(story, found)
    assert f"and {found.cut_prompts + 17:,} more prompts" in render_session(story).decode()


@pytest.mark.slow
def test_a_session_that_changed_a_million_files():
    # proves REVIEW-01
    story, allowance = Story("x", "x"), Allowance()
    own = Kind("own", "", "", 0)
    report = Report(tuple(ChangedPath(own, f"d/{at}", "new") for at in range(1_000_000)), ())
    begun = time.process_time()
    gather._list_files(story, report, None, Committed(), allowance)
    page = render_session(story)

    assert time.process_time() - begun < SECONDS
    assert (len(story.files), story.files_cut) == (600, 999_400)
    assert b"and 999,400 more files" in page
    assert len(page) < 1 << 20


def test_a_late_page_stops_reading_and_counts():
    report = Report(tuple(ChangedPath(Kind("own", "", "", 0), f"{at}", "new") for at in range(9)), ())
    story = Story("x", "x")
    gather._list_files(story, report, None, Committed(), Allowance(seconds=-1.0))

    assert (len(story.files), story.files_cut) == (0, 9)


def test_characters_that_must_be_named_do_not_blow_up_a_page():
    # proves REVIEW-01
    odd = "a\x01" * 500
    name = "\x02b" * 2000
    allowance = Allowance()
    story = Story("x", "x", asked=[odd] * 9, outcome=[odd] * 999, missing=[odd] * 9)
    for at in range(100):
        change = FileChange(name, "new", added=400, hunks=[Hunk(odd, [("+", line, odd) for line in range(400)])])
        allowance.limit(change)
        story.files.append(change)
        story.commits.append(Commit(name, name, name, 1e9, odd * 99) if at < 20 else Commit("", "", "", 0.0, ""))
    story.events = [Event(1e9 + at, "tools", odd) for at in range(1000)]
    story.hosts = [HostTraffic(name, "denied", 1, rule=odd) for _ in range(100)]
    begun = time.process_time()
    page = render_session(story)

    assert time.process_time() - begun < SECONDS
    assert len(page) < 64 << 20
    assert b"400 more changed lines" in page


@pytest.mark.parametrize("content", [b"\n" * (1 << 20), b"+" * (8 << 20), b"@@ -1,0 +1 @@\n+\n" * (1 << 16)])
def test_a_patch_of_nothing_takes_little_time(content):
    begun = time.process_time()
    changes = [*read_patch(b"diff --git a/x b/x\n@@ -1,999999999 +1,999999999 @@\n" + content, 400)]

    assert time.process_time() - begun < SECONDS / 4
    assert sum(change.shown for change in changes) <= 400
