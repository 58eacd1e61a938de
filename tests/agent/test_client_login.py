"""The login with auth = "passthrough": a short-lived token of it enters, and is kept fresh; what renews it never does.

(AUTH-01, AUTH-02, I01, I02.) The login that does not enter at all is in test_broker.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.anthropic import Anthropic
from tests.support.client import equip

WEEK = 7 * 24 * 3600


@pytest.fixture
def hosts(tmp_path):
    with Anthropic(str(tmp_path)) as running:
        yield running


def log_in(box, tokens, *, expires):
    """Give the host's own client a login."""
    login = {
        "accessToken": tokens[0],
        "refreshToken": tokens[1],
        "expiresAt": int((time.time() + expires) * 1000),
        "scopes": ["user:inference", "user:profile"],
        "subscriptionType": "max",
    }
    document = {"claudeAiOauth": login, "mcpOAuth": {"server": {"accessToken": "token-of-an-mcp-server"}}}
    box.mkdir(f"{box.home}/.claude")
    return box.write(f"{box.home}/.claude/.credentials.json", json.dumps(document), mode=0o600)


def reach(box, hosts):
    """Let claudebox and the client reach the hosts of the test."""
    certificate = box.write(f"{box.base}/authority.pem", Path(hosts.certificate).read_bytes())
    box.environ.update(HTTPS_PROXY=hosts.proxy, SSL_CERT_FILE=certificate, CLAUDE_CODE_MAX_RETRIES="0")
    return ("--set", "auth=passthrough", "--env", "HTTPS_PROXY", "--env", "CLAUDE_CODE_MAX_RETRIES")


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))["claudeAiOauth"]


def copy_inside(box):
    return f"{box.home}/.claudebox/login/store/.credentials.json"


def test_a_valid_login_of_the_host_is_used_and_only_its_access_token_enters(box, hosts, real_client):
    # proves AUTH-01, I01, I05
    equip(box, real_client)
    flags = reach(box, hosts)
    path = log_in(box, hosts.issue("host"), expires=WEEK)
    before = Path(path).read_bytes()

    answer = box.claudebox("-y", *flags, "-p", "hello", timeout=120)
    search = (
        "grep -rlE 'refresh-host|token-of-an-mcp' /run ~ /proc/*/environ /etc 2>/dev/null; "
        "cat /run/claudebox/login/store/.c*"
    )
    inside = box.sh(search, flags=flags)

    assert (answer.returncode, answer.stdout.strip()) == (0, "hello from the hosts")
    assert hosts.messages == ["access-host"]
    assert "access-host" in inside.stdout  # the search looked where the login is
    assert "refresh-host" not in inside.stdout
    assert "token-of-an-mcp-server" not in inside.stdout
    assert hosts.renewals == []
    assert Path(path).read_bytes() == before


def test_an_expired_login_is_renewed_once_and_the_hosts_own_client_stays_logged_in(box, hosts, real_client):
    # proves AUTH-01, AUTH-02, I01
    equip(box, real_client)
    flags = reach(box, hosts)
    path = log_in(box, hosts.issue("host"), expires=-60)

    first = box.claudebox("-y", *flags, "-p", "hello", timeout=120)
    second = box.claudebox("-y", *flags, "-p", "hello", timeout=120)
    env = {"CLAUDE_CONFIG_DIR": f"{box.home}/.claude", "IS_SANDBOX": "1", "DISABLE_AUTOUPDATER": "1"}
    outside = box.host(real_client, "--dangerously-skip-permissions", "-p", "hello", env=env, timeout=120)

    assert [first.stdout.strip(), second.stdout.strip(), outside.stdout.strip()] == ["hello from the hosts"] * 3
    assert hosts.renewals == ["refresh-host"]
    assert hosts.messages == ["access-renewed-1"] * 3
    assert read(path)["refreshToken"] == "refresh-renewed-1"
    assert "mcpOAuth" in json.loads(Path(path).read_text(encoding="utf-8"))
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert "refreshToken" not in read(copy_inside(box))
    assert not [name for name in os.listdir(f"{box.home}/.claude") if "lock" in name]


def test_an_agent_cannot_put_another_account_in_place(box, hosts, real_client):
    # proves I02
    equip(box, real_client)
    flags = reach(box, hosts)
    path = log_in(box, hosts.issue("host"), expires=WEEK)
    before = Path(path).read_bytes()
    hosts.issue("thief")
    swap = (
        "cd /run/claudebox/login/store; for f in .credentials.json .credentials.json.tmp; do "
        """echo '{"claudeAiOauth":{"accessToken":"access-thief","expiresAt":9999999999999}}' > $f; done; """
        "mv .credentials.json x; rm -f .credentials.json; mkdir -p ~/.claude/; touch ~/.claude/kept && echo kept"
    )

    attack = box.sh(swap, flags=flags)
    answer = box.claudebox("-y", *flags, "-p", "hello", timeout=120)

    assert attack.stdout.strip() == "kept"  # the attack ran, and wrote where it may
    assert "Read-only file system" in attack.stderr
    assert answer.stdout.strip() == "hello from the hosts"
    assert hosts.messages == ["access-host"]
    assert Path(path).read_bytes() == before


