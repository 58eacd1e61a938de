"""`claudebox demo`: what it shows is what happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.conftest import need
from tests.support.baking import bake
from tests.support.client import equip

PYTHON = "/usr/bin/python3"
PROGRAM = """
import os, sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from claudebox.commands.demo import run
from claudebox.base.errors import ClaudeboxError
_, _, network, *words = sys.argv
asked = SimpleNamespace(value=network)
flags = SimpleNamespace(words=(*words,), one=lambda _: asked, all=lambda _: (asked,) * bool(network))
try:
    status = run.run(flags, dict(os.environ))
except ClaudeboxError as error:
    print(error.message)
    status = error.status
sys.exit(status)
"""


@pytest.fixture
def demo_command(checkout, real_client):
    """Return a function that prepares a box for the demonstration and returns the command."""

    def prepare(box, *words, network="", source=f"{checkout}/src"):
        need(shutil.which("git"), "git")
        if "PATH" not in box.environ:
            equip(box, real_client)
        box.environ["TMPDIR"] = box.mkdir(f"{box.base}/tmp")
        return (PYTHON, "-IS", "-c", PROGRAM, source, network, *words)

    return prepare


@pytest.fixture
def demo(demo_command):
    """Return a function that plays the demonstration."""

    def play(box, *words, cwd=None, **options):
        return box.host(*demo_command(box, *words, **options), cwd=cwd or box.project, timeout=120)

    return play


def verdicts(output: str) -> dict[str, str]:
    """Return the table at the end: title and verdict."""
    rows = (line.split("  ", 1) for line in output.splitlines() if not line.startswith(" "))
    known = ("held", "done", "open", "broken", "failed")
    return {row[1].strip().split("  ")[0]: row[0].strip() for row in rows if row[0].strip() in known}


def test_the_demonstration_holds_what_is_promised_and_leaves_nothing_behind(box, demo):
    # proves SAND-02, SAND-05, SAND-09, SAND-15, SEC-04
    result = demo(box, cwd="/")  # where nobody has a project

    table = verdicts(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    assert table == {
        "a token in the environment": "held",
        "the API key": "held",
        "~/.ssh/id_ed25519": "held",
        "~/.aws/credentials": "held",
        "environments of other processes": "held",
        "a file that the shell left open": "held",
        "a service of the host's network": "held",
        "~/.bashrc of the host": "held",
        ".git/hooks of the host": "held",
        "run the tests": "done",
        "edit a file": "done",
        "run the tests again": "done",
        "commit": "done",
    }
    assert "DEPLOY_TOKEN" in result.stderr  # the audit names it among what is withheld
    assert os.listdir(f"{box.base}/tmp") == []
    assert os.listdir(box.home) == []


@pytest.mark.slow
def test_the_demonstration_says_so_where_a_secret_or_a_hook_is_let_in(user_box, demo, checkout):
    altered = bake(checkout, {})
    path = Path(altered, "src/claudebox/git/plan.py")
    text = path.read_text(encoding="utf-8")
    assert text.count('own.directory, role="git")') == 1
    # No flag does this.
    path.write_text(text.replace('own.directory, role="git")', 'own.real, role="git")'), encoding="utf-8")
    path = Path(altered, "src/claudebox/git/disarmed.py")  # which would put the hook aside
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("Disarmed(*run_limited(run))", "Disarmed()"), encoding="utf-8")

    result = demo(user_box, "--env", "DEPLOY_TOKEN", source=f"{altered}/src")

    table = verdicts(result.stdout)
    assert result.returncode == 1
    assert table["a token in the environment"] == "broken", result.stdout + result.stderr
    assert table["environments of other processes"] == "broken", result.stdout
    assert table[".git/hooks of the host"] == "broken", result.stdout
    assert table["~/.ssh/id_ed25519"] == "held"
    assert "the agent could read canary-env-" in result.stdout


@pytest.mark.slow
def test_the_demonstration_says_so_where_the_network_is_shared(user_box, demo):
    result = demo(user_box, network="full")

    assert result.returncode == 0
    assert verdicts(result.stdout)["a service of the host's network"] == "open"


def test_the_demonstration_without_a_client_ends_with_127(user_box, demo):
    user_box.environ["PATH"] = "/usr/bin:/bin"

    result = demo(user_box)

    assert result.returncode == 127
    assert "was not found" in result.stdout
    assert os.listdir(f"{user_box.base}/tmp") == []


def test_a_demonstration_that_is_terminated_leaves_nothing_behind(user_box, demo_command):
    child = subprocess.Popen(
        demo_command(user_box), cwd=user_box.project, env=user_box.variables(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **user_box.account.demotion,
    )  # fmt: skip
    assert child.stdout is not None
    with child.stdout as output:
        while b"Next, the SSH key" not in output.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        rest = output.read()

    assert child.wait(timeout=30) == 1
    assert b"was not tried" in rest
    assert os.listdir(f"{user_box.base}/tmp") == []


def test_an_attempt_that_did_not_happen_is_not_taken_for_safety(user_box, demo):
    # `--version` makes the client answer at once and end: nothing is tried.
    result = demo(user_box, "--", "--version")

    assert result.returncode == 1
    assert set(verdicts(result.stdout).values()) == {"failed"}
