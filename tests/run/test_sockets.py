"""Sockets and signals of the host: what no network namespace and no mount covers in tier `full`."""

from __future__ import annotations

import os
import signal
import stat
import uuid

import pytest
from tests.conftest import few, need
from tests.support.sandbox import PYTHON, listener
from tests.support.terminals import Terminal

LANDLOCK_WITH_SCOPES = 6


def landlock_version() -> int:
    """Return the version of Landlock as the kernel tells it."""
    import ctypes

    return int(max(0, ctypes.CDLL(None).syscall(444, None, 0, 1)))


@pytest.mark.parametrize(("tier", "answer"), [("full", "EPERM"), ("none", "ECONNREFUSED")])
def test_abstract_sockets_of_the_host_are_out_of_reach(box, probe, tier, answer):
    # proves F15, F16, SAND-09
    need(landlock_version() >= LANDLOCK_WITH_SCOPES, "Landlock with scopes")
    script = probe(box, "connect.py")
    name = f"claudebox-{uuid.uuid4().hex}"
    with listener(f"\0{name}"):
        control = box.host(PYTHON, script, f"@{name}")
        shared = box.host(
            "/usr/bin/bwrap", "--unshare-all", "--share-net", "--ro-bind", "/", "/", "--", PYTHON, script, f"@{name}"
        )
        inside = box.run(PYTHON, script, f"@{name}", flags=("--network", tier))

    assert control.stdout.strip() == "agent-secret"
    assert shared.stdout.strip() == "agent-secret"
    assert inside.stdout.strip() == answer, inside.stderr


def test_sockets_work_among_programs_inside(box):
    # proves F15
    script = (
        "import os, socket\n"
        "for address in ('\\0claudebox-inside', '/tmp/inside', 'in-the-project'):\n"
        "    server = socket.socket(socket.AF_UNIX); server.bind(address); server.listen()\n"
        "    if os.fork() == 0:\n"
        "        client = socket.socket(socket.AF_UNIX); client.connect(address); client.send(b'hello'); os._exit(0)\n"
        "    print(server.accept()[0].recv(10).decode())\n"
    )

    result = box.run(PYTHON, "-c", script)

    assert result.stdout.split() == ["hello"] * 3, result.stderr


def test_pathname_sockets_outside_of_the_project_are_out_of_reach(box, probe):
    # proves SAND-09, C19
    script = probe(box, "connect.py")
    path = f"{box.base}/agent.sock"
    with listener(path):
        control = box.host(PYTHON, script, path)
        inside = box.run(PYTHON, script, path, env={"SSH_AUTH_SOCK": path})

    assert control.stdout.strip() == "agent-secret"
    assert inside.stdout.strip() == "ENOENT"


def test_signals_from_inside_do_not_reach_the_process_group_of_the_launcher(box, probe):
    # proves F15, E13
    need(landlock_version() >= LANDLOCK_WITH_SCOPES, "Landlock with scopes")
    # On a terminal the sandbox shares the group of the launcher, which is that of the whole pipeline.
    peer = probe(box, "peer.py")
    script = "trap '' TERM HUP; kill -TERM 0; kill -HUP -1; kill -TERM 1; sleep 0.1; exit 7"
    naive = ("/usr/bin/bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc")

    def reached(*argv: str) -> str:
        with Terminal(box, argv=(PYTHON, peer, *argv, "sh", "-c", script)) as terminal:
            return terminal.expect(r"reached( \d+)* status -?\d+")[0]

    # bwrap's own monitor is in that group, and dies of the signal.
    assert reached(*naive) == f"reached {int(signal.SIGTERM)} status -{int(signal.SIGTERM)}"
    assert reached(box.program, "-y", "--exec", "--") == "reached status 7"


TIERS = ("none", "full")
SERVE = """
import os, socket, sys
os.chdir(sys.argv[1])
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[2])
server.listen()
os.chmod(sys.argv[2], 0o666)
for command in sys.argv[4:]:
    os.system(command)
print("ready", flush=True)
while True:
    with server.accept()[0] as connection:
        connection.send(b"agent-secret")
"""


