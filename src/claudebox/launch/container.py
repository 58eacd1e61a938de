"""Containers around claudebox: which kind this one is, and what it must be started with so that a sandbox can be made.

A sandbox needs user, mount and pid namespaces, `mount`, `pivot_root` and a /proc of which nothing is covered; nothing
of that reaches beyond the container.
"""

from __future__ import annotations

import os

from claudebox.files import read_small

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


def describe_remedy(kind: str, *lacks: str) -> str:
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
