from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
from tests.conftest import need

from claudebox.facts import git
from claudebox.plan.mounts import render_git_config


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
    return [(f"{section}.{key}", value) for section, key, value in git.parse_config(content) if '"' not in section]


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
    ],
)
def test_a_file_is_read_as_git_reads_it(content, tmp_path):
    # proves GIT-01, GIT-02
    assert plain(content) == as_git_reads(content, tmp_path)


def test_sub_sections_are_not_confused_with_their_section():
    # proves D24
    content = b'[user "x"]\nname = no\n[includeIf "gitdir:/"]\npath = /no\n[user]\nname = yes\n'

    assert ("user", "name", "no") not in git.parse_config(content)
    assert ("user", "name", "yes") in git.parse_config(content)
    assert not [row for row in git.parse_config(content) if row[0] == "include"]


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
    assert isinstance(git.parse_config(content), list)


@pytest.mark.parametrize(
    "content",
    [b"[user]\nname = " + b"a\\\n" * 340_000, b"[u]\n" + b"k = v\n" * 170_000, b"[u]\nk = " + b'"\\' * 500_000],
)
def test_a_large_hostile_file_does_not_hold_the_launcher_up(content):
    # proves C18
    started = time.monotonic()
    git.parse_config(content)

    assert time.monotonic() - started < 2


@pytest.fixture
def home(tmp_path):
    """Return a home and what writes files to it."""
    directory = tmp_path / "home"
    directory.mkdir()
    return directory


def write(path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_a_person_without_configuration_has_no_identity(home):
    assert git.read_identity(str(home), {}) == ("", "")


def test_the_file_in_the_home_wins_over_the_one_in_the_configuration_directory(home):
    # proves GIT-01, GIT-02
    write(home / ".config/git/config", "[user]\nname = Xdg\nemail = xdg@example.org\n")
    assert git.read_identity(str(home), {}) == ("Xdg", "xdg@example.org")

    write(home / ".gitconfig", "[user]\nname = Home\n")
    assert git.read_identity(str(home), {}) == ("Home", "xdg@example.org")


def test_another_configuration_directory_is_respected(home):
    write(home / "elsewhere/git/config", "[user]\nname = Elsewhere\n")

    assert git.read_identity(str(home), {"XDG_CONFIG_HOME": f"{home}/elsewhere"})[0] == "Elsewhere"
    assert git.read_identity(str(home), {"XDG_CONFIG_HOME": ""})[0] == ""


def test_includes_are_followed_relative_to_their_file_and_to_the_home(home):
    # proves GIT-01, GIT-02
    write(home / ".gitconfig", "[include]\npath = work/identity\n[include]\n\tpath = ~/mail\n")
    write(home / "work/identity", "[user]\nname = Included\n[include]\npath = deeper\n")
    write(home / "work/deeper", "[user]\nname = Deeper\n")
    write(home / "mail", "[user]\nemail = included@example.org\n")

    assert git.read_identity(str(home), {}) == ("Deeper", "included@example.org")


def test_what_stands_after_an_include_wins(home):
    write(home / ".gitconfig", "[user]\nname = Before\n[include]\npath = x\n[user]\nname = After\n")
    write(home / "x", "[user]\nname = Included\n")

    assert git.read_identity(str(home), {})[0] == "After"


def test_an_include_of_itself_ends(home):
    write(home / ".gitconfig", "[user]\nname = Loop\n[include]\npath = .gitconfig\n")

    assert git.read_identity(str(home), {})[0] == "Loop"


def test_conditional_includes_are_left_alone(home):
    # proves D24
    write(home / ".gitconfig", '[user]\nname = Plain\n[includeIf "gitdir:/"]\npath = x\n')
    write(home / "x", "[user]\nname = Conditional\n")

    assert git.read_identity(str(home), {})[0] == "Plain"


def test_a_linked_configuration_is_followed_and_a_pipe_is_not_waited_for(home):
    # proves C18
    write(home / "dotfiles/gitconfig", "[user]\nname = Linked\n")
    (home / ".gitconfig").symlink_to("dotfiles/gitconfig")
    assert git.read_identity(str(home), {})[0] == "Linked"

    (home / ".gitconfig").unlink()
    os.mkfifo(home / ".gitconfig")
    assert git.read_identity(str(home), {}) == ("", "")


def test_only_name_and_address_of_the_host_reach_the_sandbox(home):
    # proves GIT-01, GIT-02, D24, SEC-03
    write(
        home / ".gitconfig",
        "[user]\nname = Alice\nemail = a@b\nsigningkey = ABCD\n[credential]\nhelper = store\n"
        '[core]\nsshCommand = evil\n[url "https://token@example.org/"]\ninsteadOf = https://example.org/\n',
    )
    rendered = render_git_config(*git.read_identity(str(home), {}))

    assert sorted(git.parse_config(rendered)) == [
        ("safe", "directory", "*"), ("user", "email", "a@b"), ("user", "name", "Alice"),
    ]  # fmt: skip


HOSTILE = [
    "x\n[core]\n\tsshCommand = evil", 'x"\n[core]\nsshCommand = evil', "x\\", 'x\\"', "x\r[core]", "a # b", "a ; b",
    '"', "\\n", "\u2028[core]", "\x1b[31m", "  blanks  ", "[core]", "\udcff\udcfe", "tab\there", "]", "x\0y", "Ünï",
    "'", "=",
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
def test_a_name_cannot_write_configuration_of_its_own(value, tmp_path):
    # proves D24
    rendered = render_git_config(value, value)
    seen = as_git_reads(rendered, tmp_path)

    assert [key for key, _ in seen] == ["safe.directory", "user.name", "user.email"]
    assert seen[1][1] == "".join(char for char in value if char.isprintable() or "\udc80" <= char <= "\udcff")


def test_without_an_identity_git_inside_asks_for_one():
    assert render_git_config("", "") == b"[safe]\n\tdirectory = *\n"
