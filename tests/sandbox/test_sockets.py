"""Sockets and signals of the host: what no network namespace and no mount covers in tier `full`."""

from __future__ import annotations

import signal
import uuid

import pytest
from tests.conftest import need
from tests.sandbox.conftest import PYTHON, listener
from tests.sandbox.terminals import Terminal

LANDLOCK_WITH_SCOPES = 6


def landlock_version() -> int:
    """Return the version of Landlock as the kernel tells it."""
    import ctypes

    return int(max(0, ctypes.CDLL(None).syscall(444, None, 0, 1)))


@pytest.mark.parametrize(("tier", "answer"), [("full", "EPERM"), ("none", "ECONNREFUSED")])
def test_abstract_sockets_of_the_host_are_out_of_reach(box, probe, tier, answer):
    # proves F15, F16, SAND-09
    need(landlock_version() >= LANDLOCK_WITH_SCOPES, "Landlock with scopes")
    script = probe(box, "connect.py")
    name = f"claudebox-{uuid.uuid4().hex}"
    with listener(f"\0{name}"):
        control = box.host(PYTHON, script, f"@{name}")
        shared = box.host(
            "/usr/bin/bwrap", "--unshare-all", "--share-net", "--ro-bind", "/", "/", "--", PYTHON, script, f"@{name}"
        )
        inside = box.run(PYTHON, script, f"@{name}", flags=("--network", tier))

    assert control.stdout.strip() == "agent-secret"
    assert shared.stdout.strip() == "agent-secret"
    assert inside.stdout.strip() == answer, inside.stderr


def test_sockets_work_among_programs_inside(box):
    # proves F15
    script = (
        "import os, socket\n"
        "for address in ('\\0claudebox-inside', '/tmp/inside', 'in-the-project'):\n"
        "    server = socket.socket(socket.AF_UNIX); server.bind(address); server.listen()\n"
        "    if os.fork() == 0:\n"
        "        client = socket.socket(socket.AF_UNIX); client.connect(address); client.send(b'hello'); os._exit(0)\n"
        "    print(server.accept()[0].recv(10).decode())\n"
    )

    result = box.run(PYTHON, "-c", script)

    assert result.stdout.split() == ["hello"] * 3, result.stderr


def test_pathname_sockets_outside_of_the_project_are_out_of_reach(box, probe):
    # proves SAND-09, C19
    script = probe(box, "connect.py")
    path = f"{box.base}/agent.sock"
    with listener(path):
        control = box.host(PYTHON, script, path)
        inside = box.run(PYTHON, script, path, env={"SSH_AUTH_SOCK": path})

    assert control.stdout.strip() == "agent-secret"
    assert inside.stdout.strip() == "ENOENT"


def test_signals_from_inside_do_not_reach_the_process_group_of_the_launcher(box, probe):
    # proves F15, E13
    need(landlock_version() >= LANDLOCK_WITH_SCOPES, "Landlock with scopes")
    # On a terminal the sandbox shares the group of the launcher, which is that of the whole pipeline.
    peer = probe(box, "peer.py")
    script = "trap '' TERM HUP; kill -TERM 0; kill -HUP -1; kill -TERM 1; sleep 0.1; exit 7"
    naive = ("/usr/bin/bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc")

    def reached(*argv: str) -> str:
        with Terminal(box, argv=(PYTHON, peer, *argv, "sh", "-c", script)) as terminal:
            return terminal.expect(r"reached( \d+)* status -?\d+")[0]

    # bwrap's own monitor is in that group, and dies of the signal.
    assert reached(*naive) == f"reached {int(signal.SIGTERM)} status -{int(signal.SIGTERM)}"
    assert reached(box.program, "-y", "--exec", "--") == "reached status 7"
