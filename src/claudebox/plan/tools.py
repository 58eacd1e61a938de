"""Policy + Host → tools that were asked for: toolchains, a git credential, devices, browsers, Nix.

Off the usual launch path: imported only where a policy asks for one of them.
"""

from __future__ import annotations

import os

from claudebox.base.console import list_some
from claudebox.base.errors import ClaudeboxError
from claudebox.git import plan as git_plan
from claudebox.host.records import Host, covers
from claudebox.plan import environment as plan_environment
from claudebox.plan import mount_checks
from claudebox.plan.records import PACKAGES, Additions, Deferred, Mount, Variable, join_additions
from claudebox.tables import tools as tables_tools
from claudebox.tables.environment import CLIENT_DIRECTORY
from claudebox.tables.tools import TOOLCHAINS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.tools import Browsers, Devices, Node
    from claudebox.settings.records import Policy


_NAMED = 6  # places of a toolchain that a warning names


def plan_tools(policy: Policy, host: Host) -> Additions:
    """Return all that was asked for; the programs of what comes first are found first."""
    parts = [_plan_directories(host), _plan_nix(policy, host)]
    if host.tools.devices is not None:
        parts.append(plan_devices(policy, host, host.tools.devices))
    parts += [_plan_toolchains(policy, host), _plan_credential(policy, host)]
    if host.tools.browsers is not None:
        parts.append(plan_browsers(policy, host, host.tools.browsers))
    added = join_additions(parts)
    return added.replace(variables=(*added.variables, *_path(host, added)))


def _path(host: Host, added: Additions) -> Iterator[Variable]:
    if added.path or added.packages:
        reason = "programs, those that were asked for first; none in a directory that can be written to"
        value = plan_environment.search_path(host, added.path)
        own, _, rest = value.partition(":")
        fetched = Deferred(PACKAGES, f"{own}:", rest) if added.packages else None
        yield Variable("PATH", value, "claudebox", reason, deferred=fetched)


def _plan_directories(host: Host) -> Additions:
    """Put directories of programs on PATH, by the names that they have inside."""
    rows = ((host.mounted.sources[row.source], row.below) for row in host.tools.program_directories)
    return Additions(
        path=tuple((fact.real if mount_checks.is_visible(fact, host) else fact.path) + below for fact, below in rows)
    )


def _plan_toolchains(policy: Policy, host: Host) -> Additions:
    """Refuse what was asked for and cannot be shown, and name what this home does not have."""
    kept_out = {row.path: row.why for row in host.tools.programs.kept_out} if host.tools.programs is not None else {}
    found, warnings = dict(host.tools.toolchains), []
    for request in policy.toolchains:
        for place in found[request.name]:
            if place in kept_out:
                raise ClaudeboxError(f"`{request.origin}` {request.name}: `{place}` stays outside: {kept_out[place]}")
        if not found[request.name]:
            named = list_some([f"~/{place}" for place in TOOLCHAINS[request.name]], _NAMED)
            warnings.append(
                f"{request.origin}: nothing of toolchain {request.name} is in your home (looked for {named})"
            )
    return Additions(warnings=tuple(warnings))


def _plan_credential(policy: Policy, host: Host) -> Additions:
    asked = policy.credential
    if asked is None:
        return Additions()
    warning = f"{asked.origin}: {asked.token} is not set, git inside cannot log in"
    mounts = tuple(git_plan.plan_credential_mounts(asked, host))
    return Additions(mounts, warnings=() if host.secrets.git_token else (warning,))


def _plan_nix(policy: Policy, host: Host) -> Additions:
    """Return what Nix adds, or refuse what was asked for in vain."""
    if host.nix is not None:
        from claudebox.nix import plan as nix_plan

        return nix_plan.provide(policy, host, host.nix)
    asked = [(policy.nix_origin, "the daemon")] if policy.nix in ("daemon", "relay") else []
    asked += [(policy.devshell, "a dev shell")] if policy.devshell else []
    asked += [(request.origin, f"the package `{request.name}`") for request in policy.packages]
    if asked and not (policy.packages and policy.packages_optional):
        origin, what = asked[0]
        raise ClaudeboxError(
            f"`{origin}`: {what} needs Nix, and there is none on this machine",
            hint="install Nix, or the programs in /usr; see `--toolchain` for those in your home",
        )
    warnings = [f"{origin}: {what} needs Nix, and there is none on this machine" for origin, what in asked]
    return Additions(warnings=tuple(warnings))


# Device nodes that bwrap makes in every sandbox.
_THERE = frozenset(("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"))


def plan_devices(policy: Policy, host: Host, found: Devices) -> Additions:
    """Return everything that devices add to a sandbox."""
    return Additions(
        mounts=(*_asked(policy, found), *(_gpu(host, found) if policy.gpu else ())),
        variables=tuple(_variables(host, found)) if policy.gpu else (),
        path=tuple(place for place in found.programs if any(covers(root, place) for root in host.system.shown)),
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
            raise ClaudeboxError(
                f"{name} gives access to {danger}", hint="add `--set unsafe_mounts=true` if you mean it"
            )
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
        if mount_checks.is_visible(fact, host) or fact.kind != "directory":
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


BROWSERS_INSIDE = "/run/claudebox/ms-playwright"
# A browser confines its pages by namespaces of its own, which cannot be made inside; the sandbox confines all of it.
_BROWSER = '#!/bin/sh\nexec {program} --no-sandbox "$@"\n'


def plan_browsers(policy: Policy, host: Host, found: Browsers) -> Additions:
    """Return what browsers add to a sandbox."""
    missing = (
        f"{policy.browser}: there is no browser in /usr or /opt, and none of Playwright's in your home; "
        "`npx playwright install chromium` inside puts one into the project's caches"
    )
    return Additions(
        mounts=tuple(_browsers(host, found)),
        variables=tuple(_browser_variables(found)),
        warnings=() if found.programs or found.downloaded is not None else (missing,),
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


def _browser_variables(found: Browsers) -> Iterator[Variable]:
    if found.programs:
        program = f"{CLIENT_DIRECTORY}/{os.path.basename(found.programs[0])}"
        for name in ("CHROME_BIN", "CHROME_PATH", "PUPPETEER_EXECUTABLE_PATH"):
            yield Variable(name, program, "claudebox", "the browser")
    if found.downloaded is not None:
        yield Variable("PLAYWRIGHT_BROWSERS_PATH", BROWSERS_INSIDE, "claudebox", "browsers of Playwright, read-only")
