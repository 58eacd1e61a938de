"""What a launch costs that can be counted: the modules that it loads and the memory that it keeps.

Milliseconds belong to bench/launch; a set of modules is the same on every machine.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.conftest import need
from tests.support.sandbox import install

PYTHON = "/usr/bin/python3"
# Modules that are part of the interpreter or cost nothing worth counting. `kernel` takes the ones with an underscore.
ALLOWED = {
    "__future__", "_ctypes", "_json", "_sha1", "_sha2", "_sha256", "_socket", "errno", "fcntl", "gc", "pwd", "resource",
    "select", "struct", "_struct", "termios", "time",
}  # fmt: skip
FORBIDDEN = {
    "argparse", "asyncio", "collections", "contextlib", "ctypes", "dataclasses", "enum", "functools", "hashlib",
    "importlib.metadata", "inspect", "json", "logging", "pathlib", "re", "selectors", "shlex", "shutil", "signal",
    "site", "socket", "ssl", "subprocess", "tempfile", "textwrap", "threading", "tokenize", "tomllib",
    "traceback", "types", "typing", "urllib",
}  # fmt: skip
_LIST = 'os.write(os.open("modules", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "\\n".join(sys.modules).encode())'


def loaded(box, *argv: str) -> set[str]:
    """Return the modules that a fresh interpreter has at the end, started as bin/claudebox starts it.

    Without arguments it does not even import claudebox.
    """
    source = os.path.join(os.path.dirname(os.path.dirname(box.program)), "src")
    launch = f"sys.path.insert(0, {source!r}); from claudebox.cli import main; main(); " if argv else ""
    result = box.host(PYTHON, "-IS", "-c", f"import os, sys; {launch}{_LIST}", *argv)
    assert result.returncode == 0, result.stderr
    return set(Path(box.project, "modules").read_text(encoding="utf-8").split("\n"))


@pytest.fixture
def launched(user_box):
    """Return the modules of a second launch; the first one also writes down answers for the client, as JSON."""
    need(os.path.exists(PYTHON), PYTHON)
    assert user_box.run("true").returncode == 0
    return loaded(user_box, "-y", "--exec", "--", "true") - loaded(user_box)


def test_a_launch_loads_little_of_the_standard_library(launched):
    foreign = {name for name in launched if name.split(".")[0] != "claudebox"}

    assert foreign <= ALLOWED, f"dear: {sorted(foreign - ALLOWED)}"


def test_a_launch_in_a_repository_loads_little_of_the_standard_library(user_box):
    need(os.path.exists(PYTHON), PYTHON)
    user_box.host("git", "init", "-q").check_returncode()
    assert user_box.run("true").returncode == 0
    found = loaded(user_box, "-y", "--exec", "--", "true") - loaded(user_box)

    assert {name for name in found if name.split(".")[0] != "claudebox"} <= ALLOWED


def test_a_launch_loads_nothing_dear(launched):
    assert not launched & FORBIDDEN


@pytest.mark.parametrize("credential", [True, False])
def test_a_session_of_a_client_loads_little_of_the_standard_library(user_box, credential):
    need(os.path.exists(PYTHON), PYTHON)
    user_box.environ["PATH"] = f"{os.path.dirname(install(user_box, 'claude', '#!/bin/sh'))}:/usr/bin:/bin"
    if credential:
        user_box.environ["ANTHROPIC_API_KEY"] = "sk-ant-" + "x" * 40
    assert user_box.claudebox("-y").returncode == 0
    found = loaded(user_box, "-y") - loaded(user_box)

    assert "claudebox.agent.report" in found
    assert {name for name in found if name.split(".")[0] != "claudebox"} <= ALLOWED


def test_the_interpreter_itself_brings_nothing_dear(user_box):
    assert not loaded(user_box) & FORBIDDEN


def test_dear_modules_are_noticed(user_box):
    # The positive control: what is off the launch path does load them.
    shown = loaded(user_box, "--explain", "--json", "--exec", "--", "true")
    assert {"json", "re", "enum"} <= shown

    assert {"textwrap", "re"} <= loaded(user_box, "--help")


def test_a_launch_does_not_load_commands_or_helpers(launched):
    folders = ("broker.", "commands", "many", "review", "agent.renewal")
    off_the_path = tuple(f"claudebox.{folder}" for folder in folders)
    rooms = {f"claudebox.broker.{room}" for room in ("facts", "plan", "sidecar")}

    assert not [name for name in launched - rooms if name.startswith(off_the_path)]


def resident(process: int) -> int:
    """Return how many kilobytes a process keeps."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not tell")


def _bare() -> int:
    """Return how many kilobytes the interpreter takes that the launcher runs in."""
    with subprocess.Popen(
        ["/usr/bin/python3", "-IS", "-c", "import os; os.write(1, b'1'); os.read(0, 1)"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.read(1) == b"1"
        return resident(process.pid)


def test_the_waiting_launcher_is_small(user_box):
    # proves E11
    argv = (user_box.program, "-y", "--exec", "--", "sh", "-c", "echo started; exec sleep 60")
    with subprocess.Popen(
        argv, cwd=user_box.project, env=user_box.variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, **user_box.account.demotion,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            time.sleep(0.2)  # whatever it does at the start, it keeps what it needs
            assert Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8").strip() in ("claudebox", "python3")
            assert resident(process.pid) <= _bare() + 8 * 1024  # 16 MB with Python 3.11; 3.14 alone takes 1.6 MB more
            threads = os.listdir(f"/proc/{process.pid}/task")
            assert len(threads) == 1
        finally:
            process.terminate()
            process.wait(20)
