"""Agents with copies of a repository of their own: made, worked in, finished, dropped; the checkout is not touched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from tests.conftest import need
from tests.support.tui import Tui


def commit(box, git, name: str) -> None:
    box.write(name, "x\n")
    git("add", "-A")
    git("commit", "-qm", f"add {name}")


def new(box, name: str, script: str, *flags: str):
    return box.claudebox("-y", "new", name, *flags, "--exec", "--", "sh", "-c", script)


def everything(directory: str):
    """Return every file of a directory, the git directory too, with all that can be told of it."""
    found = {}
    for path in sorted(Path(directory).rglob("*")):
        status = path.lstat()
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, status.st_uid, content)
    return found


def copies(box) -> list[str]:
    return sorted(str(path) for path in Path(box.home, ".claudebox/work").glob("*/*") if not path.name.startswith("."))


def test_an_agent_works_in_a_copy_and_its_branch_comes_back_when_it_is_finished(box, repository):
    # proves AGENT-05, AGENT-06, GIT-03
    before = everything(box.project)

    result = new(
        box, "feature",
        "git log --oneline --all | wc -l; git status --short; cat node_modules/left-pad/index.js; "
        f"ls {box.project}; echo work > new.txt; git rm -q gone.txt; git add .; "
        "git commit -qm work",
        "--copy", "node_modules",
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["1", "module.exports", "=", "1"]  # nothing to commit, and no way to the checkout
    checkout = {path: row for path, row in before.items() if "/.git" not in path}
    assert {path: row for path, row in everything(box.project).items() if "/.git" not in path} == checkout
    (copy,) = copies(box)
    assert repository("log", "--format=%s", "feature").split() == ["work", "first"]  # before anything is finished
    assert os.stat(f"{copy}/node_modules/left-pad/index.js").st_nlink == 1
    assert os.readlink(f"{copy}/node_modules/link") == "left-pad"

    finished = box.claudebox("-y", "finish", "feature")

    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[0] == "feature: 1 commit"
    assert lines[2] == "  deleted (1): gone.txt"
    assert repository("log", "--format=%s", "feature").split() == ["work", "first"]
    assert repository("rev-parse", "--abbrev-ref", "HEAD").strip() == "main"
    assert repository("status", "--short") == ""
    assert copies(box) == []
    assert not list(Path(box.home, ".claudebox/work").rglob("*"))
    assert repository("worktree", "list").count("\n") == 1
    assert {path: row for path, row in everything(box.project).items() if "/.git" not in path} == checkout


def test_finishing_leaves_merging_to_the_user(user_box, user_repository):
    # proves AGENT-06
    box, git = user_box, user_repository
    assert new(box, "one", "echo one > one.txt; git add .; git commit -qm one").returncode == 0

    refused = box.claudebox("-y", "finish", "one", "merge")
    assert refused.returncode == 125
    assert "unexpected argument `merge`" in refused.stderr
    finished = box.claudebox("-y", "finish", "one")

    assert "git merge one" in finished.stderr
    assert git("log", "--format=%s").splitlines() == ["first"]
    git("merge", "-q", "one")
    assert Path(box.project, "one.txt").read_text() == "one\n"


def test_what_the_hosts_tools_would_run_is_shown_before_anything_comes(user_box, user_repository):
    # proves AGENT-06, R06
    box, git = user_box, user_repository
    script = (
        "echo '{}' > package.json; ln -s /etc/passwd way-out; printf 'esc\\033[31m' > \"$(printf 'n\\033[31mame')\"; "
        "git add .; blob=$(echo x | git hash-object -w --stdin); "
        "git update-index --add --cacheinfo 100755,$blob,.vscode/tasks.json; git commit -qm 'odd \x1b[31m'; "
        "echo later > later.txt"
    )
    assert new(box, "odd", script).returncode == 0

    shown = box.claudebox("finish", "odd").stdout  # nobody to ask, and nothing to ask

    assert "\x1b" not in shown
    assert "package.json" in shown
    assert ".vscode/tasks.json" in shown
    assert "way-out (leads to /etc/passwd)" in shown
    # Files that are not committed keep the worktree.
    finished = box.claudebox("-y", "finish", "odd")
    assert finished.returncode == 0
    assert "later.txt" in finished.stderr
    assert len(copies(box)) == 1
    # And dropping it names them.
    dropped = box.claudebox("-y", "drop", "odd")
    assert "later.txt" in dropped.stdout
    assert copies(box) == []
    assert git("branch", "--list", "odd") == ""


def test_dropping_says_what_is_lost_and_leaves_nothing(user_box, user_repository):
    # proves AGENT-06
    box, git = user_box, user_repository
    submodule = "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),part; git commit -qm 'lost work'"
    refs = git("for-each-ref")
    assert new(box, "lost", f"echo x > x; git add .; {submodule}; mkdir shut; echo y > shut/late").returncode == 0
    (copy,) = copies(box)
    os.chmod(f"{copy}/shut", 0o311)  # as a session that was killed leaves it

    assert box.claudebox("drop", "lost").returncode == 125  # nobody to ask
    assert len(copies(box)) == 1
    dropped = box.claudebox("-y", "drop", "lost")

    assert dropped.returncode == 0
    assert "lost work" in dropped.stdout
    assert "shut/" in dropped.stdout
    assert "part (a submodule)" in dropped.stdout
    assert "sockets, pipes and devices" not in dropped.stdout
    assert copies(box) == []
    assert git("for-each-ref") == refs
    names = os.listdir(f"{box.home}/.claudebox/instances")
    assert len(names) == 0  # its conversations are gone as well


def test_agents_cannot_touch_the_checkout_or_one_another(user_box, user_repository):
    # proves AGENT-05, MANY-01
    box = user_box
    assert new(box, "first", "echo first > f; git add .; git commit -qm first").returncode == 0
    (first,) = copies(box)
    git = user_repository
    box.write("stashed", "precious")
    git("stash", "-qu")
    git("pack-refs", "--all")
    refs, config = git("for-each-ref"), Path(box.project, ".git/config").read_text()
    before = {path: row for path, row in everything(box.project).items() if "/.git" not in path}
    other = everything(first)
    attack = (
        f"for place in {box.project} {first} ..; do ls $place; echo x > $place/planted; rm -rf $place/kept.txt; done; "
        "git stash list; git reflog --all | grep -v HEAD@; git worktree list | grep first; "
        "git branch -a | grep first; git push . HEAD:refs/heads/main; "
        "git commit -q --allow-empty -m mine; git branch -f first; git tag -f v0; "
        "git branch -f main; git update-ref refs/stash HEAD; dir=$(git rev-parse --git-common-dir); "
        "echo / > $dir/objects/info/alternates; git config core.fsmonitor /bin/false; echo x > $dir/hooks/post-merge"
    )

    attacked = new(box, "second", attack)

    assert attacked.returncode == 0, attacked.stderr
    assert not [line for line in attacked.stdout.splitlines() if "stash" in line or "first" in line]
    assert {path: row for path, row in everything(box.project).items() if "/.git" not in path} == before
    assert everything(first) == other
    assert "planted" not in os.listdir(os.path.dirname(first))
    assert Path(box.project, ".git/config").read_text() == config
    assert not os.path.exists(f"{box.project}/.git/hooks/post-merge")
    assert not os.path.exists(f"{box.project}/.git/objects/info/alternates")
    # Of the repository one branch moved, and what the agent did to others arrived beside them.
    arrived = [row.split()[2] for row in git("for-each-ref", "refs/heads/claudebox", "refs/tags").splitlines()]
    assert {name.rpartition("/")[2] for name in arrived} <= {"first", "main", "v0"}
    assert "mine" in git("log", "--format=%s", "second")
    kept = [row for row in git("for-each-ref").splitlines() if "claudebox/" not in row and "heads/second" not in row]
    assert kept == refs.splitlines()


def test_odd_names_and_branches_are_refused_with_one_line(user_box, user_repository):
    # proves AGENT-05
    box, git = user_box, user_repository
    git("branch", "taken")

    for name in ("", "-x", "../x", "a b", ".hidden", "x.lock", "HEAD", "a" * 65, "a~b", "a/", "0" * 40, "x..y", "a\nb"):
        result = new(box, name, "true")
        assert result.returncode == 125, name
        assert result.stderr.count("error:") == 1
    for flags in (("--from", "no-such"), ("--from", "--upload-pack=x"), ("--from", "main..x"), ("--copy", "../secret")):
        assert new(box, "fine", "true", *flags).returncode == 125, flags
    assert "has a branch `taken`" in new(box, "taken", "true").stderr
    assert copies(box) == []
    assert not list(Path(box.home, ".claudebox").rglob("fine"))


def test_a_copy_begins_where_it_is_asked_to_and_can_be_gone_on_with(user_box, user_repository):
    # proves AGENT-05
    box, git = user_box, user_repository
    first = git("rev-parse", "HEAD").strip()
    git("tag", "v1")
    commit(box, git, "second.txt")

    shown = new(box, "old", "git rev-parse HEAD; ls -d second.txt node_modules/link", "--from", "v1").stdout.split()
    assert shown == [first, "node_modules/link"]  # which comes along unless somebody says otherwise
    assert new(box, "bare", "ls node_modules", "--copy", "none").returncode == 2
    assert box.claudebox("-y", "drop", "bare").returncode == 0
    large = f"{box.project}/node_modules/large"
    with open(large, "xb") as file:
        file.truncate(3 << 30)
    os.chmod(large, 0o644)
    left = new(box, "less", "ls node_modules")
    assert (left.returncode, "was not copied" in left.stderr) == (2, True), left.stderr
    os.unlink(large)
    assert box.claudebox("-y", "drop", "less").returncode == 0
    again = new(box, "old", "git rev-parse --abbrev-ref HEAD; echo more > more; git add .; git commit -qm more")
    assert again.stdout.split() == ["old"]
    assert new(box, "old", "true", "--from", "main").returncode == 125
    assert box.claudebox("-y", "finish", "old").returncode == 0
    assert git("log", "--format=%s", "old").split("\n")[:2] == ["more", "first"]


def test_a_gc_of_the_user_takes_nothing_away_from_a_copy(user_box, user_repository):
    # proves AGENT-06
    box, git = user_box, user_repository
    git("checkout", "-q", "-b", "topic")
    commit(box, git, "topic.txt")
    git("gc", "-q")
    assert new(box, "kept", "echo x > x; git add .; git commit -qm on-topic").returncode == 0
    git("checkout", "-q", "main")
    git("branch", "-D", "topic")
    git("reflog", "expire", "--expire=now", "--all")
    git("gc", "-q", "--prune=now")

    finished = box.claudebox("-y", "finish", "kept")

    assert finished.returncode == 0, finished.stderr
    assert git("log", "--format=%s", "kept").split("\n")[:3] == ["on-topic", "add topic.txt", "first"]
    git("fsck")


def test_a_project_that_moved_loses_nothing(user_box, user_repository):
    # proves AGENT-06, AGENT-03
    box = user_box
    assert new(box, "away", "echo x > x; git add .; git commit -qm work").returncode == 0
    os.rename(box.project, f"{box.base}/elsewhere")
    os.mkdir(box.project)
    shutil.rmtree(box.project)

    finished = box.claudebox("-y", "finish", "away", cwd=box.base)

    assert finished.returncode == 125
    assert "was moved or deleted" in finished.stderr
    (copy,) = copies(box)
    os.rename(f"{box.base}/elsewhere", box.project)
    assert box.claudebox("-y", "finish", "away").returncode == 0
    assert copies(box) == [] != [copy]


def test_without_a_repository_there_is_no_worktree(user_box):
    # proves AGENT-05
    refused = new(user_box, "plain", "true")

    assert (refused.returncode, "`claudebox new` needs a repository" in refused.stderr) == (125, True)
    assert copies(user_box) == []


@pytest.mark.root
def test_a_full_disk_leaves_no_half_of_a_copy(user_box, user_repository, tmp_path):
    # proves AGENT-05, H10
    box = user_box
    box.write("large.bin", os.urandom(3 << 20))
    user_repository("add", "-A")
    user_repository("commit", "-qm", "large")
    place = box.mkdir(f"{box.home}/.claudebox/work")
    os.chmod(f"{box.home}/.claudebox", 0o700)
    os.chmod(place, 0o700)
    box.host("true")
    os.system(f"mount -t tmpfs -o size=2m,uid={box.account.uid},gid={box.account.gid},mode=700 tmpfs {place}")
    try:
        result = new(box, "full", "true")
        assert result.returncode == 125
        assert "error: " in result.stderr
        assert "Traceback" not in result.stderr
        assert [path for path in Path(place).rglob("*") if path.is_file()] == []
        assert user_repository("branch", "--list", "full") == ""
        assert user_repository("worktree", "list").count("\n") == 1
        # One that fills the disk while it works keeps its commits, and can be dropped.
        os.system(f"mount -o remount,size=7m {place}")
        fill = "echo x > x; git add x; git commit -qm kept; head -c 9m /dev/zero > fill 2>/dev/null"
        new(box, "kept", fill)
        assert user_repository("log", "-1", "--format=%s", "kept").strip() == "kept"
        finished = box.claudebox("-y", "finish", "kept")
        assert (finished.returncode, "fill" in finished.stderr) == (0, True), finished.stderr
        dropped = box.claudebox("-y", "drop", "kept")
        assert (dropped.returncode, "fill" in dropped.stdout) == (0, True), dropped.stderr
        assert copies(box) == []
    finally:
        os.system(f"umount {place}")


def test_a_detached_agent_in_a_copy_is_listed_with_its_project(user_box, user_repository):
    # proves AGENT-03, AGENT-05
    need(shutil.which("tmux"), "tmux")
    box = user_box
    try:
        script = "echo up; while [ ! -e stop ]; do sleep .1; done; git add .; git commit -qm done"
        assert new(box, "bg", script, "--detach").returncode == 0
        row = next(row for row in json.loads(box.claudebox("sessions", "--json").stdout))
        assert (row["name"], row["project"], row["directory"]) == ("bg", box.project, copies(box)[0])
        busy = box.claudebox("-y", "finish", "bg")
        assert "an agent is at work in `bg`" in busy.stderr
        box.write(f"{row['directory']}/stop")
        limit = time.monotonic() + 20
        while json.loads(box.claudebox("sessions", "--json").stdout)[0]["state"] != "ended":
            assert time.monotonic() < limit
        assert box.claudebox("-y", "finish", "bg").returncode == 0
        assert user_repository("log", "-1", "--format=%s", "bg").strip() == "done"
        assert json.loads(box.claudebox("sessions", "--json").stdout) == []
    finally:
        box.host("tmux", "-S", f"{box.home}/.claudebox/run/tmux", "kill-server")


def test_what_the_user_approved_for_the_project_holds_in_its_copies(user_box, user_repository):
    # proves EXT-01, AGENT-05
    box = user_box
    box.write(".claudebox.toml", 'env = { COLOUR = "blue" }\n')
    user_repository("add", "-A")
    user_repository("commit", "-qm", "settings")
    assert "colour=\n" in new(box, "unasked", "echo colour=$COLOUR").stdout  # not approved as yet

    with Tui(box) as terminal:
        terminal.shell(box.program, "trust", "approve")
        terminal.expect("Approve exactly this")
        terminal.type("y")
        assert terminal.status() == 0
    assert "colour=blue\n" in new(box, "asked", "echo colour=$COLOUR").stdout


def test_submodules_and_large_files_come_along_and_lose_no_commit(user_box, user_repository):
    # proves AGENT-05, AGENT-06
    box, git = user_box, user_repository
    inner, outer = (box.mkdir(f"{box.base}/{name}") for name in ("inner", "outer"))
    allowed = ("-c", "protocol.file.allow=always")
    for place, name in ((inner, "deep.txt"), (outer, "sub.txt")):
        box.write(f"{place}/{name}", f"{name}\n")
        git("init", "-q", "-b", "main", place)
        git("-C", place, "add", ".")
        git("-C", place, "-c", "user.name=u", "-c", "user.email=u@u", "commit", "-qm", "first")
    git("-C", outer, *allowed, "submodule", "--quiet", "add", inner, "inner")
    git("-C", outer, "-c", "user.name=u", "-c", "user.email=u@u", "commit", "-qm", "inner")
    git(*allowed, "submodule", "--quiet", "add", "--name", "odd name", outer, "part")
    git(*allowed, "submodule", "--quiet", "update", "--init", "--recursive")
    content = os.urandom(5000)
    identifier = hashlib.sha256(content).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{identifier}\nsize 5000\n"
    absent = pointer.replace(identifier, "0" * 64)
    box.write(f".git/lfs/objects/{identifier[:2]}/{identifier[2:4]}/{identifier}", content)
    box.write("large.bin", pointer)
    box.write("absent.bin", absent)
    git("add", ".")
    box.write(".gitattributes", "*.bin filter=lfs -text\n")  # the filter runs nowhere but in a sandbox
    git("add", ".gitattributes")
    git("commit", "-qm", "parts")
    hook = box.write("hook", f"#!/bin/sh\ntouch {box.base}/ran\n", mode=0o755)
    shutil.copy(hook, f"{box.project}/.git/modules/odd name/hooks/post-checkout")
    git("-C", f"{box.project}/part", "config", "core.fsmonitor", hook)

    made = new(
        box, "whole",
        "cat part/sub.txt part/inner/deep.txt; sha256sum large.bin; cat absent.bin; git -C part status --short; "
        "cd part; git config user.name u; git config user.email u@u; echo new > sub.txt; git commit -qam in-part",
    )  # fmt: skip

    assert made.stdout == f"sub.txt\ndeep.txt\n{identifier}  large.bin\n{absent}", made.stderr
    assert not os.path.exists(f"{box.base}/ran")
    (copy,) = copies(box)
    finished = box.claudebox("-y", "finish", "whole")
    assert finished.returncode == 0, finished.stderr
    assert "part" in finished.stdout
    assert "not committed: part" in finished.stderr
    assert copies(box) == [copy]
    # The commit is in the project's submodule, whatever becomes of the worktree.
    assert git("-C", "part", "log", "-1", "--format=%s", "claudebox/whole/detached").strip() == "in-part"
    assert "part" in box.claudebox("-y", "drop", "whole").stdout
    assert git("-C", "part", "fsck") == ""
    # One in which nothing happened goes away.
    assert new(box, "idle", "true").returncode == 0
    assert box.claudebox("-y", "finish", "idle").returncode == 0
    assert copies(box) == []


def test_a_file_of_variables_is_of_the_directory_where_the_command_was_given(user_box, user_repository):
    # proves AGENT-04, CLI-01
    with open(f"{user_box.project}/test.env", "w", encoding="utf-8") as file:
        file.write("GREETING=hello\n")
    with open(f"{user_box.project}/.git/info/exclude", "a", encoding="utf-8") as file:
        file.write("*.env\n")  # ignored: the worktree has none

    flags = ("-y", "--env-file", "test.env", "new", "one")
    result = user_box.claudebox(*flags, "--exec", "--", "sh", "-c", "echo $GREETING; ls *.env")

    assert result.stdout == "hello\n", result.stderr
