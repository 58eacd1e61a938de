"""The lines at the end of a session, from values."""

from __future__ import annotations

import os

import pytest

from claudebox.base.trees import IS_FILE, IS_LINK
from claudebox.report import kinds, screen
from claudebox.report.changes import ChangedPath, Report
from claudebox.report.kinds import Kind

NOWHERE = lambda _: False  # noqa: E731 - no program of the system has such a name


@pytest.fixture(params=[60, 80, 120])
def width(request, monkeypatch):
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((request.param, 24)))
    return request.param


def test_no_line_is_wider_than_the_terminal(width):
    # proves SHOW-01
    tools = (".venv", "node_modules", ".pytest_cache", ".ruff_cache", ".mypy_cache", "web/node_modules", "target")
    rows = [
        ChangedPath(Kind("output", top), f"{top}/{number}", "new")
        for fewer, top in enumerate(tools) for number in range(40 - fewer)
    ]  # fmt: skip
    rows += [ChangedPath(Kind("own"), f"src/a-rather-long-name-{number}.py", "changed") for number in range(20)]
    why = "version control runs it when you commit or check out"
    rows.append(ChangedPath(Kind("unasked", "d", why), f"{'deep/' * 12}lefthook.yml", "changed"))
    rows.append(ChangedPath(Kind("unasked", "e", why), "e/lefthook.yml", "new"))

    lines = list(screen.lines(screen.Ending(Report(tuple(rows)), 75, "$0.31", ("main +2 commits (bdc58ec..cfe2de8)",))))

    assert [line for line in lines if len(line) > width] == []
    said = " ".join(" ".join(lines).split())
    assert "build output: .venv/ 40 files" in said
    assert why in said
    assert "…" in said, "the long path"
    assert "lefthook.yml changed" in said


def test_every_file_of_output_is_counted(width):
    # proves REPORT-01, SHOW-01
    rows = [ChangedPath(Kind("output", f"build-{top:02}"), f"build-{top:02}/x", "new") for top in range(30)]

    (text,), _ = screen.sum_up(screen.Ending(Report(tuple(rows))), width)

    named, _, rest = text.partition(" and ")
    assert named.count("1 file") + int(rest.partition(" ")[0]) == 30, text


@pytest.mark.parametrize(
    ("path", "how", "kind"),
    [
        ("node_modules/prettier/bin/prettier.cjs", "changed", "output"),  # written anew by every `npm ci`
        ("web/node_modules/@x/y/scripts/z", "new", "output"),
        ("node_modules/.bin/prettier", "changed", "unasked"),
        (".venv/bin/pip", "changed", "unasked"),
        (".venv/bin/black", "new", "output"),
    ],
)
def test_programs_in_output_are_named_where_a_shell_looks_for_them(path, how, kind):
    # proves SHOW-01, NEW-E10, NEW-D9
    mode = IS_LINK | 0o777 if ".bin" in path else IS_FILE | 0o755

    assert kinds.classify_output(Kind("asked"), path, mode, how, NOWHERE).name == kind
