"""What bwrap wrote before it gave up → what is wrong with this machine, and how to put it right.

Used when a launch fails, and by `--check` before one does.
"""

from __future__ import annotations

import os

from claudebox.errors import ClaudeboxError
from claudebox.files import read_small
from claudebox.launch import apparmor, container
from claudebox.tables.bwrap import LEAST

_LIMIT = 8192
_LARGEST_ID = (1 << 31) - 1  # bwrap writes the numbers of users and groups as signed ones
# Without a user namespace that counts, bwrap fails at whatever it tries first.
_USER_NAMESPACE = ("uid map", "gid map", "new namespace", "namespaces", "unshare user", "setgroups")
_MOVING = ("find source path", "get type of source", "in mount table", "race condition binding")
_PRIVILEGE = ("rtm_newaddr", "make / slave", "pivot_root", "capset", "set hostname", "sethostname", "mount proc")


def last_words(messages: int) -> str:
    """Return what was written to a pipe by the time its other end is closed."""
    text = b""
    while len(text) < _LIMIT:
        piece = os.read(messages, _LIMIT)
        if not piece:
            break
        text += piece
    return os.fsdecode(text)


def explain(words: str, bwrap: str = "/usr/bin/bwrap") -> ClaudeboxError:
    """Return the error for what this bwrap wrote before it gave up."""
    said = words.strip().removeprefix("bwrap: ") or "it said nothing"
    lower = said.lower()
    if "id map: invalid argument" in lower and max(os.getuid(), os.getgid()) > _LARGEST_ID:
        return ClaudeboxError(
            f"bwrap cannot map the user {os.getuid()}, group {os.getgid()}: it knows numbers up to {_LARGEST_ID}",
            hint="start claudebox as a user with a smaller number",
        )
    if "/proc/sys/user" in lower and "new namespace" not in lower:  # where a container has made it read-only
        return ClaudeboxError(f"/proc can only be read in parts: {said}", hint=_container_remedy("unmask"))
    if any(word in lower for word in _USER_NAMESPACE):
        return ClaudeboxError(f"the user namespace could not be made: {said}", hint=namespace_remedy(bwrap))
    if "unknown option" in lower:
        return ClaudeboxError(f"bwrap is too old: {said}", hint=f"install bubblewrap {LEAST} or newer")
    if any(word in lower for word in _PRIVILEGE) and apparmor.is_restricted():
        return ClaudeboxError(
            f"AppArmor takes the rights of the user namespace away: {said}", hint=apparmor.describe_remedy(bwrap)
        )
    if "mount proc" in lower or ("proc" in lower and "mount" in lower):
        return ClaudeboxError(f"/proc of the sandbox could not be mounted: {said}", hint=_container_remedy("unmask"))
    if any(word in lower for word in _PRIVILEGE):
        return ClaudeboxError(f"bwrap may not set up the sandbox: {said}", hint=_container_remedy("permit"))
    if any(word in lower for word in _MOVING) and "permission denied" not in lower:
        return ClaudeboxError(
            f"something that is mounted was replaced or removed while the sandbox was being built: {said}",
            hint="start it again, when nothing changes there",
        )
    if "seccomp" in lower:
        return ClaudeboxError(f"the seccomp filter could not be installed: {said}", hint="use a kernel with seccomp")
    if "landlock" in lower:
        return ClaudeboxError(f"Landlock could not be put in force: {said}", hint="run `claudebox --check`")
    return ClaudeboxError(f"bwrap could not set up the sandbox: {said}", hint="run `claudebox --check`")


def namespace_remedy(bwrap: str = "/usr/bin/bwrap") -> str:
    """Return what to do on this machine so that an ordinary user can make a user namespace."""
    if apparmor.is_restricted():
        return apparmor.describe_remedy(bwrap)
    for name, value in (("kernel/unprivileged_userns_clone", "1"), ("user/max_user_namespaces", "15000")):
        if _setting(name) == b"0":
            line = f"{name.replace('/', '.')}={value}"
            return f"`sudo sysctl -w {line}`; to keep it: `echo {line} | sudo tee /etc/sysctl.d/60-claudebox.conf`"
    if _in_chroot():
        return (
            "this is a chroot, and the kernel makes no user namespaces in one; "
            "enter the tree with `systemd-nspawn -D` or as a container instead"
        )
    kind = container.find_container()
    if kind and container.find_lacks():
        return _container_remedy("permit")
    return (
        "something forbids user namespaces here: a chroot, the filter of a container (podman and docker: "
        "`--security-opt seccomp=unconfined`), or a hardened kernel"
    )


def _container_remedy(symptom: str) -> str:
    """Return how to start this container: for what was seen, and for what would come after it."""
    # Who gets as far as /proc has its namespaces.
    later = [lack for lack in container.find_lacks() if lack not in ("permit", symptom)]
    return container.describe_remedy(container.find_container(), symptom, *later)


def _in_chroot() -> bool:
    """Return whether / is not where the mounts of this process begin; an ordinary user cannot always see it."""
    try:
        first, ours = os.stat("/proc/1/root"), os.stat("/")
        if (first.st_dev, first.st_ino) != (ours.st_dev, ours.st_ino):
            return True
    except OSError:
        pass
    # A directory in which nothing is mounted has no row of its own.
    table = read_small("/proc/self/mountinfo", limit=1 << 20) or b""
    return bool(table) and not any(row.split(b" ")[4:5] == [b"/"] for row in table.splitlines())


def _setting(name: str) -> bytes:
    return (read_small(f"/proc/sys/{name}") or b"").strip()
