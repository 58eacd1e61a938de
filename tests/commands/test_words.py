"""Which words are claudebox's own and which go to the client, and which status comes back."""

from __future__ import annotations

import os

import pytest
from tests.conftest import need

SKIP = "<--dangerously-skip-permissions>"


def client_words(result) -> list[str]:
    """Return what the stand-in was given, after the one word that it always gets."""
    assert "Traceback" not in result.stderr
    lines = result.stdout.split("\n")[:-1]
    assert lines[0] == SKIP
    return [line[1:-1] for line in lines[1:]]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), []),
        (("one", "--network", "none", "two", "--env=LANG", "three"), ["one", "two", "three"]),
        (("--continue", "--", "--check", "-y", "--help"), ["--continue", "--check", "-y", "--help"]),
        (("check", "--", "--", "x", ""), ["check", "--", "x", ""]),
        (
            ("mcp", "add", "x", "--env", "A=b", "--", "cmd", "-y"),
            ["mcp", "add", "x", "--env", "A=b", "--", "cmd", "-y"],
        ),
        (("--network", "none", "plugin", "list", "--json"), ["plugin", "list", "--json"]),
        (("a\udcffb", "ä", "$(id)", "*", "%s", "-", "--x=y z"), ["a\udcffb", "ä", "$(id)", "*", "%s", "-", "--x=y z"]),
    ],
)
def test_every_other_word_goes_to_the_client_in_its_order(client_box, argv, words):
    # proves D-01, UX-06
    result = client_box.claudebox("-y", *argv)

    assert client_words(result) == words
    assert result.returncode == 42


def test_a_flag_of_ours_may_stand_behind_words_of_the_client(client_box):
    # proves D-01
    assert client_words(client_box.claudebox("-p", "hello", "-y")) == ["-p", "hello"]


def test_input_reaches_the_client(client_box):
    # proves SAND-15
    result = client_box.claudebox("-y", "-p", input="from a pipe\n")

    assert result.stdout == f"{SKIP}\n<-p>\nfrom a pipe\n"


def test_the_status_of_the_program_comes_back(user_box):
    # proves SAND-14
    for status in (0, 7, 127, 255):
        assert user_box.sh(f"exit {status}").returncode == status


def test_what_follows_the_name_of_a_program_is_its_own(user_box):
    # proves D-01
    result = user_box.claudebox("-y", "--exec", "echo", "--version", "-y", "--network", "--", "x")

    assert (result.returncode, result.stdout) == (0, "--version -y --network -- x\n")
    assert user_box.claudebox("-y", "--exec", "env", "--", "echo", "x").stdout == "x\n"


def test_a_program_that_is_not_inside_is_127_and_one_that_cannot_run_is_126(user_box):
    # proves SAND-14, UX-09
    for name in ("no-such-program", "./no-such-program"):
        result = user_box.run(name)
        assert (result.returncode, result.stderr.splitlines()[-1]) == (
            127,
            f"claudebox: {name}: there is no such program inside",
        )
    user_box.write("plain", "x")
    for name in ("./plain", "/usr"):
        result = user_box.run(name)
        assert (result.returncode, result.stderr.splitlines()[-1]) == (126, f"claudebox: {name}: it cannot be executed")


def test_no_client_is_127(user_box):
    # proves SAND-14
    need(
        not os.path.lexists("/usr/bin/claude") and not os.path.lexists("/usr/local/bin/claude"), "place without claude"
    )
    result = user_box.claudebox("-y", "hello")

    assert (result.returncode, result.stdout) == (127, "")
    assert result.stderr.startswith("error: `claude` was not found")
    assert "npm install -g @anthropic-ai/claude-code" in result.stderr


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("#!/bin/sh\n", 0o644, "is not executable"),
        ("not a program", 0o755, "is not a program"),
        ("\x7fELF" + "\0" * 60, 0o755, "is built for another machine"),
    ],
)
def test_a_client_that_cannot_run_is_126(client_box, content, mode, problem):
    # proves SAND-14
    need(
        not os.path.lexists("/usr/bin/claude") and not os.path.lexists("/usr/local/bin/claude"), "place without claude"
    )
    client_box.write(f"{client_box.base}/bin/claude", content, mode=mode)
    result = client_box.claudebox("-y", "hello")

    assert result.returncode == 126
    assert problem in result.stderr


def test_a_refusal_is_125(user_box):
    # proves SAND-14, SAND-05
    result = user_box.run("true", cwd=user_box.home)

    assert result.returncode == 125
    assert result.stderr.startswith("error: ")


def test_modules_of_the_project_are_not_imported(client_box):
    # proves E03
    for name in ("json", "os", "stat", "fcntl", "termios", "claudebox", "subprocess", "sitecustomize", "usercustomize"):
        client_box.write(f"{name}.py", f"open({f'{client_box.base}/hijacked'!r}, 'w').close()\n")
    os.chmod(client_box.base, 0o777)
    client_box.host("/usr/bin/python3", "-c", "import json")
    assert os.path.exists(f"{client_box.base}/hijacked")
    os.unlink(f"{client_box.base}/hijacked")

    environ = {"PYTHONPATH": client_box.project, "PYTHONSTARTUP": f"{client_box.project}/json.py", "PYTHONINSPECT": ""}
    for flags in (("-y", "x"), ("--explain", "--json"), ("--check",), ("--help",)):
        client_box.claudebox(*flags, env=environ)
        assert not os.path.exists(f"{client_box.base}/hijacked"), flags
