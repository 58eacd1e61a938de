"""Finding programs on the host: tools by trusted absolute path, bwrap and what it can do, and our own gate.

Nothing is ever looked up in the project, or through a PATH entry that is not absolute (threats E01, E02).
"""

from __future__ import annotations

import os
import stat

from claudebox import build_paths
from claudebox.agent import kinds
from claudebox.base import syscalls
from claudebox.base.console import list_some
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import PACKAGE, read_small, real_path
from claudebox.host.records import Bubblewrap, KeptOut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


USUAL = ("/usr/local/bin", "/usr/bin", "/bin")  # always on PATH inside
_TRUSTED = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/sbin", "/run/current-system/sw/bin")


def search_path(environ: Mapping[str, str], workdir: str) -> tuple[str, ...]:
    """Return the directories of the host's PATH that are absolute and not of the project."""
    inside = workdir.rstrip("/") + "/"
    return tuple(entry for entry in find_entries(environ) if not (real_path(entry) + "/").startswith(inside))


def find_entries(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories of the host's PATH that are absolute, each once."""
    entries = (os.path.normpath(entry) for entry in environ.get("PATH", "").split(":") if entry.startswith("/"))
    return tuple(dict.fromkeys(entries))


def find_tool(name: str, path: Sequence[str] = ()) -> str | None:
    """Return the absolute path of a host tool."""
    if name in build_paths.TOOLS:
        return build_paths.TOOLS[name]
    for directory in (*_TRUSTED, *path):
        candidate = f"{directory}/{name}"
        if is_executable(candidate):
            return candidate
    return None


def is_of_system(command: str) -> bool:
    """Return whether a command begins with a program that every sandbox on this machine has."""
    name = (command.split() or [""])[0]
    return bool(name) and any(is_executable(f"{directory}/{os.path.basename(name)}") for directory in _TRUSTED)


def is_executable(path: str) -> bool:
    """Return whether this is a program that we may run."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)
    except OSError:
        return False


# Programs on the host's PATH that a sandbox does not have, and the flag that brings them in.


_NAMED = 4
_MOST = 4096  # entries of a directory
# Whoever has one of these misses it first.
_WANTED = (
    "node", "npm", "pnpm", "yarn", "bun", "deno", "uv", "python3", "poetry", "pipx", "cargo", "rustc", "go", "java",
    "mvn", "gradle", "ruby", "ghc", "just", "mise", "gh", "rg",
)  # fmt: skip


def find_outside(
    environ: Mapping[str, str], home: str, shown: Iterable[str] = (), kept_out: Iterable[str] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what is not inside of the home's directories on PATH, with the programs in it."""
    entries = [entry for entry in find_entries(environ) if entry.startswith(f"{home}/")]
    for path in dict.fromkeys((*kept_out, *entries)):
        if path not in shown:
            names = _entries(path)
            yield path, tuple(name for name in names if is_executable(f"{path}/{name}")) or (os.path.basename(path),)


def describe_absent(
    kept_out: Iterable[KeptOut], inside: Iterable[str], home: str, *, chosen: bool = False
) -> Iterator[str]:
    """Yield a sentence for each directory of programs and each script that is not inside; one for all if `chosen`."""
    present = {name for directory in inside for name in _entries(directory)}
    own = ("claudebox", *kinds.list_names())
    absent: list[str] = []
    for row in kept_out:
        if os.path.isfile(row.path):
            yield f"{spell(row.path, home)} is not inside: {describe(row, home)}"
            continue
        names = [name for name in _entries(row.path) if name not in present and name not in own]
        names = [name for name in names if os.access(os.path.join(row.path, name), os.X_OK)]
        if chosen:
            absent += names
        elif names:
            yield f"{_list(names)} of {spell(row.path, home)} {_are(names)} not inside: {describe(row, home)}"
    if absent:
        yield f"{_list(absent)} of your PATH {_are(absent)} not inside: `--set toolchains=auto`"


def _list(names: Iterable[str]) -> str:
    wanted = sorted({*names}, key=lambda name: (_WANTED.index(name) if name in _WANTED else len(_WANTED), name))
    return list_some(wanted, _NAMED)


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def describe(row: KeptOut, home: str) -> str:
    """Return why something is not inside, and the words that bring it in."""
    flags = f"`{row.flags}{spell(row.path, home)}`" if row.flags else ""
    return ": ".join(filter(None, (row.why, flags)))


def spell(path: str, home: str) -> str:
    """Return a path as a user writes it."""
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


def _entries(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for _, entry in zip(range(_MOST), entries, strict=False) if entry.name[:1] != "."]
    except OSError:
        return []


# Options of bwrap that some version lacks, and the first version with all of them.
BWRAP_NEEDED = (
    "--args", "--cap-drop", "--die-with-parent", "--disable-userns", "--perms", "--remount-ro", "--seccomp", "--size",
)  # fmt: skip
BWRAP_LEAST = "0.8"


_PR_GET_SECCOMP, _FILTERED = 21, 2
_CLONE_NEWUSER, _CLONE_NEWUTS = 0x10000000, 0x04000000


def find_bwrap(path: tuple[str, ...]) -> Bubblewrap:
    """Find bwrap, and say what keeps it from being used; its help text, which lies in the binary, lists its options."""
    found = find_tool("bwrap", path)
    if found is None or not os.path.exists(found):  # a package may name one that is gone
        how = "install the package `bubblewrap` (apt, dnf, pacman), or `nix profile install nixpkgs#bubblewrap`"
        return Bubblewrap("", ClaudeboxError("bubblewrap is not installed", hint=how))
    status = os.stat(found)
    binary = read_small(found, limit=16 << 20, follow=True) or b""
    missing = [f"`{option}`" for option in BWRAP_NEEDED if f" {option} ".encode() not in binary]
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
        what = "is setuid: it would set the sandbox up with root's powers"
        how = f"use user namespaces instead: `sudo chmod u-s {found}`"
    elif status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        what, how = "can be replaced by other users", f"`sudo chown root:root {found}; sudo chmod 755 {found}`"
    elif missing:
        what, how = f"does not know {', '.join(missing)}", f"install bubblewrap {BWRAP_LEAST} or newer"
    else:
        return Bubblewrap(found)
    return Bubblewrap(found, ClaudeboxError(f"`{found}` {what}", hint=how))


def place_gate(machine: str) -> str:
    """Return where the gate lies, src/gate/gate.c compiled for a machine."""
    return f"{PACKAGE}/claudebox/gate/{machine}"


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
