"""The journal of stubs, also one that a killed writer left incomplete, and the walk that searches a project."""

from __future__ import annotations

import os

import pytest

from claudebox.base.trees import Walk
from claudebox.host.protected import StubEntry, parse_stubs


def written(*entries: StubEntry) -> bytes:
    return b"".join(
        f"\0\0{row.kind}\0{row.root}\0{row.identity}\0{row.relative}\0".encode("utf-8", "surrogateescape")
        for row in entries
    )


ENTRIES = tuple(StubEntry("directory", f"/srv/p {number}", "1:2", f".x{number}/\nä") for number in range(3))


def test_entries_come_back_as_they_were_written():
    # proves C21
    assert tuple(parse_stubs(written(*ENTRIES))) == ENTRIES
    assert ENTRIES[0].path == "/srv/p 0/.x0/\nä"


@pytest.mark.parametrize("cut", range(1, 30))
def test_what_a_killed_writer_left_hides_no_other_entry(cut):
    # proves C21
    partial = written(ENTRIES[0])[:-cut]
    found = tuple(parse_stubs(written(ENTRIES[1]) + partial + written(ENTRIES[2])))

    assert set(ENTRIES[1:]) <= set(found)
    assert not {row.root for row in found} - {row.root for row in ENTRIES}


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\0\0\0", b"nonsense", b"\0\0a\0b\0c", b"file /x\0directory /y\0"])
def test_nonsense_is_no_entry(content):
    # proves C05
    assert list(parse_stubs(content)) == []


def test_a_walk_sees_everything_once_and_follows_no_link(tmp_path):
    # proves C32, C18
    for name in ("a/b/c", "skipped/x"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("top", "a/one", "a/b/c/deep", "skipped/x/no"):
        (tmp_path / name).write_text("x")
    os.symlink("..", tmp_path / "a/up")
    os.symlink("/etc", tmp_path / "etc")
    walk = Walk(str(tmp_path), most=100, seconds=10)
    found = sorted(path[len(str(tmp_path)) + 1 :] for path, _ in walk.entries(lambda name: name != "skipped"))

    assert found == ["a", "a/b", "a/b/c", "a/b/c/deep", "a/one", "a/up", "etc", "skipped", "top"]
    assert walk.unfinished == ""


def test_a_walk_says_where_its_budget_ended(tmp_path):
    # proves C32, E16
    (tmp_path / "many").mkdir()
    for number in range(50):
        (tmp_path / "many" / str(number)).write_text("")
    few = Walk(str(tmp_path), most=10, seconds=10)
    list(few.entries(lambda _: True))
    late = Walk(str(tmp_path), most=256 + 10, seconds=-1)
    list(late.entries(lambda _: True))

    assert few.unfinished == f"`{tmp_path}/many` and what lies deeper"
    assert late.unfinished


def test_a_directory_that_vanishes_is_nothing_missed(tmp_path):
    # proves E16
    walk = Walk(f"{tmp_path}/gone", most=10, seconds=10)

    assert (list(walk.entries(lambda _: True)), walk.unfinished) == ([], "")
