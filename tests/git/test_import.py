"""What the agent did in its own git directory arrives in the real repository, and the other way round."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from tests.conftest import few
from tests.git.conftest import PYTHON


def test_a_commit_arrives_with_branch_and_index(pair):
    # proves GIT-03
    pair.agent("echo more >>a; echo new >c; git add .; git commit -qm inside")
    inside = pair.agent("git rev-parse HEAD")

    result = pair.bring_back()

    assert [move[0] for move in result.moved] == ["refs/heads/main"]
    assert (result.refused, result.renamed, result.notes) == ([], [], [])
    assert pair.host("git rev-parse HEAD") == inside
    assert pair.host("git status --porcelain") == pair.agent("git status --porcelain") == ""
    pair.fsck()


def test_what_an_earlier_version_kept_is_read_and_replaced(pair):
    # proves GIT-03
    state = pair.read_state()
    os.unlink(f"{pair.private}/state")
    for name, text in (("layout.json", json.dumps(state["layout"])), ("base", state["base"]), ("real", pair.real)):
        pair.box.write(f"{pair.private}/{name}", text)
    shutil.rmtree(f"{pair.private}/synced")
    pair.agent("git commit -q --allow-empty -m inside; git branch -q more; git tag one")

    assert [move[0] for move in pair.bring_back().moved] == ["refs/heads/more", "refs/tags/one", "refs/heads/main"]

    assert pair.host("git log -1 --format=%s; git status --porcelain") == "inside\n"


def test_nothing_happens_twice(pair):
    # proves GIT-03
    pair.agent("git commit -q --allow-empty -m inside")
    pair.bring_back()
    before = pair.refs()

    result = pair.bring_back()

    assert result.moved == []
    assert pair.refs() == before


def test_branches_tags_and_deletions_arrive(pair):
    # proves GIT-03
    pair.host("git branch old; git tag kept; git branch a")
    pair.set_up()
    pair.agent("git branch new/one; git tag v1; git tag -a -m annotated v2; git branch -D old; git tag -d kept")
    pair.agent("git branch -D a; git branch a/b")

    pair.bring_back()

    assert set(pair.refs()) == {
        "refs/heads/main", "refs/heads/new/one", "refs/heads/a/b", "refs/tags/v1", "refs/tags/v2", "refs/tags/kept",
    }  # fmt: skip
    pair.fsck()


def test_a_switch_arrives(pair):
    # proves GIT-03
    pair.agent("git switch -qc feature; echo x >x; git add x; git commit -qm x")

    pair.bring_back()

    assert pair.host("git symbolic-ref HEAD").strip() == "refs/heads/feature"
    assert pair.host("git status --porcelain") == ""
    assert pair.host("git switch -q -; git symbolic-ref --short HEAD").strip() == "main"


def test_a_detached_head_arrives_with_its_commit(pair):
    # proves GIT-03
    pair.agent("git checkout -q --detach; git commit -q --allow-empty -m loose")
    inside = pair.agent("git rev-parse HEAD").strip()

    pair.bring_back()

    assert pair.host("cat .git/HEAD").strip() == inside
    assert set(pair.refs()) == {"refs/heads/main"}  # what carried it is gone
    pair.fsck()


def test_what_is_staged_arrives(pair):
    # proves GIT-03
    pair.agent(
        "echo staged >s; git add s; echo changed >a; git add a; git rm -q b; chmod +x s; git update-index --chmod=+x s"
    )

    pair.bring_back()

    assert pair.host("git status --porcelain") == pair.agent("git status --porcelain")
    assert pair.host("git show :s") == "staged\n"
    pair.fsck()


def test_staged_files_of_a_repository_without_commits_arrive(pair):
    # proves GIT-03
    pair.host("rm -rf .git; git init -q")
    pair.box.host("rm", "-rf", pair.private)
    pair.set_up()
    pair.agent("git add a")

    pair.bring_back()

    assert pair.host("git status --porcelain") == "A  a\n?? b\n"
    pair.agent("git commit -qm first")
    pair.bring_back()
    assert pair.host("git log --format=%s") == "first\n"


def test_an_amended_and_a_rebased_branch_arrive(pair):
    # proves GIT-03
    pair.agent("echo 1 >f; git add f; git commit -qm one")
    pair.bring_back()
    pair.agent("echo 2 >f; git add f; git commit -q --amend -m two")

    pair.bring_back()

    assert pair.host("git log --format=%s") == "two\nfirst\n"
    assert pair.host("git status --porcelain") == ""


def test_a_commit_of_the_host_shows_inside(pair):
    # proves GIT-03
    pair.host("echo host >a; git add a; git commit -qm host; git branch other; git tag t")

    pair.bring_back()

    assert pair.agent("git log --format=%s") == "host\nfirst\n"
    assert pair.agent("git status --porcelain; git branch; git tag") == "* main\n  other\nt\n"


def test_a_switch_of_the_host_shows_inside(pair):
    # proves GIT-03
    pair.host("git switch -qc feature; echo host >c; git add c; git commit -qm host")

    pair.bring_back()

    assert pair.agent("git symbolic-ref HEAD").strip() == "refs/heads/feature"
    assert pair.agent("git status --porcelain") == ""


def test_a_branch_that_parted_arrives_under_another_name(pair):
    # proves GIT-03
    pair.host("echo host >h; git add h; git commit -qm host")
    pair.agent("echo inside >i; git add i; git commit -qm inside")
    host, inside = pair.host("git rev-parse HEAD").strip(), pair.agent("git rev-parse HEAD").strip()

    result = pair.bring_back("s7")

    assert result.renamed == [["refs/heads/main", "refs/heads/claudebox/s7/main"]]
    assert pair.refs()["refs/heads/main"] == host
    assert pair.refs()["refs/heads/claudebox/s7/main"] == inside
    assert pair.agent("git rev-parse main").strip() == inside
    # It goes on under that name, once; and when the user has merged it, both sides are one again.
    pair.bring_back("s8")
    assert "refs/heads/claudebox/s8/main" not in pair.refs()
    pair.host("rm i; git merge -q -m merged claudebox/s7/main")
    pair.bring_back("s7")
    assert pair.agent("git rev-parse main") == pair.host("git rev-parse main")
    assert pair.host("git status --porcelain") == pair.agent("git status --porcelain") == ""


def test_a_branch_of_another_worktree_stays_and_arrives_under_another_name(pair):
    # proves GIT-03
    pair.host("git branch held; git worktree add -q ../tree held")
    pair.set_up()
    pair.agent(
        "git commit-tree -m forged -p main main^{tree} >/tmp/id.$$; git update-ref refs/heads/held $(cat /tmp/id.$$)"
    )
    before = pair.host("git rev-parse held")

    result = pair.bring_back("s1")

    assert result.renamed == [["refs/heads/held", "refs/heads/claudebox/s1/held"]]
    assert pair.host("git rev-parse held") == before


# How another worktree of the host holds the branch `held`, as git of the host sees it.
HELD = {
    "link": "ln -sf refs/heads/held .git/worktrees/tree/HEAD",
    "no space": "echo ref:refs/heads/held >.git/worktrees/tree/HEAD",
    "another name": "git symbolic-ref refs/heads/alias refs/heads/held; "
    "git -C ../tree symbolic-ref HEAD refs/heads/alias",
    "rebase": "echo h >../tree/a; git -C ../tree commit -qam h; echo m >a; git commit -qam m; "
    "! git -C ../tree rebase main 2>&1",
    "rebase by patches": "echo h >../tree/a; git -C ../tree commit -qam h; echo m >a; git commit -qam m; "
    "! git -C ../tree rebase --apply main 2>&1",
    "bisect": "git -C ../tree bisect start; git -C ../tree checkout -q --detach",
    "unreadable": "ln -sf /nowhere .git/worktrees/tree/HEAD",
}


@pytest.mark.parametrize("way", few(HELD, 4))
@pytest.mark.parametrize("within", [False, True])
def test_a_branch_that_another_worktree_holds_in_any_way_stays(pair, way, within):
    # proves GIT-03
    tree = "tree" if within else "../tree"
    pair.host(f"git branch held; git branch free; git worktree add -q {tree} held")
    if within:
        pair.host("echo /tree >>.git/info/exclude; ln -s project/tree ../tree")
    pair.host(HELD[way])
    pair.set_up()
    if within:
        pair.host(f"mkdir -p {pair.own}/worktrees/tree; cd .git/worktrees/tree; "
                  f"cp -P HEAD index commondir gitdir {pair.own}/worktrees/tree/")  # fmt: skip
    pair.agent("for name in held free main; do git update-ref refs/heads/$name $(git commit-tree -m inside -p $name "
               "$name^{tree}); done")  # fmt: skip
    before = pair.host("git rev-parse held")

    result = pair.bring_back("s1", final=True)

    assert result.error == ""
    assert ["refs/heads/held", "refs/heads/claudebox/s1/held"] in result.renamed
    assert pair.host("git rev-parse held") == before
    assert pair.host("git log -1 --format=%s main; git status --porcelain") == "inside\n"
    free = "claudebox/s1/free" if way == "unreadable" else "free"  # nobody knows which one it is
    assert pair.host(f"git log -1 --format=%s {free}") == "inside\n"


def test_staged_on_both_sides_stays_with_the_host(pair):
    # proves GIT-03
    pair.bring_back()
    pair.host("echo host >a; git add a")
    pair.agent("echo inside >a; git add a; echo other >b; git add b")

    result = pair.bring_back()

    assert "staged on both sides" in " ".join(result.notes)
    assert pair.host("git show :a; git show :b") == "host\nb\n"
    # And a commit of it does not take the user's away: it arrives under another name.
    pair.agent("git commit -qm inside")
    pair.bring_back("s2", final=True)
    assert pair.host("git show :a; git log -1 --format=%s; git log -1 --format=%s claudebox/s2/main") == (
        "host\nfirst\ninside\n"
    )


def test_a_rebase_under_way_inside_moves_no_head(pair):
    # proves GIT-03
    pair.agent(
        "git switch -qc topic; echo t >a; git commit -qam topic; git switch -q main; echo m >a; git commit -qam main"
    )
    pair.bring_back()
    pair.agent("git switch -q topic")
    pair.bring_back()
    pair.agent("git rebase main || true")

    result = pair.bring_back()

    assert "a rebase is under way inside" in " ".join(result.notes)
    assert pair.host("cat .git/HEAD") == "ref: refs/heads/topic\n"
    assert pair.host("ls .git").split().count("rebase-merge") == 0
    pair.agent("echo done >a; git add a; GIT_EDITOR=true git rebase --continue")
    pair.bring_back()
    assert pair.host("git log --format=%s") == "topic\nmain\nfirst\n"
    assert pair.host("git status --porcelain") == ""


def test_a_rebase_of_the_host_that_ended_inside_is_put_aside(pair):
    # proves GIT-03
    pair.host(
        "git switch -qc topic; echo t >a; git commit -qam topic; git switch -q main; echo m >a; git commit -qam main"
    )
    pair.host("git switch -q topic; git rebase main || true")
    pair.set_up()
    pair.host(f"cp -r .git/rebase-merge {pair.own}/; cp .git/REBASE_HEAD {pair.own}/")
    at = os.stat(f"{pair.real}/rebase-merge")
    pair.write_state(operations=[f"rebase-merge {at.st_ino} {at.st_mtime_ns}"])
    pair.agent("echo done >a; git add a; GIT_EDITOR=true git rebase --continue")

    result = pair.bring_back()

    assert "has ended inside" in " ".join(result.notes)
    assert pair.host("git status --porcelain=v2 --branch | head -2").split()[-1] == "topic"
    assert pair.host("git log --format=%s") == "topic\nmain\nfirst\n"
    assert not os.path.lexists(f"{pair.real}/rebase-merge")
    assert pair.host("git status --porcelain") == ""


def test_a_linked_worktree_comes_back_to_its_own_head_and_index(pair):
    # proves GIT-03
    pair.host("git worktree add -q ../tree -b side")
    pair.set_up()
    real, own = f"{pair.real}/worktrees/tree", f"{pair.own}/worktrees/tree"
    tree = f"{pair.box.base}/tree"
    pair.host(f"mkdir -p {own}/logs; cp -p {real}/HEAD {real}/index {real}/commondir {real}/gitdir {own}/")
    pair.host(f"cp -p {real}/HEAD {pair.private}/synced/head; cp -p {real}/index {pair.private}/synced/index")
    pair.write_state(layout={**pair.read_state()["layout"], "git_dir": real, "work_tree": tree})
    main = pair.host("cat .git/HEAD; git rev-parse main")
    pair.agent(
        f"cd {tree}; echo more >>a; git add a; git commit -qm inside; git switch -qc other; echo x >x; git add x"
    )

    pair.bring_back()

    assert pair.host("git log -1 --format=%s; git status --porcelain; git branch --show-current", cwd=tree) == (
        "inside\nA  x\nother\n"
    )
    assert pair.host("cat .git/HEAD; git rev-parse main") == main
    assert pair.host("git status --porcelain") == ""


def test_sha256_comes_back(pair):
    # proves GIT-03
    pair.host("rm -rf .git; git init -q --object-format=sha256; git add .; git commit -qm first")
    pair.box.host("rm", "-rf", pair.private)
    pair.set_up(object_format="sha256")
    pair.agent("echo more >>a; git commit -qam inside; echo s >s; git add s")

    assert pair.bring_back().error == ""

    assert pair.host("git log -1 --format=%s; git status --porcelain") == "inside\nA  s\n"
    pair.fsck()


def test_a_shallow_clone_comes_back(pair):
    # proves GIT-03
    pair.host("for n in 1 2 3; do git commit -q --allow-empty -m $n; done; cd ..; mv project full; "
              "git clone -q --depth 1 file://$PWD/full project")  # fmt: skip
    pair.box.host("rm", "-rf", pair.private)
    pair.set_up()
    pair.agent("git commit -q --allow-empty -m inside")

    assert pair.bring_back().refused == []

    assert pair.host("git log --format=%s") == "inside\n3\n"
    pair.fsck()


def test_objects_borrowed_from_another_repository_are_enough(pair):
    # proves GIT-03
    pair.host("cd ..; mv project full; git clone -q --shared full project")
    pair.box.host("rm", "-rf", pair.private)
    pair.set_up()
    layout = pair.read_state()["layout"]
    lent = f"{pair.box.base}/full/.git/objects"
    pair.write_state(layout={**layout, "stores": [*layout["stores"], lent]})
    pair.box.write(f"{pair.own}/objects/info/alternates", f"{pair.objects}\n{lent}\n")
    pair.agent("echo more >>a; git commit -qam inside")

    assert pair.bring_back().refused == []

    assert pair.host("git log --format=%s") == "inside\nfirst\n"
    pair.fsck()


def test_many_objects_and_packed_refs_come_back(pair):
    # proves GIT-03
    pair.agent(
        "for n in $(seq 300); do echo $n >f$n; done; git add .; git commit -qm many; git branch x; "
        "git pack-refs --all; git gc -q"
    )

    assert pair.bring_back().refused == []

    assert len(pair.host("git ls-files").split()) == 302
    assert pair.host("git status --porcelain") == ""
    pair.fsck()


def test_a_change_in_the_second_of_the_index_is_not_missed(pair):
    """The new index must not make an entry look older than it is: git compares whole seconds."""
    # proves GIT-03
    pair.agent("echo x >x; git add x; git commit -qm x")
    time.sleep(1 - time.time() % 1)  # all of this in one second; a slow machine that needs two proves nothing
    pair.host("echo a >a; git update-index -q --refresh; echo c >a")
    time.sleep(1 - time.time() % 1)

    pair.bring_back()

    assert pair.host("git status --porcelain") == " M a\n"


def test_the_stamp_tells_whether_anything_is_left(pair):
    # proves GIT-03
    pair.bring_back()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from claudebox.git import state as git_state; "
        "print(git_state.settled(sys.argv[2]))"
    )
    settled = f"{PYTHON} -IS -c '{program}' {pair.source} {pair.private}"

    assert pair.host(settled) == "True\n"
    for change in (
        "git branch new/deep",
        "git commit -q --allow-empty -m x",
        "git pack-refs --all",
        "git switch -qc y",
    ):
        pair.agent(change)
        assert pair.host(settled) == "False\n", change
        result = pair.bring_back()
        assert pair.host(settled) == "True\n", (change, result)


def test_large_files_come_back_if_they_are_what_their_names_say(pair):
    # proves GIT-03, D17
    content = b"large" * 1000
    good, bad = hashlib.sha256(content).hexdigest(), "ab" * 32
    for name in (good, bad):
        pair.box.write(f"{pair.own}/lfs/objects/{name[:2]}/{name[2:4]}/{name}", content)
    linked = "cd" * 32
    pair.box.mkdir(f"{pair.own}/lfs/objects/cd/cd")
    os.symlink("/etc/passwd", f"{pair.own}/lfs/objects/cd/cd/{linked}")
    pair.agent("git commit -q --allow-empty -m pointers")

    assert pair.bring_back().notes == []

    found = [path.name for path in Path(pair.real, "lfs").rglob("*") if path.is_file()]
    assert found == [good]
    assert Path(pair.real, "lfs/objects", good[:2], good[2:4], good).read_bytes() == content


def test_a_link_in_the_place_of_large_files_leads_nowhere(pair):
    # proves GIT-03
    content = b"secret"
    name = hashlib.sha256(content).hexdigest()
    pair.box.write(f"{pair.box.home}/{name[:2]}/{name[2:4]}/{name}", content)
    pair.box.mkdir(f"{pair.own}/lfs")
    os.symlink(pair.box.home, f"{pair.own}/lfs/objects")
    pair.agent("git commit -q --allow-empty -m inside")

    pair.bring_back()

    assert not [path for path in Path(pair.real, "lfs").rglob("*") if path.is_file()]


AWKWARD = ("grün", "it's", "a#b", "back~1", "$HOME", "a;b", "a&b", "[x]", "hey!", "two words", '"q"', "`id`", "b\\n")


def test_worktrees_under_any_path_come_back_with_their_index(pair):
    """Without an index the next commit in such a worktree would delete every file."""
    # proves NEW-R4, NEW-G3, GIT-04
    for number, name in enumerate(AWKWARD):
        pair.agent(
            'git worktree add -qb "$2" "$1"; cd "$1"; echo inside >c; git add c; git commit -qm inside',
            (name, f"w{number}"),
        )

    result = pair.bring_back(final=True)

    assert (result.error, result.refused) == ("", [])
    assert len([note for note in result.notes if note.endswith("came back")]) == len(AWKWARD), result.notes
    for name in AWKWARD:
        place = f"{pair.project}/{name}"
        assert pair.host("git status --porcelain; git log -1 --format=%s", cwd=place) == "inside\n", name
        pair.host("echo host >d; git add d; git commit -qm host", cwd=place)
        assert pair.host("git ls-tree --name-only HEAD", cwd=place) == "a\nb\nc\nd\n"
    assert not os.path.exists(f"{pair.real}/claudebox")
    pair.fsck()


# An import that dies when it gives a worktree its place, or has just made its index.
KILLED_AT = """
import os, signal
from claudebox.git import adoption as git_worktrees
def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
git_worktrees.os = type("", (), {**vars(os), "rename": die})
"""


def test_a_worktree_is_there_as_a_whole_or_not_at_all(pair):
    # proves NEW-R6, NEW-R4
    pair.agent("git worktree add -qb w1 w1; git worktree add -qb w2 w2")
    python, flags, word, program, *rest = pair.import_words("s1", final=True)
    before, _, after = program.partition("from claudebox.base.errors")
    killed = pair.box.host(python, flags, word, f"{before}{KILLED_AT}from claudebox.base.errors{after}", *rest)
    assert killed.returncode == -9
    assert pair.host("git worktree list | wc -l") == "1\n"

    pair.bring_back("s2", final=True)

    assert pair.host("git worktree list | wc -l; git -C w1 status --porcelain; git -C w2 status --porcelain") == "3\n"
    assert not os.path.exists(f"{pair.real}/claudebox")


def test_deep_directories_among_refs_keep_nothing_inside(pair):
    # proves NEW-E13
    deep = "for n in $(seq 100); do mkdir 0123456789; cd 0123456789; done"
    pair.agent(f"cd .git/refs/heads; {deep}; for k in 1 2 3 4; do {deep}; done; true", check=False)
    pair.agent("git commit -q --allow-empty -m inside")

    result = pair.bring_back(final=True)

    assert (result.error, len(result.removed)) == ("", 1)
    assert pair.host("git log -1 --format=%s") == "inside\n"
    pair.agent("git commit -q --allow-empty -m more")
    assert pair.bring_back(final=True).error == ""
    assert pair.host("git log -1 --format=%s") == "more\n"


@pytest.mark.slow
def test_twenty_thousand_tags_come_back_at_once(pair):
    # proves NEW-R10
    pair.agent(
        "for n in $(seq 20000); do echo create refs/tags/t$n HEAD; done | git update-ref --stdin; "
        "git commit -q --allow-empty -m inside; git tag -am note noted"
    )

    result = pair.bring_back()

    assert (result.error, result.refused) == ("", [])
    assert pair.host("git tag | wc -l; git log -1 --format=%s noted").split() == ["20001", "inside"]
