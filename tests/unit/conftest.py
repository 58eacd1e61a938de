"""What the unit tests share: trees with installed programs, and real repositories."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import subprocess

import pytest
from tests.conftest import need

from claudebox.agent import facts as agent_facts
from claudebox.agent.claude import CLAUDE
from claudebox.base.errors import ClaudeboxError
from claudebox.host import programs

MACHINE = os.uname().machine
ELF = {"x86_64": 62, "aarch64": 183}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, for a minute at the most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def bounded() -> None:
        await asyncio.wait_for(pyfuncitem.obj(**given), 60)

    asyncio.run(bounded())
    return True


def elf(machine: int | None = None) -> bytes:
    """Return the head of a program for a machine, this one if none is named."""
    number = ELF[MACHINE] if machine is None else machine
    return b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + number.to_bytes(2, "little") + bytes(300)


class Tree:
    """A home, a directory of PATH and a project, to be filled with installations."""

    def __init__(self, base) -> None:
        self.base = base
        self.home, self.bin, self.project = f"{base}/home", f"{base}/bin", f"{base}/project"
        for directory in (self.home, self.bin, self.project):
            os.mkdir(directory)

    def write(self, path: str, content: bytes, *, mode: int = 0o755) -> str:
        target = os.path.join(str(self.base), path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)
        os.chmod(target, mode)
        return target

    def link(self, path: str, target: str) -> str:
        place = os.path.join(str(self.base), path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(target, place)
        return place

    def find(self, *path: str) -> agent_facts.Client:
        return agent_facts.find_client(self.home, path or (self.bin,), self.project)

    def refused(self, *path: str) -> ClaudeboxError:
        with pytest.raises(ClaudeboxError) as caught:
            self.find(*path)
        return caught.value


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return a tree in which only the test itself has installed a client."""
    in_homes = tuple(place for place in CLAUDE.places if place.startswith("~"))
    monkeypatch.setattr(agent_facts, "CLAUDE", CLAUDE.replace(places=in_homes))
    monkeypatch.setattr(programs, "_TRUSTED", (f"{tmp_path}/system",))
    return Tree(tmp_path)


def run_git(*argv: object, cwd) -> str:
    """Run git on a repository of this test alone, with no configuration of the user's."""
    environ = {
        "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip
    words = ["git", "-c", "protocol.file.allow=always", *map(str, argv)]
    return subprocess.run(words, cwd=cwd, env=environ, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def main(tmp_path):
    """Return a repository with one commit."""
    need(shutil.which("git"), "git")
    repository = tmp_path / "main"
    run_git("init", "-q", repository, cwd=tmp_path)
    run_git("commit", "-q", "--allow-empty", "-m", "first", cwd=repository)
    return repository


@pytest.fixture
def worktree(main, tmp_path):
    """Return a linked worktree of it."""
    run_git("worktree", "add", "-q", tmp_path / "tree", cwd=main)
    return tmp_path / "tree"
