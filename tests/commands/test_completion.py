from __future__ import annotations

import os
import select
import shutil
import subprocess
import time

import pytest
from tests.conftest import REPOSITORY, need

from claudebox.agent import kinds
from claudebox.commands import complete
from claudebox.settings.table import SETTINGS
from claudebox.settings.verbs import VERBS
from claudebox.tables.network import GROUPS


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def offered(home, *words: str, **more: str) -> list[str]:
    """Return what is offered for the last word; an empty one stands for files."""
    environ = {"HOME": str(home), "EXPORTED": "1", **more}
    return [line.partition("\t")[0] for line in complete.list_candidates(words, environ)]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["und"], ["undo"]),
        (["--net"], ["--network"]),
        (["--mount"], ["--mount-ro", "--mount-rw"]),
        (["--network", "i"], ["inet"]),
        (["--network=i"], ["--network=inet"]),
        (["-y", "--network", "f"], ["full"]),
        (["--toolchain", "ru"], ["rust", "ruby"]),
        (["--env", "EXP"], ["EXPORTED"]),
        (["--profile", "stri"], ["strict"]),
        (["--budget", ""], []),
        (["--mount-ro", "a"], [""]),
        (["--set", "netw"], ["network="]),
        (["--set", "network=n"], ["network=none"]),
        (["--set", "gpu="], ["gpu=true", "gpu=false"]),
        (["--set", "agent=cod"], ["agent=codex"]),
        (["--set=caches=o"], ["--set=caches=own", "--set=caches=off"]),
        (["undo", "--p"], ["--patch"]),
        (["undo", "--net"], []),
        (["new", "x", "--net"], ["--network"]),
        (["log", "den"], ["denied"]),
        (["trust", ""], ["approve", "revoke"]),
        (["trust", "revoke", ""], [""]),
        (["projects", "prune", ""], []),
        (["show", "a", "b"], [""]),
        (["help", "sett"], ["settings"]),
        (["help", "settings", "undo_k"], ["undo_keep"]),
        # Words of the agent are its own, as far as its row tells them.
        (["hello"], [""]),
        (["-p", "und"], [""]),
        (["--", "und"], [""]),
        (["--exec", "--", "--net"], [""]),
        (["codex", "--net"], [""]),
        (["mc"], ["mcp"]),
        (["upd"], [""]),  # switched off, so it may be a file
    ],
)
def test_what_may_stand_there_is_offered(home, words, wanted):
    # proves CLI-01, D-01
    assert offered(home, *words) == wanted


def test_flags_of_the_installed_agent_are_offered(home):
    # proves CLI-01
    (home / "bin").mkdir()
    shown = "  -m, --model <MODEL>\\n          The --one\\n      --oss\\n  --image, --picture <FILE>...   Show it\\n"
    (home / "bin/codex").write_text(f'#!/bin/sh\n[ "$*" = --help ] && [ "$PWD" = / ] && printf \'{shown}\'\n')
    (home / "bin/codex").chmod(0o755)

    found = offered(home, "codex", "-", PATH=f"{home}/bin:/usr/bin:/bin")

    assert found == ["-m", "--model", "--oss", "--image", "--picture"]


@pytest.mark.client
def test_the_real_client_tells_its_flags(home, real_client, monkeypatch):
    # proves CLI-01
    (home / "bin").mkdir()
    monkeypatch.chdir("/usr/share")
    (home / "bin/claude").symlink_to(real_client)

    found = offered(home, "--", PATH=f"{home}/bin:/usr/bin:/bin")

    assert {"--model", "--continue", "--resume", "--mcp-config", "--output-format", "--network"} <= {*found}
    assert [*home.iterdir()] == [home / "bin"]


def test_all_verbs_agents_flags_groups_and_topics_are_offered(home):
    # proves CLI-01
    first = offered(home, "")
    assert {verb.word for verb in VERBS} <= {*first}
    assert {*kinds.NAMES} <= {*first}
    assert {flag for row in SETTINGS for flag in row.flags} <= {*offered(home, "-")}
    assert {*GROUPS} <= {*offered(home, "allow", "")} & {*offered(home, "--allow-domain", "")}
    for verb in VERBS:  # each operand has something to offer, or is a new name
        offered(home, verb.word, "")
        assert {flag for row in verb.flags for flag in row.flags} <= {*offered(home, verb.word, "-")}
    assert not [*home.iterdir()]  # nothing is written


