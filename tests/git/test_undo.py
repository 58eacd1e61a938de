"""Undo: after any session the project can be put back as it was, byte for byte, and no agent reaches the snapshots."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.git.conftest import GITCONFIG, until

if TYPE_CHECKING:
    import random

    from tests.conftest import Box


def tree(root: str, *, without: tuple[str, ...] = (".git",)) -> dict[str, tuple[object, ...]]:
    """Return everything of a directory that undo promises to put back."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(root):
        if directory == root:
            names[:] = [name for name in names if name not in without]
        for name in (*names, *files, "."):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            content: object = None
            if stat.S_ISREG(status.st_mode):
                content = Path(path).read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            found[os.path.relpath(path, root)] = (status.st_mode, status.st_mtime_ns, content)
    found["."] = found["."][:1]  # stubs are made in it before the snapshot, which changes its time
    return found


def sh(box: Box, script: str) -> str:
    result = box.host("sh", "-ec", script)
    assert result.returncode == 0, result.stderr
    return result.stdout


def make_project(box: Box, *, repository: bool = True) -> Box:
    """Fill the project with one of each kind."""
    os.chown(box.base, box.account.uid, box.account.gid)
    box.write(f"{box.home}/.gitconfig", GITCONFIG)
    sh(
        box,
        "mkdir -p src/deep empty locked build nested; echo a >src/a; echo b >src/deep/b; printf '\\000\\377' >binary; "
        "ln -s src/a link; ln -s /nonexistent broken; echo run >run; chmod 750 run; echo key >key; chmod 600 key; "
        "mkfifo pipe; echo '*.o' >.gitignore; echo object >build/x.o; printf 'a\\r\\nb\\r\\n' >crlf; "
        "echo x >'name with\n line'; echo held >locked/f; chmod 555 locked; touch -d 2001-02-03 src/a; "
        "git init -q nested; cd nested; echo n >n; git add .; git commit -qm nested; echo dirty >>n",
    )
    if repository:
        sh(box, "git init -q; git add src binary link run .gitignore crlf; git commit -qm first; git branch other; "
                "echo staged >staged; git add staged; echo more >>src/deep/b; echo untracked >untracked")  # fmt: skip
    return box


@pytest.fixture
def project(box: Box) -> Box:
    """Return a box whose project is a repository with everything in it."""
    return make_project(box)


@pytest.fixture
def user_project(user_box: Box) -> Box:
    """Return the same for what does not depend on the account."""
    return make_project(user_box)


def git_state(box: Box) -> str:
    return sh(box, "git for-each-ref refs/heads refs/tags; git symbolic-ref HEAD; git ls-files -s; git status -s")


def session(box: Box, script: str, flags: tuple[str, ...] = ()) -> str:
    result = box.sh(script, flags=("--undo-keep", "10", *flags))
    assert "no snapshot" not in result.stderr, result.stderr
    return result.stderr


def undo(box: Box, *words: str, status: int = 0) -> str:
    result = box.claudebox("--undo", "-y", *words)
    assert result.returncode == status, result.stderr
    return result.stderr


DESTRUCTION = (
    "git commit -qam theirs; git switch -qc new; git branch -D other; chmod -R u+w . 2>/dev/null; "
    "find . -mindepth 1 -delete 2>/dev/null; rm -rf .git/* 2>/dev/null; mkdir -p src link; echo x >src/created; true"
)


def test_deleting_everything_is_undone(project):
    # proves UNDO-01
    before, git_before = tree(project.project), git_state(project)
    session(project, DESTRUCTION)
    after = tree(project.project)
    assert "src/a" not in after  # it was destroyed
    assert "src/created" in after

    said = undo(project)

    assert tree(project.project) == before
    assert git_state(project) == git_before
    assert said.index("deleted (") < said.index("created (")
    assert sh(project, "git fsck --full") == ""
    # The next session finds the same repository, and can be undone too.
    again = project.sh("git status -s; git branch", flags=("--undo-keep", "10"))
    assert again.stdout == sh(project, "git status -s; git branch")
    assert "nothing has changed" in project.claudebox("--changes").stdout


def test_commits_and_branches_are_undone(project):
    # proves UNDO-01
    before = git_state(project)
    session(project, "git commit -qam theirs; git branch -D other; git tag t; git switch -qc new; echo c >c; git add c")
    assert git_state(project) != before
    shown = project.claudebox("--changes").stdout
    assert "created new" in shown
    assert "deleted other" in shown

    undo(project)

    assert git_state(project) == before


def test_a_project_without_repository(box):
    # proves UNDO-01
    make_project(box, repository=False)
    before = tree(box.project, without=())
    session(box, "chmod -R u+w .; rm -rf src nested run; git init -q; echo c >c; git add c; git commit -qm c")
    assert os.path.isdir(f"{box.project}/.git")

    undo(box)

    assert tree(box.project, without=()) == before


