"""`claudebox publish`: ports of a running session at localhost, with real servers inside."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.conftest import wait_until
from tests.support import repositories

from claudebox.network.published import list_ports

SERVER = (
    "import http.server, sys; "
    "server = http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler); "
    "print('up', flush=True); server.serve_forever()"
)


def fetch(port: int) -> str:
    """Return what is served at a port of the host, nothing if nobody answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/page", timeout=5) as answer:
            return str(answer.read(), "utf-8")
    except (URLError, OSError):
        return ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(box, *flags: str, port: int = 3000, page: str = "from inside"):
    """Run a session with a server inside, and yield its launcher."""
    box.write("page", page)
    argv = (box.program, "-y", *flags, "--exec", "--", "/usr/bin/python3", "-c", SERVER, str(port))
    with subprocess.Popen(
        argv, cwd=box.project, env=box.variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, **box.account.demotion,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n", process.stderr.read() if process.stderr else ""
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=20)


def test_a_port_of_a_running_session_is_opened_listed_and_taken_back(user_box):
    # proves NET-11, NEW-D17
    wanted, inside = free_port(), free_port()
    with serving(user_box, "--network", "none", port=inside):
        assert fetch(inside) != "from inside"
        result = user_box.claudebox("publish", f"{wanted}:{inside}")
        assert result.stdout == f"http://project.localhost:{wanted}  port {inside} of the session, until it ends\n"
        assert fetch(wanted) == "from inside"
        assert user_box.claudebox("publish", str(inside)).stdout == result.stdout  # it is open already
        assert user_box.claudebox("publish").stdout == result.stdout
        listed = user_box.claudebox("sessions").stdout
        (row,) = json.loads(user_box.claudebox("sessions", "--json").stdout)
        assert f"http://project.localhost:{wanted}  port {inside} of project" in listed
        assert row["ports"] == [{"host": wanted, "inside": inside}]

        refused = user_box.claudebox("publish", f"{wanted}:3001")
        assert refused.returncode == 125
        assert f"port {wanted} of this machine cannot be opened" in refused.stderr
        other = user_box.claudebox("publish", str(wanted)).stdout  # the next free one
        assert f"  port {wanted} of" in other
        assert f"localhost:{wanted} " not in other

        assert user_box.claudebox("publish", "--off", str(inside)).returncode == 0
        wait_until(lambda: not fetch(wanted), "the port is closed")
        assert user_box.claudebox("publish", str(inside)).stdout.startswith(f"http://project.localhost:{inside} ")
        assert fetch(inside) == "from inside"
    wait_until(lambda: not fetch(inside), "the port went with the session")
    wait_until(lambda: not list_ports(f"{user_box.home}/.claudebox"), "so did its record")
    assert "no session runs" in user_box.claudebox("publish", str(inside)).stderr


def test_an_agent_in_a_worktree_is_found_from_the_project_it_was_started_in(user_box):
    # proves NET-11, AGENT-03, NEW-D17
    repositories.make(user_box)
    inside = free_port()
    with serving(user_box, "new", "fix/one", "--network", "none", port=inside):
        opened = user_box.claudebox("publish", str(inside))
        named = user_box.claudebox("publish", "fix/one", str(inside))
        listed = user_box.claudebox("sessions").stdout.splitlines()
        (row,) = json.loads(user_box.claudebox("sessions", "--json").stdout)

        assert opened.stdout.startswith(f"http://fix-one.localhost:{inside} "), opened.stderr
        assert named.stdout == opened.stdout
        assert fetch(inside) == "from inside"
        assert (row["name"], row["project"]) == ("fix/one", user_box.project)
        assert f"{user_box.home}/.claudebox/work/" in row["directory"]
        assert listed[0].split()[:2] == ["NAME", "STATE"]
        assert "SPENT" not in listed[0], "nothing to show"
        assert listed[1].split()[0] == "fix/one"


def test_a_session_that_is_killed_leaves_no_open_port(user_box):
    # proves NET-11
    wanted, inside = free_port(), free_port()
    with serving(user_box, "--network", "none", port=inside) as launcher:
        assert user_box.claudebox("publish", f"{wanted}:{inside}").returncode == 0
        assert fetch(wanted) == "from inside"
        launcher.send_signal(signal.SIGKILL)
        wait_until(lambda: not fetch(wanted), "the relay ends with the launcher")
        wait_until(lambda: not list_ports(f"{user_box.home}/.claudebox"), "and removes its record")


def test_ports_that_are_published_from_the_start_can_be_mapped_and_are_listed(user_box):
    # proves NET-11
    wanted, inside = free_port(), free_port()
    with serving(user_box, "--network", "none", "--publish", f"{wanted}:{inside}", port=inside):
        assert fetch(wanted) == "from inside"
        assert f"localhost:{wanted}  port {inside}" in user_box.claudebox("publish").stdout
        (row,) = json.loads(user_box.claudebox("publish", "--json").stdout)
        assert {**row, "url": ""} == {"url": "", "host": wanted, "inside": inside}
        assert "until the session ends" in user_box.claudebox("publish", "--off", str(inside)).stderr
    assert not list_ports(f"{user_box.home}/.claudebox")


def test_what_is_published_is_one_port_of_loopback_and_the_relay_has_no_power(user_box):
    # proves NET-11
    wanted, inside = free_port(), free_port()
    with serving(user_box, "--network", "none", port=inside) as launcher:
        user_box.claudebox("publish", f"{wanted}:{inside}").check_returncode()
        (record,) = Path(user_box.home, ".claudebox/published").iterdir()
        port, owner, relay = map(int, record.read_text().split())
        assert (port, owner) == (inside, launcher.pid)
        status = Path(f"/proc/{relay}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        assert "published" not in user_box.sh("ls ~/.claudebox", flags=("--network", "none")).stdout
        listening = user_box.host("ss", "-Hltn", f"sport = :{wanted}").stdout.split()
        assert {word for word in listening if word.endswith(f":{wanted}")} <= {f"127.0.0.1:{wanted}", f"[::1]:{wanted}"}


@pytest.mark.parametrize(
    ("words", "said"),
    [(("0",), "a port from 1 to 65535"), (("80x", "y"), "is not a port"), (("nobody", "3000"), "`nobody`")],
)
def test_what_is_no_port_is_refused(user_box, words, said):
    result = user_box.claudebox("publish", *words)

    assert result.returncode == 125
    assert said in result.stderr


def test_a_session_in_tier_full_says_that_its_ports_are_there(user_box):
    with serving(user_box, "--network", "full", port=free_port()):
        assert "its ports are at localhost already" in user_box.claudebox("publish", "3000").stderr
