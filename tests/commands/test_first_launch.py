"""The first launch: its questions, the user's own texts, and whether anybody is logged in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.client import equip
from tests.support.tui import Tui

from claudebox.agent.claude import CLAUDE
from claudebox.host import texts

TOKEN = "ghp_0aA1bB2cC3dD4eE5fF6gG7hH8iI9jJ0kK1lL"
BRING = r"of ~/\.claude in, read-only\? \[Y/n\] "
ANSWER = '["CLAUDE.md", "agents", "commands", "output-styles", "rules", "skills"]'


@pytest.fixture
def styled(user_box):
    """Return a box whose user has texts for the agent, one of them with a secret and one behind a link."""
    home = user_box.home
    user_box.write(f"{home}/.claude/CLAUDE.md", "be brief\n")
    user_box.write(f"{home}/.claude/skills/deploy/SKILL.md", f"one\nuse {TOKEN}\n")
    user_box.write(f"{home}/.claude/skills/review/SKILL.md", "look twice\n")
    user_box.write(f"{home}/dotfiles/test.md", "run them all\n")
    user_box.mkdir(f"{home}/.claude/commands")
    os.symlink("../../dotfiles/test.md", f"{home}/.claude/commands/test.md")
    user_box.write(f"{home}/.ssh/id_ed25519", "CANARY\n")
    os.symlink("../../.ssh/id_ed25519", f"{home}/.claude/commands/key.md")
    os.symlink("../../.ssh", f"{home}/.claude/commands/keys")
    user_box.write(f"{home}/.claude/settings.json", '{"hooks": {}}')
    return user_box


SHOW = "cd ~/.claude; cat CLAUDE.md commands/* skills/*/SKILL.md commands/keys/*; echo x >>CLAUDE.md; ls ~/.ssh; ls"


def test_texts_of_the_user_come_in_read_only_without_secrets_and_with_what_links_lead_to(styled):
    # proves CLIENT-02
    styled.write(f"{styled.home}/.claudebox/config.toml", f'network = "none"\ninherit = {ANSWER}\n', mode=0o600)
    os.chmod(f"{styled.home}/.claudebox", 0o700)
    result = styled.sh(SHOW)

    for text in ("be brief", "run them all", "look twice"):
        assert text in result.stdout
    assert TOKEN not in result.stdout + result.stderr
    assert "CANARY" not in result.stdout
    assert "settings.json" not in result.stdout
    assert Path(styled.home, ".claude/CLAUDE.md").read_text() == "be brief\n"
    assert "~/.claude/skills/deploy/SKILL.md:2 looks like a secret: the file stays out" in result.stderr
    assert "~/.claude/commands/key.md leads to" in result.stderr
    assert "CANARY" in styled.host("cat", f"{styled.home}/.claude/commands/key.md").stdout  # the control


@pytest.mark.parametrize("target", [".ssh", ".ssh/id_ed25519", ".claude/.credentials.json", "."])
def test_a_text_that_leads_to_something_hidden_is_refused(styled, target):
    # proves C08
    styled.write(f"{styled.home}/.claude/.credentials.json", "{}")
    os.symlink(f"{styled.home}/{target}", f"{styled.home}/.claude/rules")
    result = styled.sh("true", flags=("--set", "inherit=rules"))

    assert result.returncode == 125
    assert "which would expose" in result.stderr


def test_the_first_launch_fits_on_one_small_screen(user_box, real_client, open_tunnel):
    # proves UX-07, NEW-D14, NEW-D18
    equip(user_box, real_client)
    user_box.write(f"{user_box.home}/.claude/CLAUDE.md", "be brief\n")
    user_box.write(f"{user_box.home}/.claude/skills/deploy/SKILL.md", "deploy\n")
    with Tui(user_box, columns=80, rows=24, configured=False) as terminal:
        terminal.shell(user_box.program)
        for question in ("Network? [", "Ask? [", "read-only? ["):
            terminal.expect(question)
            terminal.key("Enter")
        screen = terminal.expect("Proceed? [")
        assert "What may programs inside reach?" in screen
        assert "not logged in: run `claude` outside and `/login` there" in screen
        assert max(map(len, screen.splitlines())) <= 80
        terminal.key("n", "Enter")


def test_check_says_that_nobody_is_logged_in(user_box, real_client):
    # proves UX-05, NEW-D18
    equip(user_box, real_client)
    without = user_box.claudebox("--check", "--network", "full")
    with_key = user_box.claudebox("--check", "--network", "full", env={"ANTHROPIC_API_KEY": "sk-ant-api03-x"})

    assert "warning  login: not logged in\n         run `claude` outside and `/login` there" in without.stdout
    assert "ok       login: ANTHROPIC_API_KEY" in with_key.stdout


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("be brief", 0),
        ("sk-learn and pypi-packages are fine, and so is https://user@example.org", 0),
        ("set `API_KEY=sk-ant-REDACTED` first", 0),
        ("one\n-----BEGIN OPENSSH PRIVATE KEY-----", 2),
        (f"use `GH_TOKEN={TOKEN}`", 1),
        ("psql postgres://app:s3cretpassword1@db/app", 1),
    ],
)
def test_what_counts_as_a_secret_in_a_text(text, line):
    # proves CLIENT-02
    assert texts.find_secret(text.encode()) == line


def test_more_than_texts_is_not_looked_through_for_ever(tmp_path):
    # proves CLIENT-02
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills/model.bin").write_bytes(bytes(5 << 20))
    (tmp_path / "rules").symlink_to("/proc")
    found = texts.examine(str(tmp_path), CLAUDE.extras.texts)

    assert set(found.oversized) == {"skills", "rules"}
    assert found.links == ()
