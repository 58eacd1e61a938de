"""The real client in tier `allow`: the model is reachable through the broker, and the domains are those of the list."""

from __future__ import annotations

import subprocess

from tests.support.client import bash, conversation, equip, variables

LOOK = """
curl -s http://other.example/; echo
curl -sS --noproxy '*' -m 5 http://other.example/
python3 -c "import socket; socket.create_connection(('203.0.113.80', 443), timeout=5)" 2>&1 | tail -1
env | grep -c sk-ant-real
"""


def test_a_session_with_tools_reaches_the_model_though_no_domain_is_listed(user_box, model, real_client):
    # proves NET-03, AUTH-01
    served = model(conversation("look", {"tools": [bash(LOOK)]}, {"say": "{result}"}))
    equip(user_box, real_client)
    environ = {**variables(served), "ANTHROPIC_API_KEY": "sk-ant-real-" + "x" * 40}

    result = subprocess.run(
        [user_box.program, "-y", "--network", "allow", "--allow-domain", "listed.example", "-p", "look"],
        cwd=user_box.project, env=user_box.variables(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=120, check=False, **user_box.account.demotion,
    )  # fmt: skip

    assert result.returncode == 0, result.stdout + result.stderr
    assert "`other.example` is not among the names that can be reached from here" in result.stdout
    assert "Could not resolve host: other.example" in result.stdout
    assert "Network is unreachable" in result.stdout
    assert result.stdout.rstrip().endswith("0")
