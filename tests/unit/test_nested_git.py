"""The lines of a configuration that a repository made inside keeps."""

from __future__ import annotations

import pytest

from claudebox.report import nested_git, outward_links
from claudebox.report.plain_config import clean_config, read_addresses

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


def test_what_could_not_be_examined_comes_before_what_is_harmless_by_now(tmp_path, monkeypatch):
    # proves REPORT-01
    def run(work):
        work.aside = {f"{tmp_path}/{number}/.git": ["config"] for number in range(30)}
        work.closed = [(f"{tmp_path}/evil/.git", "Permission denied")]

    monkeypatch.setattr(nested_git._Disarming, "run", run)
    lines = nested_git.disarm(str(tmp_path), (), {}, lambda _: True, ())

    assert lines[0].startswith("`evil/.git` cannot be examined (Permission denied)")
    assert lines[-1] == "and 11 other repositories"


def test_a_line_stays_short_however_much_was_put_aside(tmp_path):
    # proves REPORT-02
    modules = tmp_path / "n/.git/modules"
    modules.mkdir(parents=True)
    changed = [modules / f"{number:04}-{'x' * 100}" for number in range(1000)]
    for path in changed:
        path.touch()
    (line,) = nested_git.disarm(str(tmp_path), map(str, changed), {}, lambda _: True, ())

    assert "put aside as *.claudebox" in line
    assert len(line) < 700
    assert not [path for path in changed if path.exists()]


def test_a_link_that_cannot_be_read_leads_to_no_message_of_the_system(tmp_path):
    # proves REPORT-02
    (tmp_path / "out").symlink_to("/etc")
    assert outward_links.find_target(str(tmp_path), "out") == "/etc"
    assert outward_links.find_target(str(tmp_path), "gone") == "a place that cannot be read (No such file or directory)"
