"""Commands of the real client do the same inside as outside."""

from __future__ import annotations

import re
import shutil

from tests.conftest import need
from tests.support.client import equip, flags, real_client, unsandboxed, variables  # noqa: F401 - a fixture
from tests.support.scripted import Scripted
from tests.support.tui import Tui

# Rows of /status that are another's in a sandbox: numbers of the session, claudebox's settings.
OF_SANDBOX = {"Session ID", "Peer address", "Setting sources"}
AUTHORITIES = "Additional CA cert(s)"  # claudebox's bundle, where this machine names some for npm
STEPS = (("mcp", "add", "greet", "--", "/bin/echo", "hi"), ("mcp", "list"))


def test_mcp_servers_are_added_and_listed_as_outside(user_box, real_client):  # noqa: F811
    # proves TOOL-11
    equip(user_box, real_client)
    config = {"CLAUDE_CONFIG_DIR": f"{user_box.home}/.claude-outside", "DISABLE_AUTOUPDATER": "1"}
    outside = [user_box.host(real_client, *words, env=config) for words in STEPS]

    inside = [user_box.claudebox("-y", "--quiet", *words) for words in STEPS]

    assert [row.returncode for row in inside] == [row.returncode for row in outside] == [0, 0]
    assert "greet: /bin/echo hi" in inside[1].stdout
    for within, without in zip(inside, outside, strict=True):
        plain = without.stdout.replace(".claude-outside", ".claude")
        assert within.stdout == plain, within.stderr


def ask_status(screen: Tui, *words: str) -> dict[str, str]:
    """Start the client, type /status, and return the rows that it shows."""
    screen.shell(*words)
    screen.expect("bypass permissions on")
    screen.type("/status")
    screen.expect("Session ID")
    shown = screen.settled()  # some rows come later
    screen.key("Escape")
    screen.expect("dismissed")
    screen.type("/exit")
    assert screen.status() == 0
    return dict(re.findall(r"^ +(\w[^:]+): +(.*?) *$", shown, re.MULTILINE))


def test_the_status_that_the_client_shows_is_the_same_inside(user_box, real_client):  # noqa: F811
    # proves TOOL-11
    need(shutil.which("tmux"), "tmux")
    equip(user_box, real_client)
    user_box.write(f"{user_box.home}/.gitconfig", "[http]\n\tsslCAInfo = /etc/ssl/certs/ca-certificates.crt\n")
    with Scripted() as model:
        env = variables(model)
        with Tui(user_box, {**env, **unsandboxed(user_box)}) as screen:
            outside = ask_status(screen, real_client, "--dangerously-skip-permissions")
        with Tui(user_box, env) as screen:
            inside = ask_status(screen, user_box.program, "-y", "--quiet", *flags(env))

    others = {name for name in {**inside, **outside} if inside.get(name) != outside.get(name)}
    # The stub of `.mcp.json` is no file, which the client diagnoses.
    stub = {name for name in others if name.startswith("System diagnostics") and ".mcp.json" in inside.get(name, "")}
    assert others - stub - {AUTHORITIES} == OF_SANDBOX
    assert inside["Setting sources"].startswith("Enterprise managed settings")
    assert (outside["cwd"], outside["Session kind"]) == (user_box.project, "interactive")