@pytest.fixture
def serve(box, background):
    """Return what makes a program of the host answer on a socket, bound by any name in any directory."""

    def start(directory: str, name: str, *afterwards: str) -> None:
        server = background(box, PYTHON, "-c", SERVE, directory, name, "--", *afterwards)
        assert server.stdout.readline() == "ready\n"

    return start


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("directory", "name", "afterwards", "place"),
    [
        ("a/b/c", "s", (), "a/b/c/s"),
        ("a", "b/s", ("mv b/s b/t",), "a/b/t"),
        ("a/b", "{project}/a/b/s", ("mv s ../../t",), "t"),
        ("a/b", "{project}/a/b/s", ("cd ..; mv b ../d",), "d/s"),
        ("a/b", "{project}/a/b/s", ("ln s ../l",), "a/l"),
        ("a/b", "{base}/s", ("mv {base}/s t",), "a/b/t"),
        (".", "{project}/s", (), "s"),
    ],
)
def test_a_socket_of_the_host_does_not_answer_under_any_name(
    box, probe, serve, tier, directory, name, afterwards, place
):
    # proves C33, C19, SAND-09, OLD-A4
    script = probe(box, "connect.py")
    box.mkdir("a/b/c")
    names = {"project": box.project, "base": box.base}
    os.chmod(box.base, 0o777)
    serve(f"{box.project}/{directory}", name.format(**names), *(word.format(**names) for word in afterwards))

    control = box.host(PYTHON, script, f"{box.project}/{place}")
    inside = box.run(PYTHON, script, f"{box.project}/{place}", flags=("--network", tier))

    assert control.stdout.strip() == "agent-secret"
    assert inside.returncode == 0, inside.stderr
    assert inside.stdout.strip() == "ECONNREFUSED"
    assert f"{place} is a socket of the host" in inside.stderr


@pytest.mark.parametrize("tier", TIERS)
def test_a_session_cannot_move_a_socket_to_where_the_next_does_not_look(box, probe, serve, tier):
    # proves C33, C22
    script = probe(box, "connect.py")
    box.mkdir("backend/run")
    box.mkdir("x/y")
    serve(f"{box.project}/backend/run", "s")
    flags = ("--network", tier)

    rename = (
        "import errno, os\n"
        "for old, new in (('backend', 'x/y/z'), ('backend/run', 'x/z'), ('backend/run/s', 'x/s'), ('a', 'b')):\n"
        "    try: os.rename(old, new); print('moved')\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
    )
    box.write("a")
    moved = box.run(PYTHON, "-c", rename, flags=flags)
    later = box.run(PYTHON, script, f"{box.project}/backend/run/s", flags=flags)

    assert moved.stdout.split() == ["EBUSY", "EXDEV", "EXDEV", "moved"], moved.stderr
    assert later.stdout.strip() == "ECONNREFUSED"


@pytest.mark.parametrize(("tier", "status"), [("none", 125), ("inet", 125), ("full", 0)])
def test_a_directory_that_cannot_be_searched_is_said(user_box, background, tier, status):
    # proves C33, E16
    user_box.mkdir("a")
    hide = "mv s t; cd ..; chmod 0311 a"
    server = background(user_box, PYTHON, "-c", SERVE, f"{user_box.project}/a", "s", "--", hide)
    assert server.stdout.readline() == "ready\n"

    result = user_box.run("true", flags=("--network", tier))
    os.chmod(f"{user_box.project}/a", 0o755)

    if status or result.returncode != 125:  # tier inet may be missing here
        assert result.returncode == status, result.stderr
        assert f"`{user_box.project}/a` (Permission denied)" in result.stderr
        assert "sockets of the host" in result.stderr


