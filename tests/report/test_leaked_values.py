"""Looking for withheld values in what a session has left behind."""

from __future__ import annotations

import base64
import html
import json
import os
import subprocess
import time
import urllib.parse
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import hosts

from claudebox.agent.facts import Login
from claudebox.base import trees
from claudebox.plan.compose import make_plan
from claudebox.report import leaks
from claudebox.report.leaks import encode, find_forms, is_telling
from claudebox.settings.records import Policy, SecretRequest

VALUE = "ghp_0aA1bB2cC3dD4eE5fF6gG7hH8iI9jJ0kK1lL"


def search(*paths, values=(("GH_TOKEN", VALUE),), budget=10.0):
    return leaks.search(find_forms(values), map(str, paths), time.monotonic() + budget)


def left_behind(directory, since=0.0):
    unseen: list[tuple[str, str]] = []
    return list(leaks.left_behind(str(directory), since, unseen, time.monotonic() + 10)), unseen


def test_a_value_is_named_with_file_and_line(tmp_path):
    (tmp_path / "notes").write_text(f"one\ntwo\nkey={VALUE}\n")
    (tmp_path / "clean").write_text("nothing\n" * 1000)
    result = search(tmp_path / "notes", tmp_path / "clean")
    text = "\n".join(leaks.lines(result, str(tmp_path)))

    assert result.hits == (leaks.Hit("GH_TOKEN", str(tmp_path / "notes"), 3, encoded=False),)
    assert "GH_TOKEN in notes:3" in text
    assert VALUE not in text


def test_a_value_is_found_across_the_pieces_of_a_large_file(tmp_path):
    for offset in (-39, -20, -1, 0):
        (tmp_path / "large").write_bytes(b"\n" * ((1 << 20) + offset) + VALUE.encode() + b"\n" * 100)
        (hit,) = search(tmp_path / "large").hits
        assert hit.line == (1 << 20) + offset + 1


def test_a_value_in_a_commit_is_found_after_it_was_deleted(tmp_path):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / "file").write_text(VALUE)
    git("add", "file")
    git("commit", "-qm", "one")
    git("rm", "-q", "file")
    git("commit", "-qm", "two")
    files, _ = left_behind(tmp_path / ".git")

    assert "/objects/" in search(*files).hits[0].path

    git("gc", "-q", "--prune=now")
    (pack,) = (tmp_path / ".git/objects/pack").glob("*.pack")
    assert search(pack).unsearched == ((str(pack), "a pack of git"),)


def test_only_what_changed_is_looked_at_and_no_link_is_followed(tmp_path):
    (tmp_path / "old").write_text(VALUE)
    os.symlink(tmp_path / "old", tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    time.sleep(0.2)
    started = time.time()
    time.sleep(0.05)  # the clock that files are stamped with is coarser
    (tmp_path / "new").write_text(VALUE)
    found, unseen = left_behind(tmp_path, started)

    assert (found, unseen) == ([str(tmp_path / "new")], [])
    assert search(tmp_path / "link", tmp_path / "pipe", tmp_path).hits == ()


def test_it_ends_in_time_and_says_so(tmp_path):
    (tmp_path / "file").write_text(VALUE)
    result = search(tmp_path / "file", budget=-1.0)

    assert result.unsearched == ((str(tmp_path / "file"), "out of time"),)
    assert "not everything" in next(leaks.lines(result, "/"))


def test_many_files_take_little_time(tmp_path):
    for index in range(200):
        (tmp_path / str(index)).write_bytes(os.urandom(1 << 16))
    started = time.process_time()

    assert search(*(tmp_path / str(index) for index in range(200)), values=[(f"N{i}", os.urandom(20).hex())
                  for i in range(20)]) == leaks.Result(())  # fmt: skip
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("value", "telling"),
    [
        (VALUE, True), ("hunter2hunter", True), ("1234567890123456", True), ("short", False), ("aaaaaaaaaaaa", False),
        ("this-is-deprecated", False), ("ubuntu-wayland", False), ("unix:path=/run/user/1000/bus", False),
        ("correct-horse-battery-staple", True), ("/run/user/1000/keyring", False),
        ("12345678", False), ("password", False), ("correct horse battery", False),
    ],
)  # fmt: skip
def test_what_stands_anywhere_is_not_looked_for(value, telling):
    assert is_telling(value) == telling


