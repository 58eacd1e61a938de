"""What was denied, at the end of a session and while it runs, with the words that permit it."""

from __future__ import annotations

import json
import subprocess

from tests.conftest import wait_until

from claudebox.report import denied

ASK = (
    "import os, socket, sys, time\n"
    "for name in sys.argv[2:]:\n"
    "    proxy = socket.create_connection(('127.0.0.1', int(os.environ['HTTPS_PROXY'].rpartition(':')[2])))\n"
    "    proxy.sendall(f'CONNECT {name}:443 HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n'.encode())\n"
    "    print(proxy.recv(99)[:12].decode(), flush=True)\n"
    "time.sleep(float(sys.argv[1]))\n"
)
PYTHON = "/usr/bin/python3"
FLAGS = ("--network", "allow", "--allow-domain", "anthropic")


def test_a_session_ends_with_one_line_about_what_was_denied(user_box):
    # proves NET-05, NEW-D20
    names = ("pypi.org", "files.pythonhosted.org", "nobody.example", "pypi.org")
    result = user_box.run(PYTHON, "-c", ASK, "0", *names, flags=FLAGS)
    quiet = user_box.run("true", flags=FLAGS)

    assert result.stdout.count("HTTP/1.1 403") == 4
    (line,) = [line for line in result.stderr.splitlines() if "denied" in line]
    assert line.startswith("claudebox: denied: pypi.org, ")
    assert line.endswith("; to permit: `--allow-domain pypi --allow-domain nobody.example`")
    assert "receipt" not in result.stderr
    assert "denied" not in quiet.stderr
    assert (
        "denied"
        not in user_box.run(PYTHON, "-c", ASK, "0", "a.example", flags=(*FLAGS, "--set", "receipt=never")).stderr
    )


def test_a_running_session_shows_what_was_denied_and_takes_the_words(user_box):
    # proves NET-05
    argv = (user_box.program, "-y", *FLAGS, "--exec", "--", PYTHON, "-c", ASK, "60", "pypi.org")
    with subprocess.Popen(
        argv, cwd=user_box.project, env=user_box.variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, **user_box.account.demotion,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert "403" in process.stdout.readline()
            shown = "to permit it in the session that runs here: `claudebox allow pypi`"
            wait_until(lambda: shown in user_box.claudebox("denied").stdout, "it is named")
            (row,) = map(json.loads, user_box.claudebox("denied", "--json").stdout.splitlines())
            assert (row["host"], row["verdict"]) == ("pypi.org", "denied")
            assert "pypi.org" in user_box.claudebox("allow", "pypi").stderr
        finally:
            process.terminate()
            process.wait(20)
    assert "claudebox allow" not in user_box.claudebox("denied").stdout  # nobody is there to be told


def test_a_long_list_is_cut_and_says_where_the_rest_is():
    # proves NET-05
    rows = [
        {"kind": "decision", "verdict": "denied", "service": "proxy", "host": f"h{number}.example", "port": 443,
         "rule": "not-listed", "count": number}
        for number in range(20)
    ]  # fmt: skip
    text = denied.summarise(rows)

    assert text.startswith("denied: h19.example, h18.example, h17.example, h16.example and 16 more; to permit: `")
    assert text.endswith("; `claudebox denied` has all")
    refused = [
        {"kind": "decision", "verdict": "denied", "service": "filter", "host": host, "port": port, "rule": rule}
        for host, port, rule in (("fd77::50", 22, "lan"), ("192.168.7.2", 80, "machine"), ("169.254.1.1", 80, "never"))
    ]
    assert denied.summarise(refused) == (
        "denied: [fd77::50]:22, 192.168.7.2:80, 169.254.1.1:80; to permit: "
        "`--set allow_addresses=[fd77::50]:22 --set allow_host_port=80`"
    )


def test_a_spent_budget_is_told_as_that_and_a_closed_path_of_an_api_not_at_all():
    row = {"kind": "decision", "verdict": "denied", "service": "api", "host": "api.openai.com", "port": 443}

    assert denied.summarise([{**row, "rule": "billing_error"}]) == "denied: the model, as the budget is spent"
    assert denied.summarise([{**row, "rule": "permission_error"}]) == ""
