"""Tools that only some launches ask for: toolchains by name, browsers, devices."""

from __future__ import annotations

import os
import stat

from claudebox.base.files import list_names, read_small, real_path
from claudebox.base.records import Value
from claudebox.host import programs as host_programs
from claudebox.tables import tools as tables_tools
from claudebox.tables.tools import TOOLCHAINS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from claudebox.host.paths import Examiner
    from claudebox.host.records import Identity, PathFact
    from claudebox.settings.records import MountRequest, Policy


class ProgramDirectory(Value):
    """A directory for PATH that was asked for."""

    source: str  # as it was asked for
    below: str = ""  # where the programs are in it


def find_directories(requests: Iterable[MountRequest], sources: dict[str, PathFact]) -> Iterator[ProgramDirectory]:
    """Look where the programs of directories are, and whether they are really there."""
    for request in requests:
        if request.programs:
            real = sources[request.source].real
            yield ProgramDirectory(request.source, "/bin" if os.path.isdir(f"{real}/bin") else "")


def find_toolchain(name: str, home: str, host_path: Iterable[str]) -> tuple[str, ...]:
    """Return the directories of a toolchain that this home has: the versions that PATH has chosen, or the newest."""
    chosen = list(host_path)
    return tuple(path for pattern in TOOLCHAINS[name] for path in _directories(home, pattern, chosen))


def _directories(home: str, pattern: str, chosen: list[str]) -> list[str]:
    """Return the directory that a pattern stands for: of several versions the newest, unless PATH has chosen one."""
    before, star, after = f"{home}/{pattern}".partition("*")
    if not star:
        return [before] if os.path.isdir(before) else []
    if "*" in after:
        tools = (pattern.replace("*", tool, 1) for tool in list_names(before))
        return [path for tool in tools for path in _directories(home, tool, chosen)]
    if on_path := [entry for entry in chosen if entry.startswith(before) and entry.endswith(after)]:
        return on_path
    versions = sorted(list_names(before), key=_version, reverse=True)
    candidates = (f"{before}{version}{after}" for version in versions)
    return next(([path] for path in candidates if os.path.isdir(path)), [])


def _version(name: str) -> list[tuple[int, str]]:
    """Return a key by which 20.9.0 comes before 20.10.0, names without a number first, and a choice last."""
    if name == "current":
        return [(1 << 30, name)]
    words = "".join(char if char.isdigit() else " " for char in name).split()
    return [(int(word[:9]), "") for word in words] or [(-1, name)]


# Which browsers there are for a launch that asks for one.


_PROGRAMS = (
    "chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable",
    "microsoft-edge", "brave-browser",
)  # fmt: skip
_VISIBLE = ("/usr/", "/opt/", "/nix/store/", "/bin/")
_SETTINGS = ("/etc/chromium.d", "/etc/chromium")


class Browsers(Value):
    """What of them was found."""

    programs: tuple[str, ...] = ()  # of the system
    settings: tuple[str, ...] = ()  # that they read in /etc
    downloaded: PathFact | None = None  # the directory of Playwright's


def find_browsers(home: str, path: tuple[str, ...], examiner: Examiner) -> Browsers:
    """Look for browsers of the system, and for those that Playwright has downloaded."""
    found = (host_programs.find_tool(name, path) for name in _PROGRAMS)
    downloaded = examiner.fact(f"{home}/.cache/ms-playwright")
    return Browsers(
        tuple(program for program in found if program and real_path(program).startswith(_VISIBLE)),
        tuple(place for place in _SETTINGS if os.path.isdir(place) and not os.path.islink(place)),
        downloaded if downloaded.kind == "directory" else None,
    )


# Which device nodes there are for a launch that asks for some: what they are, and what libraries need beside them.


_CACHE_LIMIT = 16 << 20
_USUAL = ("/usr/local/bin", "/usr/bin", "/bin")


class Node(Value):
    """A device node."""

    path: str  # where it really is
    identity: Identity
    number: tuple[int, int]  # major and minor
    block: bool = False
    subsystem: str = ""  # of the kernel, as far as /sys tells


class Devices(Value):
    """What of the machine's devices was asked for."""

    gpu: tuple[Node, ...] = ()
    asked: tuple[tuple[str, Node | None], ...] = ()  # path, and what is there
    shown: tuple[str, ...] = ()  # directories of /sys
    links: tuple[tuple[str, str], ...] = ()  # names in /sys and /run, and where they lead
    libraries: tuple[PathFact, ...] = ()  # directories of libraries of drivers
    search: tuple[str, ...] = ()  # those of them that only LD_LIBRARY_PATH names
    programs: tuple[str, ...] = ()  # directories of programs of drivers
    incomplete: bool = False  # a card of NVIDIA without unified memory: no program has used it yet


