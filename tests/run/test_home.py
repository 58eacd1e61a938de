"""Keys, tokens, histories, profiles and sockets of the user are not visible inside, wherever they lie."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid

import pytest

from claudebox.tables import paths as tables_paths

CANARY = "canary-41c9"
# Of the hidden places these are files; the others are directories with files in them.
FILES = (
    "history", ".netrc", ".git-credentials", ".gitconfig", ".npmrc", ".yml", ".pypirc", ".pgpass", ".my.cnf", ".boto",
    ".s3cfg", "-token", ".xml", ".properties", ".toml", "credentials", "/token", ".claude.json",
)  # fmt: skip
FIND = "find / \\( -path /proc -o -path /dev -o -path /usr -o -path /opt -o -path /nix \\) -prune -o"
SEARCH = f"{FIND} -type f -exec grep -sl {CANARY} {{}} +"
# Made by claudebox, or what `places.ETC` names.
MADE_IN_ETC = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
               "/etc/claude-code")  # fmt: skip
SECRET_IN_ETC = ("shadow", "shadow-", "gshadow", "passwd-", "environment", "npmrc", "pip.conf", "gitconfig", "ssh",
                 "machine-id", "sudoers", "apt", "fstab", "profile", "ssl/private", "crontab", "hosts.allow", "pam.d",
                 "postgresql", "maven/settings.xml")  # fmt: skip


def plant(box, home: str) -> list[str]:
    """Put a canary into every hidden place below a home and return the paths of the canaries."""
    planted = []
    for place, _ in tables_paths.HIDDEN:
        if place.startswith("/"):
            continue
        path = f"{home}/{place}"
        if os.path.isdir(path) or not place.endswith(FILES):
            path = f"{path}/canary"
        planted.append(box.write(path, f"{CANARY} {place}\n"))
    if os.path.isdir(f"{home}/.claudebox"):
        os.chmod(f"{home}/.claudebox", 0o700)
    return planted


def test_no_secret_of_the_home_is_visible_inside(box):
    # proves SAND-08, SAND-09
    planted = plant(box, box.home)
    box.write(f"{box.base}/outside/secret", CANARY)
    box.write("of-the-project", CANARY)
    script = f"{SEARCH}; for p in {' '.join(planted)}; do [ -e $p ] && echo visible $p; done"

    control = box.host("sh", "-c", script.replace("find /", f"find {box.base}", 1))
    inside = box.sh(script)

    assert len(planted) > 60
    assert control.stdout.count("visible ") == len(planted)
    assert len([line for line in control.stdout.splitlines() if "visible" not in line]) == len(planted) + 2
    # The only name that is there again is that of a file made by claudebox, without the canary.
    assert inside.stdout.splitlines() == [f"{box.project}/of-the-project", f"visible {box.home}/.gitconfig"]


def test_hidden_paths_stay_hidden_for_a_project_inside_the_home(box):
    # proves SAND-09, SAND-04
    plant(box, box.home)
    project = box.mkdir(f"{box.home}/work/project")
    box.write(f"{box.home}/work/neighbour/file", CANARY)
    box.write(f"{project}/of-the-project", CANARY)

    control = box.host("sh", "-c", "ls -A ~ | wc -l")
    inside = box.sh(f"{SEARCH}; find ~ -path ~/.claude -prune -o -print", cwd=project)

    assert int(control.stdout) > 20
    found, *listing = inside.stdout.split("\n", 1)
    assert found == f"{project}/of-the-project"
    names = {os.path.relpath(path, box.home) for path in listing[0].split()}
    # The way to the project, and what claudebox makes; nothing else of the home has even a name.
    assert "work/project" in names
    assert {name.split("/")[0] for name in names} <= {".", "work", ".gitconfig", ".config", ".claude", ".cache"}
    assert {name for name in names if name.startswith((".config/", "work/"))} <= {
        "work/project", "work/project/.git", "work/project/of-the-project",
        ".config/git", ".config/git/ignore", ".config/git/config",
        *(f"work/project/{name}{inner}" for name, _, _ in tables_paths.PROTECTED for inner in ("", "/.git")),
    }  # fmt: skip


def test_agent_sockets_of_the_session_are_not_visible(box):
    # proves SAND-09, C19
    runtime = box.mkdir(f"{box.base}/runtime")
    names = ("ssh", "gpg/S.gpg-agent", "bus", "docker.sock", "wayland-0", "X0")
    servers = []
    for name in names:
        box.mkdir(os.path.dirname(f"{runtime}/{name}"))
        servers.append(socket.socket(socket.AF_UNIX))
        servers[-1].bind(f"{runtime}/{name}")
    given = {
        "SSH_AUTH_SOCK": f"{runtime}/ssh", "GPG_AGENT_INFO": f"{runtime}/gpg/S.gpg-agent:1:1",
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus,guid=1", "DOCKER_HOST": f"unix://{runtime}/docker.sock",
        "WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0", "XDG_RUNTIME_DIR": runtime,
    }  # fmt: skip
    try:
        control = box.host("find", runtime, "-type", "s")
        inside = box.sh(f"{FIND} -type s -print; ls -A $XDG_RUNTIME_DIR /run /run/user; env", env=given)
    finally:
        for server in servers:
            server.close()

    assert len(control.stdout.split()) == len(names)
    assert "/run/user:" in inside.stdout  # the script went to its end
    assert runtime not in inside.stdout
    assert not [line for line in inside.stdout.splitlines() if "sock" in line or "bus" in line]


def test_temporary_files_of_the_host_are_not_visible(box):
    # proves SAND-11, C08
    name = f"claudebox-{uuid.uuid4().hex}"
    for directory in ("/tmp", "/var/tmp", "/dev/shm"):
        box.write(f"{directory}/{name}", CANARY)
    script = f"cat /tmp/{name} /var/tmp/{name} /dev/shm/{name}; echo made >/tmp/back-{name}"
    try:
        control = box.host("sh", "-c", script)
        os.unlink(f"/tmp/back-{name}")
        inside = box.sh(f"{script}; cat /tmp/back-{name}")
        came_back = os.path.exists(f"/tmp/back-{name}")
    finally:
        for directory in ("/tmp", "/var/tmp", "/dev/shm"):
            os.unlink(f"{directory}/{name}")

    assert control.stdout == CANARY * 3
    assert inside.stdout == "made\n"
    assert not came_back


def test_the_clients_directory_is_the_instance_of_the_project_and_not_the_hosts(box):
    # proves SAND-08
    box.write(f"{box.home}/.claude/of-the-host", CANARY)
    digest = hashlib.sha256(os.fsencode(box.project)).hexdigest()[:16]

    inside = box.sh("cat ~/.claude/of-the-host; echo kept >~/.claude/made; echo gone >~/made")

    assert CANARY not in inside.stdout
    assert os.listdir(f"{box.home}/.claude") == ["of-the-host"]
    assert not os.path.exists(f"{box.home}/made")
    instance = f"{box.home}/.claudebox/instances/{digest}"
    made = [where for where, _, names in os.walk(instance) if "made" in names]
    assert len(made) == 1
    again = box.sh("cat ~/.claude/made; ls ~/made")
    assert again.stdout == "kept\n"


def test_etc_holds_only_what_the_allow_list_names(box):
    # proves A18, SAND-04
    allowed = [pattern.rstrip("*") for pattern, _ in tables_paths.ETC] + list(MADE_IN_ETC)

    inside = box.sh("find /etc \\( -type f -o -type l -o -type s -o -type p \\) -print")
    control = box.host("sh", "-c", f"cd /etc && ls -d {' '.join(SECRET_IN_ETC)}")
    denied = box.sh(f"cd /etc && ls -d {' '.join(SECRET_IN_ETC)}")

    files = inside.stdout.split()
    assert "/etc/passwd" in files
    assert len(files) > 50
    assert not [path for path in files if not path.startswith(tuple(allowed))]
    assert len(control.stdout.split()) > 5
    assert denied.stdout == ""


def test_accounts_and_names_inside_are_only_those_that_are_needed(box):
    # proves A18, SAND-12
    inside = box.sh(
        "cut -d: -f1,3 /etc/passwd; echo; getent hosts localhost; cat /etc/hosts; whoami; getent passwd $(id -u)",
        flags=("--network", "none"),  # tier full has the names of the host's own file (WORK-02)
    )
    control = box.host("sh", "-c", "cut -d: -f1,3 /etc/passwd; cat /etc/hosts")

    accounts, rest = inside.stdout.split("\n\n")
    me = "root" if box.account.uid == 0 else "claudebox-test"
    if box.account.name != "self":
        assert set(accounts.split()) == {"root:0", "nobody:65534", f"{me}:{box.account.uid}"}
        assert rest.splitlines()[-2] == me
    assert len(control.stdout.split()) > len(accounts.split()) + 5
    assert rest.splitlines()[-1].split(":")[5] == box.home
    assert "127.0.0.1" in rest
    with open("/etc/hosts", encoding="utf-8") as file:
        host_names = {word for line in file for word in line.split()[1:]} - {"localhost", "ip6-localhost"}
    assert not [name for name in host_names if f" {name}\n" in rest]


@pytest.mark.accounts
def test_root_is_empty_but_for_what_the_mount_table_names(box):
    # proves SAND-04, SAND-06, H07
    inside = box.sh("ls -A /; echo; ls -A /dev; echo; ls /sys /boot /var/lib /root/.bashrc 2>&1 | wc -l")

    top, devices, _ = (part.split() for part in inside.stdout.split("\n\n"))
    known = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "nix", "opt", "proc", "run", "sbin", "tmp", "usr"}
    assert {"dev", "etc", "proc", "tmp", "usr"} <= set(top) <= known
    assert set(devices) <= {"console", "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin",
                            "stdout", "tty", "urandom", "zero"}  # fmt: skip
    assert {"null", "pts", "shm", "urandom"} <= set(devices)
    assert set(os.listdir("/")) - known  # so that the host has more to hide


def test_a_project_that_a_login_of_an_agent_leads_into_is_refused(user_box):
    # proves SAND-09, AUTH-01
    kept = user_box.write("kept.json", "{}")
    for place in (".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth_creds.json"):
        link = f"{user_box.home}/{place}"
        user_box.mkdir(os.path.dirname(link))
        os.symlink(kept, link)
        result = user_box.sh("true")
        os.unlink(link)

        assert (result.returncode, link in result.stderr) == (125, True), result.stderr
    assert user_box.sh("true").returncode == 0  # the control
