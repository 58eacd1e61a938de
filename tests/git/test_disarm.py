"""Disarming repositories that an agent made: what stays of them, and that nothing ends the search."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from tests.conftest import REPOSITORY

from claudebox.base import process
from claudebox.git import disarm, disarmed
from claudebox.git import facts as git_facts
from claudebox.git.disarm import clean_config, read_addresses
from claudebox.host import project_search
from claudebox.report import account

MADE_BY_GIT = b"""\
[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
	logallrefupdates = true
[remote "origin"]
	url = https://example.org/a.git
	fetch = +refs/heads/*:refs/remotes/origin/*
[branch "topic/a"]
	remote = origin
	merge = refs/heads/topic/a
"""
COMMIT = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--allow-empty", "-q", "-m", "one")


def test_what_git_writes_stays():
    # proves D11
    assert clean_config(MADE_BY_GIT) == MADE_BY_GIT


@pytest.mark.parametrize(
    "text",
    [
        "[core]\n\tfsmonitor = x\n",
        "[core] fsmonitor = x\n",
        "[core]fsmonitor=x\n",
        " [core]\n\tfsmonitor = x\n",
        "[core.x]\n\tbare = true\n",
        "[include]\n\tpath = ../x\n",
        "[core]\n\tbare = true\\\n\tfsmonitor = x\n",
        "[core]\n\tbare = true\r\tfsmonitor = x\n",
        "[core]\n\tbare = true \x00\n",
        "[core]\n\tworktree = /home\n",
        '[core]\n\tbare = "true\n\tfsmonitor = x"\n',
        '[remote "a"] fetch = "x"]\n\turl = a\n',
        '[remote "a\\"]\n\turl = a\n',
        '[remote "a"]\n\turl = ext::sh -c x\n',
        '[remote "a"]\n\turl = --upload-pack=x\n',
        '[remote "a"]\n\tuploadpack = x\n',
        '[submodule "a"]\n\tupdate = !x\n',
        "[alias]\n\tst = -c core.fsmonitor=x status\n",
        "[core]\n\tbare = true",
        "\ufeff[core]\n\tfsmonitor = x\n",
    ],
)
def test_nothing_else_does(text):
    # proves D11
    kept = clean_config(text.encode())

    assert kept != text.encode()
    assert all(word not in kept for word in (b"fsmonitor", b"path", b"x\n", b"ext::", b"/home"))


def test_lines_of_the_users_configuration_keep_their_order():
    """Of two lines with the same key the last one counts: an agent must not turn back what the user turned off."""
    # proves D11
    before = b"[core]\n\tfsmonitor = ./watch\n\tfsmonitor = false\n\tbare = false\n"
    added = b'[branch "a"]\n\tremote = origin\n'
    content = b"[core]\n\tfsmonitor = false\n\tfsmonitor = ./watch\n" + added

    assert disarm._merge(before, content, clean_config(content)) == before.replace(b"\tbare = false\n", b"") + added


def test_an_address_that_leads_where_nobody_looked_goes():
    # proves D11
    text = b'[remote "a"]\n\turl = /seen\n\tpushurl = /unseen\n[branch "b"]\n\tpushremote = /unseen\n'

    assert b"unseen" not in clean_config(text, is_hidden="/unseen".__eq__)
    assert clean_config(text, is_hidden="/other".__eq__) == text
    assert read_addresses(text) == ["a leads to /seen", "a pushurl to /unseen", "b pushremote to /unseen"]


def test_only_a_submodule_names_its_checkout(tmp_path):
    # proves D10
    module = f"{tmp_path}/.git/modules/a/b"
    (tmp_path / "link").symlink_to("/")

    def keeps(value, place=module):
        return b"worktree" in clean_config(f"[core]\n\tworktree = {value}\n".encode(), place)

    assert keeps("../../../../sub")
    assert not keeps("../../../../sub", "")
    assert not keeps("../../../../../elsewhere")
    assert not keeps("../../../../link/etc")
    assert not keeps("../../../hooks")
    assert not keeps("/etc")


@pytest.fixture
def project(tmp_path):
    """Return a project in which everything counts as made by the agent."""
    top = tmp_path / "project"
    top.mkdir()
    return top


def area(project, since=0.0, nested=(), home=""):
    """Return what an agent could write: the project alone."""
    roots, mounts = ((str(project), since, None),), ((str(project), "bind", str(project)),)
    return disarmed.Area(roots, mounts, nested=nested, home=home)


def arm(place, mark, *, bare=False):
    """Make a repository that leaves a mark wherever git enters it."""
    git(place.parent, "init", "-q", *(["--bare"] if bare else []), str(place))
    git_dir = place if bare else place / ".git"
    git(place, "--git-dir", str(git_dir), "config", "core.fsmonitor", f"touch {mark};:")
    git(place, "--git-dir", str(git_dir), "config", "core.bare", "false")
    git(place, "--git-dir", str(git_dir), "config", "core.worktree", str(place))
    hook = git_dir / "hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)


def git(place, *words, **environ):
    variables = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **environ}
    return subprocess.run(["git", *words], cwd=place, env=variables, capture_output=True, check=False, text=True)


def runs(mark, *places, **environ):
    """Return whether git of the host runs something of the agent's in one of these directories."""
    for place in places:
        git(place, "status", **environ)
        git(place, "add", "-A", **environ)
    ran = mark.exists()
    mark.unlink(missing_ok=True)
    return ran


def test_includes_and_their_number_cost_nothing(project, tmp_path):
    """What an agent's configuration includes is never read, and beyond a budget its repository is renamed."""
    # proves NEW-E1, END-01
    mark, big = tmp_path / "mark", project / "big"
    big.write_bytes(b"[a]\n" + b"\tb = c\n" * 150_000)
    places = [project / f"r{number}" for number in range(60)]
    for place in places:
        (place / ".git/objects").mkdir(parents=True)
        (place / ".git/refs").mkdir()
        (place / ".git/HEAD").write_text("ref: refs/heads/main\n")
        (place / ".git/config").write_text("[include]\n\tpath = ../../big\n" * 31)
    arm(project / "zz", mark)
    assert runs(mark, project / "zz")  # the positive control
    begun = time.process_time() + time.monotonic()
    done = disarmed.disarm(area(project))

    assert time.process_time() + time.monotonic() - begun < 60  # before: a minute for each ten of them
    assert done.is_complete
    assert not runs(mark, project / "zz", *places)
    assert not [place for place in places if b"include" in (place / ".git/config").read_bytes()]


def test_more_configuration_than_the_budget_costs_repositories_their_name(project, tmp_path, monkeypatch):
    # proves NEW-E1, END-01
    monkeypatch.setattr(disarm, "_BUDGET", 1000)
    mark = tmp_path / "mark"
    for number in range(20):
        arm(project / f"r{number}", mark)
    done = disarmed.disarm(area(project))
    places = [project / f"r{number}" for number in range(20)]

    assert done.is_complete
    assert not runs(
        mark, *places, *(place / ".git.claudebox" for place in places if (place / ".git.claudebox").exists())
    )
    assert [place for place in places if (place / ".git.claudebox").exists()]


def test_what_is_nested_without_end_is_disarmed_to_the_bottom(project, tmp_path):
    """Directories in directories that all have the shape of a repository; with paths longer than the kernel takes."""
    # proves NEW-E2, NEW-E3, NEW-E13, END-01
    mark = tmp_path / "mark"
    arm(tmp_path / "seed", mark)
    current = os.open(project, os.O_RDONLY)
    names = [name for _ in range(700) for name in ("hooks", "modules")]
    for name in names:
        os.mkdir(name, dir_fd=current)
        inner = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
        for part in ("HEAD", "objects", "config"):
            os.close(os.open(part, os.O_CREAT | os.O_WRONLY, dir_fd=current))
    os.fchdir(current)
    try:
        subprocess.run(["cp", "-a", str(tmp_path / "seed"), "bottom"], check=True)
        subprocess.run(["git", "init", "-q", "below"], check=False)
    finally:
        os.chdir("/")
    arm(project / "zz", mark)
    done = disarmed.disarm(area(project))

    assert done.is_complete, done
    assert not runs(mark, project / "zz")
    bottom = subprocess.run(["find", ".", "-path", "*bottom/.git/config.claudebox"], cwd=project, capture_output=True,
                            check=False, text=True).stdout  # fmt: skip
    assert bottom.count("\n") == 1
    os.close(current)
    subprocess.run(["rm", "-rf", str(project)], check=True)


def test_modules_in_modules_end_nothing(project, tmp_path):
    # proves NEW-E3, END-01
    mark = tmp_path / "mark"
    place = project / "a/.git"
    place.mkdir(parents=True)
    (place / "HEAD").touch()
    current = os.open(place, os.O_RDONLY)
    for number in range(720):
        name = "a" if number % 2 else "modules"
        os.mkdir(name, dir_fd=current)
        inner = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
        os.close(os.open("HEAD", os.O_CREAT, dir_fd=current))
    os.close(current)
    arm(project / "zz", mark)
    assert runs(mark, project / "zz")  # the positive control
    done = disarmed.disarm(area(project))

    assert done.is_complete, done
    assert not runs(mark, project / "zz")


def test_very_many_names_hide_nothing(project, tmp_path):
    # proves NEW-E4, END-01
    mark = tmp_path / "mark"
    wide = project / "a"
    wide.mkdir()
    (wide / "0").touch()
    for number in range(1, 60_000):
        os.link(wide / "0", wide / f"{number}") if number % 1000 else (wide / f"d{number}").mkdir()
    (project / "zz").mkdir()
    arm(project / "zz/deep", mark)

    assert disarmed.disarm(area(project)).is_complete
    assert not runs(mark, project / "zz/deep")


def test_hooks_of_a_relative_path_for_all_repositories_are_put_aside_in_every_one(project, tmp_path):
    # proves NEW-E9, END-01
    mark, home = tmp_path / "mark", tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[core]\n\thooksPath = .hk\n")
    last = project / "zz/n"
    for place in (*(project / f"r{number}" for number in range(520)), last):
        (place / ".git").mkdir(parents=True)
        (place / ".hk").mkdir()
        (place / ".hk/post-index-change").write_text(f"#!/bin/sh\ntouch {mark}\n")
        (place / ".hk/post-index-change").chmod(0o755)
    git(last, "init", "-q")
    (last / "new").touch()
    assert runs(mark, last, HOME=str(home))  # the positive control
    (last / "newer").touch()
    done = disarmed.disarm(area(project, home=str(home)))

    assert done.is_complete
    assert not runs(mark, last, HOME=str(home))
    assert not list(project.glob("*/.hk/post-index-change"))


@pytest.mark.parametrize("bare", [True, False])
def test_such_hooks_are_put_aside_in_git_directories_too(project, tmp_path, bare):
    """Git takes the path from there in a bare repository, for a push, and where the user stands in a `.git`."""
    # proves NEW-E9, D11
    mark, home = tmp_path / "mark", tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[core]\n\thooksPath = ./a/../.hk\n[user]\n\tname = x\n\temail = x\n")
    git(project, "init", "-q", *(["--bare"] if bare else []), "n")
    place = project / ("n" if bare else "n/.git")
    for hooks in (place / ".hk", place / "a"):
        hooks.mkdir()
    (place / ".hk/reference-transaction").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (place / ".hk/reference-transaction").chmod(0o755)
    tree = git(place, "mktree", HOME=str(home)).stdout.strip()

    def moves_a_ref(name):
        commit = git(place, "commit-tree", "-m", name, tree, HOME=str(home)).stdout.strip()
        git(place, "update-ref", f"refs/heads/{name}", commit, HOME=str(home))
        ran = mark.exists()
        mark.unlink(missing_ok=True)
        return ran

    assert moves_a_ref("one")  # the positive control
    assert disarmed.disarm(area(project, home=str(home))).is_complete
    assert not moves_a_ref("two")
    assert [path.name for path in (place / ".hk").iterdir()] == ["reference-transaction.claudebox"]


@pytest.mark.parametrize("named", ["../hk", "a/../../hk"])
def test_hooks_beside_a_repository_are_put_aside(project, tmp_path, named):
    # proves NEW-E9, D11
    mark, home = tmp_path / "mark", tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[core]\n\thooksPath = {named}\n")
    (project / "hk").mkdir()
    (project / "hk/post-index-change").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (project / "hk/post-index-change").chmod(0o755)
    git(project, "init", "-q", "n")
    (project / "n/a").mkdir()
    (project / "n/new").touch()
    assert runs(mark, project / "n", HOME=str(home))  # the positive control
    (project / "n/newer").touch()

    assert disarmed.disarm(area(project, home=str(home))).is_complete
    assert not runs(mark, project / "n", HOME=str(home))
    assert [path.name for path in (project / "hk").iterdir()] == ["post-index-change.claudebox"]


@pytest.mark.parametrize("named", ["sh check.sh", "./tools", "check.sh"])
def test_programs_that_only_the_agents_repository_has_are_put_aside(project, tmp_path, named):
    """Where the project has no such file, or a directory, the user's configuration names it all the same."""
    # proves NEW-E9, D11
    home, nested = tmp_path / "home", project / "n"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[diff]\n\texternal = {named}\n")
    (project / "tools").mkdir()
    git(project, "init", "-q", "n")
    program = nested / named.removeprefix("sh ")
    program.write_text("#!/bin/sh\n")

    assert disarmed.disarm(area(project, home=str(home))).is_complete
    assert program.with_name(f"{program.name}.claudebox").exists()
    assert not program.exists()


def test_a_long_alias_of_the_user_renames_no_repository(project, tmp_path):
    # proves NEW-E9, END-01
    mark, home = tmp_path / "mark", tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f'[alias]\n\tx = "!f() {{ echo {"long " * 60}; }}; f >/dev/null"\n')
    arm(project / "n", mark)
    done = disarmed.disarm(area(project, home=str(home)))

    assert done.is_complete
    assert (project / "n/.git/HEAD").exists()
    assert not (project / "n/.git/hooks").exists()  # the positive control: it was examined


