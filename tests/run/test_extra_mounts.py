"""Extra mounts, and what a hostile project cannot do with links, sockets and names."""

from __future__ import annotations

import errno
import json
import os
import socket
import time

import pytest
from tests.conftest import few, need
from tests.support.sandbox import PYTHON


def data(box, name: str = "data") -> str:
    """Make a directory outside of the project with a file in it."""
    box.write(f"{box.base}/{name}/file", f"content of {name}\n")
    return f"{box.base}/{name}"


def test_a_read_only_mount_can_be_read_and_a_writable_one_written(box):
    # proves EXT-02
    readable, writable, other = data(box, "readable"), data(box, "writable"), data(box, "other")
    file = box.write(f"{box.base}/single", "single file\n")
    script = (
        f"cat {readable}/file /w/file ~/placed/file /single;"
        f"echo new >{readable}/new; echo new >/w/new; echo new >~/placed/new; echo changed >/single; rm {readable}/file"
    )

    control = box.host("cat", f"{readable}/file")
    hidden = box.sh(f"cat {readable}/file")
    result = box.sh(script, flags=(
        "--mount-ro", readable, f"--mount-rw={writable}:/w", "--mount-rw", f"{other}:~/placed",
        "--mount-ro", f"{file}:/single",
    ))  # fmt: skip

    assert control.stdout == "content of readable\n"
    assert hidden.stdout == ""
    assert result.stdout.splitlines() == [
        "content of readable",
        "content of writable",
        "content of other",
        "single file",
    ]
    assert os.listdir(readable) == ["file"]
    assert sorted(os.listdir(writable)) == sorted(os.listdir(other)) == ["file", "new"]
    with open(file, encoding="utf-8") as content:
        assert content.read() == "single file\n"
    assert result.stderr.count("Read-only file system") == 3
    assert "/w" in result.stderr  # the audit names it


@pytest.mark.parametrize(("spelling", "expected"), [
    ("{base}/with\\:colon", "{base}/with:colon"),
    ("{base}/with\\:colon:/d\\:est", "/d:est"),
    ("~/in home", "{home}/in home"),
    ("~/in home:~/there", "{home}/there"),
    ("../relative", "{base}/relative"),
    ("{base}/back\\slash:/b", "/b"),
    ("{base}/./relative/../relative/", "{base}/relative"),
])  # fmt: skip
def test_sources_and_destinations_can_be_spelled_in_every_way(user_box, spelling, expected):
    # proves EXT-02, C11
    names = {"base": user_box.base, "home": user_box.home}
    for path in ("{base}/with:colon", "{home}/in home", "{base}/relative", "{base}/back\\slash"):
        user_box.write(f"{path.format(**names)}/file", "content")

    result = user_box.run("cat", f"{expected.format(**names)}/file", flags=("--mount-ro", spelling.format(**names)))

    assert result.stdout == "content", result.stderr


def test_a_link_as_source_shows_what_it_points_at(user_box):
    # proves EXT-02
    target = data(user_box)
    link = f"{user_box.base}/link"
    os.symlink(target, link)

    result = user_box.run("cat", f"{link}/file", flags=("--mount-ro", link))

    assert result.stdout == "content of data\n", result.stderr


@pytest.mark.parametrize("place", [
    "/", "~", "~/.ssh", "~/.ssh/id", "~/.config", "~/.config/gh", "~/.aws", "~/.netrc", "~/.claude", "~/.claudebox",
    "~/..", "/run", "/proc", "/sys", "/dev", "/dev/shm/../..", "/etc", "/etc/shadow", "/proc/1/root", "/boot",
    "{base}/link-to-home", "{base}/link-to-key", "{base}",
])  # fmt: skip
def test_sources_that_would_expose_what_is_hidden_are_refused(user_box, place):
    # proves EXT-02, C26
    box = user_box
    for name in (".ssh/id", ".config/gh/hosts.yml", ".aws/credentials", ".netrc", ".claude/x", ".claudebox/x"):
        box.write(f"{box.home}/{name}", "secret")
    os.chmod(f"{box.home}/.claudebox", 0o700)
    os.symlink(box.home, f"{box.base}/link-to-home")
    os.symlink(f"{box.home}/.ssh/id", f"{box.base}/link-to-key")
    source = place.format(base=box.base)
    need(source.startswith("~") or os.path.lexists(source) or source == "/proc/1/root", source)

    result = box.run("echo", "ran", flags=("--mount-ro", f"{source}:/exposed"))

    assert result.returncode == 125, result.stderr
    assert result.stdout == ""
    assert "error: " in result.stderr