def test_the_password_in_an_address_is_looked_for_alone(tmp_path):
    (tmp_path / "file").write_text("pass: s3cretPassw0rd\n")

    assert search(tmp_path / "file", values=[("DATABASE_URL", "postgres://u:s3cretPassw0rd@db/x")]).hits


def test_everything_that_was_withheld_is_looked_for(tmp_path):
    login = tmp_path / "credentials"
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": "sk-ant-oat01-a", "refreshToken": "sk-ant-ort01-b"}}))
    environ = {**hosts.ENVIRON, "ENTERS_TOKEN": "enters", "NOT_SO": "plain", "ANTHROPIC_API_KEY": "sk-ant-real"}
    held = SecretRequest("GH_TOKEN", (("a.example", 443),), "file:/x", "c:1", value=VALUE, placeholder="ghp_other")
    host = hosts.debian(environ=environ, login=Login("host", str(login)), held_secrets=(held,))
    plan = make_plan(Policy("exec", ("true",), auth="passthrough"), hosts.debian(environ=environ))
    plan = plan.replace(variables=tuple(row.replace(value="enters") for row in plan.variables[:1]))

    assert dict(leaks.values(plan, host)) == {
        "AWS_SECRET_ACCESS_KEY": environ["AWS_SECRET_ACCESS_KEY"],
        "ANTHROPIC_API_KEY": "sk-ant-real",
        "GH_TOKEN": VALUE,
        "access token of the login": "sk-ant-oat01-a",
        "refresh token of the login": "sk-ant-ort01-b",
    }


def test_what_cannot_be_searched_is_named(tmp_path):
    # proves REPORT-02
    deep = tmp_path / "state"
    deep.mkdir()
    directory = os.open(deep, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=directory)
        inner = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(directory)
    (deep / "file").write_text(VALUE)
    (tmp_path / "large").write_bytes(zlib.compress(bytes(20 << 20)))
    os.symlink("large", tmp_path / "link")
    found, unseen = left_behind(deep)
    result = search(*found, tmp_path / "large", tmp_path / "link")

    assert found == [str(deep / "file")]
    assert [why for _, why in unseen] == ["its path is too long"]
    assert [hit.path for hit in result.hits] == [str(deep / "file")]
    assert dict(result.unsearched) == {
        str(tmp_path / "large"): "too large to be decompressed",
        str(tmp_path / "link"): "Too many levels of symbolic links",
    }
    trees.remove(str(tmp_path), "state")
    assert not deep.exists()


def test_a_file_that_is_full_of_a_value_takes_little_time(tmp_path):
    (tmp_path / "file").write_text(f"{VALUE}\n" * (1 << 17))

    assert 0 < len(search(tmp_path / "file").hits) <= 64


@given(st.binary(min_size=8, max_size=40))
def test_every_usual_form_of_a_value_is_known(value):
    # The forms of the modules that would be too expensive to import.
    text = value.decode("latin-1")
    forms = {
        value, urllib.parse.quote_from_bytes(value, safe="").encode(), json.dumps(text)[1:-1].encode(),
        html.escape(text).encode("latin-1"), value.hex().encode(), value.hex().upper().encode(),
    }  # fmt: skip

    assert forms <= set(encode(value))
    for offset in range(3):
        for whole in (base64.b64encode, base64.urlsafe_b64encode):
            assert any(form in whole(b"-" * offset + value + b"--") for form in encode(value)[-6:])


def test_the_search_imports_nothing_expensive():
    # proves REPORT-03
    program = "import sys; sys.path.insert(0, sys.argv[1]); import claudebox.report.leaks; print(*sys.modules)"
    source = os.path.dirname(os.path.dirname(os.path.dirname(leaks.__file__)))
    loaded = subprocess.run(
        ["/usr/bin/python3", "-IS", "-c", program, source], check=True, capture_output=True, text=True
    ).stdout.split()

    expensive = {"json", "re", "typing", "enum", "hashlib", "urllib", "urllib.parse", "html", "base64", "zlib"}
    assert "claudebox.report.leaks" in loaded
    assert not expensive & set(loaded)


@pytest.mark.parametrize("rest", ["/path@of", "?to=me@example.org", "#a@b", ""])
def test_the_password_of_an_address_is_searched_for_whatever_follows(rest):
    # proves REPORT-02
    forms = find_forms([("DATABASE_URL", f"postgres://bob:Qz7pL9xK2mN4@db.example.org{rest}")])
    assert b"Qz7pL9xK2mN4" in {form for form, _, _ in forms}
