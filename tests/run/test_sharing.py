"""Several sessions of one project, which start and end in every order: nothing is lost, and nothing stays."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from tests.conftest import PATIENCE, few, wait_until
from tests.run.test_stubs import entries, journal
from tests.support import repositories

# Each commits at once, and is protected for as long as it lives.
SCRIPT = """
echo $1 >file-$1 && git add file-$1 && git commit -qm $1 || echo no commit
touch up-$1
while test -e up-$1; do sleep 0.02; done
mkdir .claude/x 2>/dev/null && echo open .claude
echo {} 2>/dev/null >.mcp.json && echo open .mcp.json
exit 7
"""


def orders() -> list[str]:
    """Return how pairs and triples start (+), end (-) and are killed (!)."""
    pairs = [f"+1+2{first}{second}" for first in ("-1", "!1") for second in ("-2", "!2")]
    pairs += [f"+1+2{second}{first}" for first in ("-1", "!1") for second in ("-2", "!2")]
    triples = [f"+1+2+3-{a}-{b}-{c}" for a, b, c in itertools.permutations("123")]
    return [*pairs, *triples, "+1+2!1+3-2-3", "+1!1+2+3!3-2", "+1+2-1+3-2-3", "+1+2!2!1+3-3"]


@pytest.fixture
def play(background):
    """Return what lets sessions begin and end as told."""

    def run(box, order: str) -> None:
        sessions = {}
        for step, name in zip(order[::2], order[1::2], strict=True):
            up = f"{box.project}/up-{name}"
            if step == "+":
                words = ("-y", "--set", "undo_keep=3", "--exec", "--", "sh", "-c", SCRIPT, "sh", name)
                sessions[name] = background(box, box.program, *words)
                alive = sessions[name]
                wait_until(lambda: os.path.exists(up) or alive.poll() is not None, "the session begins")  # noqa: B023
                assert alive.poll() is None, alive.communicate()
            elif step == "!":
                sessions[name].kill()
                sessions[name].wait()
                os.unlink(up)
            else:
                os.unlink(up)
                output, _ = sessions[name].communicate(timeout=PATIENCE)
                assert sessions[name].returncode == 7, output
                assert "open .claude" not in output
                assert "open .mcp.json" not in output
                assert "no commit" not in output

    return run


@pytest.mark.parametrize("order", few(orders(), 7))
def test_sessions_of_one_project_lose_nothing_and_leave_nothing(user_box, play, order):
    # proves MOUNT-01, C21
    checkout = repositories.make(user_box)
    before = entries(user_box.project)
    play(user_box, order)
    if order[-2] == "!":
        assert user_box.run("true").returncode == 0

    names = sorted({name for name in order if name.isdigit()})
    assert sorted(checkout.sh("git log --all --format=%s").split())[: len(names)] == names
    assert checkout.sh("git status --porcelain -uall") == ""
    checkout.sh("git fsck --no-progress --connectivity-only")
    made = {entry.partition(" ")[0] for entry in entries(user_box.project) - before if "/.git/" not in entry}
    assert made == {f"{user_box.project}/file-{name}" for name in names}
    assert journal(user_box) == []
    assert user_box.run("true").returncode == 0
    assert [name for name in os.listdir(f"{user_box.home}/.claudebox/live") if name != "lock"] == []
    assert not list(Path(user_box.home, ".claudebox/instances").glob("*/scratch/*"))