def dead(directory: str, number: int) -> None:
    for name in range(number):
        os.mknod(f"{directory}/s{name}", stat.S_IFSOCK | 0o666)


def test_sockets_that_nobody_holds_stop_nothing(box):
    # proves E16, C33
    dead(box.mkdir("below"), 3010)
    dead(box.project, 5)
    result = box.run("echo", "started", flags=("--network", "none"))

    assert result.stdout == "started\n", result.stderr


def test_thousands_of_dead_sockets_at_the_top_are_said_in_one_line(box):
    # proves E16, C33, OLD-A25
    dead(box.project, 3010)
    full = box.run("echo", "started")
    none = box.run("echo", "started", flags=("--network", "none"))

    assert full.stdout == "started\n", full.stderr
    assert "3010 sockets in the project" in full.stderr
    assert (none.returncode, none.stdout) == (125, "")
    assert "-type s -delete" in none.stderr


def test_thousands_of_live_sockets_are_refused_in_one_line(user_box, background):
    # proves E16, C33
    user_box.mkdir("many")
    program = (
        "import os, resource, socket; resource.setrlimit(resource.RLIMIT_NOFILE, (2200, 2200)); os.chdir('many')\n"
        "held = []\nfor n in range(2000):\n    held.append(socket.socket(socket.AF_UNIX)); held[-1].bind(f's{n}')\n"
        "print('ready', flush=True); import time; time.sleep(60)"
    )
    server = background(user_box, PYTHON, "-c", program)
    assert server.stdout.readline() == "ready\n"
    result = user_box.run("echo", "started")

    assert (result.returncode, result.stdout) == (125, "")
    assert "2000 sockets of the host lie in the project" in result.stderr


def test_a_socket_whose_directory_became_a_thousand_links_stops_nothing(box, serve):
    # proves E16, C33, OLD-A24
    box.mkdir("a")
    serve(box.project, f"{box.project}/a/s", "rm -r a")
    for number in range(1200):
        os.symlink(f"l{number + 1}", f"{box.project}/l{number}")
    os.symlink("l0", f"{box.project}/a")
    result = box.run("echo", "started")

    assert result.stdout == "started\n", result.stderr


def test_a_kernel_that_lists_no_sockets_means_looking_everywhere(box, probe, serve, altered):
    # proves C33, E08
    altered(box, edits={"host/sockets.py": ("    body = bytes(", "    return None\n    body = bytes(")})
    script = probe(box, "connect.py")
    box.mkdir("a/b")
    serve(f"{box.project}/a/b", "s")
    inside = box.run(PYTHON, script, f"{box.project}/a/b/s", flags=("--network", "none"))

    assert inside.stdout.strip() == "ECONNREFUSED", inside.stderr


# In a mount namespace of its own: servers that answer at the first word, what is done when they are there, and then two
# commands in the project.
_SERVED = """
import os, socket, subprocess, sys
kind, paths, then, project, *commands = sys.argv[1:]
for path in paths.split(":"):
    server = socket.socket(socket.AF_UNIX)
    os.chdir(os.path.dirname(path))
    server.bind("S" if kind == "relative" else path)
    server.listen()
    if os.fork() == 0:
        while True:
            server.accept()[0].send(b"agent-secret")
subprocess.run(then, shell=True, check=True)
os.chdir(os.path.realpath(project))
for command in commands:
    print(subprocess.run(command, shell=True, capture_output=True, text=True).stdout.strip(), flush=True)
os.killpg(0, 9)
"""