def test_changes_shows_and_touches_nothing(user_project):
    # proves UNDO-01
    session(user_project, "rm key; echo other >run; echo n >new; chmod 644 src/a; chmod 640 src/a")
    after = tree(user_project.project)

    result = user_project.claudebox("--changes", "--patch")

    assert tree(user_project.project) == after
    for line in ("deleted (1)\n  key\n", "overwritten (2)\n  run\n  src/a (mode 0644, now 0640)\n",
                 "created (1)\n  new\n",
                 "--- a/run\n+++ b/run\n@@ -1 +1 @@\n-run\n+other\n"):  # fmt: skip
        assert line in result.stdout
    assert user_project.claudebox("--undo").returncode == 125  # nobody to ask
    assert tree(user_project.project) == after


def test_an_undo_can_be_undone_and_older_sessions_named(user_project):
    # proves UNDO-01
    start = tree(user_project.project)
    session(user_project, "echo one >one")
    middle = tree(user_project.project)
    session(user_project, "echo two >two; rm one")
    end = tree(user_project.project)
    first, second = sorted(os.listdir(Path(snapshots(user_project))))[:2]
    assert first < second

    said = undo(user_project)
    assert tree(user_project.project) == middle
    undo(user_project, said.rpartition("claudebox --undo ")[2].partition("`")[0])
    assert tree(user_project.project) == end
    undo(user_project, first.removesuffix(".snapshot"))
    assert tree(user_project.project) == start
    result = user_project.claudebox("--undo", "-y", "nonsense")
    assert result.returncode == 125
    assert "there is no snapshot `nonsense`" in result.stderr


def snapshots(box: Box) -> str:
    return str(next(Path(f"{box.home}/.claudebox/instances").iterdir()) / "undo")


def names(box: Box) -> list[str]:
    return sorted(name for name in os.listdir(snapshots(box)) if name.endswith(".snapshot"))


def test_what_is_not_kept_is_said_and_stays(user_project):
    # proves UNDO-01
    user_project.write("huge", b"h" * (2 << 20))
    user_project.write("node_modules/m", "m")
    user_project.write("cache/c", "c")
    session(user_project, "rm huge node_modules/m cache/c key", ("--undo-size", "1", "--undo-exclude", "cache"))

    result = user_project.claudebox("--undo", "-y", "--undo-size", "1", "--undo-exclude", "cache")

    assert result.returncode == 0
    assert "huge: 2 MiB, more than 1 MiB" in result.stderr
    assert "node_modules: excluded by its name" in result.stderr
    assert "cache: excluded by its name" in result.stderr
    assert not os.path.exists(f"{user_project.project}/huge")
    assert os.path.exists(f"{user_project.project}/key")
    assert os.path.isdir(f"{user_project.project}/node_modules")


def test_snapshots_are_pruned_with_their_contents(user_project):
    # proves UNDO-01
    for number in range(4):
        session(user_project, f"echo {number} >file; rm -f gone", ("--undo-keep", "2"))
        user_project.write("gone", f"content {number}")
    assert len(names(user_project)) == 2
    contents = [name for _, _, files in os.walk(f"{snapshots(user_project)}/contents") for name in files]
    assert len(contents) <= len(tree(user_project.project)) + len(tree(f"{user_project.project}/nested/.git")) + 8
    before = names(user_project)
    session(user_project, "echo off >file", ("--undo-keep", "0"))
    assert names(user_project) == before


def test_the_agent_reaches_no_snapshot(project):
    # proves UNDO-01
    session(project, "true")
    place = snapshots(project)
    name = names(project)[0]
    assert project.host("cat", f"{place}/{name}", encoding=None, errors=None).returncode == 0  # positive control

    result = project.sh(
        f"cat {place}/{name}; echo x >{place}/forged; ls {place}; find / -name '*.snapshot' 2>/dev/null"
    )

    assert name not in result.stdout
    assert not os.path.exists(f"{place}/forged")


