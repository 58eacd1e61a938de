"""Undo: after any session the project can be put back as it was, byte for byte, and no agent reaches the snapshots."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import PATIENCE
from tests.git.conftest import GITCONFIG, until

from claudebox.base.errors import ClaudeboxError
from claudebox.git.sandbox import Tools
from claudebox.report import changes as report_changes
from claudebox.settings.records import UndoRequest
from claudebox.undo import restore, snapshot
from claudebox.undo import store as undo_store
from claudebox.undo.comparison import Comparison
from claudebox.undo.manifest import LeftOut, Scan
from claudebox.undo.snapshot import CutOffError
from claudebox.undo.store import DATABASE, SnapshotStore

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.conftest import Box

    from claudebox.undo.manifest import Snapshot


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
            found[os.path.relpath(path, root)] = (status.st_mode, (status.st_uid, status.st_gid), content)
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
        "echo '*.o' >.gitignore; echo object >build/x.o; printf 'a\\r\\nb\\r\\n' >crlf; "
        "echo x >'name with\n line'; echo held >locked/f; chmod 555 locked; touch -d 2001-02-03 src/a; "
        "cp crlf second; git init -q nested; cd nested; echo n >n; git add .; git commit -qm nested; echo dirty >>n",
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
    result = box.sh(script, flags=("--set", "undo_keep=10", *flags))
    assert "no snapshot" not in result.stderr, result.stderr
    return result.stderr


def undo(box: Box, *words: str, status: int = 0) -> str:
    result = box.claudebox("undo", "-y", *words)
    assert result.returncode == status, result.stderr
    return result.stderr


DESTRUCTION = (
    "git commit -qam theirs; git switch -qc new; git branch -D other; chmod -R u+w . 2>/dev/null; "
    "find . -mindepth 1 -delete 2>/dev/null; rm -rf .git/* 2>/dev/null; mkdir -p src link; echo x >src/created; true"
)


def test_deleting_everything_is_undone(project):
    # proves UNDO-01
    before, git_before = tree(project.project), git_state(project)
    time_before = os.stat(f"{project.project}/src/a").st_mtime_ns
    session(project, DESTRUCTION)
    after = tree(project.project)
    assert "src/a" not in after  # it was destroyed
    assert "src/created" in after

    said = undo(project)

    assert tree(project.project) == before
    assert os.stat(f"{project.project}/src/a").st_mtime_ns == time_before
    assert git_state(project) == git_before
    assert said.index("deleted (") < said.index("created (")
    assert sh(project, "git fsck --full") == ""
    # The next session finds the same repository, and can be undone too.
    again = project.sh("git status -s; git branch", flags=("--set", "undo_keep=10"))
    assert again.stdout == sh(project, "git status -s; git branch")
    assert "the session changed nothing" in project.claudebox("changes").stdout


def test_commits_and_branches_are_undone(project):
    # proves UNDO-01
    before = git_state(project)
    session(project, "git commit -qam theirs; git branch -D other; git tag t; git switch -qc new; echo c >c; git add c")
    assert git_state(project) != before
    shown = project.claudebox("changes").stdout
    assert "created new" in shown
    assert "deleted other" in shown

    undo(project)

    assert git_state(project) == before


def test_the_first_commit_of_a_repository_is_undone(user_box):
    # proves UNDO-01
    sh(user_box, "git init -q -b main; echo a >a")
    session(user_box, "git add a; git -c user.name=a -c user.email=a@example.org commit -qm first")
    assert "created main" in user_box.claudebox("changes").stdout

    undo(user_box)

    assert sh(user_box, "git branch; git status --porcelain") == "?? a\n"


def big(box: Box) -> Path:
    path = Path(box.project, "big.iso")
    path.write_bytes(b"i" * (2 << 20))
    os.chown(path, box.account.uid, box.account.gid)
    return path


@pytest.mark.parametrize("where", ["y", "new/deep/y", "src/y"])
def test_what_was_only_moved_goes_back_though_nobody_keeps_it(user_project, where):
    # proves UNDO-02, NEW-E6
    path = big(user_project)
    number, before = path.stat().st_ino, tree(user_project.project)
    session(user_project, f"mkdir -p new/deep; mv big.iso {where}", ("--set", "undo_size=1"))
    assert not path.exists()
    shown = user_project.claudebox("changes").stdout
    assert f"{where} (was big.iso)" in shown

    undo(user_project)

    assert path.stat().st_ino == number, "the same file, not a copy"
    assert tree(user_project.project) == before


def test_a_directory_that_was_moved_goes_back_with_what_is_not_kept(user_project):
    # proves UNDO-02, NEW-E6
    sh(user_project, "mkdir -p app/node_modules/m; echo m >app/node_modules/m/m; echo a >app/a")
    before = tree(user_project.project)
    session(user_project, "mv app lib; echo b >lib/b; echo other >lib/a; mv src/deep elsewhere")

    undo(user_project)

    assert tree(user_project.project) == before


def test_nothing_goes_that_could_not_be_brought_back(user_project):
    # proves UNDO-02, NEW-E6
    path = big(user_project)
    number = path.stat().st_ino
    session(user_project, "mv big.iso y; echo more >>y; echo x >big.iso; head -c 3000000 /dev/zero >made; rm key",
            ("--set", "undo_size=1"))  # fmt: skip

    said = undo(user_project, "--set", "undo_size=1", status=125)

    assert Path(user_project.project, "y").stat().st_ino == number
    assert Path(user_project.project, "made").stat().st_size == 3000000
    assert Path(user_project.project, "key").exists()
    for name in ("y", "made", "big.iso"):
        assert f"not restored: {name}: " in said


def test_files_that_took_the_inodes_of_what_is_not_kept_go(user_project):
    # proves UNDO-02
    sh(user_project, "mkdir -p node_modules/a; for i in $(seq 99); do echo $i >node_modules/a/$i; done")
    numbers = {path.stat().st_ino for path in Path(user_project.project, "node_modules/a").iterdir()}
    session(user_project, "mv node_modules/a/1 moved; rm -r node_modules; mkdir new; cd new; "
            "for i in $(seq 99); do echo $i >$i; done")  # fmt: skip
    if not numbers & {path.stat().st_ino for path in Path(user_project.project, "new").iterdir()}:
        pytest.skip("this file system does not reuse inodes")

    undo(user_project, status=125)

    assert not Path(user_project.project, "new").exists()
    assert Path(user_project.project, "moved").read_text() == "1\n", "it is kept nowhere"


LATER = (
    "echo mine >>notes; echo mine >mine; mkdir -p made/own; echo mine >made/own/f; rm crlf second; chmod 711 src; "
    "git branch later; git tag mark"
)


def test_what_the_user_did_since_stays_and_is_named(user_project):
    # proves UNDO-02, NEW-E7
    box = user_project
    sh(box, "echo notes >notes")
    session(box, "echo agent >agent; mkdir made; echo x >made/agent; rm key; echo other >run; git branch theirs")
    sh(box, LATER)
    shown = box.claudebox("changes").stdout
    first, _, since = shown.partition("changed since the session, stays as it is\n")

    said = undo(box)

    for name in ("notes", "mine", "made/own", "crlf", "src", "created later"):
        assert name in since, name
        assert f"  {name}\n" not in first, name
    for name in ("agent", "key", "run", "created theirs"):
        assert name in first
    assert Path(box.project, "notes").read_text() == "notes\nmine\n"
    assert Path(box.project, "mine").read_text() == Path(box.project, "made/own/f").read_text() == "mine\n"
    assert not Path(box.project, "crlf").exists()
    assert stat.S_IMODE(os.stat(f"{box.project}/src").st_mode) == 0o711
    assert Path(box.project, "run").read_text() == "run\n"
    assert Path(box.project, "key").exists()
    assert not Path(box.project, "agent").exists()
    assert not Path(box.project, "made/agent").exists()
    assert sh(box, "git for-each-ref --format '%(refname:short)'").split() == ["later", "main", "other", "mark"]
    assert "made: something in it stays" in said

    again = said.rpartition("claudebox undo ")[2].partition("`")[0]
    sh(box, "echo still >still; git branch still")
    undo(box, again)

    assert Path(box.project, "agent").read_text() == "agent\n"
    assert Path(box.project, "run").read_text() == "other\n"
    assert Path(box.project, "still").exists()
    assert set(sh(box, "git for-each-ref --format '%(refname:short)'").split()) == {
        "later", "main", "other", "mark", "theirs", "still",
    }  # fmt: skip


def test_what_was_changed_twice_stays_and_is_named(user_project):
    # proves UNDO-02, NEW-E7
    box = user_project
    session(box, "echo agent >run; echo agent >key; git commit -qam theirs")
    sh(box, "echo mine >>run; git commit -q --allow-empty -m mine; git status >/dev/null")
    tip = sh(box, "git rev-parse HEAD")

    said = undo(box, status=125)

    assert Path(box.project, "run").read_text() == "agent\nmine\n"
    assert Path(box.project, "key").read_text() == "key\n"
    assert sh(box, "git rev-parse HEAD") == tip
    assert "changed again after the session: run\n" in said
    assert "changed again after the session: refs/heads/main\n" in said


def answer_after(box: Box, script: str, *answers: str) -> tuple[str, int]:
    """Undo at a terminal, and do something else while the first question stands; return what was said, and status."""
    import pty
    import select

    child, terminal = pty.openpty()
    process = subprocess.Popen(  # type: ignore[call-overload]
        ("setsid", "-c", box.program, "undo"), cwd=box.project, env=box.variables(), stdin=terminal, stdout=terminal,
        stderr=terminal, **box.account.demotion,
    )  # fmt: skip
    os.close(terminal)
    said, waiting, limit = b"", list(answers), time.monotonic() + 60
    while time.monotonic() < limit:
        if select.select([child], [], [], 1)[0]:
            try:
                said += os.read(child, 4096)
            except OSError:  # the other side is closed
                break
        if waiting and said.endswith(b"[y/N] "):
            if len(waiting) == len(answers):
                sh(box, script)
            os.write(child, f"{waiting.pop(0)}\n".encode())
    os.close(child)
    return said.decode(), process.wait(60)


@pytest.mark.parametrize("looked", [True, False])
def test_what_is_written_while_the_question_stands_stays(user_project, looked):
    # proves UNDO-02
    box, root = user_project, Path(user_project.project)
    sh(box, "echo v1 >f; echo v1 >g")
    session(box, "echo v2 >f; echo v2 >g; echo n >new.txt; mkdir d; echo n >d/n2; echo n >d/n3; mv key moved")
    if not looked:
        for path in Path(snapshots(box)).glob("*.end"):
            path.unlink()

    said, status = answer_after(
        box, "echo mine >f; echo mine >new.txt; echo mine >d/n2; rm moved; echo mine >moved; git branch mine", "y"
    )

    assert status == 125, said
    for name in ("f", "new.txt", "d/n2", "moved"):
        assert (root / name).read_text() == "mine\n", name
        assert f" {name}: " in said.partition("[y/N] ")[2], name
    assert (root / "g").read_text() == "v1\n"
    assert not (root / "d/n3").exists()
    assert "mine" in sh(box, "git branch")
    # Nor does an undo of the undo touch what came meanwhile.
    undo(box, said.rpartition("claudebox undo ")[2].partition("`")[0])
    assert (root / "f").read_text() == "mine\n"
    assert (root / "g").read_text() == "v2\n"


def test_what_changes_after_the_last_look_stays(tmp_path):
    # proves UNDO-02
    root, store = tmp_path / "project", SnapshotStore(str(tmp_path / "store"))
    root.mkdir()
    names = ("over", "back", "other", "moved", "deleted", "link")
    for name in names:
        (root / name).write_text(f"{name} of then")
    before = look(root, store)
    store.write_snapshot("s", before)
    for name in ("over", "back", "other"):
        (root / name).write_text("agent")
    (root / "new").write_text("agent")
    (root / "gone").write_text("agent")
    (root / "deleted").unlink()
    (root / "link").unlink()
    (root / "link").symlink_to("over")
    (root / "moved").rename(root / "elsewhere")
    now = look(root, store, before)
    comparison = Comparison(before, None, now)
    mine = ("over", "new", "elsewhere", "deleted", "link")
    (root / "link").unlink()
    for name in mine:
        (root / name).write_text("mine")
    (root / "other").unlink()

    problems = restore._Restoring(store, comparison, str(root)).run()

    assert {name: (root / name).read_text() for name in mine} == dict.fromkeys(mine, "mine")
    assert problems.keys() == {"over", "new", "moved", "deleted", "link", "other"}
    assert not (root / "other").exists()
    assert (root / "back").read_text() == "back of then"
    assert not (root / "gone").exists()


def test_branch_and_index_go_back_together_or_not_at_all(user_project):
    # proves UNDO-02
    box = user_project
    session(box, "echo evil >src/a; git commit -qam evil; git branch theirs")
    tip = sh(box, "git rev-parse HEAD")
    sh(box, "echo mine >m; git add m")

    said = undo(box, status=125)

    assert sh(box, "git rev-parse HEAD") == tip
    for name in ("refs/heads/main", "index"):
        assert f"changed again after the session: {name}\n" in said
    assert sh(box, "git branch --list theirs") == ""
    sh(box, "git commit -qm mine")
    assert sh(box, "git diff --name-only HEAD~ HEAD") == "m\n"


def test_a_held_index_leaves_the_branch_where_it_is(user_project):
    # proves UNDO-02
    box = user_project
    session(box, "echo evil >src/a; git commit -qam evil; git switch -qc new")
    before = sh(box, "git rev-parse HEAD main new; git symbolic-ref HEAD; git ls-files -s")
    sh(box, "touch .git/index.lock")

    said = undo(box, status=125)

    sh(box, "rm .git/index.lock")
    assert sh(box, "git rev-parse HEAD main new; git symbolic-ref HEAD; git ls-files -s") == before
    for name in ("refs/heads/main", "HEAD", "index"):
        assert f"not taken back: {name}: " in said


def test_a_link_to_where_a_directory_was_moved_is_undone(user_project):
    # proves UNDO-02
    before = tree(user_project.project)
    session(user_project, "mv src lib; ln -s lib src")

    undo(user_project)

    assert tree(user_project.project) == before


def test_a_file_with_the_number_of_one_that_was_moved_stays(tmp_path):
    # proves UNDO-02
    root, store = tmp_path / "project", SnapshotStore(str(tmp_path / "store"))
    root.mkdir()
    (root / "a").write_text("agent")
    looks = [look(root, store)]
    (root / "a").rename(root / "b")
    looks.append(look(root, store))
    (root / "b").write_text("notes")  # in the same inode, as a new file can be
    looks.append(look(root, store))

    comparison = Comparison(*looks)

    assert not comparison.moves
    assert not comparison.removed
    assert comparison.made == ["a"]
    assert comparison.touched_twice == ["b"]


def test_a_look_at_the_status_is_no_change_of_the_index(user_project):
    # proves UNDO-02
    before = git_state(user_project)
    session(user_project, "git commit -qam theirs; echo c >c; git add c")
    sh(user_project, "touch binary; git status; git update-index --refresh || true")

    undo(user_project)

    assert git_state(user_project) == before


def test_a_checkout_of_the_user_since_stays(user_project):
    # proves UNDO-02
    session(user_project, "git commit -qam theirs; git switch -qc new; echo c >c; git add c")
    sh(user_project, "git stash -q; git switch -q other; echo mine >>src/a; git add src/a")
    index = sh(user_project, "git ls-files -s")

    said = undo(user_project, status=125)

    assert sh(user_project, "git symbolic-ref HEAD") == "refs/heads/other\n"
    assert sh(user_project, "git ls-files -s") == index
    assert "again after the session: HEAD\n" in said
    assert "again after the session: index\n" in said


def test_how_far_an_undo_is_is_said(tmp_path, capfd):
    # proves UNDO-02
    import json

    root, store = tmp_path / "project", SnapshotStore(str(tmp_path / "store"))
    root.mkdir()
    for number in range(20):
        (root / f"f{number}").write_text(f"{number}")
    before = look(root, store)
    store.write_snapshot("s", before)
    for number in range(20):
        (root / f"f{number}").unlink()
    now = look(root, store, before)
    restoring = restore._Restoring(store, Comparison(before, None, now), str(root))
    restoring._said -= 2  # as if it had taken so long

    assert restoring.run() == {}

    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(rows) == 1
    assert rows[0][0] < 20 <= rows[0][1]


def test_a_large_content_that_is_known_is_not_written_again(tmp_path):
    # proves UNDO-01
    content, sizes, name = os.urandom(3 << 20), [], b""
    for _ in range(2):
        store = SnapshotStore(str(tmp_path))
        name = store.keep(content)
        store.save()
        sizes.append(database(tmp_path).stat().st_size)
    assert sizes[0] == sizes[1]
    assert SnapshotStore(str(tmp_path)).read_content(name) == content


def test_the_newest_is_kept_whatever_the_clock_says(user_project):
    # proves NEW-R5
    box = user_project
    for name in ("20990101T000000.000Z-x-1", "20990102T000000.000Z-x-1"):  # as if the clock had been ahead
        session(box, "echo ahead >run", ("--set", "undo_keep=2"))
        change(box, "UPDATE session SET name = ? WHERE name = ?", name, newest(box))
    sh(box, "echo run >run")
    session(box, "rm key", ("--set", "undo_keep=2"))
    assert len(names(box)) == 2
    assert "2099" not in newest(box)

    undo(box)

    assert Path(box.project, "key").exists()
    assert Path(box.project, "run").read_text() == "run\n"


def test_a_snapshot_of_another_version_is_said_to_be_so(user_project):
    # proves NEW-R9
    box = user_project
    session(box, "rm key")
    change(box, "PRAGMA user_version = 9")
    later = box.claudebox("undo", "-y")
    assert later.returncode == 125
    assert "are of a later version of claudebox" in later.stderr
    change(box, "PRAGMA user_version = 4")
    former = Path(snapshots(box), "00000001.x.start")
    former.write_bytes(b"of 0.2.0")

    session(box, "echo new >new")  # what cannot be read makes room

    assert not former.exists()
    undo(box)
    assert not Path(box.project, "new").exists()
    assert not Path(box.project, "key").exists()


def test_a_damaged_database_is_said_to_be_so(user_project):
    # proves UNDO-01
    session(user_project, "rm key")
    database(snapshots(user_project)).write_bytes(b"damaged" * 1000)

    result = user_project.claudebox("undo", "-y")

    assert result.returncode == 125
    assert "the snapshots in " in result.stderr
    assert "Traceback" not in result.stderr
    assert "no snapshot of this session" in user_project.sh("true", flags=("--set", "undo_keep=10")).stderr


def test_a_database_that_cannot_be_opened_is_said_to_be_so(user_project):
    # proves UNDO-01, END-01
    session(user_project, "rm key")
    place = database(snapshots(user_project))
    place.unlink()
    place.mkdir()

    result = user_project.claudebox("undo", "-y")
    ended = user_project.sh(
        "mkdir n && git init -q n && touch n/.git/hooks/pre-commit", flags=("--set", "undo_keep=10")
    )

    assert result.returncode == 125
    assert "the snapshots in " in result.stderr
    assert "Traceback" not in result.stderr
    assert ended.returncode == 0
    assert "n/.git" in ended.stderr


@pytest.mark.parametrize("damage", ["printf 'DIRC\\0\\0\\0\\2\\377\\377\\377\\377x'", "head -c 100 .git/index"])
def test_a_damaged_index_prevents_no_snapshot(user_project, damage):
    # proves NEW-R9
    sh(user_project, f"{damage} >../damaged; cp ../damaged .git/index")
    session(user_project, "rm key")

    undo(user_project)

    assert Path(user_project.project, "key").exists()


def test_a_broken_configuration_prevents_no_undo(user_project):
    # proves NEW-R9
    session(user_project, "rm key")
    user_project.write(f"{user_project.home}/.claudebox/config.toml", "broken = [")
    assert "key" in user_project.claudebox("changes").stdout

    said = undo(user_project)

    assert "config.toml" in said
    assert Path(user_project.project, "key").exists()


def test_sessions_beside_each_other_are_told_apart_as_far_as_that_can_be(user_project):
    # proves UNDO-02
    box = user_project
    words = (box.program, "-y", "--set", "undo_keep=10", "--exec", "--", "sh", "-c", "echo up; read x; echo one >one")
    process = subprocess.Popen(
        words, cwd=box.project, env=box.variables(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, **box.account.demotion,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    beside = box.sh("echo two >two", flags=("--set", "undo_keep=10"))
    meanwhile = box.claudebox("changes").stdout
    process.communicate(b"\n")
    if "too old" in beside.stderr:
        pytest.skip("this bwrap builds no sandbox beside another")
    first, second = names(box)
    assert f"{first.partition('-')[0]} may have run here at the same time" in meanwhile

    shown = box.claudebox("changes", first).stdout
    assert f"{second.partition('-')[0]} ran here at the same time" in shown
    undo(box, second)

    assert not Path(box.project, "two").exists()
    assert Path(box.project, "one").exists()
    undo(box, first)
    assert not Path(box.project, "one").exists()


def test_a_project_without_repository(box):
    # proves UNDO-01
    make_project(box, repository=False)
    before = tree(box.project, without=())
    session(box, "chmod -R u+w .; rm -rf src nested run; git init -q; echo c >c; git add c; git commit -qm c; "
                 "chmod 0 empty")  # fmt: skip
    assert os.path.isdir(f"{box.project}/.git")

    undo(box)

    assert tree(box.project, without=()) == before


def test_changes_shows_and_touches_nothing(user_project):
    # proves UNDO-01
    session(user_project, "rm key; echo other >run; echo n >new; chmod 644 src/a; chmod 640 src/a")
    after = tree(user_project.project)

    result = user_project.claudebox("changes", "--patch")

    assert tree(user_project.project) == after
    for line in ("deleted (1)\n  key\n", "changed (2)\n  run\n  src/a (mode 0644, now 0640)\n",
                 "created (1)\n  new\n",
                 "--- a/run\n+++ b/run\n@@ -1 +1 @@\n-run\n+other\n"):  # fmt: skip
        assert line in result.stdout
    assert user_project.claudebox("undo").returncode == 125  # nobody to ask
    assert tree(user_project.project) == after


def test_a_time_that_no_record_holds_stops_nothing(user_project):
    # proves UNDO-01
    sh(user_project, "mkdir -p odd; echo old >odd/old; touch -d 2400-01-01 odd/old")
    start = tree(user_project.project)
    session(user_project, "echo x >new; touch -d 2400-01-01 new odd; echo y >odd/old; echo z >odd/more")

    undo(user_project)

    assert tree(user_project.project).keys() == start.keys()
    assert Path(user_project.project, "odd/old").read_text() == "old\n"


def test_an_undo_can_be_undone_and_older_sessions_named(user_project):
    # proves UNDO-01, UNDO-02
    start = tree(user_project.project)
    session(user_project, "echo one >one; echo x >key")
    middle = tree(user_project.project)
    session(user_project, "echo two >two; rm one")
    end = tree(user_project.project)
    first, second = names(user_project)

    said = undo(user_project)
    assert tree(user_project.project) == middle
    undo(user_project, said.rpartition("claudebox undo ")[2].partition("`")[0])
    assert tree(user_project.project) == end
    undo(user_project, first)  # what the second did stays
    assert Path(user_project.project, "key").read_text() == "key\n"
    assert Path(user_project.project, "two").exists()
    undo(user_project, second)
    assert tree(user_project.project).keys() == {*start, "one"}, "one is what the second took away"
    result = user_project.claudebox("undo", "-y", "nonsense")
    assert result.returncode == 125
    assert "`nonsense`" in result.stderr
    sh(user_project, "git worktree add -q ../tree other")
    beside = user_project.claudebox("changes", cwd=f"{user_project.base}/tree")
    assert beside.returncode == 125
    assert f"there are some of `{user_project.project}`: change to that directory" in beside.stderr


def look(root: Path, store: SnapshotStore | None = None, known: Snapshot | None = None) -> Snapshot:
    """Return what a directory holds now."""
    return Scan(str(root), store, known, most=64 << 20).run()


def snapshots(box: Box) -> str:
    return str(next(Path(f"{box.home}/.claudebox/instances").iterdir()) / "undo")


def names(box: Box) -> list[str]:
    """Return how `claudebox undo` calls the sessions, oldest first."""
    store = SnapshotStore(snapshots(box), writing=False)
    try:
        return store.names()
    finally:
        store.close()


def newest(box: Box) -> str:
    return names(box)[-1]


def database(directory: Path | str) -> Path:
    return Path(directory, DATABASE)


def change(box: Box, words: str, *values: str) -> None:
    """Change the database as its owner."""
    import sqlite3

    with sqlite3.connect(database(snapshots(box))) as found:
        found.execute(words, values)
    found.close()


def test_what_is_not_kept_is_said_and_stays(user_project):
    # proves UNDO-01, NEW-R10
    user_project.write("huge", b"h" * (2 << 20))
    os.mkfifo(f"{user_project.project}/pipe")
    user_project.write("node_modules/m", "m")
    user_project.write("cache/c", "c")
    user_project.write("data/disk.iso", "i")
    user_project.write("data/kept", "k")
    user_project.write(f"{user_project.base}/beside/b", "b")
    flags = ("--set", "undo_size=1", "--set", "undo_exclude=cache", "--set", "undo_exclude=*.iso")
    beside = ("--mount-rw", f"{user_project.base}/beside")
    gone = f"huge pipe node_modules/m cache/c key data/* {user_project.base}/beside/b"
    session(user_project, f"rm {gone}", flags + beside)

    result = user_project.claudebox("undo", "-y")

    assert result.returncode == 125, "a file is gone"
    assert "not restored: huge: 2 MiB, more than 1 MiB" in result.stderr
    assert "not restored: pipe: a pipe, a socket or a device" in result.stderr
    assert "the rest of what the session did" in result.stderr
    assert "node_modules: excluded by its name (changes in it: " in result.stderr
    assert "cache: excluded by its name (changes in it: " in result.stderr
    assert "data/disk.iso: excluded by its name" in result.stderr
    assert f"{user_project.base}/beside: let in with `--mount-rw`: nothing in it is kept" in result.stderr
    assert os.listdir(f"{user_project.project}/data") == ["kept"]
    assert not os.path.exists(f"{user_project.project}/huge")
    assert os.path.exists(f"{user_project.project}/key")
    assert os.path.isdir(f"{user_project.project}/node_modules")


def test_what_the_snapshot_did_not_reach_is_not_said_to_be_as_it_was(box):
    # proves UNDO-01
    make_project(box)
    session(box, "echo changed >key; echo changed >run")
    store = SnapshotStore(snapshots(box))
    (name,) = store.names()
    before = store.read_snapshot(name)
    late = {**before.left_out, "key": LeftOut("late", "it was changed before the snapshot reached it")}
    store.write_snapshot(name, before.replace(left_out=late))
    for path in Path(snapshots(box)).rglob("*"):
        os.chown(path, box.account.uid, box.account.gid)

    said = undo(box, status=125)

    assert "key: it was changed before the snapshot reached it" in said
    assert "what changed before the snapshot reached it stays as it is (1, named by" in said
    assert "took back the rest of what the session did" in said
    assert Path(box.project, "run").read_text() == "run\n"


def test_snapshots_are_pruned_with_their_contents(user_project):
    # proves UNDO-01
    for number in range(8):
        user_project.write("gone", f"content {number}")
        session(user_project, f"echo {number} >file; rm -f gone", ("--set", "undo_keep=2"))
    assert len(names(user_project)) == 2
    before = names(user_project)
    session(user_project, "echo off >file", ("--set", "undo_keep=0"))
    assert names(user_project) == before
    undo(user_project)
    assert Path(f"{user_project.project}/gone").read_text() == "content 7"


def test_sessions_that_changed_nothing_take_no_place(user_project):
    # proves UNDO-01
    session(user_project, "echo agent >file", ("--set", "undo_keep=2"))
    (changing,) = names(user_project)
    for _ in range(3):
        session(user_project, "cat file", ("--set", "undo_keep=2"))
        assert changing in names(user_project)
    assert len(names(user_project)) == 2
    assert "changed nothing" in user_project.claudebox("changes").stdout
    assert f"`claudebox undo {changing.partition('-')[0]}`" in undo(user_project)
    undo(user_project, changing)
    assert not Path(user_project.project, "file").exists()


def test_contents_that_are_not_used_are_swept_away(tmp_path):
    # proves UNDO-01
    root, place = tmp_path / "p", str(tmp_path / "undo")
    root.mkdir()
    kept, dropped = os.urandom(5000), os.urandom(3 << 20)
    (root / "kept").write_bytes(kept)
    (root / "dropped").write_bytes(dropped)
    store, digests = SnapshotStore(place), set()
    for number in range(16):
        known = store.newest_like(str(root))
        store.write_snapshot(f"s{number}", look(root, store, known))
        digests |= store.read_snapshot(f"s{number}").contents()
        (root / "dropped").unlink(missing_ok=True)
        store.prune(4)

    assert store.names() == ["s12", "s13", "s14", "s15"]
    found = {len(content) for content in map(read_whole, (place,) * 2, sorted(digests))}
    assert found == {0, len(kept)}
    assert database(place).stat().st_size < len(kept) + 100_000


def read_whole(place: str, name: bytes) -> bytes:
    """Return a content, nothing if it is not there."""
    try:
        return SnapshotStore(place).read_content(name)
    except OSError:
        return b""


def test_a_full_disk_leaves_a_database_that_can_be_used(tmp_path):
    # proves UNDO-01
    store = SnapshotStore(str(tmp_path))
    store._run(f"PRAGMA max_page_count = {len(store._read('PRAGMA page_count'))}")
    store.keep(os.urandom(1 << 20))
    with pytest.raises(ClaudeboxError, match="full"):
        store.save()
    store._run("PRAGMA max_page_count = 100000")

    name = store.keep(b"kept")
    store.save()

    assert SnapshotStore(str(tmp_path)).read_content(name) == b"kept"


def test_what_was_not_written_is_not_taken_for_kept(tmp_path, monkeypatch):
    # proves UNDO-01
    monkeypatch.setattr(undo_store, "_WAIT", 0.05)
    other, store = (undo_store.SnapshotStore(str(tmp_path)) for _ in range(2))
    other._run("BEGIN IMMEDIATE")
    store.keep(b"kept")
    with pytest.raises(ClaudeboxError, match="locked"):
        store.save()
    other._run("COMMIT")

    name = store.keep(b"kept")
    store.save()

    assert store.read_content(name) == b"kept"


def test_no_content_is_swept_while_another_session_uses_the_store(tmp_path):
    # proves UNDO-01
    first, second = (SnapshotStore(str(tmp_path)) for _ in range(2))
    first.prune(1)  # in vain: the second one has the store open
    second.close()
    with open(tmp_path / "lock", "rb") as held, pytest.raises(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    first.close()
    with open(tmp_path / "lock", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_damaged_content_is_not_put_back(tmp_path):
    # proves UNDO-01
    store = SnapshotStore(str(tmp_path))
    name = store.keep(b"kept" * 100)
    store.save()
    assert store.read_content(name) == b"kept" * 100
    for data in (b"not compressed", zlib.compress(b"other")):
        store._run("UPDATE content SET data = ?", data)
        with pytest.raises(OSError, match="damaged"):
            store.read_content(name)


def test_the_agent_reaches_no_snapshot(project):
    # proves UNDO-01
    session(project, "true")
    place = snapshots(project)
    name = os.path.basename(database(place))
    assert project.host("cat", f"{place}/{name}", encoding=None, errors=None).returncode == 0  # positive control

    result = project.sh(f"cat {place}/{name}; echo x >{place}/forged; ls {place}; find / -name '*.sqlite' 2>/dev/null")

    assert name not in result.stdout
    assert not os.path.exists(f"{place}/forged")


def test_it_refuses_beside_a_session(user_project):
    # proves UNDO-01
    words = (user_project.program, "-y", "--set", "undo_keep=10", "--exec", "--", "sh", "-c", "echo up; read x; true")
    process = subprocess.Popen(
        words, cwd=user_project.project, env=user_project.variables(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, **user_project.account.demotion,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        result = user_project.claudebox("undo", "-y")
        assert result.returncode == 125
        assert "a session is at work" in result.stderr
    finally:
        process.communicate(b"\n")


CLAIM = """
import sys
sys.path.insert(0, sys.argv[1])
from claudebox.base.errors import ClaudeboxError
from claudebox.run.live_sessions import Presence
presence = Presence(sys.argv[2])
presence.claim(sys.argv[3])
try:
    Presence(sys.argv[2]).claim(sys.argv[3])