@pytest.mark.parametrize("kind", few(["absolute", "relative"], 1))
@pytest.mark.parametrize(
    ("mounts", "bound", "then"),
    [
        ("mkdir -p data/p/k p; mount --bind data/p p", "data/p/k/S", "true"),
        ("mkdir -p data/p/k home; mount --bind data home; ln -s home/p p", "data/p/k/S", "true"),
        ("mkdir -p data p/k; mount --bind data p/k", "data/S", "true"),
        ("mkdir -p data p/k; touch p/k/S", "data/S", "mount --bind S ../p/k/S"),
        ("mkdir -p data p/k; touch p/k/S", "data/S", "mv S T; mount --bind T ../p/k/S"),
        ("mkdir -p data p/k; touch p/k/S", "data/S", "mount --bind S ../p/k/S; rm S"),
        ("mkdir -p data p/k; touch p/k/S", "data/S", "ln S T; mount --bind S ../p/k/S"),
        # Elsewhere a socket of the same number lies under the same name, where some process works.
        (
            "for d in a b c d e p; do mkdir $d; mount -t tmpfs t $d; mkdir $d/k; done",
            ":".join(f"{name}/k/S" for name in "abcdep"),
            "true",
        ),
    ],
    ids=[
        "the project",
        "above the project",
        "below the project",
        "a single file",
        "renamed",
        "removed",
        "linked",
        "equal numbers",
    ],
)
def test_a_socket_is_masked_wherever_a_mount_shows_it(root_box, probe, mounts, bound, then, kind):
    # proves C19, C33
    script = probe(root_box, "connect.py")
    base = root_box.mkdir(f"{root_box.base}/mounted")
    paths = ":".join(f"{base}/{path}" for path in bound.split(":"))
    connect = f"{PYTHON} connect.py k/S"
    launch = f"{root_box.program} -y --network none --exec -- {connect}"

    result = root_box.host(
        "unshare", "--mount", "setsid", "--wait", "sh", "-ec", f'cd {base}; {mounts}; cp {script} p/; exec "$@"', "sh",
        PYTHON, "-c", _SERVED, kind, paths, then, f"{base}/p", connect, launch,
    )  # fmt: skip

    control, inside = result.stdout.splitlines()
    assert control == "agent-secret", "the positive control"
    # Nothing can be mounted where a name is gone: no sandbox starts.
    assert inside == ("" if then.endswith("rm S") else "ECONNREFUSED"), result.stderr


@pytest.mark.parametrize(
    ("setup", "bound", "start", "outside", "inside"),
    [
        ("git init -q; mkdir in", "z", "in", "../z", "../z"),
        ("git init -q; mkdir in d", "d/z", "in", "../d/z", "../d/z"),
        ("git init -q", ".git/objects/z", ".", ".git/objects/z", "$(echo /run/claudebox/git/*/0/objects)/z"),
        (
            "git init -q; git -c user.name=n -c user.email=e commit -qm c --allow-empty; git worktree add -q in",
            ".git/objects/z", "in", "../.git/objects/z", "$(echo /run/claudebox/git/*/0/objects)/z",
        ),
        ("mkdir -p ~/.claudebox/drop", "~/.claudebox/drop/z", ".", "~/.claudebox/drop/z", "~/.claudebox/drop/z"),
    ],
    ids=["above the project", "deeper above", "objects of git", "objects of a worktree", "what is shown later"],
)  # fmt: skip
def test_a_socket_is_masked_in_everything_that_is_shown_besides(
    box, probe, serve, setup, bound, start, outside, inside
):
    # proves C19, C33
    script = probe(box, "connect.py")
    box.host("sh", "-ec", setup).check_returncode()
    path = os.path.normpath(os.path.join(box.project, bound.replace("~", box.home)))
    serve(os.path.dirname(path), path)
    place = os.path.join(box.project, start)
    copy = os.path.join(place, "connect.py")
    box.host("cp", "-n", script, copy)

    control = box.host("sh", "-c", f"{PYTHON} {copy} {outside}", cwd=place)
    shown = box.host(box.program, "-y", "--network", "none", "--exec", "--", "sh", "-c",
                     f"ls -d {inside}; {PYTHON} {copy} {inside}", cwd=place)  # fmt: skip

    assert control.stdout.strip() == "agent-secret", "the positive control"
    assert shown.stdout.split()[1:] == ["ECONNREFUSED"], (shown.stdout, shown.stderr)
