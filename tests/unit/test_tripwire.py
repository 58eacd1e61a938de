"""Looking for values that were kept out in what a session has left behind."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest
from tests import hosts

from claudebox.config.model import Policy
from claudebox.facts.login import Login
from claudebox.facts.model import HeldSecret
from claudebox.plan.compose import make_plan
from claudebox.report import leaked_values
from claudebox.report.fingerprints import Fingerprints, is_telling

VALUE = "ghp_0aA1bB2cC3dD4eE5fF6gG7hH8iI9jJ0kK1lL"


def search(*paths, values=(("GH_TOKEN", VALUE),), budget=10.0):
    return leaked_values.search(Fingerprints(values), map(str, paths), time.monotonic() + budget)


def test_a_value_is_named_with_file_and_line(tmp_path):
    (tmp_path / "notes").write_text(f"one\ntwo\nkey={VALUE}\n")
    (tmp_path / "clean").write_text("nothing\n" * 1000)
    result = search(tmp_path / "notes", tmp_path / "clean")
    text = "\n".join(leaked_values.lines(result, str(tmp_path)))

    assert result.hits == [leaked_values.Hit("GH_TOKEN", str(tmp_path / "notes"), 3, encoded=False)]
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
    files = list(leaked_values.left_behind([str(tmp_path / ".git")], 0, time.monotonic() + 10))

    assert "/objects/" in search(*files).hits[0].path


def test_only_what_changed_is_looked_at_and_no_link_is_followed(tmp_path):
    (tmp_path / "old").write_text(VALUE)
    os.symlink(tmp_path / "old", tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    time.sleep(0.2)
    started = time.time()
    (tmp_path / "new").write_text(VALUE)
    found = list(leaked_values.left_behind([str(tmp_path)], started, time.monotonic() + 10))

    assert found == [str(tmp_path / "new")]
    assert search(tmp_path / "link", tmp_path / "pipe", tmp_path).hits == []


def test_it_ends_in_time_and_says_so(tmp_path):
    (tmp_path / "file").write_text(VALUE)
    result = search(tmp_path / "file", budget=-1.0)

    assert not result.complete
    assert "not all" in "\n".join(leaked_values.lines(result, "/"))


def test_many_files_take_little_time(tmp_path):
    for index in range(200):
        (tmp_path / str(index)).write_bytes(os.urandom(1 << 16))
    started = time.monotonic()

    assert search(*(tmp_path / str(index) for index in range(200)), values=[(f"N{i}", os.urandom(20).hex())
                  for i in range(20)]) == leaked_values.Result([], complete=True)  # fmt: skip
    assert time.monotonic() - started < 5


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


def test_everything_that_was_kept_out_is_looked_for(tmp_path):
    login = tmp_path / "credentials"
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": "sk-ant-oat01-a", "refreshToken": "sk-ant-ort01-b"}}))
    environ = {**hosts.ENVIRON, "ENTERS_TOKEN": "enters", "NOT_SO": "plain", "ANTHROPIC_API_KEY": "sk-ant-real"}
    held = HeldSecret("GH_TOKEN", (("a.example", 443),), "file:/x", "c:1", value=VALUE, placeholder="ghp_other")
    host = hosts.debian(environ=environ, login=Login("host", str(login)), held_secrets=(held,))
    plan = make_plan(Policy("exec", ("true",), auth="passthrough"), hosts.debian(environ=environ))
    plan = plan.replace(variables=tuple(row.replace(value="enters") for row in plan.variables[:1]))

    assert dict(leaked_values.values(plan, host)) == {
        "AWS_SECRET_ACCESS_KEY": environ["AWS_SECRET_ACCESS_KEY"],
        "ANTHROPIC_API_KEY": "sk-ant-real",
        "GH_TOKEN": VALUE,
        "access token of the login": "sk-ant-oat01-a",
        "refresh token of the login": "sk-ant-ort01-b",
    }
