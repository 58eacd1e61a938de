"""An agent that tries everything with its git directory: the host's git runs nothing of it."""

from __future__ import annotations

import hashlib
import os
import time

import pytest
from tests.conftest import every_case

from claudebox.git import report as git_report
from claudebox.git.importer import ImportResult
from claudebox.git.refs import HEADS, Move

MARK = "executed"
# Everything that makes git on the host run a program, if it stands in the git directory.
PLANTS = {
    "config": "git config core.fsmonitor {evil}; git config core.sshCommand {evil}; git config core.pager {evil}; "
    "git config diff.external {evil}; git config credential.helper {evil}; git config alias.status '!{evil}'",
    "hooks path": "git config core.hooksPath .git/mine; mkdir -p .git/mine; for h in reference-transaction "
    "post-index-change pre-push post-checkout; do cp {evil} .git/mine/$h; done",
    "hooks": "mkdir -p .git/hooks; for h in pre-commit post-commit reference-transaction post-index-change pre-push "
    "post-checkout post-merge pre-auto-gc; do cp {evil} .git/hooks/$h; chmod +x .git/hooks/$h; done",
    "config of a worktree": "git config extensions.worktreeConfig true; git config --worktree core.fsmonitor {evil}",
    "include": "printf '[core]\\nfsmonitor = {evil}\\n' >inc; git config include.path ../inc",
    "remotes": "mkdir -p .git/remotes .git/branches; printf 'URL: ext::{evil}\\n' >.git/remotes/origin; "
    "echo 'ext::{evil}' >.git/branches/other; git config remote.origin.url 'ext::{evil}'; "
    "git config protocol.ext.allow always",
    "common directory": "mkdir -p other; cp -r .git/. other/ 2>/dev/null || true; echo ../other >.git/commondir; "
    "printf '[core]\\nfsmonitor = {evil}\\n' >>other/config",
    "filters": "git config filter.x.clean {evil}; git config filter.x.smudge {evil}; "
    "echo '* filter=x' >.git/info/attributes",
    "rebase": "mkdir -p .git/rebase-merge; echo 'exec {evil}' >.git/rebase-merge/git-rebase-todo; "
    "echo refs/heads/main >.git/rebase-merge/head-name; git rev-parse HEAD >.git/rebase-merge/onto; "
    "git rev-parse HEAD >.git/rebase-merge/orig-head",
    "alternates": "echo /etc >>.git/objects/info/alternates; git config core.alternateRefsCommand {evil}",
    "upload pack": "git config remote.origin.uploadpack {evil}; git config remote.origin.receivepack {evil}",
}
USE = (
    "git status; git log -1; git fetch; git push; git submodule update; git worktree list; git branch -a; git diff; "
    "git rebase --continue; git commit -q --allow-empty -m next; git stash list; git gc -q"
)


@pytest.fixture
def evil(pair):
    """Return the attacker's program, which leaves a mark on the host."""
    pair.host("git init -q --bare ../upstream; git remote add origin ../upstream; git push -q -u origin main")
    pair.set_up()
    return pair.box.write("evil.sh", f"#!/bin/sh\ntouch {pair.box.home}/{MARK}\nexit 1\n", mode=0o755)


def marked(pair, script):
    path = f"{pair.box.home}/{MARK}"
    if os.path.exists(path):
        os.unlink(path)
    pair.box.host("sh", "-c", script)
    return os.path.exists(path)


@every_case("name", PLANTS, as_root=3)
def test_what_is_planted_in_the_git_directory_stays_inside(pair, evil, name):
    # proves GIT-03, D01, D05, D06, D07, D08, SEC-04, OLD-A19
    pair.agent("mkdir -p .git/info; echo more >>a; git commit -qam inside")
    pair.agent(PLANTS[name].format(evil=evil), check=False)
    pair.agent("git commit -q --allow-empty -m again", check=False)
    path = f"{pair.box.home}/{MARK}"
    if os.path.exists(path):
        os.unlink(path)

    result = pair.bring_back(final=True)

    assert not os.path.exists(path), "the import ran it"
    assert result.error == "" or name == "common directory", result.error
    assert not marked(pair, USE)
    if name not in ("filters", "alternates", "upload pack", "rebase", "include"):
        # The positive control: the same in the real git directory is executed. (The others need more around them.)
        pair.host(PLANTS[name].format(evil=evil), check=False)
        assert marked(pair, USE)


