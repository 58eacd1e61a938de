"""The process of the broker: nobody can look into it, nothing of it is left, and it goes when the launcher goes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.broker.conftest import KEY, LIBRARIES, Caller, Visit, running
from tests.conftest import REPOSITORY, wait_until

from claudebox.base import process as base_process
from claudebox.base import runtime
from claudebox.base.errors import ClaudeboxError
from claudebox.broker import facts as broker_facts
from claudebox.broker.sidecar import BrokerSidecar
from claudebox.network.records import Broker, InjectConfig
from claudebox.settings.records import SecretRequest

pytestmark = pytest.mark.process


def asked(sidecar) -> bool:
    """Return whether the broker answers."""
    with Caller(sidecar.sockets["model_api"]) as caller:
        caller.say(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n")
        return caller.head()[0] == 403


@pytest.mark.root
def test_it_starts_with_nothing_in_its_environment_or_arguments_and_cannot_be_looked_into(ordinary_account):
    # proves A02
    with running(1) as sidecar:
        assert asked(sidecar)
        place = Path(f"/proc/{sidecar._process}")
        arguments = (place / "cmdline").read_bytes()
        assert KEY.encode() not in arguments + (place / "environ").read_bytes()
        assert b"main.main" in arguments
        status = (place / "status").read_text()
        assert "NoNewPrivs:\t1" in status
        assert "Max core file size        0 " in (place / "limits").read_text()
        assert place.stat().st_uid == 0
        names = {os.readlink(entry) for entry in (place / "fd").iterdir() if entry.is_symlink()}
        assert not [name for name in names if "memfd" in name]  # the configuration has been read and is closed


@pytest.mark.root
def test_its_memory_is_closed_to_the_same_user(ordinary_account, checkout):
    """The control is the same process before it protects itself."""
    look = (
        "import os, sys, time\n"
        f"sys.path[:0] = {[f'{checkout}/src', f'{checkout}/.local/libraries']!r}\n"
        "from claudebox.broker import main\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    if sys.argv[1] == 'hardened': main.harden()\n"
        "    time.sleep(5)\n"
        "time.sleep(0.3)\n"
        "try: open(f'/proc/{child}/mem', 'rb'); print('open')\n"
        "except OSError: print('closed')\n"
        "os.kill(child, 9)\n"
    )

    def found(word: str) -> str:
        argv = ["/usr/bin/python3", "-c", look, word]
        return str(subprocess.check_output(argv, encoding="ascii", cwd="/", **ordinary_account.demotion)).strip()

    assert (found("plain"), found("hardened")) == ("open", "closed")


def test_it_ends_with_the_launcher_however_that_ends():
    """A launcher that is killed says nothing to anybody."""
    program = (
        f"import sys, time; sys.path[:0] = {[str(REPOSITORY), str(REPOSITORY / 'src'), *LIBRARIES]!r}\n"
        "from tests.broker.conftest import running\n"
        "manager = running(1)\n"
        "sidecar = manager.__enter__()\n"
        "print(sidecar._process, sidecar._directory, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, encoding="ascii") as launcher:
        assert launcher.stdout is not None
        broker, directory = launcher.stdout.readline().split()
        alive = os.path.exists(f"/proc/{broker}")
        launcher.kill()
        launcher.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{broker}"), "the end of the broker")

    assert alive
    assert os.path.isdir(directory)  # nobody could take it away
    os.utime(directory, (0, 0))
    with running(1):
        assert not os.path.exists(directory)  # the next launch does


def test_a_directory_of_a_living_launcher_stays(tmp_path):
    with running(1) as sidecar:
        os.utime(sidecar._directory, (0, 0))
        runtime.make_directory(f"{sidecar._directory}-another")
        runtime.remove_directory(f"{sidecar._directory}-another")
        assert asked(sidecar)


def test_the_names_of_its_sockets_go_when_they_are_bound():
    with running(1) as sidecar:
        path = sidecar.sockets["model_api"]
        assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
        with contextlib.closing(Caller(path).channel) as early:
            sidecar.attach(0)
            assert not os.path.exists(os.path.dirname(path))
            early.sendall(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b" 403 " in early.recv(4096)


def test_a_broker_that_cannot_start_says_why_in_one_line():
    secret = SecretRequest("TOKEN", (("a.example", 443),), "env:X", "c", value="value-value", placeholder="p")
    broken = Broker(inject=InjectConfig((secret,), bundle="/no/such/bundle"), libraries=LIBRARIES, awaited=True)
    sidecar = BrokerSidecar(broken)
    sidecar.begin()
    with pytest.raises(ClaudeboxError, match=r"did not start: .* /no/such/bundle, cannot be read"):
        sidecar.attach(0)
    sidecar.finish()


def test_a_broker_that_cannot_be_started_when_the_payload_runs_refuses_and_is_told_afterwards(monkeypatch):
    def fail(*_words: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "no further process")

    monkeypatch.setattr(base_process, "spawn", fail)
    with running(1) as sidecar:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as caller:
            assert caller.connect_ex(sidecar.sockets["model_api"]) == errno.ECONNREFUSED
        (note,) = sidecar.finish()

    assert "the broker did not start: no further process" in note


def test_a_broker_that_ends_in_the_midst_is_told_afterwards():
    with running(1) as sidecar:
        assert asked(sidecar)
        os.kill(sidecar._process, 9)
        time.sleep(0.1)
        (note,) = sidecar.finish()

    assert "the broker ended during the session" in note


def test_what_is_under_way_at_the_end_is_written_down(upstream, tmp_path):
    """The broker is slow to hear of the end, as on a machine with much to do."""
    ended = threading.Event()

    def answer(visit: Visit) -> bool:
        visit.say(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegun\n")
        ended.wait(30)
        return False

    path = tmp_path / "log"
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with running(upstream(answer).port, log=log) as sidecar, Caller(sidecar.sockets["model_api"]) as caller:
        caller.ask(body=b"{}")
        assert caller.head()[0] == 200
        assert caller.take(5) == b"begun"
        os.kill(sidecar._process, signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (sidecar._process, signal.SIGCONT)).start()
        sidecar.finish()
    ended.set()
    os.close(log)

    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    decision, account = rows
    assert (decision["kind"], decision["service"], decision["verdict"]) == ("decision", "api", "allowed")
    assert (account["kind"], account["allowed"], account["down"]) == ("broker", 1, decision["down"])


def test_a_broker_that_gives_no_account_is_said_to_be_silent(tmp_path):
    # proves NEW-N2
    path = tmp_path / "log"
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with running(1, log=log) as sidecar:
        assert asked(sidecar)
        os.kill(sidecar._process, signal.SIGSTOP)
        sidecar.finish()
    os.close(log)

    (account,) = (row for row in map(json.loads, path.read_text().splitlines()) if row["kind"] == "broker")
    assert account["silent"]


def test_an_idle_broker_is_not_woken():
    # proves BROKER-01
    def switches(process: int) -> int:
        found = 0
        for task in Path(f"/proc/{process}/task").iterdir():
            lines = (task / "status").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
        return found

    with running(1) as sidecar:
        assert asked(sidecar)
        time.sleep(1)
        before = switches(sidecar._process)
        time.sleep(1)
        assert switches(sidecar._process) == before


def test_a_missing_library_is_told_with_its_remedy(monkeypatch):
    monkeypatch.setattr(broker_facts, "_places", lambda: ("/nonexistent",))
    with pytest.raises(ClaudeboxError) as raised:
        broker_facts.find_libraries()

    assert "`cryptography` for `[[secrets]]`" in str(raised.value)
    assert "scripts/libraries" in raised.value.hint
