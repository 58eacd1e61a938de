"""Processes of the host are out of sight and out of reach; those of the sandbox end with it, and cannot be too many."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import uuid

import pytest
from tests.conftest import make_box
from tests.support.sandbox import PYTHON

SHARED = ("/usr/bin/bwrap", "--unshare-user", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")


def test_host_processes_can_neither_be_seen_nor_signalled(box, background):
    # proves A06, A07, SEC-02
    word = uuid.uuid4().hex
    victim = background(box, PYTHON, "-c", f"import time; '{word}'; time.sleep(60)")
    script = f"kill -0 {victim.pid} && echo rea''ched; cat /proc/*/cmdline | tr '\\0' ' '; echo; ls /proc"

    control = box.host(*SHARED, "sh", "-c", script)
    inside = box.sh(f"kill -9 {victim.pid}; {script}")

    assert "reached" in control.stdout
    assert word in control.stdout
    assert "reached" not in inside.stdout
    assert word not in inside.stdout
    processes = [int(name) for name in inside.stdout.splitlines() if name.isdigit()]
    assert processes
    assert max(processes) < 20
    assert victim.poll() is None


def test_proc_is_a_fresh_one_of_the_sandbox(box):
    # proves A07, SAND-11, SEC-02
    result = box.sh("readlink /proc/self; findmnt -n -o FSTYPE,SOURCE /proc; cat /proc/1/comm")
    control = box.host("cat", "/proc/1/comm")

    process, mount, first = result.stdout.splitlines()
    assert int(process) < 20
    assert mount.split() == ["proc", "proc"]
    assert first == "bwrap"
    assert control.stdout.strip() != first


def test_host_shared_memory_and_message_queues_are_not_shared(box, probe):
    # proves A11
    program = probe(box, "shared_memory")
    queue = f"/claudebox-{uuid.uuid4().hex}"
    posix = f"/dev/shm/claudebox-{uuid.uuid4().hex}"
    segment = box.host(program, "make", queue).stdout.strip()
    box.write(posix, "posix-secret")
    script = f"{program} {segment} {queue}; cat {posix}; echo back >/dev/shm/back{segment}"
    try:
        control = box.host(*SHARED, "--bind", "/dev/shm", "/dev/shm", "sh", "-c", script)
        os.unlink(f"/dev/shm/back{segment}")
        inside = box.sh(script)
        came_back = os.path.exists(f"/dev/shm/back{segment}")
    finally:
        os.unlink(posix)
        subprocess.run(["ipcrm", "-m", segment], check=True)
        box.host(PYTHON, "-c", f"import ctypes; ctypes.CDLL(None).mq_unlink(b'{queue}')")

    assert "segment segment-secret" in control.stdout
    assert "queue opened" in control.stdout
    assert "posix-secret" in control.stdout
    assert inside.stdout.splitlines() == ["segment Invalid argument", "queue No such file or directory"]
    assert not came_back


@pytest.mark.root
def test_groups_of_the_user_open_files_of_the_project_only(checkout, ordinary_account):
    # proves A12
    group = 4  # adm, which reads logs
    box = make_box(ordinary_account, checkout)
    try:
        for path in (f"{box.project}/log", f"{box.base}/log"):
            with open(path, "w", encoding="utf-8") as file:
                file.write("group-secret")
            os.chown(path, 0, group)
            os.chmod(path, 0o640)
        script = f"cat log; cat {box.base}/log"
        without = box.host("sh", "-c", script)
        control = box.host("sh", "-c", script, extra_groups=[group])
        inside = box.sh(script, extra_groups=[group])
    finally:
        shutil.rmtree(box.base)

    assert without.stdout == ""
    assert control.stdout == "group-secretgroup-secret"
    # Groups cannot be dropped in a user namespace: what they open must not be mounted.
    assert inside.stdout == "group-secret"


def test_crashes_leave_no_core_for_the_host_to_parse(box):
    # proves A19
    def allow() -> None:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    script = "ulimit -Sc; ulimit -Hc; ulimit -Sc unlimited 2>/dev/null; ulimit -Sc"
    control = box.host("sh", "-c", script, preexec_fn=allow)
    inside = box.sh(script, preexec_fn=allow)

    assert control.stdout.split()[0] != "0"
    assert inside.stdout.split() == ["0", "0", "0"]


def test_the_first_process_cannot_be_killed_from_inside(box):
    # proves E13
    result = box.sh("for s in 9 15 2 1 19; do kill -$s 1; done; sleep 0.1; echo alive; exit 5")

    assert result.stdout.strip() == "alive"
    assert result.returncode == 5


def test_number_of_processes_is_limited_for_the_sandbox_alone(user_box, altered):
    # proves H08
    bomb = (
        "import os, time\n"
        "children = []\n"
        "try:\n"
        "    for _ in range(300):\n"
        "        child = os.fork()\n"
        "        if child == 0:\n"
        "            time.sleep(20)\n"
        "            os._exit(0)\n"
        "        children.append(child)\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
        "print(len(children))\n"
        "for child in children: os.kill(child, 9)\n"
    )
    ordinary = user_box.run("bash", "-c", "ulimit -u; ulimit -Hu").stdout.split()
    altered(user_box, edits={"run/start.py": ("= 16384", "= 60")})

    inside = user_box.run(PYTHON, "-c", bomb)
    control = user_box.host(PYTHON, "-c", bomb)

    assert ordinary[0] == ordinary[1]
    assert int(ordinary[0]) <= 16384
    assert control.stdout.strip() == "300"
    reason, count = inside.stdout.splitlines()
    assert reason == "Resource temporarily unavailable"
    assert 40 < int(count) < 60


@pytest.mark.accounts
def test_files_made_inside_belong_to_the_user(box):
    # proves H05, SAND-05
    result = box.sh("id -u; touch made; chown 1:1 made")

    assert result.stdout.split() == [str(box.account.uid)]
    assert "chown" in result.stderr
    assert os.stat(f"{box.project}/made").st_uid == box.account.uid
