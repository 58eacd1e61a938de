"""Why bwrap cannot make a sandbox on this machine, and what helps: AppArmor, containers, the kernel's settings."""

from __future__ import annotations

import os

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import read_small
from claudebox.base.records import Value
from claudebox.host.programs import BWRAP_LEAST

# Ubuntu's restriction of user namespaces: which AppArmor profile lifts it for this bwrap, and how to load it.
#
# Ubuntu 25.04 and newer have a profile for /usr/bin/bwrap; the package apparmor-profiles of 24.04 has it, too, but does
# not load it. Two profiles for one program conflict, so ours is for machines with neither, and for bwrap elsewhere.

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
_QUOTED = frozenset('"\\*?[]{}^@\n')  # special in a profile


class Remedy(Value):
    """An AppArmor profile, and the commands that load it."""

    path: str
    text: str  # to be written there first, if any
    commands: tuple[tuple[str, ...], ...]


def is_restricted() -> bool:
    """Return whether AppArmor restricts user namespaces to programs with a profile."""
    return (read_small(f"/proc/sys/{_SWITCH.replace('.', '/')}") or b"").strip() == b"1"


def find_remedy(bwrap: str) -> Remedy | None:
    """Return the profile that lets this bwrap make user namespaces; None if none can name its path."""
    if bwrap == _ABOUT and os.path.isfile(SHIPPED):
        enable = (("rm", _DISABLED),) if os.path.lexists(_DISABLED) else ()
        return Remedy(SHIPPED, "", (*enable, ("apparmor_parser", "-r", SHIPPED)))
    if bwrap == _ABOUT and os.path.isfile(_EXTRA):
        return Remedy(SHIPPED, "", (("cp", _EXTRA, SHIPPED), ("apparmor_parser", "-r", SHIPPED)))
    if _QUOTED & set(bwrap):
        return None
    return Remedy(OWN, _PROFILE.format(bwrap=bwrap), (("apparmor_parser", "-r", OWN),))


def describe_remedy(bwrap: str) -> str:
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
# none of that reaches beyond the container.

_LIMIT = 1 << 20
_FILTER = "docs/examples/containers/seccomp.json"
_NAMES = {"lxc": "LXC", "lxc-libvirt": "LXC", "systemd-nspawn": "systemd-nspawn", "kubernetes": "Kubernetes"}
_SECCOMP = f"`--security-opt seccomp=seccomp.json`, with claudebox's {_FILTER}"
_NESTING = "`security.nesting=true` (Incus, LXD), or nesting.conf included in its configuration"
# What lifts each restriction, by kind of container.
_REMEDIES = {
    "unmask": {  # parts of /proc are covered
        "podman": "`--security-opt unmask=ALL`",
        "docker": "`--security-opt systempaths=unconfined`",
        "kubernetes": "`procMount: Unmasked` in the container's securityContext and `hostUsers: false` in the pod",
        "lxc": _NESTING,
    },
    "permit": {  # system calls are filtered
        "podman": _SECCOMP,
        "docker": _SECCOMP,
        "kubernetes": f"a seccompProfile of type Localhost, with claudebox's {_FILTER} on every node",
        "lxc": _NESTING,
    },
    "unconfine": {  # by AppArmor or SELinux
        "podman": "`--security-opt apparmor=unconfined`",
        "docker": "`--security-opt apparmor=unconfined`",
        "kubernetes": "`appArmorProfile: {type: Unconfined}` in the container's securityContext",
        "lxc": "`lxc.apparmor.profile=unconfined`",
    },
}


def find_container() -> str:
    """Return what kind of container this is, as far as files tell; nothing on an ordinary machine."""
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
    return _NAMES.get(kind, kind)


def find_lacks() -> tuple[str, ...]:
    """Return what restricts us here, as keys of `_REMEDIES`; a sandbox may be possible nevertheless."""
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
    known = [_REMEDIES[lack].get(kind, "") for lack in lacks]
    if not known or not all(known):
        return (
            "a container that covers parts of /proc or filters system calls forbids it: start it with "
            f"{_REMEDIES['unmask']['podman']} (podman), {_REMEDIES['unmask']['docker']} (docker) and a filter that "
            f"permits namespaces ({_FILTER} of claudebox), or run claudebox outside of it"
        )
    options = " and ".join(dict.fromkeys(known))
    return f"start this container ({name_container(kind)}) with {options}; docs/platforms.md has examples"


