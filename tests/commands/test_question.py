"""One question on the terminal, and what counts as an answer."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.commands.conftest import tree
from tests.conftest import configure, need
from tests.support import repositories
from tests.support.terminals import Terminal

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
            terminal.expect("\n")  # the shell begins a line of its own
            assert terminal.prompt() == 130, answer
            assert "inside" not in terminal.shown()


def test_what_enters_is_shown_before_the_question(user_box):
    # proves UX-01
    user_box.environ["GH_TOKEN"] = "CANARY"
    with Terminal(user_box) as terminal:
        terminal.type(f"{user_box.program} --exec -- true")
        for part in ("writes", user_box.project, "network", "secrets", "withheld: GH_TOKEN", "new", QUESTION):
            terminal.expect(part.replace(".", r"\."))
        terminal.press("n\r")
        assert terminal.prompt() == 130
        assert "CANARY" not in terminal.raw()


TOKEN = "ghp_0aA1bB2cC3dD4eE5fF6gG7hH8iI9jJ0kK1lL"
CONFIG = """\
network = "allow"
allow_domains = ["api.github.com", "github.com"]
profile = "mine"
[git_credential]
host = "git.example.org"
token = "command:{base}/bin/token git"
[[secrets]]
env = "GH_TOKEN"
hosts = ["api.github.com"]
from = "command:{base}/bin/token secret"
"""
# Whatever makes a process or changes something that has a name.
SYSTEM_CALLS = (
    "fork,vfork,clone,clone3,execve,execveat,open,openat,openat2,creat,mkdir,mkdirat,rmdir,unlink,unlinkat,rename,"
    "renameat,renameat2,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,fchmodat,chown,fchownat,truncate,utimensat,"
    "setxattr,bind"
)


@pytest.fixture
def elaborate(user_box):
    """Return a box with settings that make a launch run commands of the user and write things down."""
    base = user_box.base
    user_box.mkdir(f"{base}/ran")
    script = f"#!/bin/sh\ntouch {base}/ran/$1\necho {TOKEN}\n"
    user_box.write(f"{base}/bin/token", script, mode=0o755)
    user_box.write(f"{user_box.home}/.claudebox/config.toml", CONFIG.format(base=base), mode=0o600)
    user_box.write(f"{user_box.home}/.claudebox/profiles/mine.toml", '[env]\nPAGER = "cat"\n', mode=0o600)
    for directory in (".claudebox", ".claudebox/profiles"):
        os.chmod(f"{user_box.home}/{directory}", 0o700)
    user_box.write(".env", f"API_KEY={TOKEN}\n")
    return user_box


def test_nothing_is_run_and_nothing_written_before_the_answer_and_no_leaves_nothing(elaborate):
    # proves UX-02, HOUSE-01
    box = elaborate
    before = tree(box.home, box.project, f"{box.base}/ran")
    with Terminal(box) as terminal:
        ask(terminal, "true")
        assert tree(box.home, box.project, f"{box.base}/ran") == before
        terminal.press("n\r")
        assert terminal.prompt() == 130
        assert tree(box.home, box.project, f"{box.base}/ran") == before
        assert TOKEN not in terminal.raw()

        ask(terminal, "sh", "-c", "echo ${#GH_TOKEN} $GH_TOKEN")
        terminal.press("y\r")
        terminal.expect(rf"{len(TOKEN)} ghp_\w+")
        assert terminal.prompt() == 0
        assert TOKEN not in terminal.raw()
    assert sorted(os.listdir(f"{box.base}/ran")) == ["git", "secret"]  # the control: a yes does all of it
    assert {"config-cache", "instances", "log"} <= set(os.listdir(f"{box.home}/.claudebox"))


def test_a_project_that_is_replaced_while_values_are_fetched_is_refused(elaborate):
    # proves C10, C21
    box = elaborate
    box.project = box.mkdir(f"{box.base}/ran/project")  # beside it the user can write
    swap = f"#!/bin/sh\n[ $1 = git ] || mv {box.project} {box.project}.old && mkdir -p {box.project} && echo {TOKEN}\n"
    box.write(f"{box.base}/bin/token", swap, mode=0o755)
    result = box.run("touch", "inside")

    assert result.returncode == 125
    assert f"`{box.project}` was replaced by something else since it was shown" in result.stderr
    assert os.listdir(box.project) == []


@pytest.mark.parametrize("words", [("--explain",), ("--explain", "--json"), ("--dry-run",)])
def test_showing_runs_nothing_and_writes_nothing(elaborate, words):
    # proves UX-04, HOUSE-01
    box = elaborate
    before = tree(box.home, box.project, f"{box.base}/ran")
    result = box.claudebox(*words, "--exec", "--", "true")

    assert result.returncode == 0, result.stderr
    assert tree(box.home, box.project, f"{box.base}/ran") == before


def test_the_kernel_sees_no_process_and_no_write_before_the_answer(elaborate):
    # proves HOUSE-01
    box, log = elaborate, f"{elaborate.base}/ran/calls"
    need(shutil.which("strace"), "strace")
    traced = ("strace", "-f", "-qq", "-e", f"trace=?{SYSTEM_CALLS.replace(',', ',?')}", "-o", log)
    with Terminal(box) as terminal:
        terminal.type(shlex.join((*traced, box.program, "--exec", "--", "true")))
        terminal.expect(QUESTION)
        calls = Path(log).read_text().splitlines()
        terminal.press("n\r")
        assert terminal.prompt() == 130
        assert len(Path(log).read_text().splitlines()) == len(calls)

    source = os.path.dirname(os.path.dirname(box.program))
    assert any(".claudebox/config.toml" in call for call in calls)  # the control: it does see what is read
    python = next(index for index, call in enumerate(calls) if f'"{source}/src' in call)
    assert not [call for call in calls[python:] if "exec" in call]
    changing = [call for call in calls if not re.search(r"\b(execve|open|openat|openat2)\(", call)]
    changing += [call for call in calls if re.search("O_WRONLY|O_RDWR|O_CREAT", call)]
    assert [call for call in changing if source not in call and '"/dev/tty"' not in call] == []


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
        assert "  writes  " in result.stderr
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


CHOICE, WHEN = r"Network\? \[1\] ", r"Ask\? \[1\] "


def chosen(box) -> list[str]:
    """Return what the file of settings says besides its comments."""
    lines = Path(box.home, ".claudebox/config.toml").read_text().splitlines()
    return [line for line in lines if line[:1] not in ("#", "")]


def test_the_first_launch_on_a_terminal_asks_once(user_box, open_tunnel):
    # proves NET-10
    command = f"{user_box.program} --exec -- true"
    with Terminal(user_box, configured=False) as terminal:
        for answer in ("\x04", "\x03"):
            terminal.type(command)
            terminal.expect(r"1  inet +the internet, but neither your LAN nor this machine \(recommended\)")
            terminal.expect(CHOICE)
            terminal.press(answer)
            assert terminal.prompt() == 130
            assert os.listdir(user_box.home) == []
        terminal.type(command)
        for answer in ("4\r", "yes\r"):
            terminal.expect(CHOICE)
            terminal.press(answer)
        terminal.expect(CHOICE)
        terminal.press("\r")
        terminal.expect(WHEN)
        terminal.press("\r")
        terminal.expect(r"wrote your answers to ~/\.claudebox/config\.toml")
        terminal.expect(r"network +inet: the internet")
        terminal.expect(QUESTION)
        terminal.press("n\r")
        assert terminal.prompt() == 130
        terminal.type(command)
        terminal.expect(QUESTION)
        assert terminal.raw().count("What may programs inside reach?") == 3
        terminal.press("n\r")
        terminal.prompt()
    assert sorted(chosen(user_box)) == ['confirm = "new"', 'network = "inet"']
    assert user_box.claudebox("init").returncode == 125


@pytest.mark.parametrize(("answer", "tier"), [("2", "allow"), ("full", "full"), ("none", "none")])
def test_every_answer_makes_a_file_that_works(user_box, answer, tier):
    # proves NET-10
    with Terminal(user_box, configured=False) as terminal:
        terminal.type(f"{user_box.program} --exec -- true")
        terminal.expect(r"Network\? \[\d\] ")
        terminal.press(f"{answer}\r")
        terminal.expect(WHEN)
        terminal.press("always\r")
        terminal.expect(QUESTION)
        terminal.press("y\r")
        assert terminal.prompt() == 0
    shown = json.loads(user_box.claudebox("--explain", "--json", "--exec", "--", "true").stdout)
    assert shown["network"] == tier


@pytest.mark.parametrize("flags", [("--network", "full"), ("--profile", "default"), ("-y",), ("--explain",)])
def test_who_has_chosen_or_is_not_to_be_asked_is_not_asked(user_box, flags):
    # proves NET-10
    with Terminal(user_box, configured=False) as terminal:
        terminal.type(shlex.join((user_box.program, *flags, "--exec", "--", "true")))
        if flags[0].startswith("--") and flags != ("--explain",):
            terminal.expect(QUESTION)
            terminal.press("y\r")
        assert terminal.prompt() == 0
        assert "What may programs inside reach?" not in terminal.raw()
    assert not os.path.exists(f"{user_box.home}/.claudebox/config.toml")


def test_without_a_terminal_the_network_is_full_with_one_warning(user_box):
    # proves NET-10
    result = user_box.run("true", flags=("--quiet",), start_new_session=True)
    chosen = user_box.run("true", flags=("--quiet", "--network", "full"), start_new_session=True)
    user_box.write(f"{user_box.home}/.claudebox/config.toml", "undo_keep = 5\n")
    unchosen = user_box.run("true", flags=("--quiet",), start_new_session=True)
    os.unlink(f"{user_box.home}/.claudebox/config.toml")
    configure(user_box)

    assert result.stderr.count("\n") == 1
    assert "  warning  no network tier chosen" in result.stderr
    assert unchosen.stderr == result.stderr
    assert chosen.stderr == user_box.run("true", flags=("--quiet",)).stderr == ""


def test_with_yes_and_nothing_new_one_line_is_printed_and_with_quiet_none(user_box):
    # proves UX-07
    configure(user_box)
    first = user_box.run("true").stderr.splitlines()
    assert [line.split()[0] for line in first[:4]] == ["writes", "network", "secrets", "new"]
    (again,) = user_box.run("true").stderr.splitlines()
    assert again == f"claudebox: {user_box.project} · network full · no secrets enter"
    assert user_box.run("true", flags=("--quiet",)).stderr == ""
    changed = user_box.run("true", flags=("--env", "FOO"), env={"FOO": "1", "PWD": "/x", "SHLVL": "9"}).stderr
    assert "  new      variable FOO\n" in changed
    assert user_box.run("true").stderr == f"{again}\n"


def confirm(box, when):
    configure(box)
    path = Path(box.home, ".claudebox/config.toml")
    path.write_text(f'{path.read_text()}confirm = "{when}"\n')


def test_with_confirm_new_a_launch_that_was_approved_starts_with_one_line_and_no_question(user_box):
    # proves UX-02, UX-07, NEW-D11
    confirm(user_box, "new")
    with Terminal(user_box) as terminal:
        ask(terminal, "true")
        terminal.press("n\r")
        assert terminal.prompt() == 130
        ask(terminal, "true")  # what was declined was not approved
        terminal.press("y\r")
        assert terminal.prompt() == 0
        before = len(terminal.raw())
        terminal.type(f"{user_box.program} --exec -- echo in''side")
        terminal.expect("inside")
        assert terminal.prompt() == 0
        assert len([line for line in terminal.raw()[before:].splitlines() if "claudebox: " in line]) == 1
        assert "Proceed" not in terminal.raw()[before:]

        terminal.type(f"{user_box.program} --mount-ro /srv:/data --exec -- true")
        terminal.expect(r"new +reading /data \(/srv\)")
        terminal.expect(QUESTION)
        terminal.press("y\r")
        assert terminal.prompt() == 0
        for flags in ("", "--mount-ro /srv:/data"):  # each of the two was approved
            terminal.type(f"{user_box.program} {flags} --exec -- echo in''side")
            terminal.expect("inside")
            assert terminal.prompt() == 0


def test_with_confirm_new_an_agent_in_a_worktree_of_an_approved_project_starts_without_a_question(user_box):
    # proves UX-02, AGENT-01, NEW-D11
    repositories.make(user_box)
    confirm(user_box, "new")
    assert user_box.run("true", flags=("--set", "pids=100")).returncode == 0
    start = ("--set", "pids=100", "--exec", "--", "true")

    began = user_box.claudebox("new", "one", *start, start_new_session=True)

    assert began.returncode == 0, began.stderr
    shown = [line for line in began.stderr.splitlines() if " · network " in line or "limits" in line]
    assert len(shown) == 1, "neither the audit nor a note is given again"
    wider = user_box.claudebox("new", "two", "--mount-ro", "/opt:/data", *start, start_new_session=True)
    assert (wider.returncode, "no terminal to ask on" in wider.stderr) == (125, True), wider.stderr


WIDER = {
    "a mount": ("--mount-ro", "/opt:/data"), "a domain": ("--network", "allow", "--allow-domain", "example.org"),
    "a variable": ("--env", "FOO"), "a protection": ("--allow", "git-config"), "a tier": ("--network", "inet"),
    "a port": ("--network", "none", "--publish", "3000"), "the key": ("--set", "auth=passthrough"),
}  # fmt: skip


@pytest.mark.parametrize("what", WIDER)
def test_with_confirm_new_whatever_widens_is_asked_about(user_box, what):
    # proves UX-02
    confirm(user_box, "new")
    assert user_box.run("true").returncode == 0
    assert user_box.claudebox("--exec", "--", "true", start_new_session=True).returncode == 0
    result = user_box.claudebox(*WIDER[what], "--exec", "--", "touch", "made", env={"FOO": "1"}, start_new_session=True)

    assert result.returncode == 125
    assert "there is no terminal to ask on" in result.stderr
    assert os.listdir(user_box.project) == []


def test_neither_a_project_nor_what_runs_in_it_can_switch_the_question_off(user_box):
    # proves UX-02
    user_box.write(".claudebox.toml", 'confirm = "never"\n')
    result = user_box.claudebox("--exec", "--", "true", start_new_session=True)
    assert result.returncode == 125
    assert "`confirm` cannot come from a project" in result.stderr

    os.unlink(f"{user_box.project}/.claudebox.toml")
    confirm(user_box, "new")
    forge = "for d in ~/.claudebox/instances/*; do echo forged >$d/approved; done; find / -name approved 2>/dev/null"
    assert "approved" not in user_box.sh(forge).stdout
    (approved,) = Path(user_box.home, ".claudebox/instances").glob("*/approved")
    assert "forged" not in approved.read_text()


def test_with_confirm_never_nothing_is_asked(user_box):
    # proves UX-02
    confirm(user_box, "never")
    result = user_box.claudebox("--exec", "--", "true", start_new_session=True)

    assert result.returncode == 0
    assert "  new      the first launch in this project\n" in result.stderr


def test_a_note_is_given_once_in_a_project(user_box):
    # proves UX-07
    first, again = (user_box.run("true", flags=("--set", "pids=100")).stderr for _ in range(2))

    assert "note     limits: 100 processes" in first
    assert "limits" not in again


def test_what_was_declined_is_news_again(user_box):
    # proves UX-07
    assert user_box.run("true").returncode == 0
    with Terminal(user_box) as terminal:
        for _ in range(2):
            terminal.type(f"{user_box.program} --network none --exec -- true")
            terminal.expect("new +network none")
            terminal.expect(QUESTION)
            terminal.press("n\r")
            assert terminal.prompt() == 130


def test_colours_are_for_terminals_that_have_them(user_box):
    # proves UX-07
    for environ, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        user_box.environ = environ
        with Terminal(user_box) as terminal:
            ask(terminal, "true")
            assert ("\x1b[1mwrites" in terminal.raw()) is coloured
            printed = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", terminal.raw()).split("\n")
            assert max(len(line) for line in printed if line.startswith("   ")) <= 80  # lines that were broken
            assert re.search(r"\n {11}\w.* reachable$", "\n".join(printed), re.MULTILINE)
            terminal.press("n\r")
            terminal.prompt()
    assert "\x1b" not in user_box.run("true", flags=("--network", "none")).stderr
