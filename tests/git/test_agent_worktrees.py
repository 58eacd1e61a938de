"""An agent's worktree: a branch that is there to see, names of every kind, and an end at which nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tests.conftest import few
from tests.git.conftest import make_repository, until
from tests.git.test_copies import copies, new
from tests.support.tui import Tui


@pytest.mark.parametrize("name", few(["fix/#123", "\u00fc", "it's", "a=b,c%d+e@f", '$(x)`y`;|&<>"!'], 2))
def test_names_of_every_kind_can_be_made_finished_and_dropped(user_box, user_repository, name):
    # proves NEW-G3, MANY-01
    box, git = user_box, user_repository
    for end in ("finish", "drop"):
        made = new(box, name, "echo x >x; git add x; git commit -qm inside; git rev-parse --abbrev-ref HEAD")
        assert (made.returncode, made.stdout) == (0, f"{name}\n"), made.stderr
        (copy,) = copies(box)
        assert git("log", "-1", "--format=%s", f"refs/heads/{name}") == "inside\n"
        assert git("-C", copy, "status", "--porcelain") == ""
        again = new(box, name, "cat x")
        assert again.stdout == "x\n", again.stderr
        ended = box.claudebox("-y", end, name)
        assert ended.returncode == 0, ended.stderr
        assert copies(box) == []
        if end == "finish":
            assert git("log", "-1", "--format=%s", f"refs/heads/{name}") == "inside\n"
            second = new(box, "second", "cat x", "--from", name)
            assert second.stdout == "x\n", second.stderr
            assert box.claudebox("-y", "drop", "second").returncode == 0
            git("branch", "-D", name)
    assert git("for-each-ref", "--format=%(refname)") == "refs/heads/main\n"


def test_a_project_whose_path_has_odd_characters(user_box):
    # proves NEW-G3
    box = user_box
    odd = f"{box.base}/\u00fc ' # ~ $x"
    os.rename(box.project, odd)
    box.project = odd
    git = make_repository(box)
    try:
        for name in ("fix/#1", "two"):
            made = new(box, name, "echo x >x; git add x; git commit -qm inside")
            assert made.returncode == 0, made.stderr
        assert box.claudebox("-y", "finish", "fix/#1").returncode == 0
        assert box.claudebox("-y", "drop", "two").returncode == 0
        assert git("log", "-1", "--format=%s", "fix/#1") == "inside\n"
        assert copies(box) == []
    finally:
        os.rename(odd, f"{box.base}/project")
        box.project = f"{box.base}/project"


HIDDEN = (
    "echo a >a; git add a; git commit -qm on-name; git switch -qc side; git commit -q --allow-empty -m on-side; "
    "git tag v1; git switch -q --detach; git commit -q --allow-empty -m detached; git switch -q {name}; "
    "git branch -q back HEAD~1; git checkout -q --detach HEAD@{{1}}; echo s >>a; git stash -q; echo s2 >>a; "
    "git stash -q; git switch -q {name}; echo secret >.env; echo u >untracked"
)


def test_finishing_and_dropping_look_at_everything_that_the_agent_has(box, repository):
    # proves NEW-E8
    git = repository
    made = new(box, "all", HIDDEN.format(name="all"))
    assert made.returncode == 0, made.stderr
    (copy,) = copies(box)

    for _ in range(2):  # what keeps it is there again the next time
        finished = box.claudebox("-y", "finish", "all")
        assert finished.returncode == 0, finished.stderr
        assert copies(box) == [copy]
        for what in (".env", "untracked", "stash@{0}", "stash@{1}"):
            assert what in finished.stdout
            assert what in finished.stderr or what == "stash@{1}" or "more" in finished.stderr
    # Branches and tags are in the repository, under names of their own.
    arrived = git("for-each-ref", "--format=%(refname) %(subject)", "refs/heads/claudebox", "refs/tags/claudebox")
    rows = {row.split()[0].rpartition("/")[2]: row.split()[1] for row in arrived.splitlines()}
    assert rows["side"] == rows["v1"] == "on-side"
    assert git("log", "-1", "--format=%s", "all") == "on-name\n"

    dropped = box.claudebox("-y", "drop", "all")

    for what in ("on-name", ".env", "untracked", "stash@{0}", "stash@{1}", "side"):
        assert what in dropped.stdout
    assert copies(box) == []
    assert git("branch", "--list", "all") == ""
    assert git("log", "-1", "--format=%s", arrived.split()[0]) != ""


def test_a_commit_on_no_branch_keeps_the_worktree(user_box, user_repository):
    # proves NEW-E8
    box = user_box
    script = "git checkout -q --detach; git commit -q --allow-empty -m floating; git rev-parse --short HEAD"
    made = new(box, "loose", script)
    finished = box.claudebox("-y", "finish", "loose")
    assert (finished.returncode, len(copies(box))) == (0, 1)
    assert made.stdout.strip() in finished.stdout
    # On a branch it comes, and nothing keeps the worktree any more.
    assert new(box, "loose", "git switch -q -C loose").returncode == 0
    assert box.claudebox("-y", "finish", "loose").returncode == 0
    assert copies(box) == []
    assert user_repository("log", "-1", "--format=%s", "loose") == "floating\n"


def test_nothing_is_left_of_an_agent_that_does_not_start(user_box, user_repository):
    # proves MANY-01
    box, git = user_box, user_repository
    words = ("--exec", "--", "true")
    assert box.claudebox("new", "never", *words).returncode == 125  # nobody to ask
    assert box.claudebox("-y", "new", "never", "--mount-ro", "/nonexistent/x", *words).returncode == 125
    assert copies(box) == []
    assert git("for-each-ref", "--format=%(refname)") == "refs/heads/main\n"
    assert git("worktree", "list").count("\n") == 1


def test_a_branch_that_the_user_has_checked_out_is_not_deleted(user_box, user_repository):
    # proves NEW-E8
    box, git = user_box, user_repository
    assert new(box, "held", "git commit -q --allow-empty -m inside").returncode == 0
    git("checkout", "-q", "--ignore-other-worktrees", "held")
    dropped = box.claudebox("-y", "drop", "held")
    assert (dropped.returncode, copies(box)) == (0, []), dropped.stderr
    assert git("log", "-1", "--format=%s") == "inside\n"


@pytest.mark.parametrize("how", ["rm", "git", "with its branch"])
def test_a_worktree_that_the_user_deleted(user_box, user_repository, how):
    # proves MANY-01
    box, git = user_box, user_repository
    for name in ("one", "two"):
        assert new(box, name, f"echo {name} >{name}; git add .; git commit -qm {name}").returncode == 0
    for path in copies(box):
        if how == "rm":
            shutil.rmtree(path)
        else:
            git("worktree", "remove", "--force", path)
    if how == "with its branch":
        git("branch", "-D", "one", "two")
        finished = box.claudebox("-y", "finish", "one")
        assert (finished.returncode, finished.stderr.count("error:")) == (125, 1)
        assert new(box, "one", "git log --format=%s").stdout == "first\n"  # a new one
    else:
        again = new(box, "one", "cat one; git commit -q --allow-empty -m more")
        assert again.stdout == "one\n", again.stderr
        assert git("log", "--format=%s", "one") == "more\none\nfirst\n"
        assert box.claudebox("-y", "finish", "two").returncode == 0
        assert git("log", "-1", "--format=%s", "two") == "two\n"
        git("branch", "-D", "two")
    for name in ("one", "two"):
        box.claudebox("-y", "drop", name)
    assert copies(box) == []
    assert git("branch", "--list", "one", "two") == ""
    assert git("worktree", "list").count("\n") == 1
    assert not list(Path(box.home, ".claudebox/work").rglob("*"))


def test_a_branch_that_is_there_or_checked_out_is_left_alone(user_box, user_repository):
    # proves MANY-01
    box, git = user_box, user_repository
    assert "branch `main`" in new(box, "main", "true").stderr
    assert new(box, "mine", "git commit -q --allow-empty -m inside", "--from", "main").returncode == 0
    refused = box.host("git", "checkout", "mine")
    assert refused.returncode == 128  # git itself: it is checked out in the worktree
    assert new(box, "mine/deeper", "true").returncode == 125  # no branch can lie in another
    assert box.claudebox("-y", "finish", "mine").returncode == 0
    git("checkout", "-q", "mine")
    assert copies(box) == []


def test_a_worktree_can_be_made_from_a_linked_one(user_box, user_repository):
    # proves MANY-01, NEW-G1
    box, git = user_box, user_repository
    os.chmod(box.base, 0o777)
    git("worktree", "add", "-q", "-b", "linked", f"{box.base}/linked")
    git("-C", f"{box.base}/linked", "commit", "-q", "--allow-empty", "-m", "on-linked")
    box.project = f"{box.base}/linked"
    made = new(box, "child", "git log -1 --format=%s; git commit -q --allow-empty -m inside")
    assert made.stdout == "on-linked\n", made.stderr
    assert box.claudebox("-y", "finish", "child").returncode == 0
    assert git("log", "-1", "--format=%s", "child") == "inside\n"
    box.project = f"{box.base}/project"


def lay_out(box, git, layout: str) -> None:
    """Make the project a checkout of another layout."""
    os.chmod(box.base, 0o777)
    if layout == "separate":
        git("init", "-q", "--separate-git-dir", f"{box.base}/directory")
        git("config", "core.worktree", box.project)
    elif layout == "bare":
        git("clone", "-q", "--bare", ".", f"{box.base}/repository/.bare")
        git("-C", f"{box.base}/repository/.bare", "worktree", "add", "-q", f"{box.base}/repository/main", "main")
        box.project = f"{box.base}/repository/main"
    elif layout == "sparse":
        box.write("directory/file", "x")
        git("add", "directory")
        git("commit", "-qm", "directory")
        git("sparse-checkout", "set", "--cone", "directory")
    elif layout == "shallow":
        git("clone", "-q", "--depth=1", f"file://{box.project}", f"{box.base}/shallow")
        box.project = f"{box.base}/shallow"
    elif layout == "borrowing":
        git("clone", "-q", "--shared", ".", f"{box.base}/borrowing")
        box.project = f"{box.base}/borrowing"
    elif layout == "unborn":
        git("checkout", "-q", "--orphan", "none")
    elif layout == "detached":
        git("checkout", "-q", "--detach")


@pytest.mark.parametrize(
    "layout", ["separate", "bare", "sparse", "shallow", "detached", "dirty", "borrowing", "unborn"]
)
def test_every_layout_works_or_is_refused_with_one_line(user_box, user_repository, layout):
    # proves MANY-01
    box, git = user_box, user_repository
    box.write(f"{box.home}/.gitconfig", "[user]\n\tname = u\n\temail = u@u\n")
    lay_out(box, git, layout)
    if layout == "dirty":
        box.write("kept.txt", "changed\n")
        box.write("staged", "staged\n")
        git("add", "staged")
    kept = "changed" if layout == "dirty" else "kept"  # uncommitted changes come along
    script = f"test $(cat kept.txt) = {kept} && git status --short && echo w >w && git add w && git commit -qm inside"
    made = new(box, "one", script)
    if layout in ("borrowing", "unborn"):
        assert (made.returncode, made.stderr.count("error:"), copies(box)) == (125, 1, []), made.stderr
        assert layout == "unborn" or f"{user_box.base}/project/.git/objects" in made.stderr
        return
    assert (made.returncode, made.stdout) == (0, ""), made.stderr
    finished = box.claudebox("-y", "finish", "one")
    assert finished.returncode == 0, finished.stderr
    if layout == "dirty":
        assert git("status", "--short") == " M kept.txt\nA  staged\n"
    assert git("log", "-1", "--format=%s", "one") == "inside\n"
    assert copies(box) == []


def test_finishing_shows_all_deletions_where_there_are_two_bases(user_box, user_repository):
    # proves AGENT-06
    box, git = user_box, user_repository
    assert new(box, "one", "echo o >o; git add o; git commit -qm o").returncode == 0
    box.write("m", "m")
    git("add", "m")
    git("commit", "-qm", "m")
    git("branch", "before")
    git("merge", "-q", "--no-edit", "one")
    assert new(box, "one", "git merge -q --no-edit before; git rm -q m o; git commit -qm gone").returncode == 0
    assert git("merge-base", "--all", "main", "one").count("\n") == 2

    finished = box.claudebox("-y", "finish", "one")

    assert finished.returncode == 0, finished.stderr
    assert "deleted (2): m, o" in finished.stdout


@pytest.mark.parametrize("verb", ["finish", "drop"])
def test_no_agent_starts_in_a_worktree_that_is_about_to_be_removed(user_box, user_repository, verb):
    # proves AGENT-06
    box = user_box
    assert new(box, "one", "true").returncode == 0
    for answer in ("n", "y"):
        with Tui(box) as terminal:
            terminal.shell(box.program, verb, "one")
            terminal.expect("[Y/n]" if verb == "finish" else "[y/N]")
            refused = new(box, "one", "echo work >work")
            assert (refused.returncode, refused.stderr.count("error:")) == (125, 1), refused.stderr
            (copy,) = copies(box)
            assert not os.path.exists(f"{copy}/work")
            terminal.type(answer)
            terminal.status()
        if answer == "n":
            assert new(box, "one", "true").returncode == 0, "the control"
    assert copies(box) == []


@pytest.mark.parametrize("how", ["git symbolic-ref refs/heads/one refs/heads/main", "git update-ref -d refs/heads/one"])
def test_the_branch_of_a_worktree_cannot_be_deleted_from_inside(user_box, user_repository, how):
    # proves AGENT-06
    box, git = user_box, user_repository
    assert new(box, "one", "git commit -q --allow-empty -m inside").returncode == 0
    made = new(box, "one", how)
    assert made.returncode == 0, made.stderr
    assert "branch `one`" in made.stderr
    assert git("log", "-1", "--format=%s", "one") == "inside\n", made.stderr
    assert git("log", "-1", "--format=%s", "main") == "first\n"


def test_nothing_of_the_host_runs_when_a_worktree_is_made_finished_or_dropped(user_box, user_repository):
    # proves MANY-01, D01
    box, git = user_box, user_repository
    mark = f"{box.home}/ran"
    program = box.write(f"{box.home}/program", f"#!/bin/sh\ntouch {mark}\ncat\n", mode=0o755)
    for hook in ("post-checkout", "reference-transaction", "post-merge", "post-index-change", "pre-commit"):
        box.write(f".git/hooks/{hook}", f"#!/bin/sh\ntouch {mark}\n", mode=0o755)
    git("config", "filter.mark.smudge", program)
    git("config", "filter.mark.clean", program)
    git("config", "core.fsmonitor", program)
    git("config", "extensions.worktreeConfig", "true")
    git("config", "--worktree", "core.hooksPath", f"{box.project}/.git/hooks")
    box.write(".gitattributes", "* filter=mark\n")
    git("add", ".gitattributes")
    git("commit", "-qm", "attributes")
    assert os.path.exists(mark)  # the control: git of the host runs them
    os.unlink(mark)

    for end in (("finish", "one"), ("drop", "one")):
        assert new(box, "one", "git -c core.hooksPath= commit -q --allow-empty -m x").returncode == 0
        assert box.claudebox("-y", *end).returncode == 0
        box.host("git", "-c", "core.hooksPath=/dev/null", "branch", "-D", "one")
        if os.path.exists(mark):
            assert end[0] == "finish"
            os.unlink(mark)  # by the line above
    assert copies(box) == []


@pytest.mark.parametrize("kind", ["reftable", "sha256"])
def test_other_formats_of_repositories(user_box, kind):
    # proves MANY-01, NEW-G2
    box = user_box
    option = "--ref-format=reftable" if kind == "reftable" else "--object-format=sha256"
    if box.host("git", "init", "-q", option, f"{box.home}/try").returncode:
        pytest.skip(f"this git knows no {kind}")
    box.host("git", "init", "-q", "-b", "main", option)
    git = make_repository(box)
    box.write("kept.txt", "stashed\n")
    git("stash", "-q")
    script = (
        "git stash list; git reflog main; echo x >x; git add x; git commit -qm inside; git branch side; git stash list"
    )
    made = new(box, "one", script)
    assert (made.returncode, made.stdout) == (0, ""), made.stderr
    assert git("log", "--format=%s", "one") == "inside\nfirst\n"
    assert "/side" in git("for-each-ref", "refs/heads/claudebox")
    assert git("stash", "list").count("\n") == 1
    assert box.claudebox("-y", "finish", "one").returncode == 0
    assert git("log", "-1", "--format=%s", "one") == "inside\n"
    assert copies(box) == []
    assert new(box, "two", "git commit -q --allow-empty -m lost").returncode == 0
    assert box.claudebox("-y", "drop", "two").returncode == 0
    assert git("branch", "--list", "two") == ""


def test_what_a_killed_session_did_is_brought_before_its_worktree_is_finished(user_box, user_repository):
    # proves MANY-01
    box, git = user_box, user_repository
    script = "git commit -q --allow-empty -m one; git stash -q; touch up; while :; do sleep 1; done"
    words = (box.program, "-y", "new", "dead", "--exec", "--", "sh", "-c", script)
    options = {"cwd": box.project, "env": box.variables(), **box.account.demotion}
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        limit = time.monotonic() + 30
        while not copies(box) or not os.path.exists(f"{copies(box)[0]}/up"):
            assert time.monotonic() < limit
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = box.claudebox("-y", "finish", "dead")
    assert "up" in finished.stderr, finished.stderr
    assert git("log", "-1", "--format=%s", "dead") == "one\n"


def test_an_undo_takes_nothing_back_that_an_agent_in_another_worktree_did(user_box, user_repository):
    # proves UNDO-02, MANY-01
    box, git = user_box, user_repository
    words = (box.program, "-y", "--set", "undo_keep=10", "new", "agent", "--exec", "--", "sh", "-c")
    inside = "while [ ! -e go ]; do sleep .05; done; git commit -q --allow-empty -m by-agent; git branch side"
    options = {"cwd": box.project, "env": box.variables(), "stdin": subprocess.DEVNULL, **box.account.demotion}
    agent = subprocess.Popen((*words, inside), stderr=subprocess.DEVNULL, **options)
    try:
        until(lambda: copies(box) and os.path.exists(f"{copies(box)[0]}/kept.txt"))
        script = "echo x >x; git add x; git commit -qm in-main; while [ ! -e over ]; do sleep .05; done"
        other = (box.program, "-y", "--set", "undo_keep=10", "--exec", "--", "sh", "-c", script)
        session = subprocess.Popen(other, **options)
        until(lambda: os.path.exists(f"{box.project}/x") and git("log", "-1", "--format=%s") == "in-main\n")
        box.write(f"{copies(box)[0]}/go", "")
        assert agent.wait(60) == 0
        box.write("over", "")
        assert session.wait(60) == 0
    finally:
        agent.kill()
    assert git("log", "-1", "--format=%s", "agent") == "by-agent\n"

    undone = box.claudebox("-y", "undo")

    assert undone.returncode in (0, 125), undone.stderr
    assert not os.path.exists(f"{box.project}/x")
    assert git("log", "-1", "--format=%s") == "first\n"
    assert git("log", "-1", "--format=%s", "agent") == "by-agent\n"
    # In the worktree the same: what the agent did goes, and the user's commit stays.
    git("commit", "-q", "--allow-empty", "-m", "mine")
    undone = box.claudebox("-y", "undo", cwd=copies(box)[0])
    assert undone.returncode in (0, 125), undone.stderr
    assert git("log", "-1", "--format=%s", "agent") == "first\n"
    assert git("log", "-1", "--format=%s") == "mine\n"


def test_commits_in_a_submodule_that_the_agent_added_keep_the_worktree(user_box, user_repository):
    # proves NEW-E8
    box = user_box
    script = (
        "git init -q -b main seed; git -C seed commit -q --allow-empty -m seed; "
        "git -c protocol.file.allow=always submodule --quiet add ./seed part; rm -rf seed; "
        "git -C part commit -q --allow-empty -m inside; git add -A; git commit -qm with-part"
    )
    box.write(f"{box.home}/.gitconfig", "[user]\n\tname = u\n\temail = u@u\n")
    made = new(box, "sub", script)
    assert made.returncode == 0, made.stderr

    finished = box.claudebox("-y", "finish", "sub")

    assert finished.returncode == 0, finished.stderr
    assert "submodule part" in finished.stderr
    (copy,) = copies(box)
    assert user_repository("-C", f"{copy}/part", "log", "-1", "--format=%s") == "inside\n"
    assert "part" in box.claudebox("-y", "drop", "sub").stdout
    assert copies(box) == []


def test_directories_that_lie_deep_in_one_another_are_copied(user_box, user_repository):
    # proves MANY-01
    box = user_box
    depth = 600
    script = (
        "import os\nos.mkdir('node_modules/deep'); os.chdir('node_modules/deep')\n"
        f"for _ in range({depth}):\n    os.mkdir('d'); os.chdir('d')\nopen('end', 'w').write('deep')"
    )
    assert box.host("/usr/bin/python3", "-c", script).returncode == 0
    look = script.replace("os.mkdir('node_modules/deep'); ", "").replace("os.mkdir('d'); ", "")
    look = look.replace("open('end', 'w').write('deep')", "print(open('end').read())")
    made = box.claudebox("-y", "new", "deep", "--exec", "--", "/usr/bin/python3", "-c", look)
    assert made.stdout == "deep\n", made.stderr
    assert box.claudebox("-y", "finish", "deep").returncode == 0
    assert copies(box) == []


@pytest.mark.slow
def test_five_agents_at_once_while_the_host_commits_rebases_and_collects_garbage(box, repository):
    # proves MANY-01, NEW-G1
    git = repository
    names = [f"agent{number}" for number in range(5)]
    script = (
        'for number in 1 2 3 4 5; do echo "$number" >>"$0"; git add -A; git commit -qm "$0 $number" || exit 9; '
        "sleep .2; done; git branch side $(git commit-tree -p HEAD -m $0-side HEAD^{tree}); git branch -f main HEAD~1; "
        'git for-each-ref --format="%(refname)" refs/heads | grep agent | grep -v "/$0$"; true'
    )
    options = {
        "cwd": box.project, "env": box.variables(), "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT, "encoding": "utf-8", **box.account.demotion,
    }  # fmt: skip
    over = threading.Event()
    failures: list[str] = []

    def work() -> None:
        """Do on the host what a user does meanwhile, for as long as agents work."""
        box.host("git", "branch", "topic")
        for number in range(200):
            if over.is_set():
                return
            box.write(f"host{number}.txt", f"{number}\n")
            for words in (
                ("add", f"host{number}.txt"), ("commit", "-qm", f"host {number}"),
                ("rebase", "-q", "--force-rebase", "HEAD~1"), ("reflog", "expire", "--expire=now", "--all"),
                ("gc", "-q"),
            ):  # fmt: skip
                result = box.host("git", *words)
                # Of git itself: another holds a lock, or is just making a worktree, whose HEAD is no object at first.
                own = ("lock", "gc is already", "commondir: Success", "object worktrees/", "object: worktrees/")
                if result.returncode and not any(text in result.stderr for text in own):
                    failures.append(f"{words}: {result.stderr}")
            time.sleep(0.1)

    host = threading.Thread(target=work)
    host.start()
    try:
        agents = {
            name: subprocess.Popen(
                (box.program, "-y", "new", name, "--exec", "--", "sh", "-c", script, name), **options
            )
            for name in names
        }
        said = {name: process.communicate(timeout=120)[0] for name, process in agents.items()}
    finally:
        over.set()
        host.join()
    assert failures == []
    assert box.host("git", "gc", "-q").stderr == ""
    for name, process in agents.items():
        assert process.returncode == 0, said[name]
        assert "refs/heads/agent" not in said[name]  # no agent sees the branch of another
        wanted = [f"{name} {number}" for number in (5, 4, 3, 2, 1)]
        assert git("log", "--format=%s", name).splitlines()[:5] == wanted, said[name]
    arrived = git("for-each-ref", "--format=%(refname) %(subject)", "refs/heads/claudebox").splitlines()
    assert sorted(row.partition(" ")[2] for row in arrived if "/side " in row) == [f"{name}-side" for name in names]
    assert git("log", "-1", "--format=%s", "main").startswith("host ")
    assert git("fsck", "--no-dangling") == ""
    for number, name in enumerate(names):
        ended = box.claudebox("-y", "finish" if number else "drop", name)
        assert ended.returncode == 0, ended.stderr
    assert copies(box) == []
    for name in names[1:]:
        assert git("show", f"{name}:{name}") == "1\n2\n3\n4\n5\n"
    assert git("fsck", "--no-dangling") == ""