def test_links_in_the_git_directory_lead_nowhere(pair):
    # proves GIT-03
    secret = pair.box.write(f"{pair.box.home}/secret", "a" * 40 + "\n")
    pair.agent(f"git commit -q --allow-empty -m inside; ln -sf {secret} .git/refs/heads/link")
    result = pair.bring_back(final=True)
    assert (result.error, result.removed) == ("", ["refs/heads/link"])
    assert set(pair.refs()) == {"refs/heads/main"}
    for script in (
        f"rm -f .git/index; ln -s {secret} .git/index",
        f"rm -f .git/HEAD; ln -s {secret} .git/HEAD",
        f"rm -f .git/packed-refs; ln -s {secret} .git/packed-refs",
        f"rm -rf .git/refs; ln -s {pair.box.home} .git/refs",
    ):
        pair.agent(script)
        before = pair.refs()

        result = pair.bring_back(final=True)

        assert result.error, script
        assert pair.refs() == before
        pair.box.host("rm", "-rf", pair.private)
        pair.set_up()
        pair.agent("git commit -q --allow-empty -m inside")


@pytest.mark.parametrize(
    "name", ["refs/heads/-x", "refs/heads/HEAD", "refs/heads/FETCH_HEAD", "refs/heads/" + "a" * 40, "refs/heads/a\x7fb"]
)
def test_names_that_could_be_something_else_stay_inside(pair, name):
    # proves GIT-03
    pair.agent(f"git rev-parse HEAD >'.git/{name}'")
    pair.agent("git branch good")

    result = pair.bring_back()

    assert set(pair.refs()) == {"refs/heads/main", "refs/heads/good"}
    assert "\x7f" in name or [row[0] for row in result.refused] == [name]


def test_new_refs_take_no_name_that_has_a_meaning(pair):
    """`git log NAME` of the user means what it meant before the session."""
    # proves GIT-03
    pair.host("git branch other; git tag v1; git update-ref refs/remotes/up/main HEAD; git remote add far /nonexistent")
    pair.set_up()
    names = "other main up/main far/main origin/main 'a$(id)' 'b;c' $(git rev-parse --short HEAD) heads/main"
    before = pair.host("git log -1 --format=%H other; git log -1 --format=%H up/main; git rev-parse --short=4 HEAD")
    pair.agent(
        f'git commit -q --allow-empty -m inside; for n in {names}; do git tag "$n"; done; '
        "for n in v1 up/main 'a`id`' cafe good-1; do git update-ref refs/heads/\"$n\" HEAD; done; git tag good"
    )

    result = pair.bring_back(final=True)

    assert set(pair.refs()) == {
        "refs/heads/main", "refs/heads/other", "refs/tags/v1", "refs/remotes/up/main", "refs/tags/good",
        "refs/heads/good-1",
    }  # fmt: skip
    assert len(result.refused) == 13
    after = pair.host("git log -1 --format=%H other; git log -1 --format=%H up/main; git rev-parse --short=4 HEAD~1")
    assert after == before


def test_a_head_of_a_name_that_has_a_meaning_stays_inside(pair):
    # proves GIT-03
    pair.agent("git symbolic-ref HEAD 'refs/heads/$(id)'")

    result = pair.bring_back(final=True)

    assert pair.host("git symbolic-ref HEAD") == "refs/heads/main\n"
    assert "HEAD inside is `refs/heads/$(id)`" in result.notes[0]


def test_the_report_hides_nothing_that_was_refused():
    # proves GIT-03
    moved = tuple(Move(f"{HEADS}a{number}", "", "1" * 40) for number in range(20))
    refused = tuple((f"{HEADS}b{number};\x1b", "its name has characters") for number in range(100))

    said = git_report.of_one("git", ImportResult(moved, refused=(*refused, (f"{HEADS}main", "because"))))

    assert all(f"b{number};" in said[0] for number in range(100))
    assert "\x1b" not in "".join(said)
    assert said[1] == "git: main stays inside: because"
    assert said[0].count("its name has characters") == 1


def test_other_refs_and_moved_tags_stay_inside(pair):
    # proves GIT-03
    pair.host("git tag v1; git update-ref refs/remotes/origin/main HEAD")
    pair.set_up()
    pair.agent("git commit -q --allow-empty -m inside; git tag -f v1; git update-ref refs/remotes/origin/main HEAD")
    pair.agent(
        "git update-ref refs/claudebox/x HEAD; git update-ref refs/replace/$(git rev-parse HEAD~1) HEAD; git stash list"
    )
    before = {name: value for name, value in pair.refs().items() if name != "refs/heads/main"}

    result = pair.bring_back()

    assert {name: value for name, value in pair.refs().items() if name != "refs/heads/main"} == before
    assert result.refused == [["refs/tags/v1", "tags are only added"]]


