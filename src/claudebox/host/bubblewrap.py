"""The bwrap program of this machine: where it is, what it can do, and whether it can be trusted."""

from __future__ import annotations

import os
import stat

from claudebox.base import syscalls
from claudebox.base.files import read_small
from claudebox.base.records import Value
from claudebox.host import programs
from claudebox.host.records import Bubblewrap

# Options of bwrap that some version lacks, and the versions that have them.


NEEDED = ("--args", "--perms", "--seccomp", "--cap-drop", "--die-with-parent", "--remount-ro")
LEAST = "0.5"  # the first version with all of them
USEFUL = ("--bind-fd", "--disable-userns", "--size")
FULL = "0.10"  # the first version with these too


_PR_GET_SECCOMP, _FILTERED = 21, 2
_NEAR = 1 << 14  # bytes
_CLONE_NEWUSER, _CLONE_NEWUTS = 0x10000000, 0x04000000


def find_bwrap(path: tuple[str, ...]) -> Bubblewrap:
    """Find bwrap and read off its own help text, which lies in the binary, what it can do (threat E09)."""
    found = programs.find_tool("bwrap", path)
    if found is None or not os.path.exists(found):  # a package may name one that is gone
        return Bubblewrap(
            problem="bubblewrap is not installed",
            remedy="install the package `bubblewrap` (apt, dnf, pacman), or `nix profile install nixpkgs#bubblewrap`",
        )
    status = os.stat(found)
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return Bubblewrap(
            found,
            problem=f"`{found}` is setuid: it would set the sandbox up with root's powers",
            remedy=f"use user namespaces instead: `sudo chmod u-s {found}`",
        )
    if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return Bubblewrap(
            found,
            problem=f"`{found}` can be replaced by other users",
            remedy=f"`sudo chown root:root {found}; sudo chmod 755 {found}`",
        )
    binary = read_small(found, limit=16 << 20, follow=True) or b""
    first = binary.find(f" {NEEDED[0]} ".encode())
    near = binary[max(0, first - _NEAR) : first + _NEAR]  # most of what it says of itself, and quickly searched
    words = {option: f" {option} ".encode() for option in (*NEEDED, *USEFUL)}
    return Bubblewrap(found, frozenset(option for option, word in words.items() if word in near or word in binary))


def can_name_sandbox() -> bool:
    """Return whether bwrap could give the sandbox a name; filters of containers often forbid that and nothing else.

    Tried in a child, and only where a filter is upon us. Where it gets no namespaces at all, bwrap shall say so.
    """
    if syscalls.call("prctl", _PR_GET_SECCOMP, 0, 0, 0, 0) != _FILTERED:
        return True
    child = os.fork()
    if child == 0:
        made = syscalls.call("unshare", _CLONE_NEWUSER | _CLONE_NEWUTS) == 0
        os._exit(int(made and syscalls.call("sethostname", b"claudebox", 9) != 0))
    return os.waitpid(child, 0)[1] == 0


# Ubuntu's restriction of user namespaces: which AppArmor profile lets this bwrap make one, and how to enforce it.
#
# Ubuntu 25.04 and newer have a profile for /usr/bin/bwrap; the package apparmor-profiles of 24.04 brings it along,
# not in force. Two profiles for one program conflict, so ours is for machines that have neither, and for other places
# of bwrap.


DIRECTORY = "/etc/apparmor.d"
OWN = f"{DIRECTORY}/claudebox-bwrap"
SHIPPED = f"{DIRECTORY}/bwrap-userns-restrict"
_DISABLED = f"{DIRECTORY}/disable/bwrap-userns-restrict"
_EXTRA = "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict"
_ABOUT = "/usr/bin/bwrap"  # what the profiles of Ubuntu are about
_SWITCH = "kernel.apparmor_restrict_unprivileged_userns"
_PROFILE = """\
abi <abi/4.0>,
include <tunables/global>
profile claudebox-bwrap "{bwrap}" flags=(unconfined) {{
  userns,
}}
"""
_QUOTED = frozenset('"\\*?[]{}^@\n')  # what would mean something else than itself in a profile


class Remedy(Value):
    """The profile to put in force, and the commands that do it, each as its words."""

    path: str
    text: str  # to be written there first, or nothing
    commands: tuple[tuple[str, ...], ...]


def is_restricted() -> bool:
    """Return whether AppArmor lets only named programs have a user namespace that counts."""
    return (read_small(f"/proc/sys/{_SWITCH.replace('.', '/')}") or b"").strip() == b"1"


def find_remedy(bwrap: str) -> Remedy | None:
    """Return what lets this bwrap make user namespaces; nothing if no profile can name it."""
    if bwrap == _ABOUT and os.path.isfile(SHIPPED):
        enable = (("rm", _DISABLED),) if os.path.lexists(_DISABLED) else ()
        return Remedy(SHIPPED, "", (*enable, ("apparmor_parser", "-r", SHIPPED)))
    if bwrap == _ABOUT and os.path.isfile(_EXTRA):
        return Remedy(SHIPPED, "", (("cp", _EXTRA, SHIPPED), ("apparmor_parser", "-r", SHIPPED)))
    if _QUOTED & set(bwrap):
        return None
    return Remedy(OWN, _PROFILE.format(bwrap=bwrap), (("apparmor_parser", "-r", OWN),))


