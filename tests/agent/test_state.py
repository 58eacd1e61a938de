"""State of the client per project: kept, apart, and handled with care (INST-01 to INST-03, C04, C05, C28, C29)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.support.client import bash, conversation, equip


def instance(box, root=None):
    name = hashlib.sha256(os.fsencode(root or box.project)).hexdigest()[:16]
    return f"{box.home}/.claudebox/instances/{name}"


def sessions(box, root=None):
    return sorted(Path(instance(box, root)).glob("claude/projects/*/*.jsonl"), key=lambda path: path.stat().st_mtime)


def test_a_conversation_goes_on_in_its_project_and_is_unknown_in_another(box, model, claude):
    # proves INST-01, INST-02
    served = model(conversation("second", {"say": "the second answer"}))
    served_first = model()
    other = box.mkdir(f"{box.base}/other")

    first = claude(box, served_first, "-p", "the first question")
    session = sessions(box)[-1].stem
    second = claude(box, served, "-p", "--resume", session, "the second question")
    transcript = sessions(box)[-1].read_text(encoding="utf-8")
    mine, box.project = box.project, other
    foreign = claude(box, served_first, "-p", "--resume", session, "the third question")
    box.project = mine

    assert (first.returncode, second.returncode) == (0, 0)
    assert second.stdout.strip() == "the second answer"
    assert "the first question" in transcript
    assert "the second question" in transcript
    assert foreign.returncode == 1
    assert "No conversation found" in foreign.stdout + foreign.stderr
    assert Path(f"{instance(box)}/project").read_bytes() == os.fsencode(mine)
    assert not os.path.exists(f"{box.home}/.claude")


def test_what_the_agent_should_know_reaches_the_model(user_box, model, claude):
    # proves AWARE-01, AWARE-02
    user_box.mkdir(f"{user_box.home}/.claudebox")
    os.chmod(f"{user_box.home}/.claudebox", 0o700)
    user_box.write(f"{user_box.home}/.claudebox/CLAUDE.md", "Always whistle while you work.\n", mode=0o600)
    expected = {
        "sandbox": "You run in a claudebox sandbox",
        "writable": f"{user_box.home}/.claude, {user_box.project}",
        "person": "Always whistle while you work",
    }
    served = model(canaries=expected)

    result = claude(user_box, served, "-p", "hello")

    assert result.returncode == 0
    assert served.leaks == sorted(expected)
    assert (
        Path(f"{user_box.home}/.claudebox/CLAUDE.md").read_text(encoding="utf-8") == "Always whistle while you work.\n"
    )


def test_worktrees_of_one_repository_share_their_state(user_box):
    # proves INST-01
    git = ("git", "-c", "user.name=n", "-c", "user.email=e", "-C", user_box.project)
    user_box.host(*git, "init", "-q")
    user_box.host(*git, "commit", "-q", "--allow-empty", "-m", "first")
    user_box.host(*git, "worktree", "add", "-q", f"{user_box.home}/tree")

    user_box.sh("echo from the main checkout > ~/.claude/note")
    there = user_box.sh("cat ~/.claude/note", cwd=f"{user_box.home}/tree")
    apart = user_box.sh("cat ~/.claude/note", cwd=user_box.mkdir(f"{user_box.base}/unrelated"))

    assert there.stdout == "from the main checkout\n"
    assert apart.returncode == 1


def test_parts_of_the_hosts_claude_directory_come_in_read_only(user_box):
    # proves INST-03
    home = f"{user_box.home}/.claude"
    for name in ("CLAUDE.md", "commands/mine.md", "settings.json", "history.jsonl", "projects/x/y.jsonl"):
        user_box.write(f"{home}/{name}", f"host's {name}")
    look = (
        "cd ~/.claude; cat CLAUDE.md commands/mine.md settings.json history.jsonl projects/x/y.jsonl 2>/dev/null; "
        "echo x >> CLAUDE.md"
    )

    nothing = user_box.sh(look)
    chosen = user_box.sh(look, flags=("--set", "inherit=CLAUDE.md", "--set", "inherit=commands"))
    shared = user_box.sh(look, flags=("--set", "claude_home=shared"))
    refused = user_box.sh("true", flags=("--set", "inherit=projects"))
    missing = user_box.sh("true", flags=("--set", "inherit=agents"))

    assert nothing.stdout == ""
    assert chosen.stdout == "host's CLAUDE.mdhost's commands/mine.md"
    assert "Read-only file system" in chosen.stderr
    assert shared.stdout == "host's CLAUDE.mdhost's commands/mine.mdhost's settings.json"
    assert Path(f"{home}/CLAUDE.md").read_text(encoding="utf-8") == "host's CLAUDE.md"
    assert (refused.returncode, missing.returncode) == (125, 125)
    assert "there is no `agents`" in missing.stderr


def test_links_planted_in_the_state_lead_nowhere(box):
    # proves C04, C05, C01
    secret = box.write(f"{box.home}/.ssh/id_ed25519", "the key")
    decoy = box.write(f"{box.base}/decoy", "untouched")
    box.write(f"{box.home}/.claude/commands/mine.md", "mine")
    box.sh(
        f"cd ~/.claude; ln -sf {box.home}/.ssh projects; ln -sf {decoy} .claude.json; ln -sf {decoy} settings.json; "
        f"rm -rf commands; ln -s /oldroot{box.base} commands; mkdir -p sub; ln -s {decoy} .claude.json.lock"
    )

    after = box.sh("cat ~/.claude/projects/id_ed25519; cat ~/.claude/commands/mine.md; ls ~/.claude",
                   flags=("--set", "inherit=commands"))  # fmt: skip

    assert "the key" not in after.stdout
    assert after.stdout.startswith("mine")
    assert Path(decoy).read_text(encoding="utf-8") == "untouched"
    assert Path(secret).read_text(encoding="utf-8") == "the key"
    assert sorted(os.listdir(box.base)) == sorted({"decoy", "home", "project"} | (set(os.listdir(box.base)) & {"bin"}))


@pytest.mark.parametrize(("age", "taken"), [(0, False), (60, True), (-86400, True)])
def test_a_lock_of_the_client_is_taken_from_nobody_who_lives(user_box, age, taken):
    # proves NEW-R10
    user_box.sh("true")
    os.unlink(f"{instance(user_box)}/seeded")  # its first questions are to be answered again
    lock = user_box.mkdir(f"{instance(user_box)}/claude/.claude.json.lock")
    os.utime(lock, (time.time() - age, time.time() - age))

    result = user_box.sh("echo started")

    assert result.stdout == "started\n", result.stderr
    assert os.path.isdir(lock) is not taken


def test_a_name_that_stands_for_another_project_is_refused(user_box):
    # proves C28
    user_box.sh("true")
    Path(f"{instance(user_box)}/project").write_bytes(b"/somewhere/else")

    result = user_box.sh("echo started")

    assert (result.returncode, result.stdout) == (125, "")
    assert "/somewhere/else" in result.stderr


@pytest.mark.parametrize("damage", ["link", "open", "file", "foreign"])
def test_a_state_directory_that_is_not_ours_alone_is_refused(box, damage):
    # proves C29
    state = f"{box.home}/.claudebox"
    elsewhere = box.mkdir(f"{box.base}/elsewhere")
    if damage == "link":
        os.symlink(elsewhere, state)
    elif damage == "file":
        box.write(state, "")
    else:
        box.mkdir(state)
        os.chmod(state, 0o777 if damage == "open" else 0o700)
        if damage == "foreign":
            if os.getuid() != 0:
                pytest.skip("only root can give a directory away")
            os.chown(state, box.account.uid + 1, box.account.gid)
            os.chmod(state, 0o755)

    result = box.sh("echo started")

    assert (result.returncode, result.stdout) == (125, "")
    assert "Traceback" not in result.stderr
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"projects": 3}', b"\xff", b"[" * 200_000])
def test_a_damaged_configuration_of_the_client_is_named_and_kept(user_box, content):
    user_box.sh("true")
    path = f"{instance(user_box)}/claude/.claude.json"
    user_box.write(path, content, mode=0o600)
    os.unlink(f"{instance(user_box)}/seeded")

    result = user_box.sh("echo started")

    assert (result.returncode, result.stdout) == (125, "")
    assert ".claude.json" in result.stderr
    assert "Traceback" not in result.stderr
    assert Path(path).read_bytes() == content


@pytest.mark.parametrize("problem", ["full", "read-only"])
def test_a_home_that_cannot_be_written_is_one_clear_line(user_box, problem):
    if os.getuid() != 0:
        pytest.skip("only root can mount a file system for this")
    options = "size=4k,nr_inodes=2" if problem == "full" else "ro"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=0777", "none", user_box.home], check=True)
    try:
        result = user_box.sh("echo started")
    finally:
        subprocess.run(["umount", user_box.home], check=True)

    assert (result.returncode, result.stdout) == (125, "")
    assert result.stderr.splitlines()[-1].startswith("hint:")
    assert "Traceback" not in result.stderr
    assert "cannot be kept" in result.stderr


@pytest.mark.slow
def test_twenty_sessions_of_one_project_and_of_many_lose_nothing(user_box):
    # proves INST-02
    script = (
        'for i in $(seq 20); do (cd "$1"; "$2" -y --exec -- sh -c "echo $i >> ~/.claude/together") & '
        'mkdir -p ~/many/$i; (cd ~/many/$i; "$2" -y --exec -- sh -c "echo $i > ~/.claude/alone") & done; wait'
    )

    result = user_box.host("bash", "-c", script, "-", user_box.project, user_box.program, timeout=180)

    claude = f"{instance(user_box)}/claude"
    assert "error" not in result.stderr
    assert sorted(map(int, Path(f"{claude}/together").read_text(encoding="ascii").split())) == list(range(1, 21))
    assert json.loads(Path(f"{claude}/.claude.json").read_text(encoding="utf-8"))["hasCompletedOnboarding"] is True
    alone = Path(f"{user_box.home}/.claudebox/instances").glob("*/claude/alone")
    assert sorted(int(path.read_text(encoding="ascii")) for path in alone) == list(range(1, 21))


def test_instances_are_listed_and_those_of_lost_projects_pruned_after_asking(user_box, terminal):
    user_box.sh("true")
    lost = user_box.mkdir(f"{user_box.base}/lost \x1b[31m")
    user_box.sh("true", cwd=lost)
    shutil.rmtree(lost)

    listed = user_box.claudebox("projects")
    machine = json.loads(user_box.claudebox("projects", "--json").stdout)
    wrong = user_box.claudebox("projects", "purge")
    silent = user_box.claudebox("projects", "prune")
    screen = terminal(user_box)
    screen.shell(user_box.program, "projects", "prune")
    screen.expect("[y/N]")
    screen.key("Enter")
    declined = screen.status()
    kept = len(os.listdir(f"{user_box.home}/.claudebox/instances"))
    pruned = user_box.claudebox("projects", "prune", "-y")

    assert user_box.project in listed.stdout
    assert "(gone)" in listed.stdout
    assert "\x1b" not in listed.stdout
    assert {(entry["project"], entry["gone"]) for entry in machine} == {(lost, True), (user_box.project, False)}
    assert wrong.returncode == 125
    assert silent.returncode == 125
    assert (declined, kept) == (130, 2)
    assert pruned.returncode == 0
    assert len(os.listdir(f"{user_box.home}/.claudebox/instances")) == 1


def test_settings_of_the_administrator_are_respected(user_box, model, real_client):
    if os.getuid() != 0:
        pytest.skip("only root can give a process another /etc")
    equip(user_box, real_client)
    served = model(conversation("try", {"tools": [bash("touch made && echo ran")]}, {"say": "{result}"}))
    # In a mount namespace with another /etc: whatever else runs on this machine keeps its own.
    etc = f"{user_box.base}/etc"
    subprocess.run(["cp", "-a", "/etc", etc], check=True)
    managed = Path(etc, "claude-code/managed-settings.json")
    managed.parent.mkdir(exist_ok=True)
    managed.write_text('{"permissions": {"disableBypassPermissionsMode": "disable"}}', encoding="ascii")
    own = user_box.account
    script = f'mount --bind "$1" /etc; shift; exec setpriv --reuid={own.uid} --regid={own.gid} --clear-groups -- "$@"'
    other = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", etc)
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_AUTH_TOKEN": "x"}
    flags = ("--env", "ANTHROPIC_BASE_URL", "--env", "ANTHROPIC_AUTH_TOKEN")
    words = (user_box.program, "-y", *flags, "-p", "try")

    forbidden = user_box.host(*other, *words, env=env, timeout=120, user=0, group=0)
    permitted = user_box.host(*words, env=env, timeout=120)

    assert permitted.stdout.strip() == "ran"
    assert "needs approval" in forbidden.stdout
