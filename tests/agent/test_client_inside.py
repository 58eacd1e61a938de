"""The real client in the real sandbox, led by the scripted model."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile

from tests.support.client import bash, conversation, equip, flags, variables
from tests.test_startup import FORBIDDEN, loaded

# Looks wherever a secret of the host might show, knowing only what secrets look like.
ATTACK = r"""
pattern='canary-[a-z]+-[0-9a-f]{16}'
{
  env; set; export -p
  cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\0' '\n'
  for file in /proc/[0-9]*/fd/*; do [ -f "$file" ] && head -c 4096 "$file"; done
  cat ~/.ssh/* ~/.aws/credentials ~/.netrc ~/.bash_history ~/.claude/.credentials.json ../elsewhere/notes.txt
  grep -rhsaE "$pattern" ~ ..
} 2>/dev/null | grep -aoE "$pattern" | sort -u
echo looked everywhere
"""
FILES = {
    "ssh": ".ssh/id_ed25519", "aws": ".aws/credentials", "netrc": ".netrc", "history": ".bash_history",
    "login": ".claude/.credentials.json", "elsewhere": "../elsewhere/notes.txt",
}  # fmt: skip


def plant(box) -> dict[str, str]:
    canaries = {name: f"canary-{name}-{secrets.token_hex(8)}" for name in (*FILES, "env", "descriptor")}
    for name, path in FILES.items():
        box.write(os.path.normpath(f"{box.home}/{path}"), canaries[name] + "\n", mode=0o600)
    box.environ["DEPLOY_TOKEN"] = canaries["env"]
    return canaries


@contextlib.contextmanager
def left_open(box, text: str):
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        os.fchown(file.fileno(), box.account.uid, box.account.gid)
        yield file.fileno()


def test_hello_is_answered_and_the_status_is_that_of_the_client(box, model, claude):
    # proves SAND-14, UX-06
    script = conversation("fail", {"error": {"status": 400, "message": "as the script wants"}})
    script["otherwise"] = {"say": "You said: {prompt}"}
    served = model(script)

    answered = claude(box, served, "-p", "hello")
    failed = claude(box, served, "-p", "fail")

    assert (answered.returncode, answered.stdout.strip()) == (0, "You said: hello")
    assert failed.returncode == 1
    assert "as the script wants" in failed.stdout


def test_a_session_of_the_client_loads_nothing_dear(user_box, model, real_client):
    served = model({"otherwise": {"say": "You said: {prompt}"}})
    env = variables(served)
    equip(user_box, real_client)
    user_box.environ.update(env)
    argv = ("-y", *flags(env), "-p", "hello")
    assert user_box.claudebox(*argv, timeout=120).returncode == 0  # the first writes answers for the client, as JSON

    assert sorted(loaded(user_box, *argv) & FORBIDDEN) == []


def test_an_agent_that_looks_everywhere_finds_no_canary(box, model, claude, bare):
    # proves SAND-02, SAND-09, SEC-02, SEC-05, A01
    canaries = plant(box)
    script = conversation("attack", {"tools": [bash(ATTACK)]}, {"say": "{result}"})
    outside, inside = model(script, canaries=canaries), model(script, canaries=canaries)

    with left_open(box, canaries["descriptor"]) as descriptor:
        control = bare(box, outside, "-p", "attack", pass_fds=(descriptor,))
        result = claude(box, inside, "-p", "attack", pass_fds=(descriptor,))

    assert (control.returncode, outside.leaks) == (0, sorted(canaries))
    assert (result.returncode, result.stdout.split("\n")[0]) == (0, "looked everywhere")
    assert inside.leaks == []


MCP_SERVER = """
import json, os, sys

for line in sys.stdin:
    request = json.loads(line)
    method = request["method"]
    if "id" not in request:
        continue
    if method == "initialize":
        result = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "probe", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "look", "description": "look", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        text = json.dumps({"claudebox": "CLAUDEBOX" in os.environ, "token": "DEPLOY_TOKEN" in os.environ})
        result = {"content": [{"type": "text", "text": text}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


def test_an_mcp_server_of_the_project_runs_inside_too(user_box, model, claude, bare):
    # proves SAND-02
    plant(user_box)
    user_box.write("server.py", MCP_SERVER)
    server = {"command": "/usr/bin/python3", "args": [f"{user_box.project}/server.py"]}
    user_box.write(".mcp.json", json.dumps({"mcpServers": {"probe": server}}))
    served = model(conversation("look", {"tools": [{"name": "mcp__probe__look", "input": {}}]}, {"say": "{result}"}))

    outside = bare(user_box, served, "-p", "look")
    inside = claude(user_box, served, "-p", "look")

    assert json.loads(outside.stdout) == {"claudebox": False, "token": True}
    assert json.loads(inside.stdout) == {"claudebox": True, "token": False}


def test_ctrl_c_interrupts_a_tool_and_the_session_goes_on(user_box, model, real_client, terminal):
    # proves SAND-15
    busy = {"tools": [bash("tail -f /dev/null")]}
    served = model(
        {
            "conversations": [{"prompt": "be busy", "steps": [busy, {"say": "not reached"}]}],
            "otherwise": {"say": "You said: {prompt}"},
        }
    )
    equip(user_box, real_client)
    env = variables(served)
    screen = terminal(user_box, env)

    screen.shell(user_box.program, "-y", *flags(env))
    screen.expect("bypass permissions on")
    screen.type("be busy")
    screen.expect("tail -f")
    screen.key("C-c")
    screen.expect("Interrupted")
    screen.resize(120, 30)
    screen.expect("─" * 120)
    screen.type("are you still there")
    screen.expect("You said: are you still there")
    screen.type("/exit")
    screen.expect("--resume")

    assert screen.status() == 0
    assert (screen.modes()["alternate_on"], screen.modes()["cursor_flag"]) == ("0", "1")