def describe_remedy(bwrap: str) -> str:
    """Return it for people."""
    remedy = find_remedy(bwrap)
    switch = (
        f"for every program: `sudo sysctl -w {_SWITCH}=0`, and to keep it: "
        f"`echo {_SWITCH}=0 | sudo tee /etc/sysctl.d/60-claudebox.conf`"
    )
    if remedy is None:
        return f"install bubblewrap at {_ABOUT}; or {switch}"
    commands = " && ".join(f"sudo {' '.join(words)}" for words in remedy.commands)
    if not remedy.text:
        return f"put Ubuntu's own profile for bwrap in force: `{commands}`"
    return (
        f"Ubuntu lets only named programs make user namespaces; name bwrap by writing this to `{remedy.path}` "
        f"(`scripts/apparmor` in a checkout does it):\n\n{remedy.text}\nand then `{commands}`; or {switch}"
    )


# Containers around claudebox: which kind this one is, and what it must be started with so that a sandbox can be made.
#
# A sandbox needs user, mount and pid namespaces, `mount`, `pivot_root` and a /proc of which nothing is covered;
# nothing of that reaches beyond the container.


_LIMIT = 1 << 20
_FILTER = "docs/examples/containers/seccomp.json"
_NAMES = {"lxc": "LXC", "lxc-libvirt": "LXC", "systemd-nspawn": "systemd-nspawn", "kubernetes": "Kubernetes"}
# For a /proc of which parts are covered, and for a filter of system calls.
_UNMASK = {
    "podman": "`--security-opt unmask=ALL`",
    "docker": "`--security-opt systempaths=unconfined`",
    "kubernetes": "`procMount: Unmasked` in the container's securityContext and `hostUsers: false` in the pod",
    "lxc": "`security.nesting=true` (Incus, LXD), or nesting.conf included in its configuration",
}
_PERMIT = {
    "podman": f"`--security-opt seccomp=seccomp.json`, with claudebox's {_FILTER}",
    "docker": f"`--security-opt seccomp=seccomp.json`, with claudebox's {_FILTER}",
    "kubernetes": f"a seccompProfile of type Localhost, with claudebox's {_FILTER} on every node",
    "lxc": "`security.nesting=true` (Incus, LXD), or nesting.conf included in its configuration",
}
_UNCONFINE = {
    "podman": "`--security-opt apparmor=unconfined`",
    "docker": "`--security-opt apparmor=unconfined`",
    "kubernetes": "`appArmorProfile: {type: Unconfined}` in the container's securityContext",
    "lxc": "`lxc.apparmor.profile=unconfined`",
}


def find_container() -> str:
    """Return what kind of container this is, as far as it can be told from files: nothing on an ordinary machine."""
    mounts = read_small("/proc/self/mountinfo", limit=_LIMIT) or b""
    if os.path.isdir("/var/run/secrets/kubernetes.io") or b"/kubelet/pods/" in mounts:
        return "kubernetes"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    told = (read_small("/run/systemd/container") or b"").strip().decode("ascii", "replace")
    if told:
        return told if told.replace("-", "a").isalnum() else "container"
    if os.path.exists("/.dockerenv"):
        return "docker"
    return "container" if b" / / " in mounts and b" - overlay " in _row_of_root(mounts) else ""


def _row_of_root(mounts: bytes) -> bytes:
    return next((row for row in mounts.splitlines() if row.split(b" ")[4:5] == [b"/"]), b"")


def name_container(kind: str) -> str:
    """Return the kind as people write it."""
    return _NAMES.get(kind, kind)


def find_lacks() -> tuple[str, ...]:
    """Return what stands in the way of a sandbox here: `unmask`, `permit`, `unconfine`."""
    found = []
    mounts = read_small("/proc/self/mountinfo", limit=_LIMIT) or b""
    if any(row.split(b" ")[4].startswith(b"/proc/") for row in mounts.splitlines() if row.count(b" ") > 4):
        found.append("unmask")
    if b"\nSeccomp:\t2" in (read_small("/proc/self/status") or b""):
        found.append("permit")
    confined = (read_small("/proc/self/attr/current") or b"").strip(b"\0\n ")
    if confined and not confined.startswith(b"unconfined"):
        found.append("unconfine")
    return tuple(found)


def describe_container_remedy(kind: str, *lacks: str) -> str:
    """Return how to start a container of this kind so that a sandbox can be made in it."""
    words = {"unmask": _UNMASK, "permit": _PERMIT, "unconfine": _UNCONFINE}
    known = [words[lack].get(kind, "") for lack in lacks]
    if not known or not all(known):
        return (
            "a container that covers parts of /proc or filters system calls forbids it: start it with "
            f"{_UNMASK['podman']} (podman), {_UNMASK['docker']} (docker) and a filter that permits namespaces "
            f"({_FILTER} of claudebox), or run claudebox outside of it"
        )
    with_what = " and ".join(dict.fromkeys(known))
    return f"start this container ({name_container(kind)}) with {with_what}; docs/containers.md has whole examples"
