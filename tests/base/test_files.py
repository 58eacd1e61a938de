from __future__ import annotations

import os
import socket
import subprocess
import time

import pytest

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import parse_object, read_small
from claudebox.host import paths as host_paths
from claudebox.host.paths import Examiner


def test_a_small_file_is_read_whole(tmp_path):
    (tmp_path / "f").write_bytes(b"content")
    (tmp_path / "empty").write_bytes(b"")

    assert read_small(f"{tmp_path}/f") == b"content"
    assert read_small(f"{tmp_path}/empty") == b""


@pytest.mark.parametrize(
    ("text", "document"),
    [
        (b'{"a": [1, "\xc3\xa9"]}', {"a": [1, "\u00e9"]}), (b' \n{"a": 1}\n', {"a": 1}), ('{"a": null}', {"a": None}),
        *((text, {}) for text in (None, b"", b"[1]", b'{"a": 1', b'{"a": 1} more', b"\xff", b'{"a":' * 100_000)),
    ],
)  # fmt: skip
def test_json_is_an_object_or_nothing(text, document):
    assert parse_object(text) == document


def test_the_limit_is_exact(tmp_path):
    # proves C18
    (tmp_path / "f").write_bytes(b"x" * 100)

    assert read_small(f"{tmp_path}/f", limit=100) == b"x" * 100
    assert read_small(f"{tmp_path}/f", limit=99) is None


def test_a_file_without_a_known_size_is_read_up_to_the_limit():
    # Files of /proc say that they are empty.
    assert read_small("/proc/self/status") is not None
    assert read_small("/proc/self/status", limit=10) is None


def test_a_link_is_followed_only_on_request(tmp_path):
    # proves C05
    (tmp_path / "f").write_bytes(b"content")
    (tmp_path / "link").symlink_to("f")

    assert read_small(f"{tmp_path}/link") is None
    assert read_small(f"{tmp_path}/link", follow=True) == b"content"


def test_what_is_no_file_is_not_read_and_not_waited_for(tmp_path):
    # proves C18
    started = time.monotonic()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/socket")
        for path in ("pipe", "socket", ".", "missing", "f/missing", "nul\0byte", "x" * 5000):
            assert read_small(f"{tmp_path}/{path}", follow=True) is None, path
    assert read_small("/dev/zero", follow=True) is None
    assert read_small("/dev/tty", follow=True) is None
    assert time.monotonic() - started < 20


def test_reading_leaves_no_descriptor_behind(tmp_path):
    before = os.listdir("/proc/self/fd")
    (tmp_path / "f").write_bytes(b"x" * 10)
    for path in ("f", ".", "missing"):
        read_small(f"{tmp_path}/{path}")
    read_small(f"{tmp_path}/f", limit=1)

    assert len(os.listdir("/proc/self/fd")) == len(before)


