"""Random trees of nested repositories in every shape, over sessions and a kill: git on the host runs none of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest
from tests.conftest import wait_until
from tests.git.test_hostile import MARK
from tests.git.test_session import make_repository, sh

pytestmark = pytest.mark.slow

ROUNDS = 2
MOST = 400  # directories that git enters
# Runs inside, as the agent. Everything that it may find there is its own work of earlier sessions.
AGENT = r"""
import os, random, sys, time
seed, evil, wait = sys.argv[1:4]
rng = random.Random(seed)
HEAD, CONFIG = "ref: refs/heads/main\n", "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
ARMS = (
    lambda: f"[core]\n\tfsmonitor = {evil};:\n", lambda: f" [core]fsmonitor=\\\n{evil};:\n",
    lambda: "[include]\n\tpath = ../../armed\n[include]\n\tpath = ../armed\n", lambda: f"[alias]\n\tstatus = !{evil}\n",
    lambda: f"[core]\n\tpager = {evil}\n\teditor = {evil}\n\tsshCommand = {evil}\n\thooksPath = ../hk\n",
    lambda: f"[diff]\n\texternal = {evil}\n" + "[a]\n\tb = c\n" * rng.randrange(20000),
    lambda: f"[core]\n\tworktree = .\n\tfsmonitor = {evil};:\n[extensions]\n\tworktreeConfig = true\n",
)

def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)

def hook(place):
    for name in ("post-index-change", "pre-commit", "fsmonitor-watchman"):
        write(f"{place}/{name}", f"#!/bin/sh\n{evil}\n", 0o755)

def git_dir(place):
    for part in ("objects/info", "objects/pack", "refs/heads", "info"):
        os.makedirs(f"{place}/{part}", exist_ok=True)
    write(f"{place}/HEAD", HEAD)
    write(f"{place}/config", CONFIG + rng.choice(ARMS)())
    if rng.random() < 0.4:
        hook(f"{place}/hooks")
    if rng.random() < 0.2:
        write(f"{place}/config.worktree", rng.choice(ARMS)())

def directories():
    found = [path for path, _, _ in os.walk(".") if "/objects" not in path and not path.startswith("./.git")
             and len(path) < 3000]
    return found

def somewhere():
    name = rng.choice(("a", "b", "lib", "hooks", "x y", "n\nl", "\udcff", ".hidden", "modules"))
    return rng.choice(directories()) + "/" + name

def plain():
    git_dir(somewhere() + "/.git")

def bare():
    git_dir(somewhere())

def gitfile():
    place = somewhere()
    git_dir(place + "/real")
    write(place + "/.git", "gitdir: real\n")

def link():
    place = somewhere()
    git_dir(place + "/real")
    os.symlink("real", place + "/.git")

def common():
    place = somewhere()
    git_dir(place + "/real")
    write(place + "/.git/HEAD", HEAD)
    write(place + "/.git/commondir", "../real\n")

def worktree():
    place = somewhere()
    git_dir(place + "/.git")
    write(place + "/.git/worktrees/w/HEAD", HEAD)
    write(place + "/.git/worktrees/w/commondir", rng.choice(("../..\n", "../../../../armed\n")))
    write(place + "/w/.git", f"gitdir: {os.path.abspath(place)}/.git/worktrees/w\n")

def deep():
    place = somewhere()
    for _ in range(rng.randrange(5, 60)):
        place += rng.choice(("/modules/a", "/hooks", "/d"))
        if len(place) > 3000:
            return
        os.makedirs(place, exist_ok=True)
        if rng.random() < 0.5:
            write(place + "/HEAD", HEAD)
    git_dir(place + rng.choice(("", "/.git")))

def wide():
    place = somewhere()
    for number in range(rng.randrange(300)):
        os.makedirs(f"{place}/{number}", exist_ok=True)
    git_dir(f"{place}/zz/.git")

def hide():
    for path in directories():
        if os.path.exists(path + "/HEAD") and rng.random() < 0.5:
            os.rename(path + "/HEAD", path + "/H")

def show():
    for path in directories():
        if os.path.exists(path + "/H"):
            os.rename(path + "/H", path + "/HEAD")
        if os.path.exists(path + "/config.claudebox") and rng.random() < 0.5:
            os.rename(path + "/config.claudebox", path + "/config")

