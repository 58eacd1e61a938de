"""How this distribution is laid out: /usr or a store, which parts of /etc, where the certificates are."""

from __future__ import annotations

import os
import pwd
import stat

from claudebox import build_paths
from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, mode_of, read_small, real_path
from claudebox.base.records import Value
from claudebox.host import programs
from claudebox.host.records import Machine, PathFact, Submount, System
from claudebox.tables import paths as tables_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.host.control_groups import ControlGroup
    from claudebox.host.paths import Examiner
    from claudebox.settings.records import Policy


def find_machine(policy: Policy, path: tuple[str, ...]) -> Machine:
    """Look at the machine and its kernel."""
    uid = os.getuid()
    wanted = policy.limits.controllers(uid) if policy.limits is not None else ()
    signal, architecture = syscalls.signal, os.uname().machine
    return Machine(
        architecture=architecture,
        gate=read_small(programs.place_gate(architecture)) or b"",
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        landlock=syscalls.landlock_abi(),
        hostname=programs.can_name_sandbox(),
        terminal=os.isatty(0) and os.isatty(1),
        control_group=_find_group(uid, path, wanted),
        kernel_settings=tuple(row for row in tables_paths.KERNEL_SETTINGS if uid == 0 and os.path.exists(row)),
        ignored_signals=frozenset(number for number in range(1, 16) if signal.getsignal(number) is signal.SIG_IGN),
    )


def _find_group(uid: int, path: tuple[str, ...], wanted: tuple[str, ...]) -> ControlGroup | None:
    if not wanted:
        return None
    from claudebox.host import control_groups

    return control_groups.find_group(uid, path, wanted)


def find_system(examiner: Examiner, environ: dict[str, str], path: tuple[str, ...], store: str) -> System:
    """Look at the distribution, whose Nix store is the given one."""
    usr = os.path.isdir("/usr/lib") and os.path.exists("/usr/bin/sh")
    store_path = build_paths.STORE_PATH if store else ()
    store_links: tuple[tuple[str, str], ...] = ()
    if store and not usr:
        from claudebox.host import store as host_store

        store_path, store_links = host_store.find_path(path), host_store.find_links(path)
    return System(
        usr=usr,
        roots=_find_roots() if usr else (),
        opt=usr and os.path.isdir("/opt"),
        etc=_find_etc(examiner),
        masked=tuple(row for row in tables_paths.MASKED if os.path.isfile(row[0])),
        store=store,
        store_path=store_path,
        store_links=store_links,
        bash=os.path.exists("/bin/bash") or not usr,
        pager="PAGER" in environ and programs.is_of_system(environ["PAGER"]),
        ca_bundle=_find_ca_bundle(examiner),
    )


def _find_roots() -> tuple[tuple[str, str], ...]:
    """Return /bin and its like: the target of a link, or nothing for a directory."""
    rows = []
    for root in tables_paths.SYSTEM_ROOTS:
        if os.path.islink(root):
            rows.append((root, os.readlink(root)))
        elif os.path.isdir(root):
            rows.append((root, ""))
    # Where /usr is an image, as on Silverblue, what the administrator installs lies outside of it.
    if os.path.islink("/usr/local") and real_path("/usr/local") == tables_paths.USR_LOCAL_ELSEWHERE:
        rows.append((tables_paths.USR_LOCAL_ELSEWHERE, ""))
    return tuple(rows)


def _find_etc(examiner: Examiner) -> tuple[tuple[str, str, str], ...]:
    """Return the parts of /etc that are there, where they really are, and what for."""
    rows = []
    names: list[str] | None = None
    for pattern, reason in tables_paths.ETC:
        paths = [pattern]
        if pattern.endswith("*"):
            names = os.listdir("/etc") if names is None else names
            paths = sorted(f"/etc/{name}" for name in names if f"/etc/{name}".startswith(pattern[:-1]))
        facts = (examiner.fact(path) for path in paths)
        rows += [(fact.path, fact.real, reason) for fact in facts if fact.kind != "missing"]
    return tuple(rows)


