"""The least client that claudebox starts and the newest that was tried, in the ways in which people use them.

`scripts/clients` runs this with other versions: CLAUDEBOX_TEST_CLIENTS names the programs, separated by colons.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY, need
from tests.support.client import bash, conversation, equip, installed, reachable

KEY = "sk-real-key-0123456789-abcdefghij"
OTHERS = [Path(path) for path in os.environ.get("CLAUDEBOX_TEST_CLIENTS", "").split(":") if path]
CLIENTS = {path.parent.name: path for path in OTHERS} or {
    "least": installed("client-least"),
    "newest": installed("client"),
}
# The newest speaks in these ways in all the other tests: as whole sessions, at a terminal, with and without the broker.
NOT_TRIED_ELSEWHERE = pytest.mark.parametrize(
    "some_client", [name for name in CLIENTS if name != "newest"], indirect=True
)
OWN_HOSTS = {"api.anthropic.com", "downloads.claude.ai"}  # what the client asks for besides: its news and plugins
pytestmark = pytest.mark.slow
QUESTIONS = ("trust", "Choose the text style", "login method", "WARNING", "custom API key", "Do you want")


@pytest.fixture(scope="session", params=CLIENTS)
def some_client(request, ordinary_account):
    with reachable(CLIENTS[request.param], ordinary_account) as path:
        yield path


@pytest.fixture(params=["broker", "passthrough"])
def speaking(request, user_box, model, some_client):
    """Return a box with a client, its environment, its flags, and the model that answers it."""
    equip(user_box, some_client)
    served = model(
        conversation("look", {"tools": [bash("cat canary; echo made >made")]}, {"say": "I have looked"}), key=KEY
    )
    user_box.write("canary", "a-bird")
    env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": served.url, "CLAUDE_CODE_MAX_RETRIES": "0"}
    flags = ["--env", "CLAUDE_CODE_MAX_RETRIES"]
    if request.param == "passthrough":
        flags += ["--set", "auth=passthrough", "--env", "ANTHROPIC_BASE_URL"]
    return user_box, env, flags, served


@NOT_TRIED_ELSEWHERE
def test_it_answers_and_works_without_a_terminal(speaking):
    # proves HOST-11, UX-06
    box, env, flags, served = speaking
    result = box.claudebox("-y", *flags, "-p", "look around", env=env, timeout=90)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "I have looked" in result.stdout
    assert "a-bird" in served.results
    assert Path(box.project, "made").read_text() == "made\n"


@NOT_TRIED_ELSEWHERE
@pytest.mark.parametrize("tier", ["full", "allow"])
def test_it_asks_the_broker_and_no_proxy(user_box, model, some_client, tier):
    # proves HOST-11, NET-03
    equip(user_box, some_client)
    served = model(conversation("look", {"say": "I have looked"}), key=KEY)
    nobody = "http://192.0.2.1:3128"  # the proxy of a company; in tier `allow` it is the broker's own
    env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": served.url, "HTTP_PROXY": nobody, "HTTPS_PROXY": nobody}
    env = {**env, "NO_PROXY": "127.0.0.1"}
    result = user_box.claudebox("-y", "--network", tier, "-p", "look around", env=env, timeout=90)

    assert "I have looked" in result.stdout, result.stdout + result.stderr


@NOT_TRIED_ELSEWHERE
def test_it_asks_nothing_at_a_terminal_and_answers(speaking, terminal):
    # proves HOST-11, UX-06
    box, env, flags, served = speaking
    screen = terminal(box, env)
    screen.shell(box.program, "-y", *flags)
    first = screen.expect("bypass permissions on", timeout=60)
    screen.type("look around")
    screen.expect("I have looked", timeout=60)
    screen.type("/exit")

    assert screen.status() == 0
    assert not [question for question in QUESTIONS if question in first]
    assert "a-bird" in served.results


def test_nothing_of_a_conversation_goes_anywhere_but_to_the_broker(user_box, some_client):
    # proves HOST-11, I03
    need(os.getuid() == 0 and shutil.which("nft", path="/usr/sbin:/usr/bin"), "root and nft")
    equip(user_box, some_client)
    user_box.environ["ANTHROPIC_API_KEY"] = KEY
    # A network of its own in which every name resolves, and every port of every address is listened on.
    command = ["unshare", "--net", "--mount", sys.executable, "-I", str(REPOSITORY / "tests/support/ears.py")]
    argv = [*user_box.account.words, user_box.program, "-y", "--network", "full", "-p", "CANARY-OF-A-PROMPT"]
    result = subprocess.run(
        command, input=json.dumps({"argv": argv, "key": KEY}), env=user_box.variables(), cwd=user_box.project,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    heard = json.loads(result.stdout)

    # Who goes to the placeholder's address is heard, and so is who speaks TLS to anybody.
    assert [(name, "CANARY-CONTROL" in text) for name, text in heard["control"]] == [
        ("", True),
        ("secure.example", True),
    ]
    assert heard["status"] == 0, heard
    assert "an answer of the model" in heard["answer"]
    spoken = "".join(text for _, text in heard["heard"])
    assert "CANARY-OF-A-PROMPT" not in spoken
    assert "/v1/messages" not in spoken
    assert KEY not in spoken
    assert {name for name, _ in heard["heard"]} <= OWN_HOSTS, heard["heard"]