@pytest.mark.parametrize("kind", ["worktree", "submodule"])
def test_hooks_that_a_repository_of_the_users_names_are_put_aside_in_what_belongs_to_it(project, tmp_path, kind):
    # proves D11
    mark, place = tmp_path / "mark", project / "beside"
    git(project, "init", "-q", "n")
    git(project / "n", *COMMIT)
    if kind == "worktree":
        git(project / "n", "config", "core.hooksPath", "tools/hk")
        git(project / "n", "worktree", "add", "-q", str(place))
    else:
        (project / "n/.git/modules").mkdir()
        git(project, "init", "-q", "--separate-git-dir", "n/.git/modules/s", str(place))
        git(place, "config", "core.hooksPath", "tools/hk")
    time.sleep(0.05)
    since = time.time()
    time.sleep(0.05)
    (place / "tools/hk").mkdir(parents=True)
    (place / "tools/hk/post-index-change").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (place / "tools/hk/post-index-change").chmod(0o755)
    (place / "new").touch()
    assert runs(mark, place)  # the positive control
    (place / "newer").touch()

    assert disarmed.disarm(area(project, since)).is_complete
    assert not runs(mark, place)
    assert (place / ".git").exists()
    if (
        kind == "worktree"
    ):  # of a submodule, the name may be taken out instead: that depends on the order of a directory
        assert [path.name for path in (place / "tools/hk").iterdir()] == ["post-index-change.claudebox"]


