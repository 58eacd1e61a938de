"""Hosts that few people have: claudebox works there, or says in one line why it cannot."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess

import pytest
from tests.conftest import Account, make_box

# Each makes a mount namespace of its own and ends in "$@", started by root; $1 is a directory of the test.
SILVERBLUE = """
mkdir "$1/usr" "$1/var" "$1/var/usrlocal" "$1/var/usrlocal/bin"
printf '#!/bin/sh\\necho a tool of the administrator\\n' >"$1/var/usrlocal/bin/local-tool"
chmod 755 "$1/var/usrlocal/bin/local-tool"
for name in /usr/*; do
  [ -L "$name" ] || [ "$name" = /usr/local ] || { mkdir "$1$name"; mount --rbind "$name" "$1$name"; }
  [ ! -L "$name" ] || cp -a "$name" "$1$name"
done
ln -s ../var/usrlocal "$1/usr/local"
mount --rbind "$1/usr" /usr
mount --bind "$1/var" /var
"""
# No directory that is mounted, and one that is: only root can tell the second by itself.
CHROOT = """
mkdir "$1/tree"
MOUNT
for name in /*; do
  [ ! -L "$name" ] || cp -a "$name" "$1/tree$name"
  [ -L "$name" ] || [ ! -d "$name" ] || { mkdir "$1/tree$name"; mount --rbind "$name" "$1/tree$name"; }
done
exec /usr/sbin/chroot "$1/tree" sh -c 'cd "$0" && exec "$@"' "$PWD" "${@:2}"
"""

# As in a container that was put together by hand.
FEW_DEVICES = """
mkdir "$1/dev"
for name in null zero full random urandom tty; do touch "$1/dev/$name"; mount --bind "/dev/$name" "$1/dev/$name"; done
mount --rbind "$1/dev" /dev
"""
NO_LOOPBACK = 'exec unshare --net -- "${@:2}"'


def run_there(box, script, *argv):
    """Run a program as the account of a box, on a host that a script makes of this one."""
    place = box.mkdir(f"{box.base}/there")
    os.chown(place, 0, 0)
    account = ("--reuid", str(box.account.uid), "--regid", str(box.account.gid), "--clear-groups")
    words = ["unshare", "--mount", "--propagation", "private", "--", "bash", "-euc", f'{script}\nexec "${{@:2}}"', "-"]
    return subprocess.run(
        [*words, place, "setpriv", *account, "--", *argv], cwd=box.project, env=box.variables(), capture_output=True,
        text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.root
def test_programs_of_the_administrator_are_there_where_usr_is_an_image(box):
    # proves HOST-29
    script = "local-tool; touch /usr/local/bin/x 2>&1; ls /var"

    result = run_there(box, SILVERBLUE, box.program, "-y", "--exec", "--", "sh", "-c", script)

    first, second, *rest = result.stdout.splitlines()
    assert first == "a tool of the administrator", result.stderr
    assert "Read-only file system" in second
    assert rest[-1:] == ["usrlocal"]


@pytest.mark.root
@pytest.mark.parametrize("mount", ["", 'mount -t tmpfs tmpfs "$1/tree"'])
def test_a_chroot_is_named(box, mount):
    # proves HOST-21
    script = CHROOT.replace("MOUNT", mount)
    assert box.run("true").returncode == 0

    result = run_there(box, script, box.program, "-y", "--exec", "--", "true")

    assert result.returncode == 125
    assert "the user namespace could not be made" in result.stderr
    assert "chroot" in result.stderr
    # Where something is mounted there, only whoever can look at the root of process 1 sees the difference.
    if not mount or (box.account.uid == 0 and os.access("/proc/1/root/", os.F_OK)):
        assert "this is a chroot" in result.stderr


@pytest.mark.root
def test_a_user_whose_number_bwrap_cannot_map_is_named(checkout):
    """Whether it can depends on its version; the control asks the very program."""
    # proves HOST-21
    box = make_box(Account("huge", 4_000_000_000, 4_000_000_000), checkout)
    try:
        control = box.host("bwrap", "--unshare-user", "--ro-bind", "/", "/", "true")
        result = box.run("id", "-u")
    finally:
        shutil.rmtree(box.base)

    if control.returncode == 0:
        assert (result.returncode, result.stdout) == (0, "4000000000\n")
        return
    [error] = [line for line in result.stderr.splitlines() if "error" in line]
    assert (result.returncode, "user 4000000000" in error, "2147483647" in error) == (125, True, True)


@pytest.mark.root
def test_everything_holds_where_no_terminal_can_be_made(user_box):
    # proves SEC-05, PTY-01
    result = run_there(user_box, FEW_DEVICES, user_box.program, "--verify")

    assert result.returncode == 0, result.stderr
    assert ", 0 broken, " in result.stdout


@pytest.mark.root
def test_verify_says_that_the_loopback_network_is_down_and_leaves_nothing(user_box):
    # proves SEC-05
    before = os.listdir(user_box.project)
    result = run_there(user_box, NO_LOOPBACK, user_box.program, "--verify")

    assert (result.returncode, result.stdout) == (125, "")
    text = " ".join(result.stderr.split())
    assert "127.0.0.1: Network is unreachable" in text
    assert "ip link set lo up" in text
    assert "Traceback" not in text
    assert os.listdir(user_box.project) == before


# An access list that lets one more account write: version, then tag, rights and number of each entry.
LIST = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHi", *row) for row in ((1, 6, -1), (2, 6, 1), (4, 6, -1), (16, 6, -1), (32, 4, -1))
)


@pytest.mark.root
def test_a_group_of_the_user_alone_is_the_user(user_box, checkout):
    # proves HOST-30, E05, C18
    copy = f"{user_box.base}/umask-002"
    for part in ("bin", "src"):
        shutil.copytree(f"{checkout}/{part}", f"{copy}/{part}")
    state = user_box.mkdir(f"{user_box.home}/.claudebox")
    own = [
        state,
        user_box.write(f"{state}/config.toml", 'profile = "offline"\n'),
        user_box.write(".claudebox.toml", ""),
    ]
    subprocess.run(["chmod", "-R", "g+w", copy, state, own[2]], check=True)
    subprocess.run(["chown", "-R", f"{user_box.account.uid}:{user_box.account.gid}", copy], check=True)
    user_box.program = f"{copy}/bin/claudebox"
    assert user_box.sh("true").returncode == 0
    for path in own:
        os.chown(path, -1, 1)
        refused = user_box.sh("true")
        os.chown(path, -1, user_box.account.gid)
        assert (refused.returncode, "chmod" in refused.stderr) == (125, True), path
    os.setxattr(own[1], "system.posix_acl_access", LIST)
    assert "can be changed by other users" in user_box.sh("true").stderr