def find_devices(policy: Policy, environ: Mapping[str, str], path: tuple[str, ...], examiner: Examiner) -> Devices:
    """Look for what the policy asks for."""
    asked = tuple((request.name, look(request.name)) for request in policy.devices)
    if not policy.gpu:
        return Devices(asked=asked)
    nodes = tuple(_gpu_nodes())
    names = {os.path.basename(node.path) for node in nodes}
    listed, searched = _libraries(environ)
    cards = dict(_cards(nodes))
    links = {
        **dict(_link_devices(nodes, cards)),
        **{f"/sys/bus/pci/devices/{name}": place for name, place in cards.items()},
    }
    if os.path.islink("/run/opengl-driver"):  # NixOS
        links["/run/opengl-driver"] = real_path("/run/opengl-driver")
    system = (place for place in tables_tools.GPU_SYSTEM if os.path.isdir(place))
    return Devices(
        gpu=nodes,
        asked=asked,
        shown=tuple(dict.fromkeys((*system, *cards.values(), *_topology(links)))),
        links=tuple(links.items()),
        libraries=tuple(examiner.fact(place) for place in dict.fromkeys((*listed, *searched))),
        search=tuple(place for place in searched if place not in listed),
        programs=tuple(dict.fromkeys(_programs(path))),
        incomplete="nvidiactl" in names and "nvidia-uvm" not in names,
    )


def look(path: str) -> Node | None:
    """Return the device node at a path, which may be a link within /dev."""
    real = real_path(path)
    try:
        status = os.lstat(real)
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode) and not stat.S_ISBLK(status.st_mode):
        return None
    number, block = (os.major(status.st_rdev), os.minor(status.st_rdev)), stat.S_ISBLK(status.st_mode)
    entry = f"/sys/dev/{'block' if block else 'char'}/{number[0]}:{number[1]}/subsystem"
    subsystem = os.path.basename(real_path(entry)) if os.path.exists(entry) else ""
    return Node(real, (status.st_dev, status.st_ino), number, block, subsystem)


def _gpu_nodes() -> Iterator[Node]:
    names = [f"/dev/{name}" for name in list_names("/dev") if _is_gpu(name)]
    for directory, prefix in tables_tools.GPU_DIRECTORIES:
        names += (f"{directory}/{name}" for name in list_names(directory) if name.startswith(prefix))
    for name in names:
        node = look(name) if not os.path.islink(name) else None
        if node is not None and not node.block:
            yield node


def _is_gpu(name: str) -> bool:
    return name in tables_tools.GPU_NAMES or (
        name.startswith(tables_tools.GPU_NUMBERED) and name.removeprefix(tables_tools.GPU_NUMBERED).isdigit()
    )


def _cards(nodes: tuple[Node, ...]) -> Iterator[tuple[str, str]]:
    """Yield address and directory of each card: those that render, and those of NVIDIA's driver."""
    places = [f"/sys/dev/char/{node.number[0]}:{node.number[1]}/device" for node in nodes]
    places += (f"/sys/bus/pci/devices/{name}" for name in list_names("/proc/driver/nvidia/gpus"))
    for place in places:
        real = real_path(place) if os.path.isdir(place) else ""
        if real.startswith("/sys/devices/pci"):
            yield os.path.basename(real), real


def _link_devices(nodes: tuple[Node, ...], cards: dict[str, str]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        name = f"/sys/dev/char/{node.number[0]}:{node.number[1]}"
        real = real_path(name) if os.path.exists(name) else ""
        if real.startswith(tuple(f"{place}/" for place in cards.values())) or node.subsystem == "kfd":
            yield name, real
            yield f"/sys/class/{node.subsystem}/{os.path.basename(real)}", real


def _topology(links: dict[str, str]) -> Iterator[str]:
    """Yield where AMD's driver says which processors and cards there are."""
    if "/sys/class/kfd/kfd" in links:
        yield links["/sys/class/kfd/kfd"]


def _libraries(environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the directories of libraries of drivers: those that the loader knows, and those that a variable names."""
    cache = read_small("/etc/ld.so.cache", limit=_CACHE_LIMIT, follow=True) or b""
    known = (os.fsdecode(word) for word in cache.split(b"\0") if word.startswith(b"/"))
    listed = [os.path.dirname(name) for name in known if os.path.basename(name).startswith(tables_tools.GPU_LIBRARIES)]
    named = [place for place in environ.get("LD_LIBRARY_PATH", "").split(":") if place.startswith("/")]
    searched = [
        place for place in named if any(name.startswith(tables_tools.GPU_LIBRARIES) for name in list_names(place))
    ]
    return list(dict.fromkeys(listed)), searched


def _programs(path: tuple[str, ...]) -> Iterator[str]:
    for name in tables_tools.GPU_PROGRAMS:
        found = host_programs.find_tool(name, path)
        if found and os.path.dirname(found) not in _USUAL:
            yield os.path.dirname(found)
