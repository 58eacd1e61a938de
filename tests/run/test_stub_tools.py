"""Stubs do not get in the way of programs that copy, pack or clean a project, inside or on the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY, need
from tests.support import repositories

CLIENT = REPOSITORY / ".local/client/node_modules/@anthropic-ai"
TOOLS = {
    "copytree": ("python3", "-c", "import shutil; shutil.copytree('.', '{target}/copy')"),
    "cpSync": ("node", "-e", "require('fs').cpSync('.', '{target}/copy', {{recursive: true}})"),
    "cp": ("cp", "-r", ".", "{target}/copy"),
    "tar": ("tar", "cf", "{target}/copy", "."),
    "zip": ("zip", "-qr", "{target}/copy.zip", "."),
    "find": ("find", ".", "-type", "f", "-exec", "grep", "-l", "nothing-like-it", "{{}}", "+"),
}


@pytest.fixture
def checkout_with_work(box):
    """Return a repository with something untracked and something ignored in it."""
    made = repositories.make(box)
    made.sh("echo ignored >.gitignore; git add .gitignore; git commit -qm ignore")
    for name in ("junk/file", "ignored"):
        box.write(name, "x")
    return made


@pytest.mark.parametrize("tool", TOOLS)
def test_programs_that_copy_and_pack_work_inside_and_on_the_host(box, running, checkout_with_work, tool):
    # proves C21, D16
    words = TOOLS[tool]
    need(box.host("sh", "-c", f"command -v {words[0]}").returncode == 0, words[0])
    os.chmod(box.mkdir(f"{box.base}/t"), 0o777)
    inside = box.run(*(word.format(target="/tmp") for word in words))
    session = running(box)
    there = os.path.isdir(f"{box.project}/.claude")
    outside = box.host(*(word.format(target=f"{box.base}/t") for word in words))
    session.end()

    assert there, "there was no stub to trip over"
    status = 1 if tool == "find" else 0
    assert inside.returncode == status, inside.stderr
    assert (outside.returncode, outside.stderr) == (status, "")


def test_git_clean_removes_everything_else_inside_and_succeeds(box, checkout_with_work):
    # proves C21, D16
    inside = box.sh("git status --porcelain -uall; git clean -xfd && git clean -xfdn; echo status $?; ls -A")

    assert inside.returncode == 0
    assert "failed" not in inside.stderr
    assert inside.stdout.split("\n")[:4] == ["?? junk/file", "Removing ignored", "Removing junk/", "status 0"]
    assert not Path(box.project, "junk").exists()
    assert ".claude" in inside.stdout
    kept = box.sh("mkdir .claude/x; echo x >.mcp.json; echo x >.claude/.git; rm -rf .claude; git stash -u; git add -A; "
                  "git status --porcelain")  # fmt: skip
    assert kept.stdout.splitlines()[-1:] in ([], ["No local changes to save"])
    assert kept.stderr.count("Read-only file system") >= 2


def test_git_clean_on_the_host_succeeds_during_a_session(box, running, checkout_with_work):
    # proves C21
    session = running(box)
    status = checkout_with_work.sh("git status --porcelain -uall")
    cleaned = box.host("git", "-c", "safe.directory=*", "clean", "-xfd", "-e", "up")
    session.end()

    assert status.split() == ["??", "junk/file", "??", "up"]
    assert (cleaned.returncode, cleaned.stderr) == (0, "")


def test_the_client_lists_servers_inside_and_on_the_host(user_box, running):
    # proves C21
    client = next(CLIENT.glob("claude-code-linux-*/claude"), None)
    need(client, "client (scripts/client)")
    assert client is not None
    program = user_box.write(f"{user_box.base}/programs/claude", client.read_bytes(), mode=0o755)
    user_box.environ["PATH"] = f"{user_box.base}/programs:/usr/bin:/bin"
    repositories.make(user_box)
    inside = user_box.claudebox("-y", "--", "mcp", "list")
    session = running(user_box)
    outside = user_box.host(program, "mcp", "list")
    session.end()

    for result in (inside, outside):
        assert result.returncode == 0, result.stderr
        assert "No MCP servers configured" in result.stdout
    assert "Failed to parse" not in inside.stdout