def has_nix(environ: dict[str, str]) -> bool:
    """Return whether this machine has Nix."""
    return bool(environ.get("NIX_REMOTE")) or any(map(os.path.isdir, ("/nix/store", "/nix/var/nix/daemon-socket")))


def _find_ca_bundle(examiner: Examiner) -> PathFact | None:
    """Return the system's bundle of certificate authorities (SAND-13). What a variable names may hold anything."""
    facts = (examiner.fact(path) for path in tables_paths.CA_BUNDLES)
    return next((fact for fact in facts if fact.kind == "file"), None)


# What is mounted on this machine, and what of it lies below the project.


_LIMIT = 16 << 20
_REMOTE = ("fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs", "autofs")
_ESCAPED = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


class MountRow(Value):
    """A mount of the host, as the kernel lists it."""

    number: int
    device: int  # as the kernel numbers it; some filesystems give programs another one
    place: str
    kind: str  # of filesystem
    root: str = "/"  # what of the filesystem is mounted


def read_mounts() -> tuple[MountRow, ...]:
    """Return the mounts that this process sees."""
    text = os.fsdecode(read_small("/proc/self/mountinfo", limit=_LIMIT) or b"")
    return tuple(_parse(line) for line in text.split("\n") if line)


def _parse(line: str) -> MountRow:
    words = line.split(" ")
    major, _, minor = words[2].partition(":")
    root, place = map(_unescape, words[3:5])
    return MountRow(int(words[0]), int(major) << 20 | int(minor), place, words[words.index("-") + 1], root)


def _unescape(path: str) -> str:
    if "\\" in path:
        for escape, char in _ESCAPED:
            path = path.replace(escape, char)
    return path


def mount_of(path: str) -> int:
    """Return the number of the mount that a path lies in, -1 if it cannot be told."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return -1
    with Closing(descriptor):
        lines = (read_small(f"/proc/self/fdinfo/{descriptor}") or b"").split(b"\n")
    return next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"mnt_id:")), -1)


def find_submounts(mounts: tuple[MountRow, ...], workdir: str) -> tuple[Submount, ...]:
    """Return what is mounted below the project: it comes along with it (C34)."""
    below = workdir.rstrip("/") + "/"
    found: dict[str, str] = {}
    for row in mounts:  # a later one covers an earlier one
        if row.place.startswith(below):
            found[row.place] = row.kind
    return tuple(Submount(path, kind, _is_directory(path, kind)) for path, kind in sorted(found.items()))


def _is_directory(path: str, kind: str) -> bool:
    if kind.startswith(_REMOTE):  # a server that does not answer would keep us waiting
        return True
    mode = mode_of(path)
    return not mode or stat.S_ISDIR(mode)


def current_home(environ: dict[str, str]) -> str:
    """Return the user's home: HOME if it names a directory, or else that of the account."""
    home = environ.get("HOME", "")
    if not _is_home(home):
        home = read_account()[1]  # asked for only here: a directory service may be slow
    if not _is_home(home):
        raise ClaudeboxError("no home directory was found", hint="set HOME to a directory of yours")
    return "/" + os.path.normpath(home).lstrip("/")


def _is_home(path: str) -> bool:
    return path.startswith("/") and bool(path.strip("/")) and os.path.isdir(path)


def read_account() -> tuple[str, str]:
    """Return name and home of the account, as far as it has any."""
    try:
        row = pwd.getpwuid(os.getuid())
    except KeyError:
        return "user", ""
    return row.pw_name, row.pw_dir


def current_directory() -> str:
    """Return the working directory as the kernel names it."""
    try:
        return os.getcwd()
    except OSError:
        raise ClaudeboxError("the working directory no longer exists", hint="change to a project directory") from None
