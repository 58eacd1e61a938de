"""Every step of the end stands by itself: a fault in one leaves all the others done, and is named."""

from __future__ import annotations

import json
import os
import select
import termios
from pathlib import Path

import pytest
from tests.conftest import few, is_disarmed
from tests.support import repositories

from claudebox.base.state import MANIFEST, Instance
from claudebox.report import leftovers

PYTHON = "/usr/bin/python3"
# Runs the real launcher in which one function fails.
DRIVER = """
import os, sys
source, module, owner, name, fault = sys.argv[1:6]
del sys.argv[1:6]
sys.path.insert(0, source)
import importlib
from claudebox.cli import main
found = importlib.import_module("claudebox." + module)
for part in filter(None, owner.split(".")):
    found = getattr(found, part)

def fail(*_words, **_named):
    raise eval(fault)

setattr(found, name, fail)
os._exit(main())
"""
FAULTS = (
    "MemoryError()", "RecursionError()", "OSError(11, 'no more processes')", "OSError(28, 'no space')",
    "OSError(5, 'input/output error')", "KeyboardInterrupt()", "ZeroDivisionError()",
)  # fmt: skip
# What fails: module, class, function, the name that the line has for it, and what is not done then.
STEPS = {
    "the terminal": ("run.terminal", "Terminal", "restore", ""),
    "the stubs": ("run.stubs", "SessionStubs", "end", "stubs"),
    "the storage": ("run.storage", "Storage", "end", ""),
    "the locks of git": ("git.state", "", "release", "commit"),
    "disarming repositories": ("report.leftovers", "Leftovers", "disarm", "disarm"),
    "importing commits": ("git.sidecar", "Follower", "finish", "commit"),
    "the snapshot": ("undo.snapshot", "UndoSidecar", "finish", ""),
    "what the sandbox left running": ("run.start", "", "reap_orphans", ""),
    "looking for changes": ("report.leftovers", "Leftovers", "look", "report"),
    "the report": ("report.session", "SessionReport", "_tell", "report log"),
    "writing the session log": ("report.session", "SessionReport", "_write", "log"),
    "printing what changed": ("report.session", "SessionReport", "_print_changes", "screen"),
    "printing the receipt": ("report.receipt", "", "lines", ""),
    "what the host replaced meanwhile": ("run.mounts", "HostGuard", "finish", ""),
}
WORK = (
    "git commit -q --allow-empty -m inside; git init -q n; git -C n config core.fsmonitor x; "
    "echo 'touch /tmp/x' >.envrc; exit 7"
)


def play(box, name, fault):
    """Run a session in which one step fails; return it, and what of the end was done."""
    module, owner, function, _ = STEPS[name]
    source = os.path.join(os.path.dirname(os.path.dirname(box.program)), "src")
    words = ("-y", "--set", "receipt=always", "--set", "undo_keep=1", "--exec", "--", "sh", "-c", WORK)
    result = box.host(PYTHON, "-IS", "-c", DRIVER, source, module, owner, function, fault, *words)
    log = max(Path(box.home, ".claudebox/log").iterdir()).read_text()
    notes = os.listdir(f"{box.home}/.claudebox/unlooked")
    done = {
        "stubs": not os.path.lexists(f"{box.project}/.vscode"),
        "commit": box.host("git", "log", "-1", "--format=%s").stdout == "inside\n",
        "disarm": os.path.exists(f"{box.project}/n/.git/config.claudebox"),
        "report": not notes,
        "screen": ".envrc" in result.stderr,
        "log": any(json.loads(line).get("kind") == "end" for line in log.splitlines()),
    }
    return result, done


@pytest.mark.parametrize("number", few(range(len(STEPS)), 8))
def test_a_fault_in_one_step_leaves_the_others_done(user_box, number):
    # proves END-01, NEW-E5, NEW-R2
    name = list(STEPS)[number]
    repositories.make(user_box)
    for fault in (FAULTS[number % len(FAULTS)], FAULTS[(number + 3) % len(FAULTS)]):
        result, done = play(user_box, name, fault)
        missing = set(STEPS[name][3].split())
        if "report" in missing or "disarm" in missing:
            missing |= {"report"}
            last = [line for line in result.stderr.splitlines() if line][-1]
            assert "not everything that this session left was examined" in last
            assert "`claudebox changes " in last
        if "report" in missing:
            missing |= {"screen"} if name != "disarming repositories" else set()

        assert result.returncode == 7, result.stderr
        assert "Traceback" not in result.stderr
        assert f"is not complete: {name}" in result.stderr, result.stderr
        assert {part for part, is_done in done.items() if not is_done} <= missing, (result.stderr, done)
        again = user_box.sh("true")  # whatever was left to do is done by the next one
        assert again.returncode == 0, again.stderr
        assert not os.listdir(f"{user_box.home}/.claudebox/unlooked"), again.stderr
        assert os.path.exists(f"{user_box.project}/n/.git/config.claudebox")
        assert not os.path.lexists(f"{user_box.project}/.vscode")
        user_box.host("sh", "-c", "rm -rf n .envrc; git reset -q --hard HEAD~1")