def test_unsafe_mounts_are_possible_and_loud(user_box):
    # proves EXT-02, C26
    box = user_box
    box.write(f"{box.home}/.aws/credentials", "secret")

    result = box.run("cat", "/aws/credentials", flags=("--set", "unsafe_mounts=true", "--mount-ro", "~/.aws:/aws"))

    assert result.stdout == "secret", result.stderr
    assert "unsafe_mounts: " in result.stderr


@pytest.mark.parametrize("dest", [
    "/", "/usr", "/usr/bin", "/usr/local/bin", "/bin", "/lib", "/proc", "/proc/1", "/dev", "/dev/null", "/run",
    "/run/claudebox", "/run/user", "/etc", "/etc/passwd", "/etc/resolv.conf", "/etc/ssl/certs", "/etc/hosts", "/tmp",
    "~/.claude", "~/.claude/settings.json", "~/.gitconfig", "/nix", "/sys", "{project}", "{base}", "/etc/../usr/bin",
    "relative", "{project}/../x/..", "", "/etc/claude-code", "/opt", "/home/../etc/passwd", "{home}",
    "/etc/hosts/x", "/etc/passwd/a/b", "~/.gitconfig/x", "/run/claudebox/SANDBOX.md/x", "/etc/ssl/openssl.cnf/x",
])  # fmt: skip
@pytest.mark.parametrize("flag", few(["--mount-ro", "--mount-rw"], 1))
def test_destinations_that_would_shadow_the_sandbox_are_refused(user_box, dest, flag):
    # proves EXT-02, C27
    box = user_box
    box.mkdir("x")
    place = dest.format(project=box.project, base=box.base, home=box.home)
    file_like = os.path.basename(dest) in ("passwd", "resolv.conf", "hosts", "null", "settings.json", ".gitconfig")
    source = box.write(f"{box.base}/single", "single") if file_like else data(box)

    result = box.run("echo", "ran", flags=(flag, f"{source}:{place}"))

    assert result.returncode == 125, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "bwrap" not in result.stderr


@pytest.mark.parametrize(("flags", "said"), [
    (("--mount-rw", "/proc:/x"), "`--mount-rw /proc` would expose"),
    (("--mount-ro", "{data}:/" + "n" * 256), "is longer than a path can be"),
    (("--mount-ro", "{data}:/" + "ü" * 128), "is longer than a path can be"),
    (("--mount-ro", "{data}:" + "/a" * 2100), "is longer than a path can be"),
    (("--mount-rw", "{link}"), "git of the host obeys what could be written there (the repository `{repository}`)"),
], ids=["proc", "name", "bytes", "path", "link"])  # fmt: skip
def test_what_cannot_be_mounted_is_refused_in_one_line(box, flags, said):
    # proves EXT-02
    repository = box.mkdir(f"{box.base}/repository")
    box.host("git", "init", "-q", repository).check_returncode()
    os.symlink(repository, f"{box.base}/link")
    names = {"data": data(box), "link": f"{box.base}/link", "repository": repository}
    result = box.run("echo", "ran", flags=tuple(flag.format(**names) for flag in flags))

    assert (result.returncode, result.stdout) == (125, "")
    assert result.stderr.startswith("error: ")
    assert said.format(**names) in result.stderr
    assert not {"Traceback", "bwrap"} & set(result.stderr.replace("`", " ").split())


@pytest.mark.parametrize("key", ["host", "sandbox"])
def test_a_path_that_no_file_can_have_is_refused_in_one_line(box, key):
    # proves EXT-02, PROF-01
    row = {"host": data(box), "sandbox": "/x", "mode": "ro"}
    results = []
    for value in (row[key], f"{row[key]}\ud800"):
        box.write(f"{box.home}/.claudebox/profiles/p.json", json.dumps({"mounts": [{**row, key: value}]}))
        results.append(box.run("true", flags=("--profile", "p")))
    control, result = results

    assert (control.returncode, result.returncode) == (0, 125), (control.stderr, result.stderr)
    assert "cannot be the name of a file" in result.stderr
    assert "Traceback" not in result.stderr


