"""Many agents at once, each in a copy: whatever is killed, no process and no commit is lost, and the list is true.

`CLAUDEBOX_TEST_AGENTS` says how many; `CLAUDEBOX_TEST_SEED` repeats what a failure shows.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import need
from tests.support.terminals import descendants

from claudebox.many.records import process_start

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.conftest import Box

pytestmark = pytest.mark.slow

MANY = int(os.environ.get("CLAUDEBOX_TEST_AGENTS", "3"))
SOON = 2.0  # seconds within which the list is true
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
WORK = (
    "echo up; i=0; while :; do i=$((i+1)); echo $i > work.txt; git add work.txt; git commit -qm $i; "
    f"git rev-parse HEAD >> made; sleep {MANY / 20}; done"
)
KEY = "sk-ant-api03-not-a-key-of-anybody"


@pytest.fixture
def reaper():
    """Become the parent of every process that loses its own, so that no orphan can hide."""
    prctl = ctypes.CDLL(None).prctl
    before = set(descendants(os.getpid()))
    prctl(_SUBREAPER, 1, 0, 0, 0)
    yield before
    prctl(_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def fleet(user_box, reaper, numbers):
    """Return a repository of an ordinary user and what is known of its agents."""
    need(os.path.exists("/usr/bin/tmux"), "tmux")
    fleet = Fleet(user_box, numbers)
    yield fleet
    for row in fleet.listed().values():
        user_box.claudebox("stop", row["name"])
    user_box.host("tmux", "-S", fleet.socket, "kill-server")
    reap(reaper)


def command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def begin(box, terminal, *words):
    """Start claudebox with this for its standard streams."""
    return subprocess.Popen(
        [box.program, *words], cwd=box.project, env=box.variables(), stdin=terminal, stdout=terminal, stderr=terminal,
        start_new_session=True, **box.account.demotion,
    )  # fmt: skip


def reap(before: set[int]) -> list[str]:
    """Take up the dead among what was left to us; return what still runs."""
    alive = []
    for process in set(descendants(os.getpid())) - before:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
        if process_start(process):
            place = Path(f"/proc/{process}/wchan").read_text(encoding="ascii")
            alive.append(f"{process}, in {place}: {command(process)[-120:]!r}")
    return alive


def everything(directory: str):
    """Return all that can be told of every file of a checkout."""
    found = {}
    for path in sorted(path for path in Path(directory).rglob("*") if "/.git/" not in f"{path}/"):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, path.is_file() and path.read_bytes())
    return found


class Fleet:
    """Some agents, and which of them should run."""

    def __init__(self, box: Box, numbers: random.Random) -> None:
        self.box, self.numbers = box, numbers
        self.happened: list[str] = []
        self.socket = f"{box.home}/.claudebox/run/tmux"
        self.names = [f"agent{number}" for number in range(MANY)]
        self.running: dict[str, bool] = {}
        self.mute: set[int] = set()  # launchers whose broker is gone
        for words in (("init", "-q", "-b", "main"), ("config", "user.name", "u"), ("config", "user.email", "u@u")):
            box.host("git", *words)
        box.host("git", "config", "maintenance.autoDetach", "false")  # or it writes while the project is looked at
        box.write("README", "hello\n")
        box.write(".gitignore", "made\n")
        box.host("git", "add", "-A")
        box.host("git", "commit", "-qm", "first")
        box.write("mine.txt", "not committed\n")
        box.environ["ANTHROPIC_API_KEY"] = KEY  # for the broker to hold

    def listed(self) -> dict[str, dict[str, Any]]:
        result = self.box.claudebox("sessions", "--json", cwd=self.box.base)
        assert result.returncode == 0, result.stderr
        return {row["name"]: row for row in json.loads(result.stdout)}

    def assert_true(self) -> None:
        """See that a list which is asked for two seconds after something happened is true."""
        limit = time.monotonic() + SOON
        while True:
            asked, rows = time.monotonic(), self.listed()
            said = {name: row["state"] in ("working", "waiting", "starting") for name, row in rows.items()}
            if said == self.running:
                return
            assert asked < limit, (self.happened, self.running, rows)

    def happen(self, event: Callable[[str], None], name: str) -> None:
        """Let something happen to an agent that runs; one that does not is started."""
        event = event if self.running[name] or event in (self.start, self.kill_start) else self.start
        self.happened.append(f"{event.__name__} {name}")
        event(name)

    def copies(self) -> dict[str, str]:
        """Return where the copies lie, by name."""
        paths = Path(self.box.home, ".claudebox/work").glob("*/*")
        return {path.name: str(path) for path in paths if not path.name.startswith(".")}

    def start(self, name: str) -> None:
        """Start an agent in its copy, new or there already; the last of them have a network of their own."""
        network = ("--network", "allow", "--allow-domain", "example.org") if self.names.index(name) % 4 == 3 else ()
        words = (*network, "--set", "undo_keep=0", "new", name, "--exec", "--", "sh", "-c", WORK)
        started = self.box.claudebox("-y", "--detach", *words)
        assert started.returncode == 0, started.stderr
        self.running[name] = True

    def kill_start(self, name: str) -> None:
        """Kill the command that starts an agent, at any moment; the agent may run, or not."""
        words = ("-y", "--detach", "--set", "undo_keep=0", "new", name, "--exec", "--", "sh", "-c", WORK)
        process = begin(self.box, subprocess.DEVNULL, *words)
        time.sleep(self.numbers.uniform(0, 1.5))
        process.kill()
        process.wait()
        limit = time.monotonic() + 40
        while (row := self.listed().get(name)) and row["state"] == "starting":  # until it has made up its mind
            assert time.monotonic() < limit, row
        self.running[name] = row is not None and row["state"] == "working"

    def stop(self, name: str) -> None:
        stopped = self.box.claudebox("stop", name)
        assert "ended with status 143" in stopped.stderr, stopped.stderr
        self.running[name] = False

    def launcher(self, name: str) -> int:
        return int(self.listed()[name]["process"])

    def kill_launcher(self, name: str) -> None:
        os.kill(self.launcher(name), signal.SIGKILL)
        self.running[name] = False

    def kill_broker(self, name: str) -> None:
        """Kill what speaks for an agent: the agent has less reach, and goes on."""
        launcher = self.launcher(name)
        brokers = [row for row in descendants(launcher) if b"broker import main" in command(row)]
        assert brokers or launcher in self.mute
        self.mute.add(launcher)
        for broker in brokers:
            os.kill(broker, signal.SIGKILL)

    def kill_sandbox(self, name: str) -> None:
        monitor = next(row for row in descendants(self.launcher(name)) if command(row).startswith(b"bwrap"))
        os.kill(monitor, signal.SIGKILL)
        self.running[name] = False

    def kill_tmux(self, _name: str) -> None:
        server = self.box.host("tmux", "-S", self.socket, "display-message", "-p", "#{pid}").stdout
        if server:
            os.kill(int(server), signal.SIGKILL)
        self.running = dict.fromkeys(self.running, False)

    def attach(self, name: str) -> None:
        """Look at an agent on a terminal of some size, then leave politely or not."""
        terminal, theirs = os.openpty()
        size = struct.pack("4H", self.numbers.randint(8, 60), self.numbers.randint(30, 200), 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        process = begin(self.box, theirs, "attach", name)
        os.close(theirs)
        seen = b""
        try:
            while b"up" not in seen:
                assert select.select([terminal], [], [], 20)[0], seen
                seen += os.read(terminal, 1 << 16)
            if self.numbers.random() < 0.5:
                os.write(terminal, b"\x1a")
                while b"runs on" not in seen:
                    assert select.select([terminal], [], [], 20)[0], seen
                    seen += os.read(terminal, 1 << 16)
            else:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
        finally:
            os.close(terminal)


def test_agents_that_are_killed_at_random_leave_nothing_and_lose_nothing(fleet, reaper, numbers: random.Random):
    # proves AGENT-02, AGENT-03, AGENT-05, AGENT-06, SAND-15
    box = fleet.box
    before = everything(box.project)
    for name in fleet.names:
        fleet.start(name)
    fleet.assert_true()
    events = [fleet.kill_broker, fleet.kill_launcher, fleet.kill_sandbox, fleet.kill_start, fleet.kill_tmux, fleet.stop]
    often = [*events[:4], fleet.stop, fleet.attach, fleet.attach, fleet.start, fleet.start]
    numbers.shuffle(events)
    for event in (*events, *(numbers.choice(often) for _ in range(2 * MANY - 4))):
        living = [name for name in fleet.names if fleet.running[name]]
        idle = [name for name in fleet.names if name not in living]
        if event in (fleet.start, fleet.kill_start) and not idle:
            continue
        fleet.happen(event, numbers.choice(idle if event in (fleet.start, fleet.kill_start) or not living else living))
        fleet.assert_true()
    fleet.kill_tmux("")  # which also keeps the last screens of those that have ended
    fleet.assert_true()

    limit = time.monotonic() + 30
    while left := reap(reaper):
        assert time.monotonic() < limit, left
        time.sleep(0.05)
    assert everything(box.project) == before
    made = {name: Path(copy, "made").read_text().split() for name, copy in fleet.copies().items()}
    assert sorted(made) == sorted(fleet.names)
    for name in fleet.names:
        finished = box.claudebox("-y", "finish", name)
        assert finished.returncode == 0, finished.stderr
        assert made[name]
        # Two agents that commit the same within one second have made one commit, which needs no second branch.
        assert set(made[name]) <= set(box.host("git", "rev-list", "--branches").stdout.split())
    for name in fleet.copies():  # which have something in them that was not committed
        assert "work.txt" in box.claudebox("-y", "drop", name).stdout
    assert box.host("git", "fsck").returncode == 0
    assert fleet.listed() == {}
    assert [name for name in os.listdir(box.project) if name not in (".git", ".gitignore", "README")] == ["mine.txt"]