def test_names_of_agents_and_sessions_are_offered(home, monkeypatch):
    # proves CLI-01
    from claudebox.many.records import Agent, Records
    from claudebox.many.worktrees import Copies

    records = Records(f"{home}/.claudebox")
    records.save(Agent("id1", "steady", "/w", "/w", "i", 1.0))
    copies = Copies(str(home))
    copy = copies.place("login", "/w")
    os.makedirs(copy.project)
    copies.save(copy)
    for verb in ("attach", "stop", "drop", "publish", "review"):
        assert {"steady", "login"} <= {*offered(home, verb, "")}, verb
    assert offered(home, "new", "") == offered(home, "finish", "") == ["login"]
    assert offered(home, "stop", "st") == ["steady"]


def wrap(tmp_path) -> dict[str, str]:
    """Put this checkout's claudebox on PATH, and a home."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/claudebox").symlink_to(REPOSITORY / "bin/claudebox")
    return {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb"}


def test_bash_completes(tmp_path):
    # proves CLI-01
    env = wrap(tmp_path)
    (tmp_path / "a file").touch()

    def press_tab(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in ("claudebox", *words))
        script = (
            f"cd '{tmp_path}'; source {REPOSITORY}/completions/claudebox.bash; complete -p claudebox\n"
            f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _claudebox; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        made = subprocess.run(
            ["bash", "--norc", "-c", script], env=env, capture_output=True, encoding="utf-8", check=True
        )
        assert made.stdout.startswith("complete -o default -F _claudebox claudebox\n")
        return made.stdout.splitlines()[1:]

    assert press_tab("und") == ["undo"]
    assert press_tab("--network", "i") == ["inet"]
    assert press_tab("--network", "=", "i") == ["inet"]  # as bash cuts the words
    assert press_tab("--set", "network", "=", "") == ["full", "inet", "allow", "none"]
    assert press_tab("--set", "gp") == ["gpu="]
    assert press_tab("-p", "a") == [""]  # files, which the shell finds itself
    assert press_tab("projects", "") == ["prune"]


def test_fish_completes(tmp_path):
    # proves CLI-01
    need(shutil.which("fish"), "fish")
    env = wrap(tmp_path)
    (tmp_path / "a file").touch()

    def press_tab(line: str) -> list[str]:
        script = f'cd {tmp_path}; source {REPOSITORY}/completions/claudebox.fish; complete -C "{line}"'
        made = subprocess.run(
            ["fish", "--no-config", "-c", script], env=env, capture_output=True, encoding="utf-8", check=True
        )
        return [row.partition("\t")[0] for row in made.stdout.splitlines()]

    assert press_tab("claudebox und") == ["undo"]
    assert press_tab("claudebox --network ") == ["allow", "full", "inet", "none"]
    assert press_tab("claudebox --set caches=o") == ["caches=off", "caches=own"]
    assert press_tab("claudebox --mount-ro a") == ["a file"]
    assert press_tab("claudebox --budget ") == []
    assert press_tab("claudebox projects ") == ["prune"]


def test_zsh_completes(tmp_path):
    # proves CLI-01
    need(shutil.which("zsh"), "zsh")
    env = wrap(tmp_path) | {"TERM": "xterm", "ZDOTDIR": str(tmp_path)}
    (tmp_path / "a-file").touch()
    (tmp_path / ".zshrc").write_text(
        f"PS1='> '; fpath=({REPOSITORY}/completions $fpath); autoload -U compinit; compinit -D -u; cd {tmp_path}\n"
        "show() { zle -I; print -r \"<$BUFFER>\"; BUFFER= }; zle -N show; bindkey '^X' show\n"
    )
    master, slave = os.openpty()
    shell = subprocess.Popen(["zsh", "-i"], env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        read_until(master, "> ")
        for typed, wanted in (
            ("und", "undo "), ("--network i", "--network inet "), ("--set gp", "--set gpu="),
            ("--set caches=sh", "--set caches=shared "), ("--mount-ro a-", "--mount-ro a-file "),
            ("-p a-", "-p a-file "), ("projects ", "projects prune "),
        ):  # fmt: skip
            os.write(master, f"claudebox {typed}\t\x18".encode())  # TAB, then show the line
            shown = read_until(master, ">\r\n")
            assert f"<claudebox {wanted}>" in shown
    finally:
        os.close(master)
        shell.kill()
        shell.wait()


def read_until(master: int, wanted: str) -> str:
    """Return what a terminal shows until this is on it."""
    shown, limit = "", time.monotonic() + 10
    while wanted not in shown and time.monotonic() < limit:
        if select.select([master], [], [], 0.2)[0]:
            shown += os.read(master, 4096).decode("utf-8", "replace")
    return shown
