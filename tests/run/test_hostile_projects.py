"""What a hostile project cannot do with links, sockets, pipes and names."""

from __future__ import annotations

import contextlib
import os
import stat
import time

import pytest
from tests.conftest import need
from tests.support.sandbox import PYTHON, listener


@pytest.mark.parametrize(
    "name", [".claude", ".mcp.json", ".git", ".git/hooks", ".vscode", ".claudebox.toml", ".devcontainer.json"]
)
def test_links_of_the_project_to_the_host_create_nothing_there(box, name):
    # proves C01, C02
    victim = box.mkdir(f"{box.base}/victim")
    box.mkdir(os.path.dirname(name))
    os.symlink(f"/oldroot{victim}", f"{box.project}/{name}")
    # The control: this bwrap is one that follows such a link, or the test proves little.
    control = box.host(
        "/usr/bin/bwrap", "--unshare-user", "--bind", box.project, "/p", "--dir", f"/p/{name}/reached", "/nonexistent"
    )
    reached = os.listdir(victim)
    for made in reached:
        os.rmdir(f"{victim}/{made}")

    result = box.sh("echo ran")

    assert control.returncode != 0
    assert os.listdir(victim) == []
    assert result.returncode in (0, 125), result.stderr
    assert os.path.islink(f"{box.project}/{name}")


def test_links_of_the_project_lead_nowhere(box):
    # proves C15
    secret = box.write(f"{box.home}/.ssh/id", "secret")
    for index, target in enumerate((secret, f"/proc/1/root{secret}", f"/oldroot{secret}", "/etc/shadow", box.base)):
        os.symlink(target, f"{box.project}/link-{index}")

    control = box.host("cat", "link-0")
    result = box.sh("cat link-0 link-1 link-2 link-3; ls -A link-4/; cat link-4/home/.ssh/id")

    assert control.stdout == "secret"
    assert "secret" not in result.stdout
    assert result.stderr.count("No such file or directory") == 5
    assert set(result.stdout.split()) == {"home", "project"}


def test_hard_links_cannot_be_made_across_mounts(box):
    # proves C14
    box.write(f"{box.base}/data/file", "x")
    source = f"{box.base}/data"
    script = "ln /usr/bin/env here; ln /data/file here; ln here-too /data/there; ln ~/.gitconfig here; ls"
    box.write("here-too", "x")

    result = box.sh(script, flags=("--mount-rw", f"{source}:/data"))

    assert result.stderr.count("Invalid cross-device link") == 4
    assert "here-too" in result.stdout
    assert os.listdir(source) == ["file"]


@pytest.mark.parametrize("name", [".git", ".mcp.json", ".claude", ".vscode", "CLAUDE.md", "package.json"])
def test_fifos_and_devices_in_the_project_do_not_stop_the_launcher(box, name):
    # proves C18
    os.mkfifo(f"{box.project}/{name}")
    os.chown(f"{box.project}/{name}", box.account.uid, box.account.gid)
    started = time.monotonic()

    result = box.sh("mknod device b 7 0; mkfifo fine; echo ran", timeout=60)

    assert result.stdout == "ran\n", result.stderr
    assert time.monotonic() - started < 30
    assert "Operation not permitted" in result.stderr
    assert stat.S_ISFIFO(os.stat(f"{box.project}/fine").st_mode)


def test_a_fifo_as_the_settings_of_the_project_is_refused(box):
    # proves C18, EXT-01
    os.mkfifo(f"{box.project}/.claudebox.toml")
    result = box.sh("echo ran", flags=("--quiet",), timeout=20)

    assert (result.returncode, result.stdout) == (125, "")
    assert ".claudebox.toml is not a file" in result.stderr


