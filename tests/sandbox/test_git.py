"""Git works inside, and the launcher executes nothing that a repository names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.conftest import need
from tests.sandbox.terminals import Terminal

SUBCOMMANDS = (
    "status",
    "diff",
    "log -1",
    "ls-files",
    "check-ignore x",
    "describe --always --dirty",
    "branch -v",
    "add -A",
)


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
        f"[core]\n\tfsmonitor = {program}\n\tpager = {program}\n\tsshCommand = {program}\n\teditor = {program}\n"
        f"\thooksPath = {box.project}/.git/hooks\n"
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
    ("--dry-run", "--exec", "--", "true"), ("--explain", "--exec", "--", "true"), ("--check",),
    ("-y", "--exec", "--", "true"), ("--network", "none", "-y", "--exec", "--", "true"),
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
        while terminal.process.poll() is None:
            terminal.shown(during=0.02)  # what nobody reads would hold it up

    assert control  # git itself does execute them
    assert result.returncode in ((0,) if verb[0] != "--check" else (0, 1)), result.stderr
    assert os.listdir(mark) == []


def test_the_launcher_runs_no_git_at_all(box, git, repository):
    # proves D01, E01
    need(box.host("strace", "-V").returncode == 0, "strace")
    log = f"{box.base}/trace"
    box.mkdir(log)
    os.chmod(log, 0o777)

    result = box.host(
        "strace", "-ff", "-qq", "-e", "trace=execve", "-o", f"{log}/t", box.program, "--dry-run", "--exec", "--", "true"
    )

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

    result = box.sh(
        "git config --global --list; cat ~/.gitconfig; git commit -qm x --allow-empty && git log -1 --format=%an"
    )

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
