"""Git works inside, and the launcher executes nothing that a repository names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.conftest import need
from tests.sandbox.terminals import Terminal

NAMES = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
SUBCOMMANDS = ("status", "diff", "log -1", "ls-files", "check-ignore x", "describe --always --dirty", "branch -v", "add -A")


@pytest.fixture
def git(box):
    """Return what runs git on the host as the account, without anybody's configuration."""
    need(box.host("git", "--version").returncode == 0, "git")

    def run(*words: str, cwd: str = "", check: bool = True) -> str:
        result = box.host(
            "git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *words,
            cwd=cwd or box.project, env={**NAMES, "GIT_CONFIG_NOSYSTEM": "1"},
        )  # fmt: skip
        assert not check or result.returncode == 0, result.stderr
        return result.stdout

    return run


@pytest.fixture
def repository(box, git) -> str:
    """Make the project a repository with one commit, of somebody who has a name."""
    box.write(f"{box.home}/.gitconfig", "[user]\n\tname = Ada Lovelace\n\temail = ada@example.org\n")
    git("init", "-q")
    box.write("file", "first\n")
    git("add", "file")
    git("commit", "-qm", "first")
    return box.project


def make_hostile(box) -> str:
    """Arm the repository of the project with everything that git executes, and return the mark that they leave."""
    mark = f"{box.base}/marks"
    box.mkdir(mark)
    os.chmod(mark, 0o777)
    program = box.write(".git/evil", f'#!/bin/sh\ntouch "{mark}/$(basename "$0")-$$"\n', mode=0o755)
    for hook in ("post-index-change", "pre-commit", "post-checkout", "reference-transaction", "fsmonitor-watchman"):
        box.write(f".git/hooks/{hook}", Path(program).read_bytes(), mode=0o755)
    box.write(".gitattributes", "* filter=evil diff=evil\n")
    box.write("file", "changed\n")
    config = (
        f'[core]\n\tfsmonitor = {program}\n\tpager = {program}\n\tsshCommand = {program}\n\teditor = {program}\n'
        f'\thooksPath = {box.project}/.git/hooks\n'
        f'[filter "evil"]\n\tclean = {program}\n\tsmudge = {program}\n\trequired = true\n'
        f'[diff "evil"]\n\ttextconv = {program}\n\tcommand = {program}\n'
        f"[pager]\n\tconfig = {program}\n\tbranch = {program}\n\tstatus = {program}\n"
        f"[log]\n\tshowSignature = true\n[gpg]\n\tprogram = {program}\n"
        f'[remote "evil"]\n\turl = ext::{program}\n\tuploadpack = {program}\n\tpromisor = true\n'
        f"[extensions]\n\tpartialClone = evil\n[alias]\n\tstatus = !{program}\n"
        f"[include]\n\tpath = {box.project}/more\n"
    )
    box.write("more", f"[core]\n\tgitProxy = {program}\n[credential]\n\thelper = {program}\n")
    path = f"{box.project}/.git/config"
    with open(path, "a", encoding="utf-8") as file:
        file.write(config)
    return mark


@pytest.mark.parametrize("verb", [
    ("--dry-run", "--exec", "--", "true"), ("--explain", "--exec", "--", "true"), ("--check",), ("-y", "--exec", "--", "true"),
    ("--network", "none", "-y", "--exec", "--", "true"),
])  # fmt: skip
def test_the_launcher_executes_nothing_of_a_hostile_repository(box, git, repository, verb):
    # proves D01, D02, D03, D04
    mark = make_hostile(box)

    for words in SUBCOMMANDS:
        git(*words.split(), check=False)
    control = os.listdir(mark)
    for name in control:
        os.unlink(f"{mark}/{name}")
    result = box.claudebox(*verb)
    with Terminal(box, argv=(box.program, *verb)) as terminal:  # a pager runs on a terminal only
        terminal.process.wait(30)

    assert control  # git itself does execute them
    assert result.returncode in ((0,) if verb[0] != "--check" else (0, 1)), result.stderr
    assert os.listdir(mark) == []


