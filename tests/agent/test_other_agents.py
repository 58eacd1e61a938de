"""Another agent in the same sandbox: its program, its state per project, and nothing of Claude's."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import REPOSITORY

# A stand-in for an agent that people install with npm.
AGENT = """\
#!/bin/sh
echo "words: $*"
echo "key: $OPENAI_API_KEY, anthropic: $ANTHROPIC_API_KEY"
ls -A "$HOME"
cat "$HOME/.codex/history" 2>/dev/null
echo "a conversation in $PWD" >>"$HOME/.codex/history"
exit 5
"""


def install(box):
    """Put the stand-in where npm would, and the example of the documentation among the profiles."""
    box.write(f"{box.home}/.npm-global/bin/codex", AGENT, mode=0o755)
    example = (REPOSITORY / "docs/examples/codex.toml").read_text()
    box.write(f"{box.home}/.claudebox/profiles/codex.toml", example)
    box.environ |= {"OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-anthropic"}


def test_the_example_runs_an_agent_with_its_own_state_and_key(box):
    # proves PROF-01
    install(box)
    box.write(f"{box.home}/.claude/.credentials.json", '{"claudeAiOauth": {"accessToken": "CANARY"}}')

    first = box.claudebox("-y", "--profile", "codex", "hello", "--model", "x")

    assert first.returncode == 5, first.stderr
    lines = first.stdout.splitlines()
    assert lines[0].startswith("words: ")
    assert lines[0].endswith("hello --model x")
    assert lines[1] == "key: sk-openai, anthropic: "
    assert ".codex" in lines
    assert ".claude" not in lines
    second = box.claudebox("-y", "--profile", "codex", "again")
    assert second.stdout.splitlines()[-1] == f"a conversation in {box.project}"
    assert not os.path.exists(f"{box.home}/.codex")
    kept = list(Path(f"{box.home}/.claudebox/instances").glob("*/home/.codex/history"))
    assert len(kept) == 1

    other = box.mkdir(f"{box.base}/other")
    assert "a conversation" not in box.claudebox("-y", "--profile", "codex", cwd=other).stdout


def test_claude_is_not_needed_for_another_agent_and_nothing_of_it_enters(user_box):
    # proves SAND-09
    install(user_box)
    result = user_box.claudebox("--explain", "--profile", "codex")

    assert result.returncode == 0, result.stderr
    assert "CLAUDE_CONFIG_DIR" not in result.stdout
    assert "/run/claudebox/login" not in result.stdout


def test_an_agent_cannot_reach_from_its_state_into_that_of_the_launcher(user_box):
    # proves C04, C05
    install(user_box)
    user_box.claudebox("-y", "--profile", "codex")
    (state,) = Path(f"{user_box.home}/.claudebox/instances").glob("*/home/.codex")
    for name in state.iterdir():
        name.unlink()
    state.rmdir()
    target = user_box.mkdir(f"{user_box.home}/private")
    os.symlink(target, state)

    result = user_box.claudebox("-y", "--profile", "codex")

    assert result.returncode == 125
    assert "is not a directory" in result.stderr
    assert os.listdir(target) == []
