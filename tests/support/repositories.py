"""Repositories to attack: made on the host, with a program that leaves a mark there if git runs it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import Box, need

if TYPE_CHECKING:
    import subprocess

# Newer gits keep house behind a commit, in a process of their own that would be seen here.
GITCONFIG = (
    "[maintenance]\n\tauto = false\n"
    '[user]\n\tname = n\n\temail = n@example.org\n[init]\n\tdefaultBranch = main\n[protocol "file"]\n\tallow = always\n'
)


@dataclass
class Checkout:
    """A repository with one commit, its box, and the program of an attacker."""

    box: Box

    @property
    def mark(self) -> str:
        """Return the file that exists if something ran the attacker's program on the host."""
        return f"{self.box.home}/executed"

    def sh(self, script: str, **options: object) -> str:
        """Run a script on the host, in the project, and insist that it works."""
        result = self.box.host("sh", "-ec", script, **options)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def use_git(self, where: str = "") -> bool:
        """Do on the host what a user does next, and tell whether that ran the attacker's program."""
        if os.path.exists(self.mark):
            os.unlink(self.mark)
        directory = os.path.join(self.box.project, where)
        self.box.host("sh", "-c", "git status; git commit -q --allow-empty -m next; git status", cwd=directory)
        return os.path.exists(self.mark)

    def save(self) -> None:
        """Keep a copy of the project and of what lies beside it."""
        self.sh("mkdir saved; for part in project tree sub; do test ! -e $part || cp -a $part saved; done",
                cwd=self.box.base)  # fmt: skip

    def restore(self) -> None:
        """Put that copy back."""
        self.sh("for part in project tree sub; do rm -rf $part; done; mv saved/* .", cwd=self.box.base)

    def attack(self, script: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run an attack inside."""
        result = self.box.sh(script, flags=flags)
        assert "writes " in result.stderr, result.stderr
        assert "error:" not in result.stderr.split("writes ")[0]
        return result


def make(box: Box) -> Checkout:
    """Make the repository in the project of the box."""
    need(shutil.which("git"), "git")
    os.chown(box.base, box.account.uid, box.account.gid)
    box.write(f"{box.home}/.gitconfig", GITCONFIG)
    made = Checkout(box)
    box.write("evil.sh", f"#!/bin/sh\ntouch {made.mark}\n", mode=0o755)
    made.sh("git init -q; echo a >a; git add a evil.sh; git commit -qm first; git clean -fdq")
    return made


def snapshot(directory: str) -> dict[str, object]:
    """Return what is in a directory: contents, links and modes."""
    found: dict[str, object] = {}
    for path in sorted(Path(directory).rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_ino, content)
    return found
