"""One question on the terminal, and what counts as an answer."""

from __future__ import annotations

import os
import shlex
import signal
import time
from pathlib import Path

import pytest
from tests.sandbox.terminals import Terminal

QUESTION = r"Proceed\? \[Y/n\] "


def ask(terminal: Terminal, *words: str) -> None:
    """Start a command in the sandbox and wait for the question."""
    terminal.type(shlex.join((terminal.box.program, "--exec", "--", *words)))
    terminal.expect(QUESTION)


def test_yes_starts_and_anything_else_does_not(user_box):
    # proves UX-02, SAND-14
    with Terminal(user_box) as terminal:
        for answer in ("y\r", "Y\r", "yes\r", "YES\r", "\r", " y \r"):
            ask(terminal, "echo", "in" + "side")
            terminal.press(answer)
            terminal.expect("inside")
            assert terminal.prompt() == 0, answer
        for answer in ("n\r", "no\r", "N\r", "x\r", "yy\r", "yes please\r", " \r", "\x04", "\x03"):
            ask(terminal, "echo", "in" + "side")
            terminal.press(answer)
            assert terminal.prompt() == 130, answer
            assert "inside" not in terminal.shown()


def test_what_enters_is_shown_before_the_question(user_box):
    # proves UX-01
    user_box.environ["GH_TOKEN"] = "CANARY"
    with Terminal(user_box) as terminal:
        terminal.type(f"{user_box.program} --exec -- true")
        for part in (
            "runs true",
            "writable",
            user_box.project,
            "network",
            "variables",
            "withheld",
            "GH_TOKEN",
            QUESTION,
        ):
            terminal.expect(part.replace(".", r"\."))
        terminal.press("n\r")
        assert terminal.prompt() == 130
        assert "CANARY" not in terminal.raw()


def test_nothing_is_written_before_the_answer(user_box):
    # proves UX-02
    with Terminal(user_box) as terminal:
        ask(terminal, "true")
        terminal.press("n\r")
        terminal.prompt()
        assert not os.path.exists(f"{user_box.home}/.claudebox")
        assert os.listdir(user_box.project) == []
        ask(terminal, "true")
        terminal.press("y\r")
        assert terminal.prompt() == 0
        assert os.path.exists(f"{user_box.home}/.claudebox")


def test_what_was_typed_before_the_question_is_no_answer_to_it(user_box):
    # proves UX-02
    with Terminal(user_box) as terminal:
        terminal.type(f"{user_box.program} --exec -- echo in''side\ry\r")
        terminal.expect(QUESTION)
        assert "inside" not in terminal.shown(during=0.3)
        terminal.press("n\r")
        assert terminal.prompt() == 130


def test_the_answer_comes_from_the_terminal_while_input_comes_from_a_pipe(user_box):
    # proves UX-02
    with Terminal(user_box) as terminal:
        terminal.type(f"printf 'n\\nda''ta\\n' | {user_box.program} --exec -- cat 2>&1 | cat")
        terminal.expect(QUESTION)
        terminal.press("y\r")
        terminal.expect("\nn\ndata\n")
        assert terminal.prompt() == 0


def test_yes_on_the_command_line_asks_nothing(user_box):
    # proves UX-03
    for flag in ("-y", "--yes"):
        result = user_box.claudebox(flag, "--exec", "--", "echo", "inside", start_new_session=True)
        assert (result.returncode, result.stdout) == (0, "inside\n")
        assert "Proceed" not in result.stderr


def test_without_a_terminal_and_without_yes_nothing_starts(user_box):
    # proves UX-03
    for options in ({}, {"input": "y\n"}):
        result = user_box.claudebox("--exec", "--", "touch", "made", start_new_session=True, **options)

        assert result.returncode == 125
        assert "error: there is no terminal to ask on\n\nhint: add `-y`" in result.stderr
        assert "runs touch made" in result.stderr
        assert os.listdir(user_box.project) == []


def test_a_terminal_that_goes_away_is_no_consent(user_box):
    # proves UX-02
    terminal = Terminal(user_box)
    with terminal:
        ask(terminal, "touch", "made")
    time.sleep(0.1)

    assert os.listdir(user_box.project) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_during_the_question_starts_nothing(user_box, number):
    # proves UX-02, SAND-15
    with Terminal(user_box) as terminal:
        ask(terminal, "touch", "made")
        (process,) = Path(f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children").read_text().split()
        os.kill(int(process), number)
        assert terminal.prompt() == (130 if number == signal.SIGINT else 128 + number)

    assert os.listdir(user_box.project) == []