def test_missing_sources_fifos_and_devices_are_refused(user_box):
    # proves EXT-02, C18
    box = user_box
    os.mkfifo(f"{box.base}/fifo")
    started = time.monotonic()
    for source in (f"{box.base}/missing", f"{box.base}/fifo", "/dev/zero"):
        result = box.run("echo", "ran", flags=("--mount-ro", f"{source}:/there"))
        assert result.returncode == 125
        assert source in result.stderr
    assert time.monotonic() - started < 10


def test_sockets_as_sources_are_refused_unless_they_are_meant(user_box, probe):
    # proves C26, C19
    box = user_box
    script = probe(box, "connect.py")
    path = f"{box.base}/agent"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        os.chmod(path, 0o666)
        server.listen()
        refused = box.run(PYTHON, script, "/agent", flags=("--mount-ro", f"{path}:/agent"))
        box.write("answer.py", "")
        meant = box.run("test", "-S", "/agent", flags=("--set", "unsafe_mounts=true", "--mount-ro", f"{path}:/agent"))

    assert refused.returncode == 125
    assert "socket" in refused.stderr
    assert meant.returncode == 0, meant.stderr


@pytest.mark.slow
def test_a_thousand_mounts_work(user_box):
    # proves EXT-02
    box = user_box
    flags: list[str] = []
    for number in range(1000):
        box.write(f"{box.base}/many/{number}/file", f"{number}\n")
        flags += ["--mount-rw" if number % 2 else "--mount-ro", f"{box.base}/many/{number}:/many/{number}"]

    result = box.sh(
        "cat /many/*/file | sort -n | uniq | wc -l; touch /many/1/new /many/2/new; ulimit -n", flags=tuple(flags)
    )

    assert result.returncode == 0, result.stderr[-500:]
    assert result.stdout.split()[0] == "1000"
    assert os.path.exists(f"{box.base}/many/1/new")
    assert not os.path.exists(f"{box.base}/many/2/new")


def test_too_many_mounts_are_refused_in_plain_words(user_box):
    # proves EXT-02
    source = data(user_box)
    flags = [word for number in range(3200) for word in ("--mount-ro", f"{source}:/many/{number}")]

    result = user_box.run("echo", "ran", flags=tuple(flags))

    assert result.returncode == 125
    assert result.stdout == ""
    assert "error: the sandbox and its command have" in result.stderr


def test_a_mount_in_another_mount_leads_through_no_link(box):
    # proves C01, C02, EXT-02
    outer, inner, victim = data(box, "outer"), data(box, "inner"), box.mkdir(f"{box.base}/victim")
    os.symlink(f"/oldroot{victim}", f"{outer}/link")
    os.symlink(victim, f"{outer}/plain")
    for link in ("link", "plain"):
        for dest in (f"/outer/{link}/made", f"/outer/{link}", f"{outer}/{link}/made", f"{outer}/{link}"):
            top = "/outer" if dest.startswith("/outer") else outer
            result = box.sh("echo ran", flags=("--mount-rw", f"{outer}:{top}", "--mount-ro", f"{inner}:{dest}"))
            assert result.returncode == 125, (dest, result.stderr)
            assert os.listdir(victim) == []


def test_destinations_in_the_project_are_neither_created_nor_reached_through_links(box):
    # proves C01, C02, EXT-02
    source, victim = data(box), box.mkdir(f"{box.base}/victim")
    os.symlink(f"/oldroot{victim}", f"{box.project}/link")
    os.symlink(victim, f"{box.project}/plain")
    box.mkdir("there")

    for dest in ("link", "link/made", "plain", "plain/made", "missing", "there/missing"):
        result = box.run("echo", "ran", flags=("--mount-ro", f"{source}:{box.project}/{dest}"))
        assert result.returncode == 125, (dest, result.stderr)
    works = box.run("cat", "there/file", flags=("--mount-ro", f"{source}:{box.project}/there"))

    assert works.stdout == "content of data\n", works.stderr
    assert os.listdir(victim) == []
    assert os.listdir(f"{box.project}/there") == []
    assert sorted(os.listdir(box.project)) == ["link", "plain", "there"]