def identity(path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def test_a_fact_has_the_identity_of_everything_above(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    fact = Examiner().fact(f"{tmp_path}/a/b")

    assert fact.kind == "directory"
    assert fact.identity == identity(tmp_path / "a/b")
    assert fact.lineage[1] == identity(tmp_path / "a")
    assert fact.lineage[-1] == identity("/")
    assert fact.owner == os.getuid()


@pytest.fixture
def deep(tmp_path):
    """Return where directories of any depth may be made; Python itself could not take them away."""
    (tmp_path / "deep").mkdir()
    yield tmp_path / "deep"
    subprocess.run(["rm", "-rf", tmp_path / "deep"], check=True)


def test_a_path_may_have_more_parts_than_the_interpreter_recurses(deep):
    path, current = str(deep), os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=current)
        deeper = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        path, current = f"{path}/d", deeper
    status = os.fstat(current)
    os.close(current)

    fact = Examiner().fact(path)

    assert fact.identity == (status.st_dev, status.st_ino)
    assert len(fact.lineage) == path.count("/") + 1


def test_two_spellings_have_one_identity(tmp_path):
    # proves C06
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    examiner = Examiner()
    plain, spelled = examiner.fact(f"{tmp_path}/a/b"), examiner.fact(f"{tmp_path}/link/../a//b/.")

    assert plain.lineage == spelled.lineage == examiner.fact(f"{tmp_path}/link/b").lineage
    assert examiner.fact(f"{tmp_path}/link/b").real == f"{tmp_path}/a/b"


@pytest.mark.parametrize("path", ["missing", "nul\0byte", "loop"])
def test_what_cannot_be_looked_at_is_missing(tmp_path, path):
    (tmp_path / "loop").symlink_to("loop")
    fact = Examiner().fact(f"{tmp_path}/{path}")

    assert (fact.kind, fact.identity, fact.lineage) == ("missing", None, ())


def test_kinds_are_told_apart(tmp_path):
    # proves C19
    (tmp_path / "f").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/socket")
        kinds = {name: Examiner().fact(f"{tmp_path}/{name}").kind for name in ("f", "pipe", "socket", ".")}

    assert kinds == {"f": "file", "pipe": "other", "socket": "socket", ".": "directory"}
    assert Examiner().fact("/dev/null").kind == "other"


def test_a_place_of_the_tables_is_looked_at_alone(tmp_path):
    assert Examiner().fact(str(tmp_path), alone=True).lineage == (identity(tmp_path),)
    assert Examiner().fact("/").lineage == (identity("/"),)


def test_a_look_that_failed_leaves_nothing_wrong_behind(tmp_path, monkeypatch):
    # proves C10, C26
    for place in ("plain", "hidden/deep"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "file").touch()
    examiner = Examiner()
    assert examiner.fact(f"{tmp_path}/plain/file").kind == "file"
    for name in ("readlink", "fstat"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, refuse)
            assert examiner.fact(f"{tmp_path}/hidden/deep/file").kind == "missing"
        assert identity(tmp_path / "hidden") in examiner.fact(f"{tmp_path}/hidden/deep/file").lineage
        assert examiner.fact(f"{tmp_path}/plain/file").lineage[1] == identity(tmp_path / "plain")


def refuse(*_args, **_more):
    """Fail as a call of the system may."""
    raise OSError(24, "Too many open files")


def test_a_hidden_place_that_cannot_be_examined_stops_everything(tmp_path, monkeypatch):
    # proves C26
    (tmp_path / ".ssh").mkdir()
    assert [row.why for row in host_paths.find_hidden(Examiner(), [str(tmp_path)], {})].count("SSH keys") == 1
    monkeypatch.setattr(os, "readlink", refuse)
    with pytest.raises(ClaudeboxError, match="must stay hidden, and could not be examined"):
        host_paths.find_hidden(Examiner(), [str(tmp_path)], {})


@pytest.mark.parametrize("calls", range(12))
@pytest.mark.parametrize("path", ["plain/file", "plain/deep", "link/file", "link/deep"])
def test_a_path_and_what_is_above_it_are_of_one_moment(tmp_path, monkeypatch, calls, path):
    # proves C10, C26
    # Somebody swaps the directory above for a link into a hidden place, or back, before any one of the calls.
    for place in ("plain", "hidden"):
        (tmp_path / place / "deep").mkdir(parents=True)
        (tmp_path / place / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "hidden")
    hidden = {identity(tmp_path / "hidden" / name) for name in ("deep", "file", ".")}
    count = 0

    def swapping(real):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == calls + 1:
                swap(tmp_path / "plain", tmp_path / "link")
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for name in ("lstat", "stat", "open", "readlink", "fstat"):
            patched.setattr(os, name, swapping(getattr(os, name)))
        fact = Examiner().fact(f"{tmp_path}/{path}")

    assert fact.identity not in hidden or identity(tmp_path / "hidden") in fact.lineage
    assert fact.kind == "missing" or fact.lineage[-1] == identity("/")


def swap(one, other) -> None:
    """Exchange two names."""
    os.rename(one, f"{one}.away")
    os.rename(other, one)
    os.rename(f"{one}.away", other)
