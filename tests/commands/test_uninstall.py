"""`claudebox uninstall`: everything that it has left goes, after a question; nothing of the user's does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.terminals import Terminal

from claudebox.commands import uninstall

HOOKED = "mkdir -p ~/.cache/x; chmod 0 ~/.cache/x; git commit -q --allow-empty -m inside"


@pytest.fixture
def used(user_box):
    """Return a box that was worked in: a repository with an imported commit, settings, a completion, a stub left."""
    box = user_box
    for words in (("init", "-q"), ("config", "user.email", "a@b"), ("config", "user.name", "a")):
        box.host("git", *words).check_returncode()
    box.host("git", "commit", "-q", "--allow-empty", "-m", "first").check_returncode()
    assert box.sh(HOOKED, cwd=box.mkdir("part")).returncode == 0
    assert not os.path.exists(f"{box.project}/.git/refs/claudebox"), "an import leaves nothing"
    box.write(f"{box.home}/settings.toml", 'network = "full"\n', mode=0o600)
    os.symlink("../settings.toml", f"{box.home}/.claudebox/config.toml")
    box.write(f"{box.home}/.local/share/bash-completion/completions/claudebox", "complete")
    box.write(f"{box.home}/.local/share/bash-completion/completions/other", "complete")
    box.write(f"{box.home}/.local/share/claudebox/client/node_modules/@anthropic-ai/claude-code/package.json", "{}")
    box.mkdir(f"{box.project}/.git/refs/claudebox")
    return box


def test_everything_goes_after_a_question_and_nothing_of_the_users(used):
    # proves HOME-01
    box = used
    state = f"{box.home}/.claudebox"
    with Terminal(box) as terminal:
        terminal.type(f"{box.program} uninstall")
        terminal.expect(r"~/\.claudebox .*conversations")
        terminal.expect(r"Remove all of this, for good\? \[y/N\] ")
        terminal.press("\r")
        assert terminal.prompt() == 130
        assert os.path.isdir(state)
        terminal.type(f"{box.program} uninstall")
        terminal.expect(r"for good\? \[y/N\] ")
        terminal.press("y\r")
        terminal.expect("the program itself stays")
        assert terminal.prompt() == 0
    assert not os.path.lexists(state)
    assert not os.path.exists(f"{box.project}/.git/refs/claudebox")
    assert not os.path.exists(f"{box.home}/.local/share/bash-completion/completions/claudebox")
    assert os.path.exists(f"{box.home}/.local/share/bash-completion/completions/other")
    assert not os.path.exists(f"{box.home}/.local/share/claudebox/client")
    assert Path(box.home, "settings.toml").read_text() == 'network = "full"\n'
    assert "inside" in box.host("git", "log", "--format=%s").stdout
    assert "nothing of claudebox is left" in box.claudebox("uninstall").stderr


def test_nothing_goes_while_an_agent_has_a_worktree_or_a_session_runs(used):
    # proves HOME-01
    box = used
    assert box.claudebox("-y", "new", "helper", "--exec", "--", "true").returncode == 0
    result = box.claudebox("uninstall", "-y")

    assert result.returncode == 125
    assert "agents have worktrees in ~/.claudebox: `helper`" in result.stderr
    assert "claudebox finish helper" in result.stderr
    assert os.path.isdir(f"{box.home}/.claudebox/work")

    assert box.claudebox("drop", "-y", "helper").returncode == 0
    inside = box.sh("sleep 0", flags=("--mount-ro", box.program))  # the control: no session, no worktree
    assert inside.returncode == 0
    assert box.claudebox("uninstall", "-y").returncode == 0
    assert not os.path.lexists(f"{box.home}/.claudebox")


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("/home/a/.local/share/uv/tools/claudebox/lib/python3.12/site-packages", "uv tool uninstall claudebox"),
        ("/home/a/.local/share/pipx/venvs/claudebox/lib/python3.12/site-packages", "pipx uninstall claudebox"),
        ("/home/a/venv/lib/python3.12/site-packages", "pip uninstall claudebox"),
        ("/usr/local/lib/claudebox", "sudo rm -r /usr/local/lib/claudebox /usr/local/bin/claudebox"),
        ("/home/a/.local/lib/claudebox", "rm -r /home/a/.local/lib/claudebox /home/a/.local/bin/claudebox"),
        ("/nix/store/abc-claudebox-0.3.0/lib", "nix profile remove claudebox"),
        ("/home/a/src/claudebox/src", ""),
    ],
)
def test_the_command_that_removes_the_program(package, command):
    # proves HOME-01
    assert uninstall._removal(package, "/home/a") == command
