"""Finding programs on the host: tools by trusted absolute path, and the client wherever people have it.

Nothing is ever looked up in the project, or through a PATH entry that is not absolute (threats E01, E02).
"""

from __future__ import annotations

import os
import stat

from claudebox import build_paths
from claudebox.errors import NOT_EXECUTABLE, NOT_FOUND, ClaudeboxError
from claudebox.files import Closing, read_small, real_path
from claudebox.tables import agent
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TRUSTED = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/sbin", "/run/current-system/sw/bin")
_CLIENT_PLACES = (
    "~/.local/bin/claude",
    "~/.claude/local/claude",
    "~/.npm-global/bin/claude",
    "~/.bun/bin/claude",
    "~/.volta/bin/claude",
    "~/.local/share/mise/shims/claude",
    "~/.asdf/shims/claude",
    "~/.nix-profile/bin/claude",
    "/usr/local/bin/claude",
    "/usr/bin/claude",
    "/home/linuxbrew/.linuxbrew/bin/claude",
)
_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF
_PLATFORM = {"x86_64": "x64", "aarch64": "arm64"}  # how npm calls them
_PACKAGE = 1 << 18  # of a package.json
_STUB = 4096  # what npm leaves for a binary that was not installed is smaller than this


class Client(Value):
    """The client's program, and what must be visible for it to run."""

    found: str  # where a user would say that it is
    path: str  # the file that is run
    version: tuple[int, ...] = ()  # where it is written beside the program


def search_path(environ: Mapping[str, str], workdir: str) -> tuple[str, ...]:
    """Return the directories of the host's PATH that are absolute and not of the project."""
    inside = workdir.rstrip("/") + "/"
    entries = (os.path.normpath(entry) for entry in environ.get("PATH", "").split(":") if entry.startswith("/"))
    return tuple(entry for entry in dict.fromkeys(entries) if not (real_path(entry) + "/").startswith(inside))


def find_tool(name: str, path: Sequence[str] = ()) -> str | None:
    """Return the absolute path of a host tool."""
    if name in build_paths.TOOLS:
        return build_paths.TOOLS[name]
    for directory in (*_TRUSTED, *path):
        candidate = f"{directory}/{name}"
        if executable(candidate):
            return candidate
    return None


def is_of_system(command: str) -> bool:
    """Return whether a command begins with a program that every sandbox on this machine has."""
    name = (command.split() or [""])[0]
    return bool(name) and any(executable(f"{directory}/{os.path.basename(name)}") for directory in _TRUSTED)


