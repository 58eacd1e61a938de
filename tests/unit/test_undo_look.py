"""A project that is looked at by several processes is the same project."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from claudebox.launch import process
from claudebox.plan.model import OwnGit
from claudebox.undo import look as looking
from claudebox.undo import repositories
from claudebox.undo.git_index import Seed
from claudebox.undo.look import Scan
from claudebox.undo.store import SnapshotStore


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a project with something of every kind, wide and deep."""
    root = tmp_path / "p"
    for number in range(40):
        folder = root / f"d{number % 7}" / f"e{number}" / "x"
        folder.mkdir(parents=True)
        (folder / "f").write_text(f"{number}")
        (folder.parent / "link").symlink_to("x/f")
        (folder / b"\xff".decode("utf-8", "surrogateescape")).write_text("")
    os.mkfifo(root / "d1/fifo")
    os.setxattr(root / "d2/e2", "user.a", b"b")
    (root / "d3/large").write_bytes(bytes(3000))
    (root / "excluded").mkdir()
    (root / "d4/e4/excluded").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(root / "d5/socket"))
    (root / "d6/empty").mkdir()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    return str(root)


def plain(snapshot):
    """Return everything that is known of each path."""
    rows = snapshot.entries().items()
    return {path: tuple(getattr(entry, name) for name in entry.__slots__) for path, entry in rows}


def look(project, known, large, monkeypatch, seeds=()):
    monkeypatch.setattr(looking, "_ALONE", large)
    scan = Scan(project, None, known, most=2000, names=("excluded",), skipped=(f"{project}/.git",), seeds=seeds)
    left = scan.look(lambda: 0)
    found = scan.snapshot()
    return plain(found), found.left_out, scan.size, left, found


@pytest.mark.parametrize("failing", [False, True])
def test_several_processes_see_what_one_sees(project, monkeypatch, failing):
    # proves UNDO-01
    alone = look(project, None, 1 << 30, monkeypatch)
    forked = []
    fork = process.fork

    def counting(*words):
        forked.append(words)
        return fork(*words)

    if failing:  # as if it had been killed
        monkeypatch.setattr(looking.Look, "_help", lambda *_: os._exit(1))
    monkeypatch.setattr(process, "fork", counting)

    for known in (None, alone[4].replace(began=alone[4].began + 10**10)):
        assert look(project, known, 0, monkeypatch)[:4] == alone[:4]
    assert len(forked) == 4
    assert {"d3/large", "d5/socket", "excluded", "d4/e4/excluded"} == set(alone[1])
    os.unlink(f"{project}/d0/e0/x/f")
    changed = look(project, alone[4].replace(began=alone[4].began + 10**10), 0, monkeypatch)
    assert set(alone[0]) - set(changed[0]) == {"d0/e0/x/f"}


def test_several_processes_know_what_git_knows(project, monkeypatch, tmp_path):
    # proves UNDO-01
    script = "git init -q; touch -d '1 hour ago' $(find . -name f); git add d*; touch -d '1 minute' .git/index"
    subprocess.run(("sh", "-ec", script), cwd=project, check=True)
    own = OwnGit("n", str(tmp_path), f"{project}/.git", f"{project}/.git", None, f"{project}/.git", project)

    def seeded(large):
        seed = Seed(own, project, *repositories.read_index(f"{project}/.git"))
        monkeypatch.setattr(looking, "_ALONE", large)
        store = SnapshotStore(str(tmp_path / f"store{large}"))
        scan = Scan(project, store.contents, None, most=2000, skipped=(f"{project}/.git",), seeds=(seed,))
        assert scan.look(lambda: 0)
        names = sorted((folder.path, number, seed.name_of(place)) for folder, number, seed, place in scan._seeded)
        scan.complete(lambda: 0, lambda *_: ())
        return names, plain(scan.snapshot())

    alone, together = seeded(1 << 30), seeded(0)

    assert together == alone
    assert len(alone[0]) >= 40