def test_the_launcher_runs_no_git_at_all(box, git, repository):
    # proves D01, E01
    need(box.host("strace", "-V").returncode == 0, "strace")
    log = f"{box.base}/trace"
    box.mkdir(log)
    os.chmod(log, 0o777)

    result = box.host("strace", "-ff", "-qq", "-e", "trace=execve", "-o", f"{log}/t", box.program, "--dry-run", "--exec", "--", "true")

    started = [line for path in Path(log).iterdir() for line in path.read_text().splitlines() if "execve(" in line]
    assert result.returncode == 0, result.stderr
    assert started
    assert not [line for line in started if "git" in line]


def test_commits_work_inside_with_the_persons_name_and_nothing_else_of_their_configuration(box, git, repository):
    # proves GIT-01, GIT-02, D-05, D24
    box.write(f"{box.home}/.gitconfig", (
        "[user]\n\tname = Ada Lovelace\n\temail = ada@example.org\n\tsigningkey = ABCDEF\n"
        "[credential]\n\thelper = store\n[commit]\n\tgpgsign = true\n[core]\n\tsshCommand = evil\n\teditor = evil\n"
        '[url "https://token@example.org/"]\n\tinsteadOf = https://example.org/\n[http]\n\textraheader = SECRET\n'
    ))  # fmt: skip
    script = (
        "git status --porcelain && echo more >>file && git commit -qam second && git checkout -qb topic && "
        "echo topic >topic && git add topic && git commit -qm topic && git checkout -q - && git merge -q topic && "
        "git stash list && git tag v1 && git log --format='%an <%ae> %s' && git config --global --list"
    )

    result = box.sh(script)

    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:2] == ["Ada Lovelace <ada@example.org> topic", "Ada Lovelace <ada@example.org> second"]
    assert sorted(lines[3:]) == ["safe.directory=*", "user.email=ada@example.org", "user.name=Ada Lovelace"]
    assert git("log", "--format=%s").split() == ["topic", "second", "first"]
    assert git("tag").split() == ["v1"]
    assert git("status", "--porcelain") == ""


def test_a_name_cannot_smuggle_configuration_into_the_generated_file(box, git, repository):
    # proves D24
    name = 'x\\n[core]\\n\\tsshCommand = evil\\n[alias]\\n\\tst = !evil \\" \\\\ # ;'
    box.write(f"{box.home}/.gitconfig", f'[user]\n\tname = "{name}"\n\temail = "a@b\\n[core]\\n\\tpager = evil"\n')
    control = box.host("git", "config", "--global", "user.name", env={"GIT_CONFIG_NOSYSTEM": "1"})

    result = box.sh("git config --global --list; cat ~/.gitconfig; git commit -qm x --allow-empty && git log -1 --format=%an")

    assert "\n[core]" in control.stdout  # so the host's git reads it as a name with line ends
    assert result.returncode == 0, result.stderr
    listed, _, content = result.stdout.partition("[safe]")
    assert {line.split("=")[0] for line in listed.splitlines()} == {"safe.directory", "user.name", "user.email"}
    assert [line for line in content.splitlines() if line.startswith("[")] == ["[user]"]


def test_identity_comes_from_included_files_as_git_reads_them(user_box):
    # proves GIT-01, D-05
    box = user_box
    box.write(f"{box.home}/.config/git/config", "[user]\n\tname = From XDG\n\temail = xdg@example.org\n")
    box.write(f"{box.home}/.gitconfig", "[include]\n\tpath = ~/.more\n")
    box.write(f"{box.home}/.more", "[user]\n\tname = From Include\n")

    result = box.sh("git config user.name; git config user.email")
    control = box.host("sh", "-c", "git config user.name; git config user.email", env={"GIT_CONFIG_NOSYSTEM": "1"})

    assert result.stdout == control.stdout == "From Include\nxdg@example.org\n"


@pytest.fixture
def worktree(box, git, repository) -> str:
    """Return a linked worktree beside the project, which is the main repository."""
    path = f"{box.base}/linked"
    os.chmod(box.base, 0o777)
    git("worktree", "add", "-q", path, "-b", "linked")
    return path


