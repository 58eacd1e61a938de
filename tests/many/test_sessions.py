"""The list of sessions without a terminal, at awkward moments."""

from __future__ import annotations

import dataclasses
import subprocess

from claudebox.git.sides import TreeChange
from claudebox.many import finish, sessions
from claudebox.many.records import Agent, Records, boot_id, process_start
from claudebox.many.tmux import Tmux
from claudebox.many.worktrees import Copy


def test_a_session_that_ends_while_it_is_listed_shows_how_it_ended(tmp_path):
    # proves AGENT-03
    state = str(tmp_path / ".claudebox")
    launcher = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    agent = Agent(
        "id", "slow", "/work", "/work", "name", 1.0, pid=launcher.pid, start=process_start(launcher.pid),
        boot=boot_id(), begun=2.0,
    )  # fmt: skip

    class Overtaken(Records):
        """The launcher ends right after its record was read."""

        def all(self):
            found = super().all()
            if launcher.returncode is None:
                self.save(dataclasses.replace(agent, ended=3.0, status=124))
                launcher.communicate()
            return found

    Records(state).save(agent)
    tmux = Tmux(state, {"PATH": "/nowhere"})

    assert [row.state for row in sessions.look(Records(state), tmux)] == ["working"]
    (row,) = sessions.look(Overtaken(state), tmux)
    assert (row.state, row.how, row.document()["status"]) == ("ended", "ended with status 124", 124)


def test_what_an_agent_did_is_shown_by_danger_and_decoys_hide_nothing():
    # proves AGENT-06
    row = TreeChange("100644", "1" * 40)
    names = (*(f"{name}{number:02}/Makefile" for name in "ac" for number in range(20)), "b/conftest.py", "z/.envrc")
    changed = dict.fromkeys(sorted((*names, *(f"b{number:02}/conftest.py" for number in range(20)))), row)
    lines = list(
        finish.report(Copy("x", "/c/x", "/p"), finish.Work("1" * 40, [], changed, {}, *([] for _ in range(6))))
    )

    said = [line for line in lines if "run or obeyed" in line]
    order = [text.rpartition("/")[2].split(" ")[0] for line in said for text in line.partition(": ")[2].split(", ")]
    assert order[:4] == [".envrc", "conftest.py", "Makefile", "conftest.py"], said