@pytest.mark.slow
def test_twenty_sessions_that_start_together_spend_the_refresh_token_once(user_box, hosts):
    # proves AUTH-02, I01
    reach(user_box, hosts)
    path = log_in(user_box, hosts.issue("host"), expires=-60)
    script = (
        f'for i in $(seq 20); do {user_box.program} -y --set auth=passthrough --exec -- sh -c "cat $1" & done; wait'
    )

    result = user_box.host("bash", "-c", script, "-", "/run/claudebox/login/store/.credentials.json", timeout=120)

    assert hosts.renewals == ["refresh-host"]
    assert result.stdout.count("access-renewed-1") == 20
    assert read(path)["refreshToken"] == "refresh-renewed-1"


def test_a_token_that_the_host_renews_meanwhile_reaches_a_running_sandbox(user_box, hosts, checkout):
    # proves AUTH-02
    reach(user_box, hosts)
    log_in(user_box, hosts.issue("first"), expires=WEEK)
    wrapper = (
        f"import sys; sys.path.insert(0, {checkout + '/src'!r}); from claudebox import cli; "
        "from claudebox.agent import login as token_copy; token_copy._POLL = 0.2; "
        "sys.exit(cli.main())"
    )
    wait = (
        "echo started; for i in $(seq 100); do "
        "grep -q access-second /run/claudebox/login/store/.c* && echo arrived && exit; sleep 0.1; done"
    )
    process = subprocess.Popen(
        ["/usr/bin/python3", "-IS", "-c", wrapper, "-y", "--set", "auth=passthrough", "--exec", "--", "sh", "-c", wait],
        cwd=user_box.project, env=user_box.variables(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL, encoding="ascii", **user_box.account.demotion,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"

    log_in(user_box, hosts.issue("second"), expires=WEEK)
    output, _ = process.communicate(timeout=30)

    assert output.strip() == "arrived"


def test_unreachable_hosts_stop_nobody(user_box, hosts):
    flags = reach(user_box, hosts)
    path = log_in(user_box, hosts.issue("host"), expires=-60)
    before = Path(path).read_bytes()
    hosts.reachable = False

    result = user_box.sh("cat /run/claudebox/login/store/.credentials.json", flags=flags)

    assert result.returncode == 0
    assert "access-host" in result.stdout
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"claudeAiOauth": 3}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_login_is_silence(user_box, content):
    user_box.mkdir(f"{user_box.home}/.claude")
    user_box.write(f"{user_box.home}/.claude/.credentials.json", content)

    result = user_box.sh("ls -A /run/claudebox/login/store")

    assert (result.returncode, result.stdout) == (0, "")
    assert "error" not in result.stderr.lower()
    assert "Traceback" not in result.stderr


def test_no_login_is_silence(box):
    # proves AUTH-02
    result = box.sh("ls -A /run/claudebox/login/store; test -w /run/claudebox/login/store && echo can log in")

    assert (result.returncode, result.stdout) == (0, "can log in\n")
    assert "login" not in result.stderr.replace("/run/claudebox/login", "").replace("LOGNAME", "")


_PRETENDS_TO_LOG_IN = """#!/bin/sh
echo '{"claudeAiOauth":{"accessToken":"access-made","refreshToken":"refresh-made","expiresAt":9999999999999}}' \
  > $CLAUDE_SECURESTORAGE_CONFIG_DIR/.credentials.json
"""


@pytest.mark.parametrize(("reply", "kept"), [("y", True), ("", False)])
def test_a_login_made_inside_is_kept_for_all_projects_if_the_person_says_so(user_box, terminal, reply, kept):
    # proves AUTH-01, I02
    user_box.write(f"{user_box.base}/bin/claude", _PRETENDS_TO_LOG_IN, mode=0o755)
    user_box.environ["PATH"] = f"{user_box.base}/bin:/usr/bin:/bin"
    screen = terminal(user_box)

    screen.shell(user_box.program, "-y")
    screen.expect("Keep it outside")
    screen.type(reply) if reply else screen.key("Enter")
    assert screen.status() == 0
    other = user_box.mkdir(f"{user_box.base}/other")
    show = "cat /run/claudebox/login/store/.credentials.json"
    elsewhere = user_box.sh(show, flags=("--set", "auth=passthrough"), cwd=other)

    assert ("access-made" in elsewhere.stdout) == kept
    assert "refresh-made" not in elsewhere.stdout
    assert os.path.exists(f"{user_box.home}/.claudebox/login/credentials.json") == kept


def test_python_can_run_the_keeper_isolated(checkout):
    program = f"import sys; sys.path.insert(0, {checkout + '/src'!r}); import claudebox.agent.renewal"

    assert subprocess.run([sys.executable, "-IS", "-c", program], check=False).returncode == 0