def test_a_branch_without_its_commit_stays_inside_for_that_reason(pair):
    # proves GIT-03
    pair.agent(f"echo {'1' * 40} >.git/refs/heads/lost; git commit -q --allow-empty -m more")

    for final in (False, True):
        assert pair.bring_back(final=final).refused == [["refs/heads/lost", "objects of it are missing"]]
    assert pair.host("git log -1 --format=%s") == "more\n"


def test_trees_that_no_git_makes_are_refused_and_the_rest_comes(pair):
    # proves GIT-03, D17
    bad = (
        "blob=$(echo x | git hash-object -w --stdin); "
        "tree=$(printf '100644 .git\\0' | cat - /dev/null >t; python3 -c \""
        "import sys,os; h=sys.argv[1]; os.write(1, b'100644 .git\\0'+bytes.fromhex(h))\" $blob "
        "| git hash-object -t tree -w --literally --stdin); rm -f t; "
        "git update-ref refs/heads/bad $(git commit-tree -m bad $tree)"
    )
    pair.agent(bad)
    pair.agent("git branch good; echo more >>a; git commit -qam inside")

    result = pair.bring_back()

    assert [row[0] for row in result.refused] == ["refs/heads/bad"]
    assert "hasDotgit" in result.refused[0][1]
    assert set(pair.refs()) == {"refs/heads/main", "refs/heads/good"}
    assert pair.host("git log -1 --format=%s") == "inside\n"
    pair.fsck()


def test_a_forged_index_is_not_believed(pair):
    """An index whose extension names another tree than its rows: `git status` is clean, the next commit is not.

    On the host it shows what the next commit contains.
    """
    # proves GIT-03, D17
    pair.agent(
        "echo evil >a; git add a; git write-tree >../tree; git reset -q --hard; echo x >x; git add x; git write-tree"
    )
    evil = pair.host("cat ../tree").strip()
    index = f"{pair.own}/index"
    with open(index, "rb") as file:
        content = file.read()
    at = content.index(b"TREE")
    size = int.from_bytes(content[at + 4 : at + 8], "big")
    forged = content[: at + 8 + size - 20] + bytes.fromhex(evil) + content[at + 8 + size : -20]
    with open(index, "wb") as file:
        file.write(forged + hashlib.sha1(forged).digest())
    assert pair.agent("git write-tree").strip() == evil  # the positive control: git believes it

    pair.bring_back()

    shown = pair.host("git diff --cached")
    assert pair.host("git commit -qm next; git diff HEAD~1 HEAD") == shown
    assert "+evil" in shown


@pytest.mark.parametrize(("name", "said"), [("index", "the index inside"), ("HEAD", "HEAD inside names no branch")])
def test_commits_come_back_although_an_agent_broke_what_stands_beside_them(pair, name, said):
    # proves GIT-03
    pair.agent(f"git commit -q --allow-empty -m more; echo x >.git/{name}")

    result = pair.bring_back(final=True)

    branch = "main" if name == "index" else "claudebox/s1/main"
    assert pair.host(f"git log -1 --format=%s {branch}; git status --porcelain") == "more\n"
    assert any(said in note for note in result.notes), result


def test_a_gitlink_waits_for_the_end_and_what_lies_there_is_disarmed(pair):
    # proves GIT-03, D10, D11
    evil = pair.box.write("evil.sh", f"#!/bin/sh\ntouch {pair.box.home}/{MARK}\n", mode=0o755)
    pair.agent(
        "git init -q nested; cd nested; git commit -q --allow-empty -m n; "
        f"git config core.fsmonitor {evil}; cd ..; git add nested; git commit -qm gitlink"
    )

    early = pair.bring_back()

    assert [row[0] for row in early.refused] == ["refs/heads/main"]
    assert not marked(pair, "git status; git diff; git add -A")
    pair.host("git reset -q")
    late = pair.bring_back(final=True)
    assert "`nested/.git` disarmed: put aside as *.claudebox" in late.notes[0]
    assert pair.host("git log -1 --format=%s") == "gitlink\n"
    assert not marked(pair, "git status; git diff; git reset -q; git status; git stash")
    pair.host("mv nested/.git/config.claudebox nested/.git/config")
    assert marked(pair, "git reset -q; git status")  # the positive control