except ClaudeboxError as error:
    print(error.message, flush=True)
sys.stdin.read()
"""


def test_no_session_starts_beside_an_undo(user_box):
    # proves UNDO-01
    box = user_box
    assert box.sh("true").returncode == 0
    source = os.path.join(os.path.dirname(os.path.dirname(box.program)), "src")
    words = ("/usr/bin/python3", "-ISc", CLAIM, source, f"{box.home}/.claudebox", box.project)
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **box.account.demotion)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"a claudebox command is at work in")  # nor two of them
        result = box.sh("echo ran")
    finally:
        process.communicate()
    assert (result.returncode, result.stdout) == (125, "")
    assert "a claudebox command is at work in" in result.stderr
    assert box.sh("echo ran").stdout == "ran\n"


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
    sh(box, "for n in $(seq 100); do echo $n >src/f$n; done; mkdir ../victim")
    session(box, "rm -f src/f*; chmod 777 src")
    sh(box, "ln -s ../victim outside")
    process = subprocess.Popen(
        ("/usr/bin/python3", "-c", SWAP, box.project), stdout=subprocess.PIPE, **box.account.demotion
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        result = box.claudebox("undo", "-y")
    finally:
        process.kill()
        process.communicate()
    assert os.listdir(f"{box.base}/victim") == []
    assert "Traceback" not in result.stderr
    if os.path.islink(f"{box.project}/src"):
        sh(box, "mv src between; mv outside src; mv between outside")
    undo(box)
    assert len(os.listdir(f"{box.project}/src")) == 102


def test_a_racing_link_leads_no_snapshot_away(tmp_path):
    # proves UNDO-01
    (tmp_path / "victim").mkdir()
    (tmp_path / "project/src").mkdir(parents=True)
    for number in range(60):
        (tmp_path / f"victim/f{number}").write_text("of the host")
        (tmp_path / f"project/src/f{number}").write_text("of the project")
    (tmp_path / "project/outside").symlink_to("../victim")
    project = tmp_path / "project"
    ours = look(project).entries["src/f0"].content
    process = subprocess.Popen(("/usr/bin/python3", "-c", SWAP, project), stdout=subprocess.PIPE)
    seen: set[str] = set()
    try:
        assert process.stdout is not None
        process.stdout.readline()
        rounds, limit = 0, time.monotonic() + PATIENCE
        while rounds < 4 or (seen != {"d", "l"} and time.monotonic() < limit):
            rounds += 1
            entries = look(project).entries
            assert {entry.content for entry in entries.values() if entry.kind == "f"} <= {ours, b""}
            seen |= {entry.kind for path, entry in entries.items() if path == "src"}
    finally:
        process.kill()
        process.communicate()
    assert seen == {"d", "l"}  # it did race


def test_a_python_without_sqlite_says_that_undo_is_not_available(monkeypatch):
    # proves UNDO-01
    sidecar = snapshot.UndoSidecar(None, None)  # type: ignore[arg-type]
    sidecar.begin()
    before = sidecar.finish()
    monkeypatch.setattr(sys, "meta_path", [])
    sidecar.begin(1)
    after = sidecar.finish()

    assert before == ()
    assert after == ("undo is not available: this Python has no `sqlite3` module",)


def test_a_snapshot_that_is_cut_off_leaves_what_it_has_to_the_next(tmp_path):
    # proves UNDO-01
    (tmp_path / "p").mkdir()
    for number in range(40):
        (tmp_path / f"p/f{number}").write_text(f"{number}")
        os.utime(tmp_path / f"p/f{number}", (1, 1))
    calls = iter(range(20))
    time.sleep(2.1)  # what was changed just before a snapshot is read again

    def released() -> int:
        if next(calls, None) is None:
            raise CutOffError
        return 0

    store = SnapshotStore(str(tmp_path / "store"))
    scan = Scan(str(tmp_path / "p"), store, None, most=1 << 20)
    with pytest.raises(CutOffError):
        scan.look(released)
    store.write_partial("cut", scan.snapshot())

    again = SnapshotStore(str(tmp_path / "store"))
    scan = Scan(str(tmp_path / "p"), again, again.newest_like(str(tmp_path / "p")), most=1 << 20)
    scan.look()
    assert len(scan._unread) == 20
    again.write_snapshot("s", scan.snapshot())
    assert again.read_content(again.read_snapshot("s").entries["f0"].content) == b"0"
    assert again.names() == ["s"]


def test_a_snapshot_that_is_cut_off_hides_no_change_that_was_made_before_it_was_read(tmp_path):
    # proves REPORT-01, UNDO-01
    project, state = tmp_path / "p", tmp_path / "state"
    project.mkdir()
    for number in range(3):
        (project / f"f{number}").write_text("old")
    time.sleep(0.05)
    begun = snapshot.begin(str(project), listing=False)
    line, said = os.pipe()
    gate, release = os.pipe()
    os.write(release, b"%d" % time.time_ns())
    os.close(release)  # the session ends at once
    time.sleep(0.05)
    (project / ".envrc").write_text("evil")
    (project / "f1").write_text("evil")
    plan = SimpleNamespace(git=(), stubs=(), mounts=(), workdir=str(project), directory=str(state))
    snapshot._take(plan, UndoRequest(), "cut", said, gate)  # type: ignore[arg-type]
    places = report_changes.Places(str(project), snapshot=(str(state), "cut"))
    seen = report_changes.look(places, begun)

    os.close(said)
    assert os.read(line, 64) == b"", "it was cut off"
    assert sorted(change.path for change in seen.changes) == [".envrc", "f1"]


def test_kill_during_the_snapshot_and_during_undo(user_project, numbers):
    # proves UNDO-01
    box = user_project
    sh(box, "for n in $(seq 400); do echo $n >src/f$n; done")
    before = tree(box.project)
    for _ in range(5):
        interrupt(box, ("-y", "--set", "undo_keep=10", "--exec", "--", "true"), numbers)
    until(lambda: box.sh("true").returncode == 0)  # the state is whole
    assert tree(box.project) == before
    session(box, "rm -rf src key; echo x >created")
    name = newest(box)
    for _ in range(5):
        interrupt(box, ("undo", "-y", name), numbers)
    undo(box, name)
    assert tree(box.project) == before


def test_what_another_undo_took_away_meanwhile_is_no_problem(tmp_path):
    # proves UNDO-01
    # One that was killed may not have ended yet; every one of them was the second process of its sandbox.
    root, store = tmp_path / "project", SnapshotStore(str(tmp_path / "store"))
    root.mkdir()
    (root / "kept").write_text("kept")
    store.write_snapshot("before", look(root, store))
    (root / "kept").unlink()
    (root / "created").write_text("x")
    store.write_snapshot("now", look(root, store))
    (root / "created").unlink()
    (root / ".claudebox-undo.2").write_text("half")

    problems = restore.put_back(Tools("/usr/bin/bwrap"), str(tmp_path / "store"), ("before", "now"), str(root), ())

    assert not problems
    assert (root / "kept").read_text() == "kept"


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
    (tmp_path / "early").write_text("e")
    (tmp_path / "directory").mkdir()
    time.sleep(0.1)
    released = time.time_ns()
    (tmp_path / "directory/late").write_text("l")
    scan = Scan(str(tmp_path), None, None, most=1 << 20)
    scan.look(lambda: released)
    before = scan.snapshot()
    (tmp_path / "directory/later").write_text("l")

    assert {path for path, row in before.entries.items() if row.kind != "?"} == {".", "early", "directory"}
    assert before.late == ("directory",)
    found = Comparison(before, None, look(tmp_path))
    assert not found.removed
    assert set(found.left) == {"directory/late", "directory/later"}


@pytest.mark.parametrize("moment", ["_open_directory", "_read_file", "afterwards"])
def test_what_was_renamed_before_it_was_read_is_not_taken_for_new(tmp_path, moment):
    # proves UNDO-01
    for number in range(4):
        (tmp_path / f"d{number}/below").mkdir(parents=True)
        (tmp_path / f"d{number}/below/file").write_text(f"{number}")
        (tmp_path / f"file{number}").write_text(f"{number}")
    time.sleep(0.1)
    released = time.time_ns()
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("file*")}
    scan = Scan(str(tmp_path), None, None, most=1 << 20)

    def rename() -> None:
        old = sorted(path for path in tmp_path.iterdir())
        (tmp_path / "moved").mkdir()
        for path in old:
            path.rename(tmp_path / "moved" / path.name)
        (tmp_path / "moved/new").write_text("n")

    if moment != "afterwards":
        original, calls = getattr(scan, moment), list[bool]()

        def act(*given, **named):
            calls.append(True)
            if len(calls) == (2 if moment == "_open_directory" else 1):
                rename()
            return original(*given, **named)

        setattr(scan, moment, act)
    scan.look(lambda: released)
    before = scan.snapshot()
    if moment == "afterwards":
        rename()

    found = Comparison(before, None, look(tmp_path))

    back = {target + path.removeprefix(source) for source, target in found.moves for path in (f"moved/{name}" for name
            in files) if path == source or path.startswith(f"{source}/")}  # fmt: skip
    removed = {path.removeprefix("moved/") for path in found.removed} & files
    assert not removed, "nothing goes that was there"
    assert files - back == {path.removeprefix("moved/") for path in found.left} & files
    assert "moved/new" in found.removed
    assert bool(found.unreached) == (moment != "afterwards")
    assert ("moved" in found.removed) == (moment != "_open_directory")


STEPS = st.sampled_from(
    (
        "unlink",
        "write",
        "append",
        "chmod",
        "rename",
        "link",
        "directory",
        "same-size",
        "hard",
        "file",
        "wipe",
        "give",
    )
)


@settings(max_examples=25, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.tuples(STEPS, st.integers(0, 1 << 20), st.integers(0, 1 << 20)), min_size=1, max_size=12))
def test_any_destruction_is_undone_byte_for_byte(tmp_path_factory, steps):
    # proves UNDO-01
    base = tmp_path_factory.mktemp("undo")
    root = base / "project"
    for name in ("a/b/c", "a/d", "e", "x/y/z", "f"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "hollow/deeper").mkdir(parents=True)
    (root / "link").symlink_to("a")
    (root / "e").chmod(0o640)
    (root / "x/hard").hardlink_to(root / "f")
    if os.getuid() == 0:
        os.chown(root / "a/d", 1234, 1234)
    (root / "nested/.git/objects").mkdir(parents=True)
    (root / "nested/.git/HEAD").write_text("ref: refs/heads/main")
    store = SnapshotStore(str(base / "store"))
    before = look(root, store)
    store.write_snapshot("before", before)
    expected = tree(str(root), without=())
    for action, first, second in steps:
        destroy(root, action, first, second)
    # As the end of a session does: a user sees nothing of what is closed.
    subprocess.run(("find", root, "-type", "d", "!", "-perm", "-700", "-exec", "chmod", "u+rwx", "{}", ";"), check=True)
    now = look(root, store, before)
    store.write_snapshot("now", now)

    problems = restore.put_back(Tools("/usr/bin/bwrap"), str(base / "store"), ("before", "now"), str(root), (),
                                     owners=True)  # fmt: skip

    assert not problems
    assert tree(str(root), without=()) == expected


def _remove(path: Path) -> None:
    subprocess.run(("rm", "-rf", path), check=True)


def _replace(path: Path, make: Callable[[], object]) -> None:
    _remove(path)
    make()


def destroy(root: Path, action: str, first: int, second: int) -> None:
    paths = sorted(path for path in root.rglob("*"))
    if not paths:
        return
    path, other = paths[first % len(paths)], paths[second % len(paths)]
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
    except PermissionError:  # as a user, in a directory without rights
        return
    if action in ("write", "append", "same-size") and not is_file:
        return  # a FIFO would wait for ever
    if action == "chmod" and path.is_symlink():
        return  # it would be followed, to the /etc of this machine
    actions: dict[str, Callable[[], object]] = {
        "unlink": lambda: _remove(path),
        "write": lambda: path.write_text("new"),
        "append": lambda: path.write_text(path.read_text() + "x"),
        "same-size": lambda: path.write_text(path.read_text()[::-1]),
        "chmod": lambda: path.chmod(second % 0o10000),
        "rename": lambda: path.rename(other.parent / f"moved{second}"),
        "link": lambda: _replace(path, lambda: path.symlink_to(("..", "/etc", "a")[second % 3])),
        "directory": lambda: _replace(path, lambda: (path / "in").mkdir(parents=True)),
        "hard": lambda: os.link(path, other.parent / f"hard{second}", follow_symlinks=False),
        "file": lambda: _replace(path, lambda: path.write_text("file")),
        "wipe": lambda: subprocess.run(("find", root, "-mindepth", "1", "-delete"), check=True),
        "give": lambda: os.chown(path, second % 3, 5, follow_symlinks=False),
    }
    try:
        actions[action]()
    except (OSError, UnicodeDecodeError, subprocess.CalledProcessError):  # as a user, what has no rights any more
        return


def test_build_output_is_counted_and_never_pushes_the_users_own_off_the_screen(user_project):
    # proves SHOW-01, UNDO-01
    user_project.write(".gitignore", "target\n")
    for number in range(60):
        user_project.write(f"node_modules/m/{number}.js", "old")
        user_project.write(f"target/{number}", "old")
    session(user_project, "for f in node_modules/m/* target/*; do echo new >$f; done; echo mine >key")

    result = user_project.claudebox("changes", "--patch")

    rows = result.stdout.splitlines()
    assert [row for row in rows if "node_modules" in row or "target" in row] == [
        "  target/ (60)", "  node_modules: excluded by its name (changes in it: 60)",
    ]  # fmt: skip
    assert "  key" in rows
    asked = user_project.claudebox("undo", "-y").stderr
    assert len(asked.splitlines()) < 20, asked
    assert Path(user_project.project, "target/7").read_text() == "old"
