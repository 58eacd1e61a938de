"""What agents of the host obey in a project: read-only where it is there, put aside where a session makes it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.conftest import wait_until

from claudebox.tables.paths import PUT_ASIDE

NAMES = [name for name, _ in PUT_ASIDE]
MAKE = "for name in {names}; do mkdir -p $(dirname $name); echo evil >$name && echo made $name; done"


def test_what_any_agent_obeys_is_put_aside_unless_it_was_there_or_is_allowed(user_box):
    # proves ANY-06, SEC-04
    user_box.write(".gemini/settings.json", "{}")
    user_box.mkdir(".codex")
    attempts = f"echo evil >.gemini/settings.json; touch .codex/config.toml; {MAKE.format(names=' '.join(NAMES))}; true"
    result = user_box.sh(attempts, flags=("--allow", "opencode.json"))

    made = {line.removeprefix("made ") for line in result.stdout.splitlines()}
    assert made == {*NAMES} - {".gemini", ".codex"}, result.stderr
    assert Path(user_box.project, ".gemini/settings.json").read_text() == "{}"
    assert os.listdir(f"{user_box.project}/.codex") == []
    there = {name for name in NAMES if os.path.lexists(f"{user_box.project}/{name}")}
    assert there == {".gemini", ".codex", "opencode.json"}
    for name in made - {"opencode.json"}:
        assert os.path.lexists(f"{user_box.project}/{name}.claudebox"), name
        assert name in result.stderr


def test_a_link_that_leads_to_it_is_put_aside_and_so_is_what_stands_in_a_closed_directory(user_box):
    # proves ANY-06, C01
    user_box.write("other/mcp.json", "{}")
    result = user_box.sh("ln -s other .cursor; ln -s /etc .qwen; mkdir .codex; chmod 555 .")

    assert sorted(name for name in os.listdir(user_box.project) if name[0] == ".") == [
        ".codex.claudebox", ".cursor.claudebox", ".qwen.claudebox",
    ], result.stderr  # fmt: skip
    assert os.listdir(f"{user_box.project}/other") == ["mcp.json"]
    assert result.stderr.count(".qwen.claudebox") == 1  # how to take it back, and nothing else
    os.chmod(user_box.project, 0o755)


def test_what_a_link_leads_to_is_read_only_and_another_link_is_put_aside(user_box):
    # proves ANY-06, C01
    links = {".codex": "tools/codex", ".gemini": "nowhere", ".claude": ".agents", ".cursor": "ide", ".qwen": "/etc",
             ".opencode": "a", "a": "b", ".mcp.json": "mcp"}  # fmt: skip
    for path in ("tools/codex/config.toml", ".agents/settings.json", "ide/rules", "b/plugin", "mcp"):
        user_box.write(path, "mine")
    for name, target in links.items():
        os.symlink(target, f"{user_box.project}/{name}")
    quiet = user_box.sh(
        "for name in tools/codex .agents b; do echo evil >$name/x; done; echo evil >>mcp; echo yes >works"
    )

    assert not any(os.path.lexists(f"{user_box.project}/{name}/x") for name in ("tools/codex", ".agents", "b"))
    assert Path(user_box.project, "mcp").read_text() == "mine"
    assert Path(user_box.project, "works").read_text() == "yes\n"
    assert {name: os.readlink(f"{user_box.project}/{name}") for name in links} == links
    assert ".claudebox" not in quiet.stderr.partition("look at these")[2]

    result = user_box.sh(
        "rm .codex .claude .qwen a; mkdir .codex .claude a other nowhere; echo evil >.codex/config.toml;"
        "echo {} >ide/mcp.json; touch other/plugin nowhere/x; ln -s other a; ln -s /etc .qwen"
    )
    for name in (".codex", ".claude", ".cursor", ".gemini"):
        assert not os.path.lexists(f"{user_box.project}/{name}"), result.stderr
        assert os.path.lexists(f"{user_box.project}/{name}.claudebox")
    assert os.readlink(f"{user_box.project}/.qwen") == "/etc"  # as it was
    assert os.readlink(f"{user_box.project}/.opencode.claudebox") == "a"
    assert Path(user_box.project, "tools/codex/config.toml").read_text() == "mine"


def test_what_a_killed_session_made_is_put_aside_by_the_next_launch(user_box, background):
    # proves ANY-06, REPORT-01
    script = "mkdir .codex; echo $PPID >started; sleep 60"
    process = background(user_box, user_box.program, "-y", "--exec", "--", "sh", "-c", script)
    wait_until(lambda: os.path.exists(f"{user_box.project}/started"), "the session runs")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert os.path.isdir(f"{user_box.project}/.codex")

    result = user_box.sh("ls -d .codex*")

    assert result.stdout.split() == [".codex.claudebox"], result.stderr


def test_what_one_session_may_not_make_the_other_one_may_not_either(user_box, background):
    # proves ANY-06, D02
    first = "mkdir .codex; touch first; until test -e go; do sleep 0.1; done"
    second = (
        "touch second; until mkdir .codex; do sleep 0.1; done 2>/dev/null; echo evil >.codex/config.toml; touch made"
    )
    one = background(user_box, user_box.program, "-y", "--exec", "--", "sh", "-c", first)
    wait_until(lambda: os.path.exists(f"{user_box.project}/first"), "the first session runs")
    other = background(user_box, user_box.program, "-y", "--exec", "--", "sh", "-c", second)
    wait_until(lambda: os.path.exists(f"{user_box.project}/second"), "the second session runs")
    user_box.write("go")
    one.wait()
    other.wait()

    assert os.path.exists(f"{user_box.project}/made")  # it did, once the first one's was gone
    kept = sorted(name for name in os.listdir(user_box.project) if name.startswith(".codex"))
    assert ".codex" not in kept
    assert len(kept) == 2


def test_nothing_of_the_user_s_is_lost_when_it_is_put_aside(user_box):
    # proves ANY-06
    user_box.write(".codex.claudebox/mine", "older")
    user_box.write(".cursor/rules", "mine")
    result = user_box.sh("mkdir .codex && echo new >.codex/x && ln .codex/x .cursor/mcp.json && ln -s / .gemini")

    kept = [path for path in Path(user_box.project).iterdir() if path.name.startswith(".codex.")]
    assert sorted((path / "x").exists() for path in kept) == [False, True]
    assert Path(user_box.project, ".codex.claudebox/mine").read_text() == "older"
    assert sorted(os.listdir(f"{user_box.project}/.cursor")) == ["mcp.json.claudebox", "rules"]
    assert os.readlink(f"{user_box.project}/.gemini.claudebox") == "/"
    (line,) = [line for line in result.stderr.split("\n") if ".gemini " in line and "put aside" in line]
    user_box.host(*line.partition("to keep it: ")[2].split()).check_returncode()
    assert os.readlink(f"{user_box.project}/.gemini") == "/"