def executable(path: str) -> bool:
    """Return whether this is a program that we may run."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)
    except OSError:
        return False


def look_for_client(
    home: str, path: Sequence[str], workdir: str, given: str
) -> tuple[Client | None, ClaudeboxError | None]:
    """Return the client, or what is wrong with it: not every session needs one."""
    try:
        return find_client(home, path, workdir, given), None
    except ClaudeboxError as problem:
        return None, problem


def find_client(home: str, path: Sequence[str], workdir: str, given: str = "") -> Client:
    """Return the client, the `given` one if there is one, or say why there is none that can be run."""
    places = [build_paths.TOOLS["claude"]] if "claude" in build_paths.TOOLS else []
    places += [f"{directory}/claude" for directory in path]
    places += [os.path.join(home, place[2:]) if place[0] == "~" else place for place in _CLIENT_PLACES]
    places = [given] if given else places
    inside = workdir.rstrip("/") + "/"
    refusal: ClaudeboxError | None = None
    for found in dict.fromkeys(places):
        if not os.path.lexists(found):
            continue
        try:
            client = _examine(found, home, path)
        except ClaudeboxError as error:
            refusal = refusal or error
            continue
        if not client.path.startswith(inside):
            return client
        refusal = refusal or ClaudeboxError(
            f"`claude` at `{found}` lies in the project, which could have replaced it",
            hint="install it outside: `npm install -g @anthropic-ai/claude-code`",
            status=NOT_EXECUTABLE,
        )
    raise refusal or ClaudeboxError(
        "`claude` was not found on PATH or in the places where it is usually installed",
        hint="install it with `npm install -g @anthropic-ai/claude-code`, or with the installer of claude.ai",
        status=NOT_FOUND,
    )


def _examine(found: str, home: str, path: Sequence[str]) -> Client:
    """Follow links, stubs and shims to the file that really runs."""
    real = real_path(found)
    manager = _shim_manager(found, real)
    if manager:
        real = real_path(_ask(manager, home, path, found))
    wrapped = f"{os.path.dirname(real)}/node_modules/.bin/claude"
    if real.endswith("/.claude/local/claude") and os.path.lexists(wrapped):
        real = real_path(wrapped)
    head = _head(real)
    if not head.startswith((b"\x7fELF", b"#!")):
        sibling = _platform_package(real)
        if sibling is None:
            raise _broken(found, "is not a program (an installation that stopped half-way?)")
        real, head = sibling, _head(sibling)
    if not os.access(real, os.X_OK):
        raise _broken(found, "is not executable")
    if head.startswith(b"\x7fELF"):
        wanted = _MACHINES.get(os.uname().machine)
        if wanted is not None and int.from_bytes(head[18:20], "little") != wanted:
            raise _broken(found, f"is built for another machine than {os.uname().machine}")
    version = _version(real)
    on_node = b"node" in head.split(b"\n", 1)[0] and not head.startswith(b"\x7fELF")
    if on_node or (version and version < agent.LEAST):
        named = f"version {spell_version(version)}" if version else "a version that runs on Node"
        raise ClaudeboxError(
            f"`claude` at `{found}` is {named}, and claudebox needs {spell_version(agent.LEAST)} or newer",
            hint="update it: `npm install -g @anthropic-ai/claude-code@latest`, or `claude update`",
            status=NOT_EXECUTABLE,
        )
    return Client(found, real, version)


def spell_version(version: tuple[int, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))


def _version(real: str) -> tuple[int, ...]:
    """Read the client's version without running it: from its name, as the installer and Nix give it, or its package."""
    parts = real.split("/")
    named = [part.rpartition("claude-code-")[2] for part in reversed(parts) if "claude-code-" in part]
    named += [parts[number + 1] for number, part in enumerate(parts[:-1]) if part in ("versions", "claude-code")]
    for version in filter(None, map(_numbers, named)):
        return version
    for place in (os.path.dirname(real), os.path.dirname(os.path.dirname(real))):
        content = read_small(f"{place}/package.json", limit=_PACKAGE) or b""
        if b'"@anthropic-ai/claude-code' in content:
            after = content.partition(b'"version"')[2].split(b'"', 2)
            return _numbers(os.fsdecode(after[1])) if len(after) == 3 else ()
    return ()


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    good = len(parts) == 3 and all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts)
    return tuple(map(int, parts)) if good else ()


def _head(path: str) -> bytes:
    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)) as descriptor:
            return os.read(descriptor, 256)
    except OSError:
        return b""


def _broken(found: str, problem: str) -> ClaudeboxError:
    return ClaudeboxError(
        f"`claude` at `{found}` {problem}",
        hint="install it again: `npm install -g @anthropic-ai/claude-code`",
        status=NOT_EXECUTABLE,
    )


def _platform_package(real: str) -> str | None:
    """Look beside the stub that npm leaves where it may not run install scripts."""
    machine = _PLATFORM.get(os.uname().machine, "")
    scope = os.path.dirname(os.path.dirname(os.path.dirname(real)))
    for name in (f"claude-code-linux-{machine}", f"claude-code-linux-{machine}-musl"):
        for base in (scope, os.path.join(os.path.dirname(os.path.dirname(real)), "node_modules/@anthropic-ai")):
            candidate = f"{base}/{name}/claude"
            if executable(candidate) and _head(candidate).startswith(b"\x7fELF"):
                return real_path(candidate)
    return None


def _shim_manager(found: str, real: str) -> str | None:
    """Return the version manager whose shim this is: the shim itself would look for its home inside."""
    name = os.path.basename(real)
    if name in ("mise", "volta-shim", "rtx"):
        return "volta" if name == "volta-shim" else name
    if "/shims/" in found:
        content = read_small(real, limit=_STUB) or b""
        for manager in ("asdf", "mise"):
            if manager.encode() in content:
                return manager
    return None


def _ask(manager: str, home: str, path: Sequence[str], found: str) -> str:
    """Ask the version manager for the file behind its shim, outside of the project."""
    program = find_tool(manager, (*path, f"{home}/.local/bin", f"{home}/.asdf/bin", f"{home}/.volta/bin"))
    if program is None:
        raise _broken(found, f"is a shim of {manager}, which was not found")
    from subprocess import SubprocessError, run

    environ = {"HOME": home, "PATH": ":".join(path)}
    try:
        answer = run([program, "which", "claude"], cwd="/", env=environ, capture_output=True, timeout=10, check=False)
    except (OSError, SubprocessError) as error:
        raise _broken(found, f"is a shim of {manager}, which did not answer") from error
    target = os.fsdecode(answer.stdout).strip()
    if answer.returncode or not target.startswith("/") or not os.path.exists(target):
        raise _broken(found, f"is a shim of {manager}, which does not know `claude`")
    return target
