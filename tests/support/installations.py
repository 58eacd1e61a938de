"""Trees with installed programs, for tests that search them."""

from __future__ import annotations

import os

import pytest

from claudebox.agent import facts as agent_facts
from claudebox.agent.claude import CLAUDE
from claudebox.base.errors import ClaudeboxError
from claudebox.host import programs

MACHINE = os.uname().machine
ELF = {"x86_64": 62, "aarch64": 183}


def elf(machine: int | None = None) -> bytes:
    """Return the head of a program for a machine, this one if none is named."""
    number = ELF[MACHINE] if machine is None else machine
    return b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + number.to_bytes(2, "little") + bytes(300)


class Tree:
    """A home, a directory of PATH and a project, to be filled with installations."""

    def __init__(self, base, agent) -> None:
        self.base, self.agent = base, agent
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
        return agent_facts.find_client(self.agent, self.home, path or (self.bin,), self.project)

    def refused(self, *path: str) -> ClaudeboxError:
        with pytest.raises(ClaudeboxError) as caught:
            self.find(*path)
        return caught.value


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return a tree in which only the test itself has installed a client."""
    in_homes = tuple(place for place in CLAUDE.places if place.startswith("~"))
    monkeypatch.setattr(programs, "_TRUSTED", (f"{tmp_path}/system",))
    return Tree(tmp_path, CLAUDE.replace(places=in_homes))
