"""Policy + Host → what profiles add to a sandbox: toolchains, a git credential, state of other agents, Nix.

Off the usual launch path: imported only where a policy asks for one of them.
"""

from __future__ import annotations

import os

from claudebox.base.errors import ClaudeboxError
from claudebox.plan import environment as plan_environment
from claudebox.plan import mount_checks
from claudebox.plan.records import PACKAGES, Fetched, Mount, Provision, Variable
from claudebox.tables import tools as tables_tools
from claudebox.tables.inside import CLIENT_DIRECTORY
from claudebox.tables.tools import TOOLCHAINS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.records import Host
    from claudebox.host.tools import Browsers, Devices, Node
    from claudebox.settings.records import Policy


_NAMED = 6  # places of a toolchain that a warning names


def _path(host: Host, directories: tuple[str, ...], *, packages: bool) -> Iterator[Variable]:
    if directories or packages:
        reason = "programs, those that were asked for first; none in a directory that can be written to"
        value = plan_environment.search_path(host, directories)
        own, _, rest = value.partition(":")
        fetched = Fetched(PACKAGES, f"{own}:", rest) if packages else None
        yield Variable("PATH", value, "claudebox", reason, fetched=fetched)


def _caches(policy: Policy) -> dict[str, str]:
    return {variable: name for request in policy.toolchains for variable, name in TOOLCHAINS[request.name].caches}


def _toolchains(host: Host) -> Iterator[Mount]:
    if host.tools.toolchains is None:
        return
    for name, dest, fact in host.tools.toolchains.programs:
        hidden = mount_checks.hidden_by(fact, host)
        if hidden is not None:
            raise ClaudeboxError(f"toolchain `{name}`: `{dest}` would expose `{hidden.fact.path}` ({hidden.why})")
        if fact.identity in host.places.home.lineage:
            raise ClaudeboxError(f"toolchain `{name}`: `{dest}` leads to your home")
        if not mount_checks.covers(host.workdir.real, dest):  # a project that is a toolchain is visible already
            yield Mount(
                dest, "ro-bind", f"programs of toolchain {name}", fact.real, pinned=fact.identity, role="toolchain"
            )
    for path in host.tools.toolchains.without:
        yield Mount(path, "empty", "nothing that programs need", role="toolchain")
    for link, target in host.tools.toolchains.links:
        yield Mount(link, "symlink", "leads to a program of a toolchain", target, role="toolchain")


def _kept(policy: Policy, host: Host) -> Iterator[Mount]:
    for name in policy.kept_names:
        reason = "state of the agent in this project"
        yield Mount(f"{host.home}/{name}", "bind", reason, f"{host.instance.directory}/home/{name}", role="state")


# Policy + Host → device nodes inside: those of graphics processors with what their libraries read, and single ones.


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
    if node.subsystem in tables_tools.PERMITTED or node.number in tables_tools.PERMITTED_NUMBERS or _is_gpu(node):
        return ""
    major, _ = node.number
    by_number = tables_tools.REFUSED.get(node.number) or tables_tools.REFUSED.get((major, -1))
    return (
        by_number or tables_tools.REFUSED_SUBSYSTEMS.get(node.subsystem) or "something that is not known to be harmless"
    )


def _is_gpu(node: Node) -> bool:
    """Return whether this is a node of NVIDIA's driver or its like, which /sys says nothing about."""
    name = node.path.removeprefix("/dev/")
    numbered = name.startswith(tables_tools.GPU_NUMBERED) and name.removeprefix(tables_tools.GPU_NUMBERED).isdigit()
    return not node.subsystem.startswith(("mem", "tty", "input")) and (name in tables_tools.GPU_NAMES or numbered)


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
        if hidden is None and fact.identity not in host.places.home.lineage:
            reason = "libraries of a driver"
            yield Mount(fact.path, "ro-bind", reason, fact.real, pinned=fact.identity, role="device")


def _bind(node: Node, reason: str) -> Mount:
    return Mount(node.path, "device", reason, node.path, pinned=node.identity, role="device")


def _variables(host: Host, found: Devices) -> Iterator[Variable]:
    if found.search:
        yield Variable("LD_LIBRARY_PATH", ":".join(found.search), "claudebox", "libraries of a driver")
    for name in tables_tools.GPU_VARIABLES:
        if name in host.environ:
            yield Variable(name, host.environ[name], "host", "chooses among graphics processors")


def _warnings(policy: Policy, found: Devices) -> Iterator[str]:
    if policy.gpu and not found.gpu:
        yield f"{policy.gpu}: no graphics processor was found (/dev/nvidia*, /dev/dri, /dev/kfd)"
    if found.incomplete:
        yield f"{policy.gpu}: /dev/nvidia-uvm is missing, and CUDA needs it; `sudo nvidia-modprobe -u -c 0` makes it"


def _is_visible(path: str, host: Host) -> bool:
    roots = (
        ("/usr", host.system.usr),
        ("/lib", host.system.usr),
        ("/opt", host.system.opt),
        ("/nix/store", bool(host.system.store)),
    )
    return any(present and mount_checks.covers(root, path) for root, present in roots)


# Policy + Host → browsers inside: small programs of claudebox's own that start those of the system.


BROWSERS_INSIDE = "/run/claudebox/ms-playwright"
# A browser confines its pages by namespaces of its own, which cannot be made inside; the sandbox confines all of it.
_BROWSER = '#!/bin/sh\nexec {program} --no-sandbox "$@"\n'


def plan_wrappers(policy: Policy, host: Host) -> Provision:
    """Return what they add to a sandbox."""
    found = host.tools.browsers
    return Provision(
        mounts=tuple(_browsers(host, found)) if found else (),
        variables=tuple(_wrappers_variables(found)) if found else (),
        warnings=tuple(_wrappers_warnings(policy, found)) if found else (),
    )


def _browsers(host: Host, found: Browsers) -> Iterator[Mount]:
    for program in found.programs:
        content = _BROWSER.format(program=program).encode()
        dest = f"{CLIENT_DIRECTORY}/{os.path.basename(program)}"
        yield Mount(dest, "file", "starts a browser that is confined by the sandbox", content=content, mode=0o755)
    for path in found.settings:
        yield Mount(path, "ro-bind", "settings of a browser, of the system", path)
    fact = found.downloaded
    if fact is not None and mount_checks.hidden_by(fact, host) is None:
        reason = "browsers that Playwright has downloaded"
        yield Mount(BROWSERS_INSIDE, "ro-bind", reason, fact.real, pinned=fact.identity, role="toolchain")


def _wrappers_variables(found: Browsers) -> Iterator[Variable]:
    if found.programs:
        program = f"{CLIENT_DIRECTORY}/{os.path.basename(found.programs[0])}"
        for name in ("CHROME_BIN", "CHROME_PATH", "PUPPETEER_EXECUTABLE_PATH"):
            yield Variable(name, program, "claudebox", "the browser")
    if found.downloaded is not None:
        yield Variable("PLAYWRIGHT_BROWSERS_PATH", BROWSERS_INSIDE, "claudebox", "browsers of Playwright, read-only")


def _wrappers_warnings(policy: Policy, found: Browsers) -> Iterator[str]:
    if not found.programs and found.downloaded is None:
        yield (
            f"{policy.browser}: there is no browser in /usr or /opt, and none of Playwright's in your home; "
            "`npx playwright install chromium` inside puts one into the project's caches"
        )
