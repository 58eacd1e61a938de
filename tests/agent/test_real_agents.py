"""Other agents from npm and PyPI, each with a scripted model: what a user gets of them, and that no key enters.

`scripts/agents` installs them.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import PATIENCE, Box, need
from tests.support.models import SAID, Models
from tests.support.tui import Tui

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
INSTALLED = "/var/cache/claudebox-tests/agents"
KEY = "sk-proj-key-of-the-tests-Vq7Zr2Lx9Tn4Kd8Wb3Hs6Yp1"
PROMPT = "Write it down"
# The agent's own shell looks for the end of the key wherever it can: environments, arguments and memory of all
# processes, files. The end of the placeholder is looked for as well, or nothing found would mean nothing.
LOOK = r"""
import os, pathlib
needles = {"key": b"1pY6sH3bW8dK4nT9xL2rZ7qV"[::-1], "placeholder": b"redlohecalp-xobedualc"[::-1]}
found = set()
def look(where, data):
    found.update(f"{name} in {where}" for name, needle in needles.items() if needle in data)
for process in pathlib.Path("/proc").glob("[0-9]*"):
    for part in ("environ", "cmdline"):
        try: look(part, (process / part).read_bytes())
        except OSError: pass
    try:
        with open(process / "mem", "rb") as memory:
            for line in (process / "maps").read_text().splitlines():
                words = line.split()
                begin, _, end = words[0].partition("-")
                size = int(end, 16) - int(begin, 16)
                if "r" not in words[1] or size > 1 << 26 or process.name == str(os.getpid()): continue
                try:
                    memory.seek(int(begin, 16))
                    look("memory", memory.read(size))
                except (OSError, ValueError, OverflowError): pass
    except OSError: pass
for top in (os.environ["HOME"], "/tmp", "/run", os.getcwd()):
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path) and os.path.getsize(path) < 1 << 26:
                try: look("files", pathlib.Path(path).read_bytes())
                except OSError: pass