def test_commits_in_a_linked_worktree_arrive_in_the_main_repository(box, git, worktree):
    # proves GIT-02
    script = "git status --porcelain && echo more >more && git add more && git commit -qm inside && git branch side && git log --format=%s"

    result = box.sh(script, cwd=worktree)

    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["inside", "first"]
    assert git("log", "--format=%s", "linked").split() == ["inside", "first"]
    assert "side" in git("branch")
    assert git("fsck", "--no-dangling") == ""
    assert git("status", "--porcelain", cwd=worktree) == ""


def test_nothing_that_git_executes_can_be_planted_from_a_linked_worktree(box, git, worktree):
    # proves D13, D14, D06, D07
    main = f"{box.project}/.git"
    own = f"{main}/worktrees/linked"
    attacks = [
        f"echo x >>{main}/config", f"echo x >{main}/hooks/pre-commit", f"mkdir {main}/evil", f"echo x >{main}/commondir",
        f"echo x >{main}/config.worktree", f"rm -rf {main}/hooks", f"mv {main}/config {main}/old", f"mv {main}/hooks {main}/old",
        f"echo x >{main}/info/attributes", f"echo x >{own}/commondir", f"rm -f {own}/commondir", f"mv {own}/commondir {own}/old",
        f"echo x >{own}/gitdir", f"rm -f {own}/gitdir", f"mv {own} {main}/worktrees/old", f"mkdir -p {main}/worktrees/other",
        "echo gitdir: /tmp/x >.git", "rm -f .git", "mv .git old", "git config core.fsmonitor evil", f"mkdir {main}/modules",
        f"ln -s /tmp {main}/link", f"echo x >{main}/packed-refs.lock",
    ]  # fmt: skip
    before = subprocess.run(["find", main, "-newermt", "2000-01-01", "-type", "f", "-name", "config*"], capture_output=True, check=True)
    digest = Path(f"{main}/config").read_bytes()
    hooks = sorted(os.listdir(f"{main}/hooks"))

    script = "\n".join(f"if {{ {attack}; }} 2>/dev/null; then echo 'done: {attack}'; fi" for attack in attacks)
    result = box.sh(f"{script}\ntouch {own}/control && rm {own}/control && echo end", cwd=worktree)

    assert result.stdout.splitlines() == ["end"], result.stderr
    assert Path(f"{main}/config").read_bytes() == digest
    assert sorted(os.listdir(f"{main}/hooks")) == hooks
    assert sorted(os.listdir(own)) == sorted({*os.listdir(own)} - {"old"})
    assert before.stdout
    assert git("status", "--porcelain", cwd=worktree) == ""
    assert git("status", "--porcelain") == ""


def test_other_checkouts_of_the_repository_stay_out_of_a_linked_worktree(box, git, worktree):
    # proves D14, D15
    box.write("secret-of-main", "not committed")
    os.symlink(worktree, f"{box.base}/alias")

    result = box.sh(f"ls -A {box.project}; cat {box.project}/secret-of-main", cwd=worktree)

    assert result.stdout.split() == [".git"]


