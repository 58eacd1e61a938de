"""Random trees and random work in them over two sessions: the report is compared with a plain walk."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import stat
import subprocess
import tempfile
import time

from hypothesis import given, note
from hypothesis import settings as bounds
from hypothesis import strategies as st

from claudebox.git import config
from claudebox.report import changes as report_changes
from claudebox.report import kinds, screen
from claudebox.report.changes import Places
from claudebox.tables import reported_paths
from claudebox.undo import snapshot

KNOWN = [
    name.replace("*", "x").replace("?", "y")
    for _, *texts in (*reported_paths.UNASKED, *reported_paths.ASKED)
    for text in texts
    for name in text.split()
]
SHAPES = [
    "HEAD", "commondir", "objects", "refs", "config", "hooks", ".git", ".GIT", "pre-commit", "x.py", "a", "b", "c",
]  # fmt: skip


class World:
    """A directory tree in which somebody works at random."""

    def __init__(self, base: str, chance: random.Random) -> None:
        self.base, self.chance = base, chance

    def name(self) -> str:
        kind = self.chance.randrange(6)
        if kind == 0:
            return os.fsdecode(bytes(self.chance.choice([1, 9, 10, 27, 32, 34, 92, 128, 255, 65]) for _ in range(3)))
        if kind == 1:
            return self.chance.choice(KNOWN)
        if kind == 2:
            return self.chance.choice(["d", "l", "x", "f", "s"])  # what the listing has as letters
        return self.chance.choice(SHAPES)

    def directories(self) -> list[str]:
        return [self.base, *(path for path in walk(self.base) if os.path.isdir(path) and not os.path.islink(path))]

    def new(self) -> str:
        return f"{self.chance.choice(self.directories())}/{self.name()}"

    def old(self) -> str:
        return self.chance.choice([*walk(self.base), self.new()])

    def work(self) -> None:
        """Do one thing; what fails has not happened."""
        with contextlib.suppress(OSError):
            getattr(self, self.chance.choice(self.DEEDS))()

    DEEDS = ("write", "write", "append", "directory", "directory", "link", "pipe", "bind", "nest", "mode", "remove",
             "move", "move", "hard", "deep", "backdate", "exchange")  # fmt: skip

    def write(self) -> None:
        path = self.new()
        create(path, str(self.chance.random()))
        os.chmod(path, self.chance.choice([0o644, 0o644, 0o755, 0o4755, 0o000]))

    def append(self) -> None:
        with open(os.open(self.old(), os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK), "w") as file:
            file.write("more")

    def directory(self) -> None:
        os.mkdir(self.new())

    def link(self) -> None:
        os.symlink(self.chance.choice(["/etc", "..", "a", "../../x", ".", f"{self.base}/a", "a/../../b"]), self.new())

    def pipe(self) -> None:
        os.mkfifo(self.new())

    def bind(self) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(self.new())

    def nest(self) -> None:
        path = self.new()
        os.mkdir(path)  # a link of that name would lead out of here
        os.makedirs(f"{path}/.git/hooks")
        for part in ("HEAD", "config", "hooks/x"):
            create(f"{path}/.git/{part}", "x")

    def mode(self) -> None:
        path = self.old()
        if not os.path.islink(path):
            mode = self.chance.choice([0o700, 0o755, 0o644, 0o311, 0o2755])
            # To a user, what is closed is closed here as well: what the report says of that is tested in sandboxes.
            os.chmod(path, mode | 0o700 if os.getuid() and os.path.isdir(path) else mode)

    def remove(self) -> None:
        path = self.old()
        if os.path.isdir(path) and not os.path.islink(path):
            for inner in reversed(list(walk(path))):
                if os.path.isdir(inner) and not os.path.islink(inner):
                    os.rmdir(inner)
                else:
                    os.unlink(inner)
            os.rmdir(path)
        else:
            os.unlink(path)

    def move(self) -> None:
        os.rename(self.old(), self.new())

    def exchange(self) -> None:
        first, second, between = self.old(), self.old(), f"{self.base}/between"
        os.rename(first, between)
        os.rename(second, first)
        os.rename(between, second)

    def hard(self) -> None:
        os.link(self.old(), self.new(), follow_symlinks=False)

    def deep(self) -> None:
        path = self.new()
        for _ in range(self.chance.choice([3, 40])):
            os.mkdir(path)
            path += "/n"
        create(path, "deep")

    def backdate(self) -> None:
        os.utime(self.old(), (0, 0), follow_symlinks=False)


def create(path: str, text: str) -> None:
    """Make a new file; a pipe of that name would wait for a reader."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w") as file:
        file.write(text)


