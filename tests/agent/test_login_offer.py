"""A login made inside: kept for other projects only if the user says so, and never one that a link leads to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.support.terminals import Terminal

LOGIN = json.dumps({"claudeAiOauth": {"accessToken": "a", "refreshToken": "r", "expiresAt": 9999999999999}})
MAKE = f"printf %s '{LOGIN}' >$CLAUDE_SECURESTORAGE_CONFIG_DIR/.credentials.json\n"
NAMED = 'echo \'{"oauthAccount":{"emailAddress":"ada@\\u001b[2Jexample.org"}}\' >$CLAUDE_CONFIG_DIR/.claude.json\n'


def agent(box, script: str) -> None:
    """Make the client a script."""
    box.write(f"{box.base}/bin/claude", f"#!/bin/sh\n{script}", mode=0o755)
    box.environ["PATH"] = f"{box.base}/bin:/usr/bin:/bin"


@pytest.mark.parametrize(("reply", "kept"), [("", False), ("y", True)])
def test_the_account_is_named_and_nothing_is_kept_unless_the_user_says_yes(user_box, reply, kept):
    # proves I02, I06
    agent(user_box, MAKE + NAMED)
    with Terminal(user_box) as terminal:
        terminal.type(f"{user_box.program} -y")
        shown = terminal.expect(r"A login was made inside, for ([^()]*)\(as the[^()]*\)[^\[]*\[y/N\]")[1]
        terminal.type(reply)
        assert terminal.prompt() == 0

    assert "ada@" in shown
    assert "\x1b" not in shown
    assert os.path.exists(f"{user_box.home}/.claudebox/login/credentials.json") == kept


@pytest.mark.parametrize("place", ["store", "store/.credentials.json"])
def test_a_login_of_the_host_that_a_link_leads_to_is_neither_adopted_nor_removed(user_box, place):
    # proves I06, C04, OLD-A21
    victim = user_box.write(f"{user_box.base}/other/.credentials.json", LOGIN)
    target = os.path.dirname(victim) if place == "store" else victim
    agent(user_box, f"cd /run/claudebox/login; mv {place} x; ln -s {target} {place}\n")
    with Terminal(user_box) as terminal:
        terminal.type(f"{user_box.program} -y </dev/tty")
        assert terminal.prompt() == 0
    assert Path(victim).read_text() == LOGIN
    assert not os.path.exists(f"{user_box.home}/.claudebox/login/credentials.json")

    # Nor does it stand in the way of the next session: what was put there is moved aside.
    agent(user_box, "ls -ld /run/claudebox/login/store; ls /run/claudebox/login")
    after = user_box.claudebox("-y")
    assert after.returncode == 0, after.stderr
    assert after.stdout.startswith("d")
    if place == "store":
        assert "store.replaced." in after.stdout


def test_a_state_directory_that_is_something_else_is_named_in_full(user_box):
    # proves C29, OLD-A31
    user_box.write(f"{user_box.home}/.claudebox/login/store", "a file")
    result = user_box.run("true")

    assert result.returncode == 125
    assert f"`{user_box.home}/.claudebox/login/store` is not a directory" in result.stderr


def test_a_deep_state_of_the_agent_does_not_stop_the_end(user_box):
    # proves E16, OLD-A9
    nest = "i=0; while [ $i -lt 1200 ]; do mkdir d; cd d; i=$((i+1)); done; exit 7\n"
    agent(user_box, f"mkdir -p $CLAUDE_CONFIG_DIR/projects; cd $CLAUDE_CONFIG_DIR/projects; {nest}")
    with Terminal(user_box) as terminal:
        terminal.type(f"{user_box.program} -y --set receipt=never")
        status = terminal.prompt(patience=60)
        assert "Traceback" not in terminal.shown()
    user_box.host("rm", "-rf", f"{user_box.home}/.claudebox")  # Python's own walk would recurse
    assert status == 7