@pytest.mark.parametrize(
    "address",
    ["{hidden}", "~/gd", "../../home/gd", "{project}/gitfile", "{project}/short", "remotes", "branches", "r", "r.git"],
)
def test_no_address_of_any_spelling_leads_to_a_repository_that_is_not_examined(project, tmp_path, address):
    # proves D11
    mark, hidden, place = tmp_path / "mark", tmp_path / "home/gd", project / "a/b/n"
    git(tmp_path, "init", "-q", "--bare", str(hidden))
    (hidden / "hooks").mkdir(exist_ok=True)
    (hidden / "hooks/pre-receive").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (hidden / "hooks/pre-receive").chmod(0o755)
    place.mkdir(parents=True)
    git(place, "init", "-q", ".")
    git(place, *COMMIT)
    git(place, "worktree", "add", "-q", str(project / "w"))
    for name in ("gitfile", "short.git"):
        (project / name).write_text(f"gitdir: {hidden}\n")
    if address in ("remotes", "branches"):
        (place / ".git" / address).mkdir(exist_ok=True)
        (place / ".git" / address / "r").write_text(f"URL: {hidden}\n" if address == "remotes" else f"{hidden}\n")
    elif address.startswith("r"):
        for top in (place, project / "w"):
            (top / address).write_text(f"gitdir: {hidden}" + "\n" * 10000)
    else:
        git(place, "remote", "add", "r", address.format(hidden=hidden, project=project))

    def pushes(branch):
        for top in (place, project / "w"):
            git(top, "push", "-q", "r", f"HEAD:refs/heads/{branch}-{top.name}", HOME=str(hidden.parent))
        ran = mark.exists()
        mark.unlink(missing_ok=True)
        return ran

    assert pushes("one")  # the positive control
    roots = ((str(project), 0.0, None),)
    mounts = tuple((path, "bind", path) for path in (str(project), str(hidden.parent)))
    assert disarmed.disarm(disarmed.Area(roots, mounts)).is_complete
    assert not pushes("two")


