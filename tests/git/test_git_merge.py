"""What is decided about refs: no work of either side is lost, and each is decided alone."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claudebox.git.refs import HEADS, TAGS, Merged, merge_refs, objection, objection_to_new

NAMES = ["refs/heads/a", "refs/heads/b", "refs/tags/t", "refs/remotes/o/a", "refs/heads/-x"]
VALUES = ["1", "2", "3", "4"]
REFS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES))


def contains(tip: str, commit: str) -> bool:
    """Pretend that a greater number is a later commit of the same line, but for 4, which stands alone."""
    return tip >= commit and "4" not in (tip, commit)


def after(merged: Merged, mine: dict[str, str], theirs: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return both sides after everything that was decided has been done."""
    mine, theirs = dict(mine), dict(theirs)
    for side, moves in ((theirs, merged.outbound), (mine, merged.inbound)):
        for move in moves:
            side.pop(move.name, None)
            if move.new:
                side[move.name] = move.new
    return mine, theirs


@given(REFS, REFS, REFS)
def test_what_only_one_side_moved_arrives_on_the_other(mine, theirs, base):
    # proves GIT-03
    merged = merge_refs(mine, theirs, base, contains)
    new_mine, new_theirs = after(merged, mine, theirs)

    for name in {*mine, *theirs, *base}:
        inside, outside, before = (refs.get(name) for refs in (mine, theirs, base))
        if inside == before:
            assert new_mine.get(name) == outside
            assert new_theirs.get(name) == outside
        elif outside == before and name.startswith(HEADS) and not objection(name):
            assert new_theirs.get(name) == inside


@given(REFS, REFS, REFS)
def test_no_work_is_lost(mine, theirs, base):
    # proves GIT-03
    merged = merge_refs(mine, theirs, base, contains)
    _, new_theirs = after(merged, mine, theirs)
    renamed = {move.name: move.new for move in merged.diverged}

    for name in (name for name in {*mine, *theirs} if name.startswith(HEADS) and not objection(name)):
        inside, outside, before = (refs.get(name) for refs in (mine, theirs, base))
        kept = {value for value in (new_theirs.get(name), renamed.get(name)) if value}
        if outside and outside != before:  # what the host did stays, or is contained in what comes
            assert any(value == outside or contains(value, outside) for value in kept)
        if inside and inside != before:  # what the agent did arrives, under one name or another
            assert any(value == inside or contains(value, inside) for value in kept)


@given(REFS, REFS, REFS)
def test_nothing_but_branches_and_new_tags_goes_out(mine, theirs, base):
    # proves GIT-03
    merged = merge_refs(mine, theirs, base, contains)

    for move in (*merged.outbound, *merged.diverged):
        assert not objection(move.name)
        assert move.name.startswith(HEADS) or not move.old
        assert move.name.startswith(HEADS) or move.new
    assert all(move.old == theirs.get(move.name, "") for move in merged.outbound)  # by compare-and-swap


@given(REFS, REFS, REFS)
def test_branches_checked_out_elsewhere_are_never_moved(mine, theirs, base):
    # proves GIT-03
    merged = merge_refs(mine, theirs, base, contains, frozenset({"refs/heads/a"}))

    assert all(move.name != "refs/heads/a" for move in merged.outbound)


@given(st.text(min_size=1, max_size=30))
def test_a_name_that_is_taken_in_can_be_nothing_else(short):
    # proves GIT-03
    if not objection(HEADS + short):
        assert not short.startswith(("-", ".", "/"))
        assert short not in ("HEAD", "@", "FETCH_HEAD", "ORIG_HEAD")
        assert not any(char <= " " or char in "~^:?*[\\\x7f" for char in short)
        assert ".." not in short
        assert "//" not in short


PIECES = st.sampled_from([*"abfgHEAD0179-_./+@#=,%$`;|&<>'\"!(){}*é日", "HEAD", "origin/", "feed", "-g", "heads/", "x"])
NEW = st.one_of(st.text(min_size=1, max_size=30), st.lists(PIECES, min_size=1, max_size=8).map("".join))


@given(st.sampled_from([HEADS, TAGS]), NEW)
def test_a_name_that_is_new_is_only_what_it_seems(kind, short):
    # proves GIT-03
    if objection_to_new(kind + short, {"main", "v1"}, frozenset({"origin", "a/b"})):
        return
    assert not objection(kind + short)
    assert shlex.join([short]) == short or not short.isascii() or not {"#", "="}.isdisjoint(short)
    assert not set(short) & set("$`;|&<>'\"!(){}*?[]~^\\ \t\n\u202e\u200b")
    assert not re.fullmatch("[0-9a-fA-F]{4,64}", short)
    assert not re.search("-g[0-9a-fA-F]{4,64}$", short)
    assert short not in ("main", "v1", "origin", "a/b", "HEAD", "head", "stash", "AUTO_MERGE")
    assert not short.startswith(("origin/", "a/b/", "refs/", "heads/", "tags/", "remotes/", "#", "-"))


@pytest.mark.parametrize(
    "short", ["topic", "feature/x-1", "v1.2.3", "fix_#12", "größe", "日本語", "user@host", "WIP", "abc"]
)
def test_usual_names_are_taken(short):
    # proves GIT-03
    assert objection_to_new(HEADS + short, {"main"}, frozenset({"origin"})) == ""


@given(st.sets(st.sampled_from(["a", "b", "origin/a", "feed", "c$"])), st.sets(st.sampled_from(["a", "b", "origin/a"])))
def test_no_short_name_is_given_twice(branches, tags):
    """Whatever the agent makes, `git log NAME` of the user means what it meant."""
    # proves GIT-03
    theirs = {"refs/heads/a": "1", "refs/tags/b": "1", "refs/remotes/origin/a": "1"}
    mine = {**{HEADS + name: "2" for name in branches}, **{TAGS + name: "2" for name in tags}, **theirs}
    merged = merge_refs(mine, theirs, theirs, contains, remotes=lambda: frozenset({"origin"}))

    assert merged.outbound == ()
    assert {name for name, _ in merged.refused} == mine.keys() - theirs.keys()


def test_of_an_agents_worktree_only_its_branch_moves():
    # proves MANY-01
    base = {"refs/heads/a": "1", "refs/heads/main": "1", "refs/heads/gone": "1", "refs/tags/v0": "1"}
    mine = {"refs/heads/a": "2", "refs/heads/main": "2", "refs/heads/new": "2", "refs/tags/v1": "2"}

    merged = merge_refs(mine, dict(base), base, lambda _a, _b: False, only="refs/heads/a")

    assert [move.name for move in merged.outbound] == ["refs/heads/a"]
    assert [move.name for move in merged.diverged] == ["refs/heads/main", "refs/heads/new", "refs/tags/v1"]
    assert [(move.name, move.new) for move in merged.inbound] == [("refs/heads/gone", "1")]