def test_a_worktree_whose_path_has_a_line_break_is_not_said_to_be_gone(pair):
    # proves GIT-04
    pair.agent("git worktree add -qb w7 'w7\nx'")

    result = pair.bring_back(final=True)

    assert [note for note in result.notes if "line break; its files stay" in note]
    assert "gone" not in " ".join(result.notes)
    assert os.path.exists(f"{pair.project}/w7\nx/a")


def test_a_commit_with_a_forged_submodule_is_refused(pair):
    # proves GIT-03, D10, D11
    pair.agent(
        "printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = --upload-pack=evil\\n' >.gitmodules; "
        "git add .; git commit -qm m"
    )

    result = pair.bring_back(final=True)

    assert [row[0] for row in result.refused] == ["refs/heads/main"]
    assert pair.host("git log --format=%s") == "first\n"


def test_a_link_in_the_place_of_a_submodule_moves_nothing_of_the_user(pair):
    # proves GIT-03, D10
    pair.host("git clone -q --bare . ../store/precious.git; git -C ../store/precious.git pack-refs --all")
    pair.box.write(".gitmodules", '[submodule "x"]\n\tpath = sub\n\turl = ./x\n')
    pair.box.write("sub/.git", "gitdir: ../.git/modules/away/precious.git\n")
    pair.agent(f"mkdir -p .git/modules; ln -s {pair.box.base}/store .git/modules/away")

    pair.finish()

    assert pair.host("git log --format=%s", cwd=f"{pair.box.base}/store/precious.git") == "first\n"
    assert not os.path.exists(f"{pair.real}/modules/away")


def test_too_much_is_refused_and_said(pair):
    # proves GIT-03
    pair.agent("head -c 3000000 /dev/urandom >big; git add big; git commit -qm big")

    result = pair.bring_back(limits={"size": 1 << 20})

    assert result.error or [row[0] for row in result.refused] == ["refs/heads/main"]
    assert pair.host("git log --format=%s") == "first\n"
    assert not os.listdir(f"{pair.real}/objects/pack")
    assert pair.bring_back().refused == []
    assert pair.host("git log -1 --format=%s") == "big\n"


def test_a_git_that_does_not_end_is_ended(pair):
    # proves GIT-03
    pair.agent("git commit -q --allow-empty -m inside")

    result = pair.bring_back(limits={"seconds": 0.001})

    assert "did not finish within" in result.error
    assert pair.bring_back().error == ""


def test_pipes_in_the_git_directory_hold_nothing_up(pair):
    """Git waits for ever to open a pipe; a directory that can only be searched hides it from a look."""
    # proves GIT-03
    pair.agent(
        "git commit -q --allow-empty -m inside; git branch good; id=1111111111111111111111111111111111111111; "
        "mkdir -p .git/objects/11 .git/hooks; "
        "mkfifo .git/objects/11/${id#11} .git/objects/pack/pack-$id.idx .git/objects/info/commit-graph .git/shallow "
        "fifo; echo $id >.git/refs/heads/fifo; mkfifo .git/refs/heads/pipe .git/logs/refs/heads/other; "
        "ln -s /proc/self/fd/0 .git/objects/11/${id#111}2; ln -s x .git/hooks/kept; "
        "chmod 0111 .git/objects/11"
    )
    begun = time.monotonic()

    result = pair.bring_back(final=True)

    assert time.monotonic() < begun + 15
    assert len(result.removed) == 7
    assert [row[0] for row in result.refused] == ["refs/heads/fifo"]
    assert set(pair.refs()) == {"refs/heads/main", "refs/heads/good"}
    assert pair.host("git log -1 --format=%s") == "inside\n"
    assert os.path.lexists(f"{pair.own}/hooks/kept")
    assert "objects/11/" in git_report.of_one("git", ImportResult(removed=tuple(result.removed)))[0]
    assert pair.bring_back(final=True).removed == []


def test_honest_old_history_comes_back(pair):
    """Commits with faults that old tools made, which an agent may fetch from anywhere."""
    # proves GIT-03
    pair.agent(
        "tree=$(git write-tree); printf 'tree %s\\nauthor A<a@b> 1 +0000\\ncommitter A<a@b> 1 +0000\\n\\nold\\n' $tree "
        "| git hash-object -t commit -w --literally --stdin >id; git update-ref refs/heads/old $(cat id); rm id"
    )

    assert pair.bring_back().refused == []
    assert "refs/heads/old" in pair.refs()