def test_a_repository_that_moves_during_the_walk_is_found_where_it_is_then(project, tmp_path, monkeypatch):
    # proves END-01, D11
    mark = tmp_path / "mark"
    for name in ("a", "b"):
        (project / name).mkdir()
        arm(project / name / "n", mark)
        git(project / name / "n", "config", "--unset", "core.worktree")
    walked = []
    visit = disarm.Pass._visit

    def move_after(self, current):
        visit(self, current)
        walked.append(self._where())
        if len(walked) == 2:  # the first of them is listed: what is not yet moves into it
            first = walked[1]
            other = {f"{project}/a": project / "b", f"{project}/b": project / "a"}[first]
            os.rename(other, f"{first}/later")

    monkeypatch.setattr(disarm.Pass, "_visit", move_after)
    disarm.Pass(area(project)).run()
    monkeypatch.undo()

    places = [path.parent for path in project.rglob(".git")]
    assert len(places) == 2
    assert not runs(mark, *places)
    for place in places:
        (place / ".git/config.claudebox").rename(place / ".git/config")
        assert runs(mark, place)  # the positive control


@pytest.mark.parametrize("times", [1, 100])
def test_a_directory_that_moves_while_the_walk_is_in_it_is_walked_again(project, tmp_path, monkeypatch, times):
    # proves END-01
    mark = tmp_path / "mark"
    (project / "a/x/below").mkdir(parents=True)
    (project / "b").mkdir()
    for name in ("a/n", "n"):
        arm(project / name, mark)
    left = [times]
    visit = disarm.Pass._visit

    def move_around(self, current):
        visit(self, current)
        if self._where().endswith("/below") and left[0]:
            left[0] -= 1
            here, there = (project / name / "x" for name in ("ab" if (project / "a/x").exists() else "ba"))
            here.rename(there)

    monkeypatch.setattr(disarm.Pass, "_visit", move_around)
    *_, closed, _ = disarm.Pass(area(project)).run()

    assert bool(closed) == (times > 1)
    assert times > 1 or not runs(mark, project / "n", project / "a/n")


