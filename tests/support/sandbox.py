"""Fixtures for tests of real sandboxes: compiled probes, a careless sandbox to compare with, other bwraps."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from tests.conftest import PATIENCE, Account, Box, fresh_box, need, wait_until
from tests.support import baking

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBES = Path(__file__).resolve().parent.parent / "probes"
PYTHON = "/usr/bin/python3"  # visible inside as well


class Naive(Protocol):
    """Run a program in the sandbox that a first attempt at this product would make."""

    def __call__(self, box: Box, *argv: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]: ...


class Probes(Protocol):
    """Put a probe into the project of a box and return its path."""

    def __call__(self, box: Box, name: str) -> str: ...


class Altered(Protocol):
    """Make a box run a changed copy of claudebox: another bwrap, or other text in a module."""

    def __call__(self, box: Box, *, bwrap: str = "", edits: dict[str, tuple[str, str]] | None = None) -> str: ...


class Git(Protocol):
    """Run git on the host as the account of the box, without anybody's system configuration."""

    def __call__(self, *words: str, cwd: str = "", check: bool = True) -> str: ...


@dataclass
class Session:
    """A session beside the test, which lasts as long as the file `up` is in its directory."""

    process: subprocess.Popen[str]
    up: str

    def end(self) -> str:
        """Let it end, and return what it has said."""
        if os.path.exists(self.up):
            os.unlink(self.up)
        return self.process.communicate(timeout=PATIENCE)[0]

    def kill(self) -> None:
        """Kill the launcher."""
        self.process.kill()
        self.process.wait()


class Running(Protocol):
    """Start a session that waits for its end, and then executes a script."""

    def __call__(self, box: Box, *flags: str, then: str = "true", cwd: str = "") -> Session: ...


class Background(Protocol):
    """Start a program on the host beside the test; it is gone when the test ends."""

    def __call__(self, box: Box, *argv: str, **options: object) -> subprocess.Popen[str]: ...


@pytest.fixture
def naive() -> Naive:
    """Return the positive control: everything unshared, everything of the host readable, nothing filtered."""

    def run(box: Box, *argv: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return box.host(
            "/usr/bin/bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
            "--bind", box.project, box.project, *options, "--", *argv,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def compiled() -> Iterator[str]:
    """Compile every probe once."""
    need(shutil.which("gcc"), "C compiler")
    directory = tempfile.mkdtemp(prefix="claudebox-probes-")
    os.chmod(directory, 0o755)
    for name, *flags in (("syscalls",), ("refuse",), ("shared_memory", "-lrt")):
        source = str(PROBES / f"{name}.c")
        subprocess.run(["gcc", "-O1", "-Wall", "-Werror", "-o", f"{directory}/{name}", source, *flags], check=True)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def probe(compiled: str) -> Probes:
    """Return what brings probes into a project."""

    def put(box: Box, name: str) -> str:
        source = PROBES / name if name.endswith(".py") else Path(compiled, name)
        return box.write(name, source.read_bytes(), mode=0o755)

    return put


@pytest.fixture
def altered(checkout: str) -> Iterator[Altered]:
    """Return what gives a box a changed copy of claudebox.

    The real one looks for bwrap in the system's directories first; a package build writes its path into `baked`,
    and so do we. Other edits replace a text that stands in the module exactly once.
    """
    copies: list[str] = []

    def change(box: Box, *, bwrap: str = "", edits: dict[str, tuple[str, str]] | None = None) -> str:
        base = baking.copy(checkout)
        copies.append(base)
        changes = dict(edits or {})
        if bwrap:
            changes["build_paths.py"] = (
                "TOOLS: dict[str, str] = {}",
                f"TOOLS: dict[str, str] = {{'bwrap': {bwrap!r}}}",
            )
        for module, (old, new) in changes.items():
            path = Path(base, "src/claudebox", module)
            text = path.read_text()
            assert text.count(old) == 1, f"{module} does not say {old!r} once"
            path.write_text(text.replace(old, new))
        box.program = f"{base}/bin/claudebox"
        return base

    yield change
    for base in copies:
        shutil.rmtree(base)


@pytest.fixture
def background() -> Iterator[Background]:
    """Return what starts programs beside the test."""
    started: list[subprocess.Popen[str]] = []

    def start(box: Box, *argv: str, **options: object) -> subprocess.Popen[str]:
        settings: dict[str, object] = {
            "cwd": box.project, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
            "encoding": "utf-8", "env": box.variables(options.pop("env", None)),  # type: ignore[arg-type]
            **options,
        }  # fmt: skip
        process: subprocess.Popen[str] = subprocess.Popen((*box.account.words, *argv), **settings)  # type: ignore[call-overload]
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def running(background: Background) -> Running:
    """Return what starts sessions beside the test; each has begun when it is returned."""

    def start(box: Box, *flags: str, then: str = "true", cwd: str = "") -> Session:
        where = cwd or box.project
        script = f"touch up; while test -e up; do sleep 0.02; done; {then}"
        process = background(box, box.program, "-y", *flags, "--exec", "--", "sh", "-c", script, cwd=where)
        wait_until(lambda: os.path.exists(f"{where}/up") or process.poll() is not None, "the session begins")
        assert process.poll() is None, process.communicate()
        return Session(process, f"{where}/up")

    return start


@pytest.fixture
def git(box: Box) -> Git:
    """Return what runs git on the host as the account, without anybody's configuration."""
    need(box.host("git", "--version").returncode == 0, "git")

    def run(*words: str, cwd: str = "", check: bool = True) -> str:
        result = box.host(
            "git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *words,
            cwd=cwd or box.project, env={"GIT_CONFIG_NOSYSTEM": "1"},
        )  # fmt: skip
        assert not check or result.returncode == 0, result.stderr
        return str(result.stdout)

    return run


@pytest.fixture
def committed(box: Box, git: Git) -> str:
    """Make the project a repository with one commit, of somebody who has a name."""
    box.write(f"{box.home}/.gitconfig", "[user]\n\tname = Ada Lovelace\n\temail = ada@example.org\n")
    git("init", "-q")
    box.write("file", "first\n")
    git("add", "file")
    git("commit", "-qm", "first")
    return box.project


def install(box: Box, name: str, content: str, *, mode: int = 0o755) -> str:
    """Install a program where only root can change it."""
    directory = f"{box.base}/programs"
    os.makedirs(directory, exist_ok=True)
    path = f"{directory}/{name}"
    Path(path).write_text(content)
    os.chmod(path, mode)
    return path


@contextlib.contextmanager
def listener(address: str) -> Iterator[None]:
    """Answer on a socket with a secret, as an agent of the host would."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        if not address.startswith("\0"):
            os.chmod(address, 0o666)

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.send(b"agent-secret")

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def root_box(checkout: str) -> Iterator[Box]:
    """Return a fresh box of root, for what only root can set up."""
    need(os.getuid() == 0, "privileges of root")
    yield from fresh_box(Account("root", 0, 0), checkout)