def move():
    os.rename(rng.choice(directories()[1:] or ["none"]), somewhere())

def strange():
    place = somewhere() + "/.git"
    git_dir(place)
    os.unlink(place + "/config")
    rng.choice((lambda: os.mkfifo(place + "/config"), lambda: os.symlink("../../armed", place + "/config"),
                lambda: os.mkdir(place + "/config")))()

def close():
    for path in rng.sample(directories()[1:] or ["."], 1):
        if path != ".":
            os.chmod(path, rng.choice((0o111, 0o311, 0o555, 0o0)))

try:
    os.chmod(".", 0o755)
except OSError:
    pass
write("armed", f"[core]\n\tfsmonitor = {evil};:\n")
hook("hk")
STEPS = (plain, plain, bare, gitfile, link, common, worktree, deep, wide, hide, show, move, strange, close)
for _ in range(rng.randrange(15, 40)):
    try:
        rng.choice(STEPS)()
    except (OSError, ValueError, IndexError):
        continue
for _ in range(3):
    try:
        close()
    except (OSError, ValueError, IndexError):
        continue
open("/tmp/done", "w").close()
print("done", flush=True)
time.sleep(float(wait))
"""
ENTER = """
import os, subprocess, sys
mark, most = sys.argv[1], int(sys.argv[2])
subprocess.run(["chmod", "-R", "u+rwX", "."], check=False)  # as a user would, to look
found = [path for path, _, _ in os.walk(".") if "/objects" not in path and not path.startswith("./.git/")]
for path in found[:most]:
    for words in (("status",), ("diff",), ("add", "-A", "-n", "."), ("update-index", "--refresh"), ("log", "-1")):
        try:
            subprocess.run(["git", *words], cwd=path, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(ascii(path), error)
        if os.path.exists(mark):
            sys.exit("ran: " + ascii(path) + " " + repr(words))
print(len(found))
"""


@pytest.mark.parametrize("number", range(ROUNDS))
def test_no_tree_of_repositories_runs_anything_on_the_host(user_box, number):
    # proves END-01, NEW-E1, NEW-E2, NEW-E3, NEW-E4, NEW-E9, NEW-E12, NEW-E13, D10, D11, D12, D13
    seed = os.environ.get("NESTED_SEED") or f"{random.SystemRandom().randrange(1 << 32)}"
    sys.stdout.write(f"NESTED_SEED={seed}\n")  # repeats what has failed
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    agent = box.write(f"{box.base}/agent.py", AGENT)
    sh(box, "git config --global core.hooksPath .hk") if number % 2 else None
    flags = ("-y", "--mount-ro", agent)
    for session in range(2):
        words = ("--exec", "--", "python3", agent, f"{seed}-{number}-{session}", evil, "0")
        last = box.claudebox(*flags, *words)
        assert "done" in last.stdout, last.stderr
    last_words = (*flags, "--exec", "--", "python3", agent, f"{seed}-{number}-killed", evil, "60")
    options = {"cwd": box.project, "env": box.variables(None), **box.account.demotion}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    killed: subprocess.Popen[str] = subprocess.Popen((box.program, *last_words), **pipes, **options)  # type: ignore[call-overload]
    assert killed.stdout is not None
    assert killed.stdout.readline() == "done\n"
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    notes = f"{box.home}/.claudebox/unlooked"
    wait_until(lambda: bool(os.listdir(notes)), "the session is noted")
    after = box.claudebox("log")

    entered = box.host("/usr/bin/python3", "-c", ENTER, f"{box.home}/{MARK}", str(MOST))
    incomplete = bool(os.listdir(notes)) and "continues" in after.stderr
    assert entered.returncode == 0 or incomplete, (seed, entered.stderr, after.stderr)
    sh(box, f"git init -q armed.d; git -C armed.d config core.fsmonitor '{evil};:'")
    control = box.host("/usr/bin/python3", "-c", ENTER, f"{box.home}/{MARK}", "1000000", cwd=f"{box.project}/armed.d")
    assert control.returncode != 0  # the positive control