def forge(box, kind: str) -> str:
    """Forge a `.git` in the project that names a private repository elsewhere, and return that."""
    private = f"{box.base}/private"
    box.write(f"{private}/.git/config", "[core]\n\tbare = false\n")
    box.write(f"{private}/.git/secret", "secret of another repository")
    box.write(f"{private}/.git/HEAD", "ref: refs/heads/main\n")
    for part in ("objects", "refs", "logs"):
        box.mkdir(f"{private}/.git/{part}")
    if kind == "plain":
        box.write(".git", f"gitdir: {private}/.git\n")
    elif kind == "through a forged worktree":  # the agent made a git directory that claims a main repository
        forged = box.mkdir(f"{box.project}/forged/worktrees/x")
        box.write(f"{forged}/gitdir", f"{box.project}/.git\n")
        box.write(f"{forged}/commondir", f"{private}/.git\n")
        box.write(f"{forged}/HEAD", "ref: refs/heads/main\n")
        box.write(".git", f"gitdir: {forged}\n")
    elif kind == "another worktree":  # names a worktree that belongs to somebody else's checkout
        box.write(f"{private}/.git/worktrees/other/gitdir", f"{box.base}/elsewhere/.git\n")
        box.write(f"{private}/.git/worktrees/other/commondir", "../..\n")
        box.write(".git", f"gitdir: {private}/.git/worktrees/other\n")
    elif kind == "link":
        os.symlink(f"{private}/.git", f"{box.project}/.git")
    elif kind == "commondir":
        box.write(".git/HEAD", "ref: refs/heads/main\n")
        box.write(".git/commondir", f"{private}/.git\n")
    else:
        box.write(f"{private}/.git/gitdir", f"{box.project}/.git\n")
        box.write(".git", f"gitdir: {private}/.git/../.git\n")
    return private


@pytest.mark.parametrize("kind", ["plain", "through a forged worktree", "another worktree", "link", "commondir", "back-link only"])
def test_forged_git_files_bind_nothing(box, kind):
    # proves D15
    private = forge(box, kind)

    control = box.host("cat", f"{private}/.git/secret")
    result = box.sh(f"cat {private}/.git/secret; ls -A {private}; touch {private}/.git/objects/made; echo end")
    plan = box.claudebox("--dry-run", "--exec", "--", "true")

    assert control.stdout == "secret of another repository"
    assert result.stdout in ("end\n", ""), result.stdout
    assert result.returncode in (0, 125)
    assert private not in plan.stdout
    assert os.listdir(f"{private}/.git/objects") == []


@pytest.mark.parametrize("believed", [True, False])
def test_a_git_file_that_is_replaced_while_claudebox_asks_shows_nothing_else(box, git, worktree, believed):
    # proves C04, C10, D13, D15
    if not believed:
        box.write(f"{worktree}/.git", "gitdir: nowhere\n")
    secret = box.write(f"{box.home}/.netrc", "secret-of-the-host\n")  # its directory exists inside, too
    # A relative link leads to the secret on the host, and to a place in the empty home inside.
    script = f"cat .git {secret}; echo e''nd"
    box.project = worktree

    with Terminal(box, argv=(box.program, "--exec", "--", "sh", "-c", script)) as terminal:
        terminal.expect(r"Proceed\?")
        os.unlink(f"{worktree}/.git")
        os.symlink(os.path.relpath(secret, worktree), f"{worktree}/.git")
        terminal.type("y")
        terminal.expect(r"\nend\n|error: .*\n")
        shown = terminal.raw()

    assert box.host("cat", ".git", cwd=worktree).stdout == "secret-of-the-host\n"
    assert "secret-of-the-host" not in shown


def test_a_submodule_can_be_read_and_its_configuration_not_changed(box, git, repository):
    # proves GIT-02, D10
    library = f"{box.base}/library"
    box.mkdir(library)
    git("init", "-q", cwd=library)
    box.write(f"{library}/code", "code\n")
    git("add", "-A", cwd=library)
    git("commit", "-qm", "library", cwd=library)
    git("submodule", "add", "-q", library, "sub")
    git("commit", "-qm", "with submodule")

    result = box.sh(
        "git log --format=%s && git status --porcelain; git config core.fsmonitor evil; echo x >../.git/config",
        cwd=f"{box.project}/sub",
    )

    assert result.stdout.split() == ["library"], result.stderr
    assert "fsmonitor" not in Path(f"{box.project}/.git/modules/sub/config").read_text()
    assert git("-C", "sub", "status", "--porcelain") == ""


def test_a_repository_that_starts_above_stays_invisible_and_is_named(box, git, repository):
    # proves GIT-02, SAND-04
    below = box.mkdir("package/deeper")

    result = box.sh(f"cat {box.project}/file; ls -A {box.project}", cwd=below)

    assert result.stdout.split() == ["package"]
    assert "git does not work inside" in result.stderr
