"""Policy + Host → device nodes inside: those of graphics processors with what their libraries read, and single ones."""

from __future__ import annotations

import os

from claudebox.errors import ClaudeboxError
from claudebox.plan import mount_checks
from claudebox.plan.model import Mount, Provision, Variable
from claudebox.tables import devices as table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy
    from claudebox.facts.devices import Devices, Node
    from claudebox.facts.host import Host

# Made by bwrap in every sandbox.
_THERE = frozenset(("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"))


def plan_devices(policy: Policy, host: Host, found: Devices) -> Provision:
    """Return everything that devices add to a sandbox."""
    return Provision(
        mounts=(*_asked(policy, found), *(_gpu(host, found) if policy.gpu else ())),
        variables=tuple(_variables(host, found)) if policy.gpu else (),
        path=tuple(place for place in found.programs if _is_visible(place, host)),
        warnings=tuple(_warnings(policy, found)),
        advice=("A graphics processor is there, with its driver.",) if found.gpu else (),
    )


def _asked(policy: Policy, found: Devices) -> Iterator[Mount]:
    for request, (path, node) in zip(policy.devices, found.asked, strict=True):
        name = f"`{request.origin} {path}`"
        if node is None or not node.path.startswith("/dev/"):
            raise ClaudeboxError(f"{name}: this is not a device node in /dev")
        if os.path.basename(node.path) in _THERE or node.path.startswith("/dev/pts/"):
            raise ClaudeboxError(f"{name}: the sandbox has its own")
        danger = why_refused(node)
        if danger and not policy.unsafe_mounts:
            raise ClaudeboxError(f"{name} gives access to {danger}", hint="add `--unsafe-mounts` if you mean it")
        yield _bind(node, f"asked for with {request.origin}")
        if path != node.path and path.startswith("/dev/"):
            yield Mount(path, "symlink", "another name of a device", node.path, role="device")


def why_refused(node: Node) -> str:
    """Return what a device node gives access to that a sandbox keeps out; nothing for those that a user may name."""
    if node.block:
        return "a disk, with every file on it"
    if node.subsystem == "drm" and os.path.basename(node.path).startswith("renderD"):
        return ""
    if node.subsystem in table.PERMITTED or node.number in table.PERMITTED_NUMBERS or _is_gpu(node):
        return ""
    major, _ = node.number
    by_number = table.REFUSED.get(node.number) or table.REFUSED.get((major, -1))
    return by_number or table.REFUSED_SUBSYSTEMS.get(node.subsystem) or "something that is not known to be harmless"


def _is_gpu(node: Node) -> bool:
    """Return whether this is a node of NVIDIA's driver or its like, which /sys says nothing about."""
    name = node.path.removeprefix("/dev/")
    numbered = name.startswith(table.GPU_NUMBERED) and name.removeprefix(table.GPU_NUMBERED).isdigit()
    return not node.subsystem.startswith(("mem", "tty", "input")) and (name in table.GPU_NAMES or numbered)


def _gpu(host: Host, found: Devices) -> Iterator[Mount]:
    for node in found.gpu:
        yield _bind(node, "graphics processor")
    for place in found.shown:
        yield Mount(place, "ro-bind", "what libraries of graphics processors read", place, role="device")
    for link, target in found.links:
        if target.startswith(("/sys/", "/nix/store/")):
            yield Mount(link, "symlink", "what libraries of graphics processors read", target, role="device")
    for fact in found.libraries:
        if _is_visible(fact.real, host) or fact.kind != "directory":
            continue
        hidden = mount_checks.hidden_by(fact, host)
        if hidden is None and fact.identity not in host.home_fact.lineage:
            reason = "libraries of a driver"
            yield Mount(fact.path, "ro-bind", reason, fact.real, pinned=fact.identity, role="device")


def _bind(node: Node, reason: str) -> Mount:
    return Mount(node.path, "device", reason, node.path, pinned=node.identity, role="device")


def _variables(host: Host, found: Devices) -> Iterator[Variable]:
    if found.search:
        yield Variable("LD_LIBRARY_PATH", ":".join(found.search), "claudebox", "libraries of a driver")
    for name in table.GPU_VARIABLES:
        if name in host.environ:
            yield Variable(name, host.environ[name], "host", "chooses among graphics processors")


def _warnings(policy: Policy, found: Devices) -> Iterator[str]:
    if policy.gpu and not found.gpu:
        yield f"{policy.gpu}: no graphics processor was found (/dev/nvidia*, /dev/dri, /dev/kfd)"
    if found.incomplete:
        yield f"{policy.gpu}: /dev/nvidia-uvm is missing, and CUDA needs it; `sudo nvidia-modprobe -u -c 0` makes it"


def _is_visible(path: str, host: Host) -> bool:
    roots = (("/usr", host.usr), ("/lib", host.usr), ("/opt", host.opt), ("/nix/store", bool(host.store)))
    return any(present and mount_checks.covers(root, path) for root, present in roots)