def test_huge_files_of_the_project_are_not_read(box):
    # proves C18
    os.truncate(box.write(".mcp.json"), 1 << 40)
    box.mkdir(".git")
    os.truncate(box.write(".git/config"), 1 << 40)

    result = box.run("echo", "ran", timeout=20)  # a terabyte takes longer

    assert (result.returncode, result.stdout) == (0, "ran\n"), result.stderr
    os.truncate(box.write(".claudebox.toml"), 1 << 40)
    refused = box.run("echo", "ran", timeout=20)
    assert (refused.returncode, refused.stdout) == (125, "")
    assert ".claudebox.toml is larger than 64 KiB" in refused.stderr


def test_options_of_bwrap_are_no_words_of_the_payload(box):
    # proves C12
    words = ("--bind", "/", "/host", "--", "--version", "--args", "3", "--dev-bind", "/", "/")

    result = box.run("printf", "%s|", *words)
    named = box.write("-program", "#!/bin/sh\necho ran as $0\n", mode=0o755)
    refused = box.run("-program")
    fine = box.run("./-program")

    assert result.stdout == "|".join(words) + "|"
    assert refused.returncode == 125
    assert fine.stdout.startswith("ran as"), fine.stderr
    assert os.path.exists(named)


@pytest.mark.parametrize("tier", ["full", "none"])
def test_a_tmux_server_of_the_host_cannot_be_commanded_through_a_socket_in_the_project(box, tier):
    # proves C19
    need(box.host("tmux", "-V").returncode == 0, "tmux")
    command = f"sh -c 'echo commanded >{box.base}/home/marker'"
    marker = f"{box.home}/marker"
    box.host("tmux", "-S", f"{box.project}/s", "-f", "/dev/null", "new-session", "-d", "sleep 60")
    try:
        assert stat.S_ISSOCK(os.stat(f"{box.project}/s").st_mode)
        box.host("tmux", "-S", f"{box.project}/s", "run-shell", command)
        control = os.path.exists(marker)
        os.unlink(marker)
        inside = box.sh(
            f'tmux -S {box.project}/s run-shell "{command}"; tmux -S ./s kill-server; rm -f s; mv s t; ls -l s',
            flags=("--network", tier),
        )
        alive = box.host("tmux", "-S", f"{box.project}/s", "list-sessions")
    finally:
        box.host("tmux", "-S", f"{box.project}/s", "kill-server")

    assert control
    assert not os.path.exists(marker)
    assert alive.returncode == 0
    assert "socket of the host" in inside.stderr


def test_sockets_are_masked_however_deep_they_lie(box, probe):
    # proves C19
    script = probe(box, "connect.py")
    extra = box.mkdir(f"{box.base}/extra/inner")
    paths = [f"{box.mkdir('run/deeper')}/agent", f"{box.mkdir('node_modules/.cache')}/s", f"{box.project}/.mcp.json"]
    with contextlib.ExitStack() as stack:
        for path in (*paths, f"{extra}/agent"):
            stack.enter_context(listener(path))
        controls = [box.host(PYTHON, script, path).stdout.strip() for path in (*paths, f"{extra}/agent")]
        inside = box.sh(
            "; ".join(f"{PYTHON} {script} {path}" for path in (*paths, "/extra/inner/agent")),
            flags=("--mount-rw", f"{box.base}/extra:/extra"),
        )

    assert controls == ["agent-secret"] * 4
    assert inside.stdout.split() == ["ECONNREFUSED"] * 4, inside.stderr


def test_a_socket_that_was_bound_by_a_relative_path_is_masked(user_box, probe, background):
    # proves C19
    box = user_box
    script = probe(box, "connect.py")
    server = (
        "import os, socket\n"
        "os.mkdir('deep')\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('deep/agent'); server.listen()\n"
        "print('ready', flush=True)\n"
        "while True: server.accept()[0].send(b'agent-secret')\n"
    )
    process = background(box, PYTHON, "-c", server)
    assert process.stdout.readline() == "ready\n"

    control = box.host(PYTHON, script, "deep/agent")
    inside = box.run(PYTHON, script, "deep/agent")

    assert control.stdout.strip() == "agent-secret"
    assert inside.stdout.strip() == "ECONNREFUSED"
    assert "socket of the host" in inside.stderr
