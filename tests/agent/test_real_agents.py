"""Other agents from npm and PyPI, each with a scripted model: what a user gets of them, and that no key enters.

`scripts/agents` installs those of the gate, with `--all` the others.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import PATIENCE, Box, need, wait_until
from tests.support.models import SAID, Models, make_token
from tests.support.tui import Tui

from claudebox.agent import kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALLED = "/var/cache/claudebox-tests/agents"
KEY = "sk-proj-key-of-the-tests-Vq7Zr2Lx9Tn4Kd8Wb3Hs6Yp1"
TOKEN = f"gho_{KEY[-24:]}"
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
    tier: str  # in which it is tried first
    key: str = "OPENAI_API_KEY"
    address: str = "OPENAI_BASE_URL"

    def environ(self, models: Models) -> dict[str, str]:
        """Return the variables of the host: the key, the address, the model."""
        place = "agents" if self.name in GATE else "agents-more"
        need(os.path.exists(f"{INSTALLED}/{place}/installed"), "other agents: run `scripts/agents --all`")
        path = "" if self.name == "gemini" else "/v1"
        return {self.key: KEY, self.address: models.address + path, "COPILOT_MODEL": "gpt-5", "OPENAI_MODEL": "gpt-4o",
                "AIDER_MODEL": "openai/gpt-4o", "COPILOT_PROVIDER_WIRE_API": "responses"}  # fmt: skip


TRIALS = (
    Trial("codex", ("exec", PROMPT), ("exec", "resume", "--last", "More"), ".codex", "none"),
    Trial("gemini", ("-p", PROMPT), ("--resume", "latest", "-p", "More"), ".gemini", "allow", "GEMINI_API_KEY",
          "GOOGLE_GEMINI_BASE_URL"),
    Trial("opencode", ("run", "-m", "openai/gpt-5", PROMPT), ("run", "-m", "openai/gpt-5", "--continue", "More"),
          ".local/share/opencode", "inet"),
    Trial("aider", ("-m", PROMPT), ("--restore-chat-history", "-m", "More"), ".aider", "full",
          address="OPENAI_API_BASE"),
    Trial("qwen", ("-p", PROMPT), ("--continue", "-p", "More"), ".qwen", "none"),
    Trial("pi", ("-p", "--model", "openai/gpt-5", PROMPT), ("-p", "--model", "openai/gpt-5", "--continue", "More"),
          ".pi", "none"),
    Trial("copilot", ("-p", PROMPT), ("--continue", "-p", "More"), ".copilot", "none", "COPILOT_PROVIDER_API_KEY",
          "COPILOT_PROVIDER_BASE_URL"),
)  # fmt: skip
CODEX, GEMINI = TRIALS[:2]
GATE = ("codex", "gemini", "opencode", "aider")


def each(*quick: str) -> pytest.MarkDecorator:
    """Return a mark that tries every agent, only these in the gate."""
    rows = [pytest.param(trial, marks=() if trial.name in quick else pytest.mark.slow) for trial in TRIALS]
    return pytest.mark.parametrize("trial", rows, ids=lambda trial: trial.name)


@pytest.fixture
def models() -> Iterator[Models]:
    """Return a scripted model, which asks agents to look for the key and to write a file."""
    with Models(KEY, command="python3 look.py; echo done >made") as models:
        yield models


@pytest.fixture
def agent_box(user_box: Box) -> Box:
    """Return a box with all agents and a repository."""
    need(os.path.exists(f"{INSTALLED}/agents/installed"), "other agents: run `scripts/agents`")
    directories = ("agents/node_modules/.bin", "agents/aider/bin", "agents-more/node_modules/.bin")
    user_box.environ["PATH"] = ":".join(
        [f"{INSTALLED}/{name}" for name in directories] + ["/usr/local/bin:/usr/bin:/bin"]
    )
    user_box.host("git", "init", "-q").check_returncode()
    user_box.write("look.py", LOOK)
    # What the project itself uses leads no agent elsewhere.
    other = "sk-proj-of-the-project-Xw3Jt5Rb8Mc2Nf6Gh9Zv1Lq4"
    user_box.write(".env", f"OPENAI_API_KEY={other}\nGEMINI_API_KEY={other}\nOPENAI_BASE_URL=http://127.0.0.1:9\n")
    return user_box


def run(box: Box, models: Models, trial: Trial, *flags: str, words: tuple[str, ...] = (), **options):
    """Run an agent for one answer, with its model behind the broker."""
    argv = ("-y", *(flags or ("--network", "none")), trial.name, *(words or trial.words))
    return box.claudebox(*argv, env=trial.environ(models), timeout=170, **options)


def check_key_stays_outside(box: Box, models: Models, trial: Trial) -> None:
    """Check that the key was used, and that it is in nothing that the agent could see, said or kept."""
    asked = [(headers, body) for _, headers, body in models.requests if body]
    assert asked
    assert all(any(KEY in value for value in headers.values()) for headers, _ in asked)
    assert not [body for _, body in asked if KEY.encode() in body]
    assert any(b"You run in a claudebox sandbox" in body for _, body in asked)
    if trial.name != "aider":  # which has no shell
        found = Path(box.project, "found").read_text().split("\n")
        assert {"placeholder in environ", "placeholder in memory"} <= set(found), found
        assert not [line for line in found if line.startswith("key")]
    assert not os.path.lexists(f"{box.home}/{trial.state}")
    (kept,) = Path(f"{box.home}/.claudebox/instances").glob(f"*/home/{trial.state}")
    assert any(kept.iterdir())
    kept_files = (path for path in kept.rglob("*") if path.is_file() and not path.is_symlink())
    assert not [path for path in kept_files if KEY.encode() in path.read_bytes()]


@each(*GATE)
def test_an_agent_works_with_its_key_outside_and_its_work_can_be_undone(agent_box, models, open_tunnel, trial):
    # proves ANY-01, AUTH-01, UNDO-01
    need(trial.tier != "inet" or shutil.which("pasta") or shutil.which("slirp4netns"), "pasta")
    result = run(agent_box, models, trial, "--network", trial.tier)

    assert result.returncode == 0, result.stdout + result.stderr
    assert Path(agent_box.project, "made").read_text().strip() == "done"
    assert trial.name == "aider" or SAID in result.stdout
    assert KEY not in result.stdout + result.stderr
    if trial.tier != "full":  # where the placeholder is another one in each session
        check_key_stays_outside(agent_box, models, trial)
    undone = agent_box.claudebox("undo", "-y")
    assert undone.returncode == 0, undone.stderr
    assert not os.path.exists(f"{agent_box.project}/made")


def log_in(box: Box, models: Models) -> dict[str, str]:
    """Log in as Gemini CLI does; return the variables of the host."""
    tokens = {"access_token": KEY, "refresh_token": f"{KEY}-refresh", "expiry_date": (time.time() + 36000) * 1000}
    box.write(f"{box.home}/.gemini/oauth_creds.json", json.dumps(tokens), mode=0o600)
    return {"CODE_ASSIST_ENDPOINT": models.address}


@pytest.mark.parametrize("trial", [CODEX, GEMINI], ids=lambda trial: trial.name)
def test_an_agent_with_its_screen_asks_no_first_questions(agent_box, models, trial):
    # proves ANY-05
    words, env = (" -m gpt-5", trial.environ(models)) if trial.name == "codex" else ("", log_in(agent_box, models))
    with Tui(agent_box, {**agent_box.environ, **env}, rows=40) as screen:
        screen.type(f"{agent_box.program} -y --network none {trial.name}{words}")
        screen.key("Enter")
        ready = {"codex": "gpt-5 default", "gemini": "Type your message"}[trial.name]
        screen.expect(ready, timeout=60)
        assert "rror" not in screen.settled()
        screen.type(PROMPT)
        time.sleep(0.5)
        screen.key("Enter")
        screen.expect(SAID, timeout=60)
        screen.type("/quit")
        time.sleep(0.5)
        screen.key("Enter")
        screen.expect("see: claudebox changes", timeout=60)
    assert Path(agent_box.project, "made").read_text().strip() == "done"
    agent_box.host("rm", "-rf", f"{agent_box.home}/{trial.state}")  # the login; there is none of codex
    check_key_stays_outside(agent_box, models, trial)


@each("codex")
def test_an_agent_goes_on_with_its_conversation_until_the_budget_is_spent(agent_box, models, trial):
    # proves ANY-05, ANY-01, COST-01
    flags = ("--network", "full")  # where the placeholder is another one in each session
    assert run(agent_box, models, trial, *flags).returncode == 0
    before = len(models.requests)
    again = run(agent_box, models, trial, *flags, words=trial.again)

    assert again.returncode == 0, again.stdout + again.stderr
    assert any(PROMPT.encode() in body for _, _, body in models.requests[before:])

    before = len(models.requests)
    result = run(agent_box, models, trial, "--network", "none", "--set", "tokens=1", cwd=elsewhere(agent_box))
    answered = [headers for _, headers, body in models.requests[before:] if body]
    assert len(answered) <= 1, len(answered)
    assert "budget" in result.stdout + result.stderr, result.stdout + result.stderr


def elsewhere(box: Box) -> str:
    """Make another project."""
    place = box.mkdir(f"{box.base}/elsewhere")
    box.host("git", "-C", place, "init", "-q").check_returncode()
    box.write(f"{place}/look.py", LOOK)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["none", "allow", "inet", "full"])
@each()
def test_an_agent_works_in_every_tier(agent_box, models, open_tunnel, trial, tier):
    # proves ANY-01
    need(tier != "inet" or shutil.which("pasta") or shutil.which("slirp4netns"), "pasta")
    result = run(agent_box, models, trial, "--network", tier)

    assert result.returncode == 0, result.stdout + result.stderr
    assert Path(agent_box.project, "made").read_text().strip() == "done"


@each("codex")
def test_an_agent_does_a_task_and_works_in_a_worktree(agent_box, models, trial):
    # proves ANY-01, FLEET-01
    for words in (("config", "user.name", "A"), ("config", "user.email", "a@example.org"), ("add", "look.py"),
                  ("commit", "-qm", "Begin")):  # fmt: skip
        agent_box.host("git", *words).check_returncode()
    task = {"id": "made", "repo": agent_box.project, "prompt": PROMPT, "agent": trial.name}
    path, result = agent_box.write(f"{agent_box.home}/task.json", json.dumps(task)), f"{agent_box.home}/result"
    done = agent_box.claudebox("task", path, "--result", result, env=trial.environ(models), timeout=170)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "+done" in Path(result, "work.patch").read_text()
    assert [name for name in os.listdir(result) if name.startswith("transcript")]
    document = json.loads(Path(result, "result.json").read_text())
    assert document["status"] == "done"
    assert document["tokens"]["output_tokens"] > 0
    assert trial.name == "aider" or SAID in document["said"]
    assert document["versions"]["client"]
    kept = (file for file in Path(result).iterdir() if file.is_file())
    assert not [file.name for file in kept if KEY.encode() in file.read_bytes()]

    argv = ("new", "copy", "-y", "--network", "none", trial.name, *trial.words)
    copied = agent_box.claudebox(*argv, env=trial.environ(models), timeout=170)
    assert copied.returncode == 0, copied.stdout + copied.stderr
    assert not os.path.exists(f"{agent_box.project}/made")
    assert list(Path(f"{agent_box.home}/.claudebox/work").glob("*/copy/made"))


@pytest.mark.slow
def test_copilot_works_with_a_login_of_github_that_stays_outside(agent_box):
    # proves ANY-01, AUTH-01
    need(os.path.exists(f"{INSTALLED}/agents-more/installed"), "other agents: run `scripts/agents --all`")
    with Models(TOKEN, command="python3 look.py; echo done >made") as models:
        login = {"authTokens": {"https://github.com:octo": {"token": TOKEN}}}
        agent_box.write(f"{agent_box.home}/.copilot/config.json", f"// managed\n{json.dumps(login)}", mode=0o600)
        words = ("copilot", "--model", "gpt-5", "-p", PROMPT)
        env = {"COPILOT_API_URL": models.address}
        result = agent_box.claudebox("-y", "--network", "none", *words, env=env, timeout=170)

    assert result.returncode == 0, result.stdout + result.stderr
    assert Path(agent_box.project, "made").read_text().strip() == "done"
    assert "/models" in models.paths
    assert all(TOKEN in headers["authorization"] for _, headers, _ in models.requests)
    found = Path(agent_box.project, "found").read_text()
    assert "placeholder in environ" in found
    assert "key in" not in found
    assert "denied" not in result.stderr


@pytest.mark.slow
def test_codex_on_the_host_writes_its_login_under_the_lock_that_we_take(agent_box, models):
    # proves I01
    old = make_token("old", -100)
    tokens = {"id_token": old, "access_token": old, "refresh_token": "first", "account_id": "account"}
    document = json.dumps({"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": "2026-01-01T00:00:00Z"})
    login = Path(agent_box.write(f"{agent_box.home}/.codex/auth.json", document, mode=0o600))
    (lock,) = (api.login.locks[0] for api in kinds.find_kind("codex").upstreams if api.login is not None)
    lock = agent_box.write(lock.format(directory=login.parent), "", mode=0o600)
    words = ("codex", "exec", "-c", f'chatgpt_base_url="{models.address}"', PROMPT)
    env = agent_box.variables({"CODEX_REFRESH_TOKEN_URL_OVERRIDE": f"{models.address}/oauth/token"})
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with subprocess.Popen(
            words, cwd=agent_box.project, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, **agent_box.account.demotion,
        ) as codex:  # fmt: skip
            wait_until(lambda: "-> FLOCK" in Path("/proc/locks").read_text(), "codex waits for the lock")
            assert login.read_text() == document
            fcntl.flock(held, fcntl.LOCK_UN)
            wait_until(lambda: '"next"' in login.read_text(), "codex writes its login")
            codex.kill()


def test_an_agent_that_is_not_installed_says_how_to_get_it(user_box):
    # proves ANY-05
    result = user_box.claudebox("-y", "codex", "exec", "hello", timeout=PATIENCE)

    assert result.returncode == 127
    assert "npm install -g @openai/codex" in result.stderr
