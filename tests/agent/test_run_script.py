"""`scripts/run`, the first command of a newcomer, and what a session of the client loads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.support.client import conversation, equip


def test_run_plays_the_demonstration_where_nobody_is_logged_in(user_box, checkout, real_client):
    # proves SAND-02, SAND-09
    shutil.copytree(REPOSITORY / "scripts", f"{checkout}/scripts", dirs_exist_ok=True)
    equip(user_box, real_client)

    result = user_box.host(f"{checkout}/scripts/run", timeout=120)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "nobody is logged in" in result.stderr
    assert result.stdout.count("\nheld ") >= 8
    assert result.stdout.count("\ndone ") >= 4
    assert "broken" not in result.stdout


# Runs claudebox, and writes down what it and each of its processes had loaded when it ended.
_LOADED = """\
import os, sys
directory = sys.argv.pop(1)
sys.path.insert(0, sys.argv.pop(1))
leave = os._exit
def note(status):
    os.write(os.open(f"{directory}/{os.getpid()}", os.O_WRONLY | os.O_CREAT), "\\n".join(sys.modules).encode())
    leave(status)
os._exit = note
from claudebox.cli import entry
entry()
"""


def test_a_session_of_the_client_loads_nothing_dear(user_box, model, real_client):
    source = f"{os.path.dirname(os.path.dirname(user_box.program))}/src"
    equip(user_box, real_client)
    running = model(conversation("hello", {"say": "Hello."}), key="the-key")
    env = {"ANTHROPIC_API_KEY": "the-key", "ANTHROPIC_BASE_URL": running.url}
    notes = ""
    for number in range(2):  # the first also writes down answers for the client, as JSON
        notes = user_box.mkdir(f"{user_box.base}/modules-{number}")
        argv = ("/usr/bin/python3", "-IS", "-c", _LOADED, notes, source, "-y", "-p", "hello")
        result = user_box.host(*argv, env=env, timeout=120)
        assert "Hello." in result.stdout, result.stderr

    dear = {"json", "re", "enum", "hashlib", "typing", "functools"}
    rows = {path.name: path.read_text(encoding="utf-8").split("\n") for path in Path(notes).iterdir()}
    own = {"functools"}  # what the C module of sqlite3 loads itself
    loaded = {
        name: dear.intersection(modules) - (own if "_sqlite3" in modules else set()) for name, modules in rows.items()
    }
    assert not any(loaded.values()), loaded
