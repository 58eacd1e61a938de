"""Random work of a session and then of the user: an undo takes back the former, and leaves the latter."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.undo.test_undo import STEPS, destroy

from claudebox.git.sandbox import Tools
from claudebox.undo import restore
from claudebox.undo.comparison import Comparison, find_changes
from claudebox.undo.manifest import Scan
from claudebox.undo.store import SnapshotStore

MINE = st.sampled_from(("new", "edit", "delete", "mode", "move", "directory"))
NUMBERS = st.integers(0, 1 << 20)


def picture(root: Path) -> dict[str, tuple[object, ...]]:
    """Return everything but times, by path."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            content: object = None
            if stat.S_ISREG(status.st_mode):
                content = Path(path).read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            found[os.path.relpath(path, root)] = (status.st_mode, content)
    return found


def work(root: Path, action: str, first: int, number: int) -> None:
    """Do something that a user would do; what fails has not happened."""
    paths = sorted(root.rglob("*"))
    path = paths[first % len(paths)] if paths else root / "none"
    place = path if path.is_dir() and not path.is_symlink() else path.parent
    try:
        if action == "new":
            (place / f"mine{number}").write_text(f"mine {number}")
        elif action == "edit" and path.is_file() and not path.is_symlink():
            path.write_text(f"mine {number}")
        elif action == "delete" and not path.is_dir():
            path.unlink()
        elif action == "mode" and not path.is_symlink():
            path.chmod(0o711)
        elif action == "move" and path.is_file():
            path.rename(root / f"moved{number}")
        elif action == "directory":
            (place / f"own{number}").mkdir()
            (place / f"own{number}/f").write_text(f"mine {number}")
    except OSError:
        return


def make_readable(root: Path) -> None:
    """Do as the end of a session does."""
    subprocess.run(("find", root, "-type", "d", "!", "-perm", "-700", "-exec", "chmod", "u+rwx", "{}", ";"), check=True)


def is_near(path: str, others: set[str]) -> bool:
    """Return whether a path is one of these, lies in one or around one."""
    return any(path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in others)


@settings(deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(st.tuples(STEPS, NUMBERS, NUMBERS), min_size=1, max_size=8),
    mine=st.lists(st.tuples(MINE, NUMBERS, NUMBERS), max_size=6),
    most=st.sampled_from((1 << 20, 3)),
    both=st.booleans(),
)
@example(steps=[("rename", 0, 0), ("write", 17, 0)], mine=[("edit", 17, 0)], most=1 << 20, both=True)
def test_an_undo_takes_back_what_the_session_did_and_leaves_what_the_user_did(
    tmp_path_factory, steps, mine, most, both
):
    # proves UNDO-02, NEW-E6, NEW-E7
    base = tmp_path_factory.mktemp("undo")
    root = base / "project"
    for name in ("a/b/c", "a/d", "e", "x/y/z", "f", "x/g"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)  # with `most` 3 some of them are too large to be kept
    (root / "nested/.git").mkdir(parents=True)
    (root / "nested/.git/HEAD").write_text("ref: refs/heads/main")
    store = SnapshotStore(str(base / "store"))

    def look(known):
        return Scan(str(root), store, known, most=most).run()

    start, at_start = look(None), picture(root)
    store.write_snapshot("session", start)
    for action, first, second in steps:
        destroy(root, action, first, second)
    make_readable(root)
    end, at_end = look(start), picture(root)
    store.write_end("session", end)
    for action, first, number in mine:
        work(root, action, first, number)
    now, at_now = look(end), picture(root)
    store.write_snapshot("now", now)
    comparison = Comparison(start, end, now, both=both)

    problems = restore.put_back(Tools("/usr/bin/bwrap"), str(base / "store"), ("session", "now"), str(root), (),
                                owners=True, both=both)  # fmt: skip

    after = picture(root)
    check_user(comparison, (at_start, at_end, at_now, after), both=both)
    named = {*comparison.left, *comparison.touched_twice, *comparison.full, *problems}
    moved = {path for row in comparison.moves for path in row}
    users = {path for path in {*at_end, *at_now} if at_end.get(path) != at_now.get(path)}
    for path in comparison.touched_twice if both else ():
        if path in comparison.made or path in comparison.removed:
            assert path in problems or after.get(path) == at_start.get(path), f"{path} was to be taken back"
    for path in {*at_start, *at_end, *at_now}:
        if not is_near(path, named | moved | users):
            assert after.get(path) == at_start.get(path), f"{path} is not as it was"
    changed = {name for row in find_changes(start, end) for name in (row.path, row.origin)}
    different = {path for path in {*at_start, *at_end} if at_start.get(path) != at_end.get(path)}
    assert different <= changed, "nothing that changed is missing"
    for path in users - changed:
        if not is_near(path, moved | named):
            assert after.get(path) == at_now.get(path), f"{path} of the user is not as it was"


def former(path: str, moves: list[tuple[str, str]]) -> str:
    """Return the path that something has once these renames are done, by which the user is asked about it."""
    for source, target in moves:
        if f"{path}/".startswith(f"{source}/"):
            path = target + path[len(source) :]
    return path


def check_user(comparison: Comparison, states: tuple[dict[str, tuple[object, ...]], ...], *, both: bool) -> None:
    """See that no content is lost: of the user, but where the user agreed, nor of the start."""
    at_start, at_end, at_now, after = states
    texts = [content for _, content in after.values()]
    for path, row in at_now.items():
        agreed = both and former(path, comparison.moves) in comparison.touched_twice
        if row != at_end.get(path) and isinstance(row[1], bytes) and not agreed:
            assert row[1] in texts, f"{path} of the user is gone"
    for content in {content for _, content in at_start.values() if isinstance(content, bytes)}:
        if any(content == row[1] for row in at_now.values()):
            assert content in texts, "what was there at the start is never lost"