def walk(base: str) -> list[str]:
    """Return every path below a directory, parents first."""
    found: list[str] = []
    waiting = [base]
    while waiting:
        directory = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                found.append(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return found


def make_readable(base: str) -> None:
    """Open directories that an ordinary user has closed, so that a plain walk sees what root does."""
    while closed := [path for path in walk(base) if is_closed(path)]:
        for path in closed:
            os.chmod(path, 0o700)


def is_closed(path: str) -> bool:
    """Return whether a path is a directory that this account cannot look into."""
    return os.path.isdir(path) and not os.path.islink(path) and not os.access(path, os.R_OK | os.X_OK)


def picture(base: str) -> dict[str, tuple[object, ...]]:
    """Return everything about a tree that a plain walk can tell."""
    seen: dict[str, tuple[object, ...]] = {}
    for path in walk(base):
        status = os.lstat(path)
        content: object = None
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            content = (status.st_size, status.st_mtime_ns)
        mode = stat.S_IFMT(status.st_mode) if stat.S_ISDIR(status.st_mode) else status.st_mode
        # What is like what was there is no change, but for a file whose contents nobody has read.
        seen[path[len(base) + 1 :]] = (mode, status.st_ino if stat.S_ISREG(status.st_mode) else None, content)
    return seen


def within(path: str, places: set[str]) -> bool:
    """Return whether a path is one of these, or lies in one of them."""
    while path:
        if path in places:
            return True
        path = path.rpartition("/")[0]
    return "" in places


def check(before, after, report: report_changes.Report) -> None:
    told = {change.path.rstrip("/") for change in report.changes}
    unseen = {path for path, _ in report.unseen}
    for path, what in after.items():
        if before.get(path) != what:
            assert path in told or within(path, unseen), f"{path!r} changed and nobody says so"
    deleted = {change.path.rstrip("/") for change in report.changes if change.how == "deleted"}
    for path in before.keys() - after.keys():
        top = path
        while (above := top.rpartition("/")[0]) and above not in after:
            top = above
        parent = top.rpartition("/")[0]
        replaced = parent in told and not stat.S_ISDIR(after[parent][0]) if parent in after else False
        assert top in deleted or within(parent, unseen) or replaced, f"{path!r} vanished and nobody says so"


def check_screen(report: report_changes.Report) -> None:
    lines = list(screen.lines(screen.Ending(report)))
    text = "\n".join(lines).lower()
    assert all(char.isprintable() for line in lines for char in line)
    assert not report.unseen or lines[-1].startswith("claudebox: not everything could be looked at")
    for change in report.changes:
        if change.kind.name == "unasked":
            assert screen.fit(change.kind.why).lower() in text, f"{change.path!r} is not mentioned"


@bounds(deadline=None, print_blob=True)
@given(st.integers(0, 1 << 32), st.integers(0, 30), st.integers(0, 12), st.integers(0, 12))
def test_nothing_that_changed_is_missing_from_the_report(seed, first, second, third):
    # proves REPORT-01, SEC-04, B12, D22
    note(f"seed {seed}")
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as base:
        world = World(base, chance)
        try:
            for _ in range(first):
                world.work()
            for count in (second, third):
                make_readable(base)
                time.sleep(0.012)  # the clock of the file system moves in ticks
                before = picture(base)
                beginning = snapshot.begin(base)
                for _ in range(count):
                    world.work()
                report = report_changes.look(Places(base), beginning)
                after = picture(base)  # only now: it opens directories that were closed, as root need not
                check(before, after, report)
                check_screen(report)
                assert count or report.is_empty, "nothing was done"
        finally:
            for path in [base, *walk(base)]:
                if not os.path.islink(path) and os.path.isdir(path):
                    os.chmod(path, 0o700)


def test_every_kind_has_its_place():
    # The positive control of the test above: what it takes for dangerous is dangerous, and sources are the user's own.
    # proves NEW-E10, NEW-E11
    def kind(path: str, mode: int = 0o100644) -> str:
        return kinds.classify(path, mode, lambda _: "").name

    for _, names, trees in reported_paths.UNASKED:
        assert {kind(f"deep/er/{name.replace('*', 'x')}") for name in names.split()} <= {"unasked"}
        assert {kind(f"deep/{name}/x.txt") for name in trees.split()} <= {"unasked"}
    for _, names in reported_paths.ASKED:
        assert {kind(f"deep/er/{name.replace('*', 'x').replace('?', 'y')}") for name in names.split()} <= {"asked"}
    for name in ("requirements-dev.txt", "gulpfile.mjs", "hatch_build.py", "wdio.conf.ts", "webpack.config.babel.js",
                 "karma.conf.cjs"):  # fmt: skip
        assert kind(name) == "asked", name
    assert kind("src/main.py") == kind("src/.strange") == "own"
    assert kind(".strange") == kind("json.py") == kind("src/__pycache__/main.cpython-311.pyc") == "unasked"
    assert kind("src/main.py", 0o100755) == "asked"
    assert kind("src/main.py", 0o104755) == "privilege"


def test_patterns_match_as_git_does(tmp_path):
    # proves SHOW-01
    patterns = [
        "*.py[cod]", "/top", "deep/er", "dir/", "**/any/x", "tail/**", "a/**/z", "[Bb]in/", "[!a-c]x", "q?", r"\#odd",
        "!keep.pyc", "*.log", "!/log/keep.log", "a*b*c*d", "# not a rule", "trailing ",
    ]  # fmt: skip
    paths = [
        "x.pyc", "deep/x.pyo", "keep.pyc", "top", "deep/top", "deep/er", "x/deep/er", "dir", "any/x", "p/any/x",
        "tail/1", "tail/1/2", "a/z", "a/1/2/z", "bin", "dx", "bx", "qq", "q", "#odd", "log/keep.log", "log/x.log",
        "aXbYcZd", "abdc", "trailing",
    ]  # fmt: skip
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("\n".join(patterns))
    ours = kinds.Outputs(str(tmp_path), lambda path: () if path else [".gitignore"], set(), set())
    for path in paths:
        for is_directory in (False, True):
            given = subprocess.run(
                ["git", "check-ignore", "-q", "--no-index", path + "/" * is_directory], cwd=tmp_path, check=False
            )
            top, _ = ours.find(path, is_directory=is_directory)
            assert bool(top) == (given.returncode == 0), (path, is_directory)


def test_rules_that_an_agent_wrote_hide_nothing(tmp_path):
    # proves SHOW-01
    (tmp_path / ".gitignore").write_text("*\n")
    names = {"": [".gitignore", "src"], "src": ["CACHEDIR.TAG", "a.py"]}.__getitem__
    honest = kinds.Outputs(str(tmp_path), lambda path: () if path else [".gitignore"], set(), set())
    changed = kinds.Outputs(str(tmp_path), names, set(), {".gitignore", "src/CACHEDIR.TAG", "src/a.py"})
    fresh = kinds.Outputs(str(tmp_path), names, {"src"}, {".gitignore", "src/CACHEDIR.TAG", "src/a.py"})

    assert honest.find("src/a.py") == ("src", False)
    assert changed.find("src/a.py") == ("", False)
    assert fresh.find("src/a.py") == ("src", True)


def test_no_pattern_takes_long():
    # proves SHOW-01
    glob = config.compile_glob("*a" * 120 + "b")

    assert not glob("a" * 255)  # with a regular expression, not in this century
    begun = time.monotonic()
    assert config.compile_glob("[" * 30_000)("[" * 30_000)
    assert time.monotonic() - begun < 5.0  # fnmatch alone: half a minute
    assert not config.fits_path(["a"] * 300, [None, glob] * 20)