# On most machines every mount is shared. Inside waits until the host has mounted something, and writes there.
_LATER = """
mkdir -p shown/sub out sub; cd {project}
(until [ -e started ]; do sleep 0.02; done; mount --bind {base}/out {base}/shown/sub; mount --bind {base}/out sub
touch mounted) &
timeout 20 "$@" sh -c 'touch started; until [ -e mounted ]; do sleep 0.02; done
echo evil >{base}/shown/sub/above; echo evil >sub/below; true'
wait; umount sub; rm -f started mounted
"""


@pytest.mark.parametrize("account", ["root", "user"])
def test_mounts_that_the_host_makes_later_do_not_appear_inside(root_box, user_box, account):
    # proves C34
    box = root_box if account == "root" else user_box
    base = box.mkdir(f"{box.base}/later")
    for name in ("shown", "shown/sub", "out"):
        box.mkdir(f"{base}/{name}")
    box.mkdir(f"{box.project}/sub")
    demote = ("setpriv", f"--reuid={box.account.uid}", f"--regid={box.account.gid}", "--clear-groups", "--")
    script = f"cd {base}; {_LATER.format(base=base, project=box.project)}"
    variables = (f"{name}={value}" for name, value in box.variables().items())
    shell = ("unshare", "--mount", "--propagation", "shared", "env", "-i", *variables, "sh", "-c", script, "sh")

    naive = ("bwrap", "--unshare-user", "--ro-bind", "/", "/", "--bind", box.project, box.project,
             "--chdir", box.project)  # fmt: skip
    control = root_box.host(*shell, *demote, *naive, "--")
    written = sorted(os.listdir(f"{base}/out"))
    for name in written:
        os.unlink(f"{base}/out/{name}")
    flags = ("-y", "--mount-ro", f"{base}/shown", "--exec", "--")
    inside = root_box.host(*shell, *demote, box.program, *flags)

    assert written == ["above", "below"], (control.stdout, control.stderr)
    assert os.listdir(f"{base}/out") == [], (inside.stdout, inside.stderr)
    assert os.path.exists(f"{box.project}/sub/below"), inside.stderr


CALLS = {
    "setns": {"x86_64": 308, "aarch64": 268}[os.uname().machine],
    "open_tree": 428,
    "move_mount": 429,
    "openat2": 437,
    "mount_setattr": 442,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS], ids=["denied", "unknown"])
def test_a_kernel_that_lacks_a_call_starts_nothing_and_says_so_in_one_line(user_box, compiled, call, error):
    # proves MOUNT-01, C34
    refuse = (f"{compiled}/refuse", str(CALLS[call]), str(error))
    before = sorted(os.listdir(user_box.project))
    result = user_box.host(*refuse, user_box.program, "-y", "--exec", "--", "echo", "ran")

    assert (result.stdout, result.returncode) == ("", 125)
    assert [line for line in result.stderr.splitlines() if line.startswith("error:") and f"`{call}`" in line]
    assert "Traceback" not in result.stderr
    assert sorted(os.listdir(user_box.project)) == before


@pytest.mark.parametrize("way", [".", "/proc/self/cwd", "/proc/1/cwd", "/proc/1/root$PWD"])
def test_nobody_stands_beneath_what_was_mounted_when_the_sandbox_was_built(box, way):
    # proves MOUNT-01
    # bwrap would be in the project before anything is mounted there; the control is what lies beside.
    box.write(".vscode/settings.json", "{}")
    result = box.sh(f"cd -P {way} 2>/dev/null || exit 3; touch .vscode/made; touch made && echo beside")

    assert not os.path.exists(f"{box.project}/.vscode/made")
    if way != "/proc/1/cwd":  # the root, where nothing can be made
        assert "beside" in result.stdout or result.returncode == 3, result.stderr


def test_mounts_by_descriptor_are_locked_where_user_namespaces_are_allowed(user_box):
    # proves MOUNT-01, C24
    user_box.write(".vscode/settings.json", "{}")
    script = "umount .vscode; mount -o remount,bind,rw .vscode; touch .vscode/made; mount -t tmpfs t /tmp && echo may"
    result = user_box.sh(
        f"unshare --user --map-root-user --mount sh -c '{script}'",
        flags=(
            "--set",
            "allow_userns=true",
        ),
    )

    assert "may" in result.stdout, "the control: mounts of its own are permitted"
    assert not os.path.exists(f"{user_box.project}/.vscode/made")