def find_nested(project, state):
    found = project_search.search((str(project),)).repositories
    return git_facts.find_nested(found, (str(project),), str(state))


def test_what_a_repository_of_the_user_said_before_stays(project, tmp_path):
    # proves NEW-E14, END-01
    mark = tmp_path / "mark"
    lib = project / "lib"
    git(project, "init", "-q", "lib")
    git(lib, "config", "alias.x", "!true")
    (lib / ".git/hooks/pre-push").write_text("mine")
    nested = find_nested(project, tmp_path)
    assert [row.path for row in nested] == [f"{lib}/.git"]
    time.sleep(0.05)
    since = time.time()
    time.sleep(0.05)
    git(lib, "config", "user.name", "agent")
    git(lib, "config", "core.fsmonitor", f"touch {mark};:")
    (lib / ".git/hooks/pre-commit").write_text("theirs")

    done = disarmed.disarm(area(project, since, nested))

    said = git(lib, "config", "--list", "--local").stdout
    assert "alias.x=!true" in said
    assert "user.name=agent" in said
    assert "fsmonitor" not in said
    assert done.findings
    assert sorted(path.name for path in (lib / ".git/hooks").iterdir() if "sample" not in path.name) == [
        "pre-commit.claudebox", "pre-push",
    ]  # fmt: skip