print("\n".join(sorted(found)), file=open("found", "w"))
"""


@dataclass(frozen=True)
class Trial:
    """How an agent is asked for one answer, and how it goes on."""

    name: str
    words: tuple[str, ...]
    again: tuple[str, ...]
    state: str  # what it keeps in its home

    @property
    def variables(self) -> tuple[str, str]:
        """Return its variables for the key and for the address."""
        return {
            "aider": ("OPENAI_API_KEY", "OPENAI_API_BASE"),
            "gemini": ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
            "copilot": ("COPILOT_PROVIDER_API_KEY", "COPILOT_PROVIDER_BASE_URL"),
        }.get(self.name, ("OPENAI_API_KEY", "OPENAI_BASE_URL"))


TRIALS = (
    Trial("codex", ("exec", "-m", "gpt-5", PROMPT), ("exec", "-m", "gpt-5", "resume", "--last", "More"), ".codex"),
    Trial("gemini", ("-p", PROMPT), ("--resume", "latest", "-p", "More"), ".gemini"),
    Trial("opencode", ("run", "-m", "openai/gpt-5", PROMPT), ("run", "-m", "openai/gpt-5", "--continue", "More"),
          ".local/share/opencode"),
    Trial("aider", ("--model", "openai/gpt-4o", "-m", PROMPT),
          ("--model", "openai/gpt-4o", "--restore-chat-history", "-m", "More"), ".aider"),
    Trial("qwen", ("-p", PROMPT), ("--continue", "-p", "More"), ".qwen"),
    Trial("copilot", ("-p", PROMPT), ("--continue", "-p", "More"), ".copilot"),
)  # fmt: skip
each = pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)


@pytest.fixture
def models() -> Iterator[Models]:
    """Return a scripted model, which asks agents to look for the key and to write a file."""
    with Models(KEY, command="python3 look.py; echo done >made") as models:
        yield models


@pytest.fixture
def agent_box(user_box: Box, models: Models) -> Box:
    """Return a box with all agents, a repository, and the key in the environment of the host."""
    need(os.path.exists(f"{INSTALLED}/installed"), "other agents: run `scripts/agents`")
    user_box.environ["PATH"] = f"{INSTALLED}/npm/node_modules/.bin:{INSTALLED}/aider/bin:/usr/local/bin:/usr/bin:/bin"
    user_box.host("git", "init", "-q").check_returncode()
    user_box.write("look.py", LOOK)
    return user_box


def run(box: Box, models: Models, trial: Trial, *flags: str, words: tuple[str, ...] = ()):
    """Run an agent for one answer, with its model behind the broker."""
    key, address = trial.variables
    path = "" if trial.name == "gemini" else "/v1"
    env = {key: KEY, address: models.address + path, "COPILOT_MODEL": "gpt-5", "OPENAI_MODEL": "gpt-4o",
           "COPILOT_PROVIDER_WIRE_API": "responses"}  # fmt: skip
    argv = ("-y", *(flags or ("--network", "none")), trial.name, *(words or trial.words))
    return box.claudebox(*argv, env=env, timeout=170)


@each
def test_an_agent_works_where_only_its_model_is_reached_and_its_key_stays_outside(agent_box, models, trial):
    # proves ANY-01, AUTH-01
    result = run(agent_box, models, trial)

    assert result.returncode == 0, result.stdout + result.stderr
    assert Path(agent_box.project, "made").read_text().strip() == "done"
    asked = [(headers, body) for _, headers, body in models.requests if body]
    assert asked
    assert all(any(KEY in value for value in headers.values()) for headers, _ in asked)
    assert not [body for _, body in asked if KEY.encode() in body]
    assert any(b"You run in a claudebox sandbox" in body for _, body in asked)
    if trial.name != "aider":  # which has no shell
        assert SAID in result.stdout
        found = Path(agent_box.project, "found").read_text().split("\n")
        assert {"placeholder in environ", "placeholder in memory"} <= set(found), found
        assert not [line for line in found if line.startswith("key")]
    assert KEY not in result.stdout + result.stderr
    assert not os.path.lexists(f"{agent_box.home}/{trial.state}")
    (kept,) = Path(f"{agent_box.home}/.claudebox/instances").glob(f"*/home/{trial.state}")
    assert any(kept.iterdir())
    kept_files = (path for path in kept.rglob("*") if path.is_file() and not path.is_symlink())
    assert not [path for path in kept_files if KEY.encode() in path.read_bytes()]


@each
def test_an_agent_goes_on_with_its_conversation_and_the_work_can_be_undone(agent_box, models, trial):
    # proves ANY-05, UNDO-01
    assert run(agent_box, models, trial).returncode == 0
    before = len(models.requests)
    again = run(agent_box, models, trial, words=trial.again)

    assert again.returncode == 0, again.stdout + again.stderr
    assert any(PROMPT.encode() in body for _, _, body in models.requests[before:])
    assert os.path.exists(f"{agent_box.project}/made")
    while "made" in os.listdir(agent_box.project):
        undone = agent_box.claudebox("undo", "-y")
        assert undone.returncode == 0, undone.stderr


@pytest.mark.parametrize("tier", ["allow", "inet"])
@each
def test_an_agent_works_in_tiers_with_a_network(agent_box, models, open_tunnel, trial, tier):
    # proves ANY-01
    need(tier != "inet" or shutil.which("pasta") or shutil.which("slirp4netns"), "pasta")
    result = run(agent_box, models, trial, "--network", tier)

    assert result.returncode == 0, result.stdout + result.stderr
    assert Path(agent_box.project, "made").read_text().strip() == "done"


@each
def test_a_budget_ends_what_an_agent_can_spend(agent_box, models, trial):
    # proves ANY-01, COST-01
    result = run(agent_box, models, trial, "--network", "none", "--tokens", "1")

    answered = [headers for _, headers, body in models.requests if body]
    assert len(answered) <= 1, len(answered)
    assert "budget" in result.stdout + result.stderr, result.stdout + result.stderr


@pytest.mark.parametrize("trial", [TRIALS[0], TRIALS[1]], ids=lambda trial: trial.name)
def test_an_agent_with_its_screen_asks_no_first_questions(agent_box, models, trial):
    # proves ANY-05
    key, address = trial.variables
    env = {key: KEY, address: models.address + ("" if trial.name == "gemini" else "/v1")}
    words = " -m gpt-5" if trial.name == "codex" else ""
    with Tui(agent_box, {**agent_box.environ, **env}, rows=40) as screen:
        screen.type(f"{agent_box.program} -y --network none {trial.name}{words}")
        screen.key("Enter")
        ready = {"codex": "OpenAI Codex", "gemini": "Type your message"}[trial.name]
        screen.expect(ready, timeout=60)
        screen.settled()
        screen.type(PROMPT)
        time.sleep(0.5)
        screen.key("Enter")
        screen.expect(SAID, timeout=60)
    assert Path(agent_box.project, "made").read_text().strip() == "done"


def test_an_agent_that_is_not_installed_says_how_to_get_it(user_box):
    # proves ANY-05
    result = user_box.claudebox("-y", "codex", "exec", "hello", timeout=PATIENCE)

    assert result.returncode == 127
    assert "npm install -g @openai/codex" in result.stderr