def _remedy_for(symptom: str) -> str:
    """Return how to start this container, for what was seen and for what would fail after it."""
    # What gets as far as /proc has its namespaces, so nothing more has to be permitted.
    later = [lack for lack in find_lacks() if lack not in ("permit", symptom)]
    return describe_container_remedy(find_container(), symptom, *later)


# What bwrap wrote before it gave up → what is wrong with this machine, and what to do.

_LARGEST_ID = (1 << 31) - 1  # bwrap reads the numbers of users and groups as signed ones
# Without a usable user namespace, bwrap fails at whatever it tries first.
_USER_NAMESPACE = ("uid map", "gid map", "new namespace", "namespaces", "unshare user", "setgroups")
_MOVING = ("find source path", "get type of source", "in mount table", "race condition binding")
_PRIVILEGE = ("rtm_newaddr", "make / slave", "pivot_root", "capset", "set hostname", "sethostname", "mount proc")


def explain(words: str, bwrap: str = "/usr/bin/bwrap") -> ClaudeboxError:
    """Return the error for what bwrap wrote before it gave up."""
    said = words.strip().removeprefix("bwrap: ") or "no error output"

    def says(*parts: str) -> bool:
        return any(part in said.lower() for part in parts)

    what, hint = "bwrap could not set up the sandbox", "run `claudebox --check`"
    if says("id map: invalid argument") and max(os.getuid(), os.getgid()) > _LARGEST_ID:
        what = f"bwrap cannot map the user {os.getuid()}, group {os.getgid()}: the limit is {_LARGEST_ID}"
        hint = "start claudebox as a user with a smaller number"
    elif says("/proc/sys/user") and not says("new namespace"):  # where a container has made it read-only
        what, hint = "/proc is read-only in parts", _remedy_for("unmask")
    elif says(*_USER_NAMESPACE):
        what, hint = "the user namespace could not be made", namespace_remedy(bwrap)
    elif says("unknown option"):
        what, hint = "bwrap is too old", f"install bubblewrap {BWRAP_LEAST} or newer"
    elif says(*_PRIVILEGE) and is_restricted():
        what, hint = "AppArmor takes the rights of the user namespace away", describe_remedy(bwrap)
    elif says("mount proc") or (says("proc") and says("mount")):
        what, hint = "/proc of the sandbox could not be mounted", _remedy_for("unmask")
    elif says(*_PRIVILEGE):
        what, hint = "bwrap may not set up the sandbox", _remedy_for("permit")
    elif says(*_MOVING) and not says("permission denied"):
        what = "something that is mounted was replaced or removed while the sandbox was being built"
        hint = "start it again, when nothing changes there"
    elif says("seccomp"):
        what, hint = "the seccomp filter could not be installed", "use a kernel with seccomp"
    elif says("landlock"):
        what = "Landlock could not be put in force"
    return ClaudeboxError(f"{what}: {said}", hint=hint)


def namespace_remedy(bwrap: str = "/usr/bin/bwrap") -> str:
    """Return what to do on this machine so that an ordinary user can make a user namespace."""
    if is_restricted():
        return describe_remedy(bwrap)
    for name, value in (("kernel/unprivileged_userns_clone", "1"), ("user/max_user_namespaces", "15000")):
        if _read_sysctl(name) == b"0":
            line = f"{name.replace('/', '.')}={value}"
            return f"`sudo sysctl -w {line}`; to keep it: `echo {line} | sudo tee /etc/sysctl.d/60-claudebox.conf`"
    if _in_chroot():
        return (
            "this is a chroot, and the kernel makes no user namespaces in one; "
            "enter the tree with `systemd-nspawn -D` or as a container instead"
        )
    if find_container() and find_lacks():
        return _remedy_for("permit")
    return (
        "something forbids user namespaces here: a chroot, the filter of a container (podman and docker: "
        "`--security-opt seccomp=unconfined`), or a hardened kernel"
    )


def _in_chroot() -> bool:
    """Return whether / is not where the mounts of this process begin; an ordinary user cannot always see it."""
    try:
        first, ours = os.stat("/proc/1/root"), os.stat("/")
        if (first.st_dev, first.st_ino) != (ours.st_dev, ours.st_ino):
            return True
    except OSError:
        pass
    mounts = read_small("/proc/self/mountinfo", limit=_LIMIT) or b""
    return bool(mounts) and not _row_of_root(mounts)  # a directory in which nothing is mounted has no row of its own


def _read_sysctl(name: str) -> bytes:
    return (read_small(f"/proc/sys/{name}") or b"").strip()