def test_what_is_not_in_a_configuration_any_more_is_not_written_back(project, tmp_path):
    """What counted as the user's own was the work of another session, whose end has disarmed it meanwhile."""
    # proves NEW-E14, END-01
    mark = tmp_path / "mark"
    lib = project / "lib"
    arm(lib, mark)
    git(lib, "config", "alias.x", "!true")
    nested = find_nested(project, tmp_path)
    assert [row.path for row in nested] == [f"{lib}/.git"]
    assert runs(mark, lib)  # the positive control
    for name in ("core.fsmonitor", "core.worktree"):
        git(lib, "config", "--unset", name)
    (lib / ".git/hooks/post-index-change").unlink()
    git(lib, "config", "user.name", "agent")

    disarmed.disarm(area(project, 0.0, nested))

    said = git(lib, "config", "--list", "--local").stdout
    assert "alias.x=!true" in said
    assert "user.name=agent" in said
    assert "fsmonitor" not in said
    assert not runs(mark, lib)


def test_a_repository_that_took_the_place_of_the_users_is_disarmed(project, tmp_path):
    # proves NEW-E14, END-01
    mark = tmp_path / "mark"
    arm(project / "old", mark)
    os.rename(project / "old/.git", project / "old/later")  # made by an earlier session, and no repository then
    (project / "old/later/HEAD").rename(project / "old/later/H")
    git(project, "init", "-q", "lib")
    nested = find_nested(project, tmp_path)
    time.sleep(0.05)
    since = time.time()
    time.sleep(0.05)
    subprocess.run(["rm", "-rf", str(project / "lib/.git")], check=True)
    os.rename(project / "old/later", project / "lib/.git")
    os.rename(project / "lib/.git/H", project / "lib/.git/HEAD")
    (project / "lib/new").touch()

    disarmed.disarm(area(project, since, nested))

    assert not runs(mark, project / "lib")


_WAITING = """
import signal, sys, time
sys.path.insert(0, sys.argv[1])
from claudebox.base import process
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("begun", flush=True)
try:
    process.run_limited(lambda: time.sleep(600))
except process.Unfinished as error:
    print(error)
"""


def test_the_limit_of_memory_and_a_signal_end_the_work_and_not_the_launcher():
    # proves NEW-E2, END-01
    with pytest.raises(process.Unfinished, match="MemoryError"):
        process.run_limited(lambda: len(b"x" * (8 << 30)))
    assert process.run_limited(lambda: (1, "x")) == (1, "x")
    waiting = subprocess.Popen(
        [sys.executable, "-c", _WAITING, str(REPOSITORY / "src")], stdout=subprocess.PIPE, text=True
    )
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "begun\n"
    waiting.terminate()
    assert waiting.communicate(timeout=60)[0] == "it was interrupted\n"


def test_what_could_not_be_examined_comes_before_what_is_harmless_by_now(project):
    # proves REPORT-01
    work = disarm.Pass(area(project))
    for number in range(30):
        work._add(f"{project}/{number}/.git", disarmed.DISARMED, "config")
    work._add(f"{project}/mine", disarmed.TOLD, "has other commits now, and git obeys hooks there")
    work._add(f"{project}/evil/.git", disarmed.CLOSED, "Permission denied")
    rows, more = work._result()
    lines = disarmed.describe(disarmed.Disarmed(rows, more), str(project))

    assert lines[0].startswith("`evil/.git` not examined: ")
    assert lines[1].startswith("`mine` changed: ")
    assert lines[-1] == "and 12 other places"


def test_a_line_stays_short_however_much_was_put_aside(project):
    # proves REPORT-02
    hooks = project / "n/.git/hooks"
    hooks.mkdir(parents=True)
    for number in range(1000):
        (hooks / f"{number:04}-{'x' * 240}").touch()
    (line,) = disarmed.describe(disarmed.disarm(area(project)), str(project))

    assert "put aside as *.claudebox" in line
    assert len(line) < 700
    assert not hooks.exists()


def test_a_link_that_cannot_be_read_leads_to_no_message_of_the_system(tmp_path):
    # proves REPORT-02
    (tmp_path / "out").symlink_to("/etc")
    assert account.find_target(str(tmp_path), "out") == "/etc"
    assert account.find_target(str(tmp_path), "gone") == "a place that cannot be read (No such file or directory)"
