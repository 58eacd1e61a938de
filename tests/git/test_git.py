"""Git works inside, and the launcher executes nothing that a repository names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.conftest import need
from tests.support import repositories
from tests.support.repositories import snapshot
from tests.support.terminals import Terminal

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
def test_the_launcher_executes_nothing_of_a_hostile_repository(box, git, committed, verb):
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


def test_the_launcher_runs_no_git_at_all(box, git, committed):
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


def test_commits_work_inside_with_the_users_name_and_nothing_else_of_their_configuration(box, git, committed):
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
    listed = [line for line in sorted(lines[3:]) if not line.startswith("filter.lfs.")]  # Debian's git-lfs sets those
    assert listed == ["safe.directory=*", "user.email=ada@example.org", "user.name=Ada Lovelace"]
    assert git("log", "--format=%s").split() == ["topic", "second", "first"]
    assert git("tag").split() == ["v1"]
    assert git("status", "--porcelain") == ""


def test_a_name_cannot_smuggle_configuration_into_the_generated_file(box, git, committed):
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
    keys = {line.split("=")[0] for line in listed.splitlines() if not line.startswith("filter.lfs.")}  # of git-lfs
    assert keys == {"safe.directory", "user.name", "user.email"}
    assert [line for line in content.splitlines() if line.startswith("[") and "lfs" not in line] == ["[user]"]


def test_identity_comes_from_included_files_as_git_reads_them(user_box):
    # proves GIT-01, D-05
    box = user_box
    box.write(f"{box.home}/.config/git/config", "[user]\n\tname = From XDG\n\temail = xdg@example.org\n")
    box.write(f"{box.home}/.gitconfig", "[include]\n\tpath = ~/.more\n")
    box.write(f"{box.home}/.more", "[user]\n\tname = From Include\n")

    result = box.sh("git config user.name; git config user.email")
    control = box.host("sh", "-c", "git config user.name; git config user.email", env={"GIT_CONFIG_NOSYSTEM": "1"})

    assert result.stdout == control.stdout == "From Include\nxdg@example.org\n"


def test_nothing_of_the_real_git_directory_can_be_changed(box, git, committed):
    # proves GIT-03, D05, D06, D07, D10, D15, OLD-A19, OLD-A23
    git("worktree", "add", "-q", f"{box.project}/tree")
    before = snapshot(f"{box.project}/.git")
    attacks = [
        "echo '[core] fsmonitor = evil' >>.git/config", "echo x >.git/hooks/pre-commit", "echo x >.git/commondir",
        "echo x >.git/config.worktree", "mkdir -p .git/remotes .git/branches .git/modules/x .git/worktrees/y",
        "echo 'URL: ext::evil' >.git/remotes/origin", "echo ext::evil >.git/branches/origin",
        "echo '* filter=evil' >.git/info/attributes", "echo x >.git/worktrees/tree/commondir",
        "mkdir -p .git/rebase-merge && echo 'exec evil' >.git/rebase-merge/git-rebase-todo",
        "ln -s /tmp .git/link", "echo evil >.git/info/alternates", "rm -rf .git/refs .git/HEAD .git/objects",
        "git config --global core.fsmonitor evil",
    ]  # fmt: skip

    result = box.sh("\n".join(f"({attack}) 2>/dev/null || echo 'not done: {attack}'" for attack in attacks))
    stores = box.sh("for s in /run/claudebox/git/*/*/objects; do touch $s/x $s/pack/x; rm -rf $s/*; done; echo end")

    assert "not done" not in result.stdout  # inside everything can be written
    assert stores.stdout == "end\n", stores.stderr
    assert snapshot(f"{box.project}/.git") == before
    assert git("fsck", "--no-dangling") == ""


def test_what_is_read_only_inside_is_the_object_store_of_the_host(box, git, committed):
    # proves GIT-03
    result = box.sh("cat .git/objects/info/alternates; touch $(cat .git/objects/info/alternates)/x 2>&1; ls -A .git")

    line, refused, *names = result.stdout.splitlines()
    assert line.startswith("/run/claudebox/git/")
    assert "Read-only file system" in refused
    assert {"HEAD", "config", "index", "refs", "objects", "hooks", "logs"} <= set(names)


def test_no_credential_of_the_configuration_enters(box, git, committed):
    # proves GIT-03, SEC-02
    git("remote", "add", "origin", "https://ada:TOP-SECRET@example.org/x.git")
    git("config", "http.https://example.org/.extraheader", "Authorization: Basic TOP-SECRET")
    git("config", "credential.helper", "!echo password=TOP-SECRET")
    box.write(f"{box.home}/.gitconfig", "[user]\n\tname = x\n[http]\n\textraheader = TOP-SECRET\n")

    result = box.sh("git remote get-url origin; git config -l; grep -r TOP-SECRET / --include=config -s")

    assert result.stdout.splitlines()[0] == "https://example.org/x.git"
    assert "TOP-SECRET" not in result.stdout


def test_configuration_and_hooks_that_are_made_inside_stay_inside(box, git, committed):
    # proves GIT-03
    first = box.sh(
        "git remote add other /srv/other && git config core.fsmonitor true && git config --unset core.fsmonitor &&"
        "echo '#!/bin/sh' >.git/hooks/post-commit && chmod +x .git/hooks/post-commit && git commit -qm x --allow-empty"
    )
    git("config", "pull.rebase", "true")  # the host changes something else
    second = box.sh("git remote; git config pull.rebase; ls .git/hooks; git log --format=%s")

    assert first.returncode == 0, first.stderr
    assert second.stdout.split() == ["other", "true", "post-commit", "x", "first"]
    assert git("remote") == ""
    assert not os.path.exists(f"{box.project}/.git/hooks/post-commit")


def test_a_submodule_is_worked_in_and_pinned(box, git, committed):
    # proves GIT-04, D10, D13, C22
    library = f"{box.base}/library"
    os.chmod(box.base, 0o777)
    box.mkdir(library)
    git("init", "-q", cwd=library)
    box.write(f"{library}/code", "code\n")
    git("add", "-A", cwd=library)
    git("commit", "-qm", "library", cwd=library)
    git("submodule", "add", "-q", library, "dir/sub")
    git("commit", "-qm", "with submodule")

    result = box.sh(
        "git status -s; git submodule status; cd dir/sub; git log --format=%s; echo more >>code; git commit -qam in;"
        "git status -s; cd ../..; git status -s; git commit -qam moved; git status -s;"
        'for d in dir/sub dir; do perl -e \'rename shift, "away" and print "renamed\\n"\' $d; done;'
        "echo x >dir/sub/.git; rm -rf dir/sub/.git; ls"
    )

    lines = result.stdout.splitlines()
    assert lines[1:] == ["library", " M dir/sub", "dir", "file"], result.stderr
    assert git("-C", "dir/sub", "log", "--format=%s", "-1").strip() == "in"
    assert git("status", "--porcelain") == ""
    assert git("log", "--format=%s", "-1").strip() == "moved"


def test_in_a_subdirectory_git_works_and_the_rest_is_read_only(box, git, committed):
    # proves GIT-04, SAND-04
    below = box.mkdir("package/deeper")
    box.write("package/beside", "beside\n")

    result = box.sh(
        f"git status -s; echo x >new; git add new; git commit -qm below; cat {box.project}/file;"
        f"touch {box.project}/made {box.project}/package/made; mkdir .git; echo >.git/config; git log --format=%s",
        cwd=below,
    )

    assert "the repository starts above" in result.stderr
    assert "(`--set project=repository` makes all of it the project)" in result.stderr
    assert result.stdout.split() == ["??", "../", "first", "below", "first"]
    assert sorted(os.listdir(f"{box.project}/package")) == ["beside", "deeper"]
    assert os.listdir(below) == ["new"]
    assert git("log", "--format=%s").split() == ["below", "first"]
    assert git("status", "--porcelain") == "?? package/beside\n"


def test_all_of_the_repository_can_be_the_project(user_box):
    # proves GIT-04
    box = user_box
    checkout = repositories.make(box)
    box.write("CLAUDE.md", "memory\n")
    box.write(".claudebox.toml", 'git_import = "manual"\n')  # the file of the project that it is now
    below, flags = box.mkdir("package/deeper"), ("--set", "project=repository")
    script = "pwd; cat ../../CLAUDE.md; touch ../made; git add -A ../..; git commit -qm below; git status -s"

    result = box.sh(script, cwd=below, flags=(*flags, "--mount-ro", f"../../../{os.path.basename(box.home)}/x:/x"))
    assert "there is no such file or directory" in result.stderr  # relative to where the user is
    result = box.sh(script, cwd=below, flags=flags)
    box.write(f"{box.home}/.claudebox/config.toml", 'project = "repository"\n')
    imported = box.claudebox("sync", cwd=below)
    again = box.sh("touch ../again; pwd", cwd=below)

    assert result.stdout.split() == [below, "memory"]
    assert "starts above" not in result.stderr
    assert "`claudebox sync`" in result.stderr
    assert imported.returncode == 0, imported.stderr
    assert checkout.sh("git log -1 --format=%s; ls package").split() == ["below", "again", "deeper", "made"]
    assert again.stdout.split() == [below]
    refused = box.sh("touch ../again", cwd=below, flags=("--set", "project=directory"))
    assert refused.returncode == 1


def test_a_home_that_is_a_repository_does_not_come_along(box, git):
    # proves GIT-04, SAND-04
    box.write(f"{box.home}/.gitconfig", "[user]\n\tname = n\n\temail = e@example.org\n")
    git("init", "-q", cwd=box.home)
    box.write(f"{box.home}/secret", "secret of the home")
    below = box.mkdir(f"{box.home}/code")

    result = box.sh(f"cat {box.home}/secret; git log", cwd=below)

    assert result.stdout == ""
    assert "git does not work inside" in result.stderr


def test_objects_that_are_borrowed_come_only_if_they_are_asked_for(box, git, committed):
    # proves D15, GIT-04
    os.chmod(box.base, 0o777)
    git("clone", "-q", "--shared", box.project, f"{box.base}/second")
    box.project = f"{box.base}/second"
    private = f"{box.base}/project/.git/objects"

    alone = box.sh("git log --format=%s 2>&1; git cat-file --batch-check --batch-all-objects")
    asked = box.sh("git log --format=%s", flags=("--mount-ro", private))

    assert "first" not in alone.stdout
    assert f"--mount-ro {private}" in alone.stderr
    assert asked.stdout == "first\n", asked.stderr


def test_settings_of_the_user_count_inside(box, git, committed):
    # proves GIT-03
    box.write(f"{box.home}/.gitconfig", (
        "[user]\n\tname = Plain\n\temail = p@example.org\n[alias]\n\tlast = log -1 --format=%an\n"
        f'[includeIf "gitdir:{box.base}/"]\n\tpath = work\n[core]\n\texcludesFile = ~/ignored\n'
        "[init]\n\tdefaultBranch = trunk\n[commit]\n\tgpgsign = true\n"
    ))  # fmt: skip
    box.write(f"{box.home}/work", "[user]\n\tname = At Work\n")
    box.write(f"{box.home}/ignored", "*.log\n")
    box.write("x.log", "x")

    result = box.sh(
        "git status -s; git commit -q --allow-empty -m x; git last; git init -q /tmp/n; cat /tmp/n/.git/HEAD"
    )

    assert result.stdout.splitlines() == ["At Work", "ref: refs/heads/trunk"], result.stderr
    assert result.stderr.count("not signed") == 1
