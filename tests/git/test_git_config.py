"""Git's configuration is read as git reads it, and what is written for inside says nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
from tests.conftest import need

from claudebox.base import files as base_files
from claudebox.git import config as git_config
from claudebox.git import facts as git_facts
from claudebox.git import plan as git_plan
from claudebox.git.config import IncludeContext


def as_git_reads(content: bytes, directory) -> list[tuple[str, str]]:
    """Return what git itself finds in a file: keys as `section.key`, sub-sections between."""
    need(shutil.which("git"), "git")
    path = directory / "config"
    path.write_bytes(content)
    argv = ["git", "config", "--file", str(path), "--no-includes", "--null", "--list"]
    output = subprocess.run(argv, cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, check=True).stdout
    rows = [row.partition(b"\n") for row in output.split(b"\0") if row]
    return [(os.fsdecode(key), os.fsdecode(value)) for key, _, value in rows]


def plain(content: bytes) -> list[tuple[str, str]]:
    rows = git_config.parse_config(content)
    return [(".".join(part for part in (section, name, key) if part), value) for section, name, key, value in rows]


@pytest.mark.parametrize(
    "content",
    [
        b"[user]\n\tname = Alice Example\n\temail = alice@example.org\n",
        b"[USER]\nName=Alice\n",
        b"[user] name = Alice\n[core]\n",
        b"[user]\n  name  =   spaces   inside   \n",
        b'[user]\nname = "quoted  # not a comment" # a comment\n',
        b'[user]\nname = "A B"   ; comment\n',
        b'[user]\nname = A "B  C" D\n',
        b'[user]\nname = "  blanks kept  "\n',
        b"[user]\nname = one \\\n  two\\\nthree\n",
        b'[user]\nname = "tab\\tnewline\\nquote\\"backslash\\\\"\n',
        b"[user]\nname = semi;colon\nemail = a@b#c\n",
        b"# comment\n; another\n\n[user]\n# name = no\nname = yes\n",
        b"[user]\r\nname = windows\r\nemail = a@b\r\n",
        b"\xef\xbb\xbf[user]\nname = with a mark in front\n",
        b"[user]\nname = \xff\xfe not UTF-8\n",
        b"[user]\nname = first\n[core]\npager = x\n[user]\nname = second\n",
        b"[user]\nname =\nemail = x\n",
        b"[user]\nname = no line end",
        b'[user]\nname = ""\n',
        b"",
        b"[user]\n",
        b"[a.b]\nc = d\n",
        b'[remote "origin"]\n\turl = x\n[remote "A]b\\"c\\\\d"]\n\turl = y\n',
        b'[Branch "Main"] Merge = refs/heads/main\n',
    ],
)
def test_a_file_is_read_as_git_reads_it(content, tmp_path):
    # proves GIT-01, GIT-02
    assert plain(content) == as_git_reads(content, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"name = outside of any section", b"[user", b"[user\nname = x", b"]", b"=", b"[]", b"[]\n=\n", b"\\",
        b"[user]\nx\\",
        b'[user]\nname = "never closed', b"\0\0\0", b"[user]\nname = a\0b", b"[" * 1000, bytes(range(256)), b'"' * 999,
    ],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_what_does_not_parse_is_passed_over(content):
    assert isinstance(git_config.parse_config(content), list)


@pytest.mark.parametrize(
    "content",
    [b"[user]\nname = " + b"a\\\n" * 340_000, b"[u]\n" + b"k = v\n" * 170_000, b"[u]\nk = " + b'"\\' * 500_000],
)
def test_a_large_hostile_file_does_not_hold_the_launcher_up(content):
    # proves C18
    started = time.process_time()
    git_config.parse_config(content)

    assert time.process_time() - started < 2


@pytest.fixture
def home(tmp_path):
    """Return a home and what writes files to it."""
    directory = tmp_path / "home"
    directory.mkdir()
    return directory


def write(path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def read_identity(home, environ: dict[str, str] | None = None) -> tuple[str, str]:
    rows = git_facts.read_user_settings(str(home), environ or {"GIT_CONFIG_NOSYSTEM": "1"}, None).rows
    return git_config.last(rows, "user", "name"), git_config.last(rows, "user", "email")


def test_a_user_without_configuration_has_no_identity(home):
    assert read_identity(home) == ("", "")


def test_the_file_in_the_home_wins_over_the_one_in_the_configuration_directory(home):
    # proves GIT-01, GIT-02
    write(home / ".config/git/config", "[user]\nname = Xdg\nemail = xdg@example.org\n")
    assert read_identity(home) == ("Xdg", "xdg@example.org")

    write(home / ".gitconfig", "[user]\nname = Home\n")
    assert read_identity(home) == ("Home", "xdg@example.org")


def test_variables_that_name_other_files_are_respected(home):
    # proves GIT-01, D08, OLD-A18
    write(home / "elsewhere/git/config", "[user]\nname = Elsewhere\n")
    write(home / "other", "[user]\nname = Other\n")
    quiet = {"GIT_CONFIG_NOSYSTEM": "1"}

    assert read_identity(home, {"XDG_CONFIG_HOME": f"{home}/elsewhere", **quiet})[0] == "Elsewhere"
    assert read_identity(home, {"XDG_CONFIG_HOME": "", **quiet})[0] == ""
    assert read_identity(home, {"GIT_CONFIG_GLOBAL": f"{home}/other", **quiet})[0] == "Other"
    assert read_identity(home, {"GIT_CONFIG_SYSTEM": f"{home}/other"})[0] == "Other"


def test_includes_are_followed_relative_to_their_file_and_to_the_home(home):
    # proves GIT-01, GIT-02
    write(home / ".gitconfig", "[include]\npath = work/identity\n[include]\n\tpath = ~/mail\n")
    write(home / "work/identity", "[user]\nname = Included\n[include]\npath = deeper\n")
    write(home / "work/deeper", "[user]\nname = Deeper\n")
    write(home / "mail", "[user]\nemail = included@example.org\n")

    assert read_identity(home) == ("Deeper", "included@example.org")


def test_what_stands_after_an_include_wins_and_an_include_of_itself_ends(home):
    write(home / ".gitconfig", "[user]\nname = Before\n[include]\npath = x\n[user]\nname = After\n")
    write(home / "x", "[user]\nname = Included\n[include]\npath = x\n")

    assert read_identity(home)[0] == "After"


def test_a_linked_configuration_is_followed_and_a_pipe_is_not_waited_for(home):
    # proves C18
    write(home / "dotfiles/gitconfig", "[user]\nname = Linked\n")
    (home / ".gitconfig").symlink_to("dotfiles/gitconfig")
    assert read_identity(home)[0] == "Linked"

    (home / ".gitconfig").unlink()
    os.mkfifo(home / ".gitconfig")
    assert read_identity(home) == ("", "")


CONDITIONS = [
    "gitdir:~/", "gitdir:~/work/", "gitdir:~/work/**", "gitdir:work/", "gitdir:work/project/.git", "gitdir:project/",
    "gitdir:proj*/", "gitdir:*/.git", "gitdir:**/.git", "gitdir:./work/", "gitdir/i:~/WORK/", "gitdir:~/WORK/",
    "gitdir:~/other/", "gitdir:/", "gitdir:~/work", "onbranch:main", "onbranch:feature/", "onbranch:feature/*",
    "onbranch:feat*", "onbranch:**/x", "hasconfig:remote.*.url:https://example.org/**",
    "hasconfig:remote.*.url:git@example.org:*/*", "hasconfig:remote.*.url:https://*/work/**", "unknown:x",
]  # fmt: skip


@pytest.mark.parametrize("branch", ["main", "feature/x"])
def test_conditional_includes_count_as_in_git(home, branch):
    # proves GIT-03
    need(shutil.which("git"), "git")
    project = home / "work/project"
    project.mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q", "-b", branch], cwd=project, env=env, check=True)
    for name, url in (("a", "https://example.org/work/x.git"), ("b", "git@example.org:team/x.git")):
        subprocess.run(["git", "remote", "add", name, url], cwd=project, env=env, check=True)
    for number, _condition in enumerate(CONDITIONS):
        write(home / f"inc{number}", f"[met]\n\tcondition{number} = yes\n")
    conditions = "".join(f'[includeIf "{row}"]\npath = inc{number}\n' for number, row in enumerate(CONDITIONS))
    write(home / ".gitconfig", conditions)
    answer = subprocess.run(
        ["git", "config", "--get-regexp", "^met"], cwd=project, env=env, capture_output=True, text=True, check=False
    ).stdout

    repository = git_facts.find_repository(str(project), os.getuid(), str(home))
    found = git_facts.read_user_settings(str(home), {"GIT_CONFIG_NOSYSTEM": "1"}, repository)
    mine = [f"met.{key} {value}" for section, _, key, value in found.rows if section == "met"]
    assert mine == answer.splitlines()
    assert 3 < len(mine) < len(CONDITIONS)


def test_only_harmless_keys_of_the_host_reach_the_sandbox():
    # proves GIT-01, GIT-03, D24, SEC-03
    content = (
        b"[user]\nname = Alice\nsigningkey = ABCD\n[credential]\nhelper = store\n[core]\nsshCommand = evil\n"
        b"pager = less\neditor = vi\nautocrlf = input\nfsmonitor = evil\nexcludesFile = /x\naskPass = evil\n"
        b'[url "https://token@example.org/"]\ninsteadOf = https://example.org/\n[http]\nextraheader = Basic x\n'
        b'proxy = http://u:p@h\ncookieFile = x\n[http "https://x"]\nextraheader = x\n[alias]\nst = status\nx = !evil\n'
        b"[commit]\ngpgSign = true\ntemplate = x\n[init]\ntemplateDir = x\ndefaultBranch = trunk\n"
        b"[gpg]\nprogram = evil\n[diff]\nexternal = evil\nalgorithm = histogram\n"
        b'[diff "x"]\ntextconv = evil\n[filter "lfs"]\nclean = evil\n[filter "x"]\nclean = evil\n'
        b'[merge "x"]\ndriver = evil\n[submodule "a"]\nupdate = !evil\n[sendemail]\nsmtppass = x\n'
        b'[remote "o"]\nurl = https://user:ghp_x@example.org/a?private_token=y\nproxy = x\nuploadpack = evil\n'
        b'vcs = x\npushurl = ssh://git:secret@h/p\n[includeIf "gitdir:/"]\npath = x\n[lfs]\nurl = https://t@h/x\n'
        b"[core]\ngitProxy = evil\nattributesFile = x\nalternateRefsCommand = evil\n[pager]\nlog = evil\n"
        b'[maintenance]\nauto = false\nrepo = /home/me/work\n[maintenance "gc"]\nenabled = false\n'
    )
    rows = list(git_plan.admit(git_config.parse_config(content)))

    assert {".".join(part for part in row[:3] if part): row[3] for row in rows} == {
        "user.name": "Alice", "core.autocrlf": "input", "alias.st": "status", "init.defaultbranch": "trunk",
        "diff.algorithm": "histogram", "remote.o.url": "https://example.org/a", "remote.o.pushurl": "ssh://git@h/p",
        "lfs.url": "https://h/x", "filter.lfs.clean": "git-lfs clean -- %f", "filter.lfs.required": "true",
        "filter.lfs.smudge": "git-lfs smudge -- %f", "filter.lfs.process": "git-lfs filter-process",
        "maintenance.auto": "false", "maintenance.gc.enabled": "false",
    }  # fmt: skip


def test_what_was_changed_inside_stays_when_the_host_changes_something_else():
    # proves GIT-03
    first, second, third = (("remote", name, "url", name) for name in "abc")
    fetched = ("remote", "a", "fetch", "x")

    assert list(git_plan.merge([first], [first], [first])) == [first]
    assert list(git_plan.merge([first, second], [first, fetched], [first, third])) == [first, second, third]
    assert list(git_plan.merge([first, second], [first, second], [second])) == [second]
    assert list(git_plan.merge([first], [], [])) == [first]
    assert list(git_plan.merge([second], [first], [second])) == [second]  # both sides have changed it
    assert list(git_plan.merge([first], [first], [])) == [first]  # the file was lost


HOSTILE = [
    "x\n[core]\n\tsshCommand = evil", 'x"\n[core]\nsshCommand = evil', "x\\", 'x\\"', "x\r[core]", "a # b", "a ; b",
    '"', "\\n", "\u2028[core]", "\x1b[31m", "  blanks  ", "[core]", "\udcff\udcfe", "tab\there", "]", "x\0y", "Ünï",
    "'", "=",
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_cannot_write_configuration_of_its_own(value, tmp_path):
    # proves D24
    rendered = git_plan.render((("user", "", "name", value), ("remote", value, "url", value)))
    seen = as_git_reads(rendered, tmp_path)

    kept = "".join(char for char in value if char.isprintable() or "\udc80" <= char <= "\udcff")
    assert [row for row in seen if row[0] != "user.name"] == [(f"remote.{kept}.url", kept)]
    assert seen[0] == ("user.name", kept)


@pytest.mark.parametrize("value", ["~/x", "~root/x", "~nobody-at-all/x", "x", "/x", "../x"])
def test_paths_are_expanded_as_git_does(home, value):
    # proves D08
    import pwd

    wanted = {
        "~/x": f"{home}/x", "~root/x": f"{pwd.getpwnam('root').pw_dir}/x", "~nobody-at-all/x": "/b/~nobody-at-all/x",
        "x": "/b/x", "/x": "/x", "../x": "/x",
    }  # fmt: skip
    assert base_files.expand(value, "/b", str(home)) == wanted[value]
    assert git_config.read_config((f"{home}/none",), IncludeContext(str(home))).rows == ()