def test_it_refuses_beside_a_session(user_project):
    # proves UNDO-01
    words = (user_project.program, "-y", "--undo-keep", "10", "--exec", "--", "sh", "-c", "echo up; read x; true")
    process = subprocess.Popen(
        words, cwd=user_project.project, env=user_project.variables(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, **user_project.account.demotion,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        result = user_project.claudebox("--undo", "-y")
        assert result.returncode == 125
        assert "a session is at work" in result.stderr
    finally:
        process.communicate(b"\n")


SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.chdir(sys.argv[1])
print("up", flush=True)
while True:
    libc.renameat2(-100, b"src", -100, b"outside", 2)
"""


def test_a_racing_link_leads_nothing_away(user_project):
    # proves UNDO-01
    box = user_project
    sh(box, "for n in $(seq 300); do echo $n >src/f$n; done; mkdir ../victim")
    session(box, "rm -f src/f*; chmod 777 src")
    sh(box, "ln -s ../victim outside")
    process = subprocess.Popen(
        ("/usr/bin/python3", "-c", SWAP, box.project), stdout=subprocess.PIPE, **box.account.demotion
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        result = box.claudebox("--undo", "-y")
    finally:
        process.kill()
        process.communicate()
    assert os.listdir(f"{box.base}/victim") == []
    assert "Traceback" not in result.stderr
    undo(box)
    assert len(os.listdir(f"{box.project}/src")) == 302


def test_kill_during_the_snapshot_and_during_undo(user_project, numbers):
    # proves UNDO-01
    box = user_project
    sh(box, "for n in $(seq 400); do echo $n >src/f$n; done")
    before = tree(box.project)
    for _ in range(5):
        interrupt(box, ("-y", "--undo-keep", "10", "--exec", "--", "true"), numbers)
    until(lambda: box.sh("true").returncode == 0)  # the state is whole
    assert tree(box.project) == before
    session(box, "rm -rf src key; echo x >created")
    name = names(box)[-1].removesuffix(".snapshot")
    for _ in range(5):
        interrupt(box, ("--undo", "-y", name), numbers)
    undo(box, name)
    assert tree(box.project) == before


def interrupt(box: Box, words: tuple[str, ...], numbers: random.Random) -> None:
    process = subprocess.Popen(  # type: ignore[call-overload]
        (box.program, *words), cwd=box.project, env=box.variables(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **box.account.demotion,
    )  # fmt: skip
    time.sleep(numbers.uniform(0.02, 0.4))
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.2)  # what it started ends with it


def test_what_changed_before_it_was_read_is_not_believed(tmp_path):
    # proves UNDO-01
    from claudebox.launch.undo_restore import compare
    from claudebox.launch.undo_scan import Scan

    (tmp_path / "early").write_text("e")
    (tmp_path / "directory").mkdir()
    time.sleep(0.1)
    released = time.time_ns()
    (tmp_path / "directory/late").write_text("l")
    before = Scan(str(tmp_path), None, None, most=1 << 20).run(lambda: released)
    (tmp_path / "directory/later").write_text("l")

    assert set(before.entries) == {".", "early", "directory"}
    assert before.late == ("directory",)
    difference = compare(before, Scan(str(tmp_path), None, None, most=1 << 20).run())
    assert not difference.created
    assert set(difference.left) == {"directory/late", "directory/later"}


STEPS = st.sampled_from(
    ("unlink", "write", "append", "chmod", "rename", "link", "directory", "touch", "same-size", "retime", "fifo")
)


@settings(max_examples=25, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.tuples(STEPS, st.integers(0, 1 << 20), st.integers(0, 1 << 20)), min_size=1, max_size=12))
def test_any_destruction_is_undone_byte_for_byte(tmp_path_factory, steps):
    # proves UNDO-01
    from claudebox.launch import undo_restore
    from claudebox.launch.git_sandbox import Tools
    from claudebox.launch.undo_scan import Scan
    from claudebox.launch.undo_store import SnapshotStore

    base = tmp_path_factory.mktemp("undo")
    root = base / "project"
    for name in ("a/b/c", "a/d", "e", "x/y/z", "f"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "hollow/deeper").mkdir(parents=True)
    (root / "link").symlink_to("a")
    (root / "e").chmod(0o640)
    store = SnapshotStore(str(base / "store"))
    before = Scan(str(root), store, None, most=1 << 20).run()
    store.write_snapshot("before", before)
    expected = tree(str(root))
    for action, first, second in steps:
        destroy(root, action, first, second)
    now = Scan(str(root), store, before, most=1 << 20).run()
    store.write_snapshot("now", now)

    problems = undo_restore.put_back(Tools("/usr/bin/bwrap"), str(base / "store"), "before", "now", str(root), ())

    assert not problems
    assert tree(str(root)) == expected


def destroy(root: Path, action: str, first: int, second: int) -> None:
    paths = sorted(path for path in root.rglob("*"))
    if not paths:
        return
    path, other = paths[first % len(paths)], paths[second % len(paths)]
    if action in ("write", "append", "same-size") and not stat.S_ISREG(path.lstat().st_mode):
        return  # a FIFO would wait for ever
    try:
        if action == "unlink":
            subprocess.run(("rm", "-rf", path), check=True)
        elif action in ("write", "append", "same-size"):
            old = path.read_text()
            path.write_text({"write": "new", "append": old + "x", "same-size": old[::-1]}[action])
        elif action == "chmod":
            path.chmod(second % 0o1000 | 0o500)
        elif action == "rename":
            path.rename(other.parent / f"moved{second}")
        elif action == "link":
            subprocess.run(("rm", "-rf", path), check=True)
            path.symlink_to(("..", "/etc", "a")[second % 3])
        elif action == "touch":
            os.utime(path, follow_symlinks=False)
        elif action == "directory":
            path.unlink()
            (path / "in").mkdir(parents=True)
        elif action == "retime":
            os.utime(path, ns=(second, second), follow_symlinks=False)
        else:
            os.mkfifo(path.parent / f"pipe{second}")
    except (OSError, UnicodeDecodeError):
        return