def test_a_payload_that_nobody_stays_beside_is_ended(user_box):
    """The launcher fails while the payload runs: it is killed, and everything at the end is done."""
    # proves END-01, NEW-R2
    repositories.make(user_box)
    STEPS["supervising the sandbox"] = ("run.supervise", "Supervisor", "wait", "")
    try:
        result, done = play(user_box, "supervising the sandbox", FAULTS[0])
    finally:
        del STEPS["supervising the sandbox"]

    assert result.returncode == 137, result.stderr
    assert "supervising the sandbox failed: MemoryError" in result.stderr
    assert done["stubs"]
    assert done["report"]
    assert done["log"]


@pytest.mark.parametrize("name", ["run.supervise:Supervisor:wait", "run.stubs:SessionStubs:end"])
def test_a_fault_leaves_the_terminal_as_it_was(user_box, background, name):
    # proves END-01, NEW-R2
    source = os.path.join(os.path.dirname(os.path.dirname(user_box.program)), "src")
    master, slave = os.openpty()
    before = termios.tcgetattr(slave)
    words = (PYTHON, "-IS", "-c", DRIVER, source, *name.split(":"), FAULTS[2], "-y", "--exec", "--", "sh", "-c",
             "stty raw -echo; printf '\\033[?1049h'; exit 7")  # fmt: skip
    process = background(user_box, "setsid", "--ctty", "--wait", *words, stdin=slave, stdout=slave, stderr=slave)
    said = b""
    while process.poll() is None or select.select([master], [], [], 0.1)[0]:
        said += os.read(master, 65536) if select.select([master], [], [], 0.1)[0] else b""

    assert process.returncode in (7, 137)
    assert b"is not complete" in said
    assert termios.tcgetattr(slave) == before
    for descriptor in (master, slave):
        os.close(descriptor)


def test_a_success_whose_end_is_not_complete_is_no_success(user_box):
    # proves END-01, NEW-E5
    repositories.make(user_box)
    source = os.path.join(os.path.dirname(os.path.dirname(user_box.program)), "src")
    words = (source, *STEPS["disarming repositories"][:3], FAULTS[1], "-y", "--exec", "--", "true")
    result = user_box.host(PYTHON, "-IS", "-c", DRIVER, *words)

    assert result.returncode == 1, result.stderr


def test_a_project_that_was_closed_skips_nothing_at_the_end(user_box):
    """No repository there, one made inside, and the directory closed."""
    # proves NEW-E5, END-01
    result = user_box.sh(
        "git init -q; git init -q n; git -C n config core.fsmonitor x; echo x >.envrc; chmod 555 .; exit 7"
    )

    assert result.returncode == 7, result.stderr
    assert ".envrc" in result.stderr
    assert is_disarmed(result.stderr, "n/.git")


@pytest.mark.parametrize("name", ["20261119T100000.000Z-0123456789abcdef-n1-7.jsonl", ""])
@pytest.mark.parametrize("content", [b"", bytes(100)])
def test_a_note_that_a_loss_of_power_emptied_counts_for_the_whole_project(tmp_path, name, content):
    # proves END-01
    instance = Instance("/srv/project", str(tmp_path), "0123456789abcdef")
    os.makedirs(instance.directory)
    Path(instance.directory, MANIFEST).write_text(instance.root)
    note = leftovers.Unlooked(leftovers.Scope("/srv/project", "/home", (), (), ()), instance, name)
    note.leave()
    path = tmp_path / leftovers.NOTES / note.name
    path.write_bytes(content)

    with open(path, "rb") as held:
        found = leftovers.read_note(str(path), held.fileno(), str(tmp_path))

    assert found is not None
    assert (found.scope.workdir, found.is_known) == ("/srv/project", False)
