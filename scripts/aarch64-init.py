#!/usr/bin/python3 -IS
"""The first process of the machine that `scripts/aarch64` boots: mounts what is needed and runs claudebox."""

import fcntl
import os
import sys

sys.path.insert(0, "/claudebox/src")
from claudebox.base import syscalls

BIND, MOVE = 0x1000, 0x2000
POWER_OFF = 0x4321FEDC
SET_FLAGS, UP = 0x8914, 1  # of an interface
CLAUDEBOX = "/claudebox/bin/claudebox"
INSIDE = "uname -m; id -u; hostname; grep -E 'Seccomp|CapEff' /proc/self/status; echo written >file && cat file"


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    """Mount, or say why not."""
    if syscalls.call("mount", source.encode(), target.encode(), kind.encode(), flags, None):
        say(f"cannot mount {target}")


def say(line: str) -> None:
    """Write to the console."""
    os.write(1, f"{line}\n".encode())


def run(uid: int, home: str, *words: str) -> None:
    """Run claudebox in a project of its own, as this user."""
    say(f"RUN as {uid}: claudebox {' '.join(words)}")
    project = f"{home}/project"
    os.makedirs(project, exist_ok=True)
    for path in (home, project):
        os.chown(path, uid, uid)
    child = os.fork()
    if child == 0:
        os.chdir(project)
        os.setgid(uid)
        os.setuid(uid)
        os.execve(CLAUDEBOX, [CLAUDEBOX, *words], {"HOME": home, "PATH": "/usr/bin:/bin", "TERM": "dumb"})
    ended, status = os.wait()
    while ended != child:
        ended, status = os.wait()
    say(f"STATUS {os.waitstatus_to_exitcode(status)}")


# bwrap cannot leave the first file system of a machine, so another one is put over it.
mount("tmpfs", "/new", "tmpfs")
for name in ("usr", "etc", "claudebox", "proc", "sys", "dev", "tmp", "run", "home", "root"):
    os.mkdir(f"/new/{name}")
for name in ("usr", "etc", "claudebox"):
    mount(f"/{name}", f"/new/{name}", flags=BIND)
for name in ("bin", "lib", "sbin"):
    os.symlink(f"usr/{name}", f"/new/{name}")
os.chdir("/new")
mount(".", "/", flags=MOVE)
os.chroot(".")
os.chdir("/")
for name, kind in (("proc", "proc"), ("sys", "sysfs"), ("dev", "devtmpfs")):
    mount(kind, f"/{name}", kind)
for name, kind in (("shm", "tmpfs"), ("pts", "devpts")):
    os.makedirs(f"/dev/{name}", exist_ok=True)
    mount(kind, f"/dev/{name}", kind)
for name in ("/tmp", "/dev/shm"):
    os.chmod(name, 0o1777)
channel = syscalls.socket.socket(syscalls.socket.AF_INET, syscalls.socket.SOCK_DGRAM)
fcntl.ioctl(channel.fileno(), SET_FLAGS, b"lo".ljust(16, b"\0") + UP.to_bytes(2, "little") + bytes(14))
say(f"MACHINE {os.uname().machine}, Linux {os.uname().release}")
run(1000, "/home/user", "-y", "--network", "none", "--exec", "--", "sh", "-c", INSIDE)
run(0, "/root", "-y", "--network", "none", "--exec", "--", "sh", "-c", INSIDE)
run(1000, "/home/user", "--verify", "--network", "none")
syscalls.call("reboot", POWER_OFF)
