"""Words and flags of the real client: which go through, which are switched off, and how editors start it."""

from __future__ import annotations

import json
import os

import pytest
from tests.agent.test_client_session import _SERVER
from tests.support import repositories
from tests.support.client import conversation, equip, flags, variables


def test_subcommands_of_the_client_take_flags_that_are_also_ours(user_box, real_client):
    # proves D-01
    equip(user_box, real_client)
    added = user_box.claudebox("-y", "mcp", "add", "tickets", "--env", "A=b", "--", "no-such-server", "--json")
    shown = user_box.claudebox("-y", "mcp", "get", "tickets")

    assert added.returncode == 0, added.stderr
    assert "Added stdio MCP server tickets with command: no-such-server --json" in added.stdout
    assert "A=b" in shown.stdout


@pytest.mark.parametrize("repository", [True, False])
def test_servers_are_listed_and_removed_where_the_project_names_none(user_box, real_client, repository):
    # proves C21, SEC-04
    equip(user_box, real_client)
    if repository:
        repositories.make(user_box)
    script = "echo x >.mcp.json; mkdir .claude; echo x >new; echo ran >~/.claude/ran"
    unknown = user_box.claudebox("-y", "mcp", "remove", "tickets")
    none = user_box.claudebox("-y", "mcp", "list")
    added = user_box.claudebox("-y", "mcp", "add", "tickets", "--", "sh", "-c", script)
    listed = user_box.claudebox("-y", "mcp", "list")
    ran = user_box.sh("cat ~/.claude/ran")
    names = os.listdir(user_box.project)
    removed = user_box.claudebox("-y", "mcp", "remove", "tickets")

    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert 'No MCP server named "tickets"' in unknown.stderr
    assert none.stdout.strip() == "No MCP servers configured. Use `claude mcp add` to add a server."
    assert [result.returncode for result in (none, added, listed, removed)] == [0] * 4, removed.stderr
    assert "tickets: sh -c" in listed.stdout
    assert "Failed to parse" not in listed.stdout + listed.stderr
    assert 'Removed MCP server "tickets"' in removed.stdout
    assert ran.stdout == "ran\n"  # a server was started, and could create nothing that the host obeys
    assert not {".mcp.json", ".claude", "new"}.intersection(names)


@pytest.mark.parametrize("words", [("update",), ("install", "stable"), ("remote-control",), ("-p", "x", "--rc=me")])
def test_what_cannot_work_inside_is_switched_off_with_a_sentence(user_box, words):
    # proves CLIENT-01
    result = user_box.claudebox("-y", *words)

    assert (result.returncode, result.stdout) == (125, "")
    assert "is switched off: " in result.stderr
    assert "hint: " in result.stderr
    assert ".bashrc" not in result.stderr


def test_the_client_does_not_advise_to_edit_files_of_the_home(user_box, real_client):
    # proves CLIENT-01
    equip(user_box, real_client)
    result = user_box.claudebox("-y", "--network", "none", "doctor")

    assert result.returncode == 0, result.stderr
    assert "Claude Code doctor" in result.stdout
    assert "bashrc" not in result.stdout + result.stderr


def test_servers_of_the_user_come_in_without_their_secrets(user_box, real_client, model):
    # proves CLIENT-02
    server = user_box.write(f"{user_box.base}/servers/abacus.py", _SERVER)
    servers: dict[str, dict[str, object]] = {
        "abacus": {"command": "python3", "args": [server], "env": {"MODE": "exact", "ABACUS_TOKEN": "CANARY"}},
        "leaky": {"command": "x", "args": ["--token=ghp_0123456789abcdef0123456789abcdef0123"]},
    }
    user_box.write(f"{user_box.home}/.claude.json", json.dumps({"mcpServers": servers}), mode=0o600)
    equip(user_box, real_client)
    call = {"name": "mcp__abacus__add", "input": {"a": 19, "b": 23}}
    served = model(conversation("sum", {"tools": [call]}, {"say": "{result}"}))
    env = variables(served)
    shown = ("--set", "inherit=mcp", "--mount-ro", os.path.dirname(server), *flags(env))
    result = user_box.claudebox("-y", *shown, "-p", "the sum please", env=env, timeout=120)
    without = user_box.claudebox("-y", *flags(env), "--exec", "--", "cat", "/run/claudebox/mcp.json", env=env)
    file = user_box.claudebox("-y", *shown, "--exec", "--", "cat", "/run/claudebox/mcp.json", env=env)

    assert "42" in result.stdout, result.stderr
    assert json.loads(file.stdout)["mcpServers"] == {"abacus": {**servers["abacus"], "env": {"MODE": "exact"}}}
    assert without.returncode != 0
    explained = user_box.claudebox("--explain", *shown, env=env).stdout
    assert f"MCP server: abacus (`python3 {server}`, without ABACUS_TOKEN)" in explained
    assert "MCP server: leaky is left out" in explained
    assert "CANARY" not in result.stderr + explained
    assert "ghp_" not in result.stderr + explained


def test_editors_start_it_as_their_process_wrapper(user_box, real_client, model):
    # proves CLIENT-03
    # As the extension for VS Code does: the client's own path first, its flags after it, a conversation over pipes.
    path = user_box.mkdir(f"{user_box.base}/extension") + "/claude"
    os.symlink(real_client, path)
    env = variables(model(conversation("hello", {"say": "hello from the sandbox"})))
    configuration = f'extra_env_passthrough = {json.dumps(sorted(env))}\nnetwork = "full"\n'
    user_box.write(f"{user_box.home}/.claudebox/config.toml", configuration, mode=0o600)
    os.chmod(f"{user_box.home}/.claudebox", 0o700)
    words = (
        "--output-format", "stream-json", "--verbose", "--input-format", "stream-json", "--permission-prompt-tool",
        "stdio", "--permission-mode", "default", "--setting-sources", "user,project,local",
        "--include-partial-messages",
    )  # fmt: skip
    message = {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "hello"}]}}
    result = user_box.claudebox(
        path, *words, env={**env, "CLAUDE_CODE_ENTRYPOINT": "claude-vscode"}, input=json.dumps(message) + "\n",
        timeout=120, start_new_session=True,
    )  # fmt: skip

    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.returncode == 0, result.stderr
    assert events[-1]["type"] == "result"
    assert events[-1]["result"] == "hello from the sandbox"
    assert events[0]["cwd"] == user_box.project
    inside = user_box.host("ls", "-d", f"{user_box.home}/.claudebox/instances")
    assert inside.returncode == 0  # the control: it was a session of claudebox


def test_a_client_of_the_project_is_refused_as_an_editors_too(user_box):
    # proves CLIENT-03, E01
    path = user_box.write("claude", "#!/bin/sh\ntouch hijacked\n", mode=0o755)
    result = user_box.claudebox(path, "-p", "x", start_new_session=True)

    assert result.returncode == 126
    assert "in the project" in result.stderr
