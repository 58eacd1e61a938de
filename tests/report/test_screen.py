"""The lines at the end of a session, from values."""

from __future__ import annotations

import os

import pytest

from claudebox.base.trees import IS_FILE, IS_LINK
from claudebox.report import kinds, screen
from claudebox.report.changes import ChangedPath, Report
from claudebox.report.kinds import Kind


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
    ("path", "kind"),
    [
        ("node_modules/prettier/bin/prettier.cjs", "output"),  # written anew by every `npm ci`
        ("node_modules/.bin/prettier", "output"),
        (".venv/bin/black", "output"),  # whoever starts it means a program of the project
        (".venv/bin/ls", "unasked"),
        ("node_modules/.bin/ls", "unasked"),
    ],
)
def test_programs_in_output_are_named_that_take_the_place_of_others(path, kind):
    # proves SHOW-01, NEW-E10, NEW-D9
    mode = IS_LINK | 0o777 if ".bin" in path else IS_FILE | 0o755

    assert kinds.classify_output(Kind("asked"), path, mode, lambda name: name == "ls").name == kind


@pytest.mark.parametrize(
    ("content", "harmless"),
    [
        (b"/home/ada/shop/src\n", True),
        (b"# import os\n../src\nimportlib\n", True),
        (b"import os\n", False),
        (b"src\r\nimport\tos", False),
        (b"\xef\xbb\xbfimport os", False),
        (b"x\n" * (1 << 16), False),  # too long to be looked at
    ],
)
def test_what_only_adds_a_path_to_python_is_harmless(tmp_path, content, harmless):
    # proves SHOW-01, R06
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/shop.pth").write_bytes(content)
    (tmp_path / "lib/link.pth").symlink_to("shop.pth")

    assert kinds.adds_paths_only(str(tmp_path), "lib/shop.pth") == harmless
    assert not kinds.adds_paths_only(str(tmp_path), "lib/link.pth")
