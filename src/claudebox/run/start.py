"""What was prepared → a running sandbox: the gate, and the checks before the first instruction of the payload.

Acts and decides nothing.
"""

from __future__ import annotations

import fcntl
import os
import time

from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, keep_descriptors, keep_owner_rights, read_small, restore_umask, write_all
from claudebox.base.records import Value
from claudebox.base.syscalls import signal, socket
from claudebox.host import bubblewrap
from claudebox.host.bubblewrap import LEAST
from claudebox.plan.bwrap import FORWARDED_SIGNALS, GATE_DESCRIPTOR, IGNORED_SIGNALS, STDERR_DESCRIPTOR
from claudebox.run.prepare import own
from claudebox.tables.gate import GATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

    from claudebox.host.records import Identity
    from claudebox.run.prepare import Prepared
    from claudebox.run.terminal import Terminal


_READY_TIMEOUT, _END_TIMEOUT = 30.0, 2.0
_LOOK = 0.5  # seconds between two looks whether bwrap is still there
_PR_SET_CHILD_SUBREAPER = 36

JOB_CONTROL = (signal.SIGTSTP, signal.SIGCONT)  # taken by `supervise`, which puts the terminal in order first

_DEAF_TO = (*IGNORED_SIGNALS, *FORWARDED_SIGNALS)  # what bwrap ignores; while it starts, each ends the launch

_interruptions: list[int] = []  # signals that came while the sandbox was being set up


class Building(Value):
    """A sandbox that bwrap is at work on, whose payload will wait at the gate."""

    monitor: int  # bwrap outside, or the leader of its session, which ends with it: our child
    gate: socket.socket
    messages: int  # what bwrap says


class Sandbox(Value):
    """A sandbox that runs, or is about to."""

    monitor: int  # as in `Building`
    init: int  # bwrap inside, the first process there
    payload: int  # the program inside, as a process of the host
    init_descriptor: int
    payload_descriptor: int
    seconds: int = 0  # that it may run; 0: any number


class Interrupted(Exception):  # noqa: N818 - not an error
    """A signal came while the sandbox was being set up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


class Interruptible:
    """While a sandbox is set up, signals raise `Interrupted`; afterwards `supervise` takes them, one at a time."""

    def __enter__(self) -> None:
        _interruptions.clear()
        taken = (number for number in _DEAF_TO if signal.getsignal(number) is not signal.SIG_IGN)
        self._handlers = {number: signal.signal(number, _interrupt) for number in taken}
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may ignore it, and then nobody tells the end
        _adopt_orphans(yes=True)  # until `reap_orphans`

    def __exit__(self, *_reason: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def begin(prepared: Prepared, terminal: Terminal, place: str) -> Building:
    """Start bwrap; `terminal` has the standard descriptors, `place` is a directory of ours."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    gate = own(theirs.detach())
    messages, message_end = os.pipe()
    message_end = own(message_end)
    monitor = 0
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
        try:
            words = _make_words(prepared, before, terminal)
            monitor = _start_bwrap(prepared, words, terminal, (gate, message_end), place)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # one that came is taken now: it is known whom to end
    except BaseException:
        abandon(Building(monitor, ours, messages))
        raise
    finally:
        for descriptor in (gate, message_end, *prepared.descriptors):
            os.close(descriptor)
    return Building(monitor, ours, messages)


def see_protected(building: Building, prepared: Prepared, standing: Mapping[str, Identity], place: str) -> Sandbox:
    """Wait for the gate, and see that every protection is in force; `standing` tells which stubs were made."""
    from claudebox.run import inspect as run_inspect
    from claudebox.run import limits as run_limits
    from claudebox.run import mounts as run_mounts

    plan = prepared.plan
    payload = _await_ready(building.gate, building.messages, building.monitor, plan.bwrap)
    init = run_inspect.confinement(payload, plan)
    with Closing(make_program(place)) as program:
        run_mounts.mount_all(payload, plan, standing, program)  # in mounts of its own, as was seen just now
    run_inspect.mounts(payload, plan)
    run_limits.set_limits(payload, prepared.open_files, plan.policy.limits)
    seconds = plan.policy.limits.seconds if plan.policy.limits is not None else 0
    return Sandbox(building.monitor, init, payload, os.pidfd_open(init), os.pidfd_open(payload), seconds)


def let_go(building: Building, sandbox: Sandbox) -> None:
    """Give the payload the word; signals are blocked from here on, for `supervise` to take."""
    from claudebox.base import process

    signal.pthread_sigmask(signal.SIG_BLOCK, [*IGNORED_SIGNALS, *FORWARDED_SIGNALS, signal.SIGCHLD, *JOB_CONTROL])
    if _interruptions:
        raise Interrupted(_interruptions[0])
    process.bind(sandbox.init)  # now that nothing can interrupt us: whom we hold cannot end without us
    building.gate.send(b"go\n")
    _close(building)


def abandon(building: Building) -> None:
    """End what was begun: the gate ends everything when it hears no more of us."""
    _close(building)
    if building.monitor:
        _await_end(building.monitor)
        _end_orphans(building.monitor)


def _close(building: Building) -> None:
    building.gate.close()
    os.close(building.messages)


def _adopt_orphans(*, yes: bool) -> None:
    """Become the parent of what our children leave, or leave that to the first process of this machine again."""
    syscalls.call("prctl", _PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def reap_orphans() -> None:
    """Reap what has ended by now, when nobody needs a status any more: in a container the first process may not."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        pass
    _adopt_orphans(yes=False)


def end(sandbox: Sandbox) -> None:
    """End a sandbox that nobody stays beside any more, and wait until nothing in it runs."""
    _kill(sandbox.monitor)
    limit = time.monotonic() + _END_TIMEOUT
    try:
        signal.pidfd_send_signal(sandbox.init_descriptor, signal.SIGKILL)
        while os.waitpid(-1, os.WNOHANG)[0] != sandbox.monitor and time.monotonic() < limit:
            time.sleep(0.001)
    except (ProcessLookupError, ChildProcessError):  # it had ended
        pass
    _end_orphans(sandbox.monitor)


def release_signals() -> None:
    """Take signals again as before a launch, for those who go on when its sandbox has ended."""
    taken = [*IGNORED_SIGNALS, *FORWARDED_SIGNALS, signal.SIGCHLD, *JOB_CONTROL]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)


def _interrupt(number: int, _frame: object) -> NoReturn:
    _interruptions.append(number)  # the interpreter loses an exception that comes in the midst of an import
    raise Interrupted(number)


def _start_bwrap(
    prepared: Prepared, words: tuple[str, ...], terminal: Terminal, handed: tuple[int, int], place: str
) -> int:
    """Start the program that takes every measure which comes before bwrap, and becomes it; return its process."""
    program = -1
    try:
        program = make_program(place)
        keep_descriptors()  # what the shell left open stays here (A04)
        for descriptor in prepared.descriptors:
            fcntl.fcntl(descriptor, fcntl.F_SETFD, 0)  # `os.set_inheritable` tries something else first
        gate, messages = handed
        places = ((2, STDERR_DESCRIPTOR), (gate, GATE_DESCRIPTOR), (messages, 2))
        restore_umask()
        try:
            return terminal.spawn(f"/proc/self/fd/{program}", words, places)
        finally:
            keep_owner_rights()
    except PermissionError:
        raise ClaudeboxError(
            f"the program that starts bwrap may be run neither from memory nor from `{place}`, /dev/shm or /tmp",
            hint="set `vm.memfd_noexec` to 0 or 1, or mount one of them without `noexec`",
        ) from None
    finally:
        if program >= 0:
            os.close(program)


def _make_words(prepared: Prepared, blocked: Iterable[int], terminal: Terminal) -> tuple[str, ...]:
    """Return what that program is told; `blocked` are the signals that whoever started us has blocked."""
    # A session of its own (B05); no core for the host's handler to parse (A19); not the keyring of the login, though
    # seccomp is the first lock (A08); nobody else's abstract sockets, and no signals to them (F15).
    measures = terminal.measures + ("cks" if prepared.plan.scoped else "ck")
    masks = (_DEAF_TO, frozenset(_DEAF_TO) - frozenset(blocked))
    return ("start", *(str(sum(1 << number for number in mask)) for mask in masks), measures,
            prepared.plan.bwrap, *prepared.argv)  # fmt: skip


def make_program(place: str) -> int:
    """Return a descriptor on the program: in memory, or in a nameless file where the kernel runs none from memory."""
    content = GATES[os.uname().machine]
    try:
        return own(syscalls.memory_file(content, executable=True))
    except PermissionError:  # vm.memfd_noexec
        pass
    for directory in (place, "/dev/shm", "/tmp"):
        try:
            with Closing(os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o700)) as file:
                write_all(file, content)
                program = own(os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # a file system that has none
            continue
        if os.access(f"/proc/self/fd/{program}", os.X_OK):  # not where it is mounted with noexec
            return program
        os.close(program)
    raise PermissionError


def _end_orphans(monitor: int) -> None:
    """End what bwrap has left: its inner half waits for the outer one, even if that died before it bound it (E10)."""
    from claudebox.base import process

    for child in map(int, (read_small(f"/proc/self/task/{os.getpid()}/children") or b"").split()):
        if child != monitor and (read_small(f"/proc/{child}/comm") or b"").strip() == b"bwrap":
            os.kill(child, signal.SIGKILL)
            process.note_end(*os.waitpid(child, 0))  # it may be that of a sidecar


def _await_ready(gate: socket.socket, messages: int, monitor: int, bwrap: str) -> int:
    """Wait for the gate inside and return its process, as the kernel vouches for it."""
    gate.settimeout(_LOOK)
    limit = time.monotonic() + _READY_TIMEOUT
    word: bytes | None = None
    ancillary: list[tuple[int, int, bytes]] = []
    while word is None:
        try:
            word, ancillary, _, _ = gate.recvmsg(16, 64)
        except TimeoutError:
            if time.monotonic() > limit:
                message = f"bwrap did not set up the sandbox within {_READY_TIMEOUT:.0f} seconds"
                raise ClaudeboxError(message) from None
            if os.waitid(os.P_PID, monitor, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                _end_orphans(monitor)  # they hold the gate and the messages open
    if word != b"ready\n":
        raise explain(last_words(messages), bwrap)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int.from_bytes(data[:4], "little")
    raise ClaudeboxError("the kernel did not tell which process is in the sandbox")


def _await_end(monitor: int) -> None:
    """Wait for the end of what was begun, and force it if it does not come.

    bwrap must not be killed on its own: its child would wait for it for ever if it had not got its word yet (E15).
    """
    limit = time.monotonic() + _END_TIMEOUT
    while time.monotonic() < limit:
        if os.waitpid(monitor, os.WNOHANG)[0]:
            return
        time.sleep(0.001)
    _kill(monitor)
    os.waitpid(monitor, 0)


def _kill(monitor: int) -> None:
    from claudebox.base import process

    process.kill_tree(monitor)


# What bwrap wrote before it gave up → what is wrong with this machine, and how to put it right.
#
# Used when a launch fails, and by `--check` before one does.


_LIMIT = 8192
_LARGEST_ID = (1 << 31) - 1  # bwrap writes the numbers of users and groups as signed ones
# Without a user namespace that counts, bwrap fails at whatever it tries first.
_USER_NAMESPACE = ("uid map", "gid map", "new namespace", "namespaces", "unshare user", "setgroups")
_MOVING = ("find source path", "get type of source", "in mount table", "race condition binding")
_PRIVILEGE = ("rtm_newaddr", "make / slave", "pivot_root", "capset", "set hostname", "sethostname", "mount proc")


def last_words(messages: int) -> str:
    """Return what was written to a pipe by the time its other end is closed."""
    text = b""
    while len(text) < _LIMIT:
        piece = os.read(messages, _LIMIT)
        if not piece:
            break
        text += piece
    return os.fsdecode(text)


def explain(words: str, bwrap: str = "/usr/bin/bwrap") -> ClaudeboxError:
    """Return the error for what this bwrap wrote before it gave up."""
    said = words.strip().removeprefix("bwrap: ") or "it said nothing"
    lower = said.lower()
    if "id map: invalid argument" in lower and max(os.getuid(), os.getgid()) > _LARGEST_ID:
        return ClaudeboxError(
            f"bwrap cannot map the user {os.getuid()}, group {os.getgid()}: it knows numbers up to {_LARGEST_ID}",
            hint="start claudebox as a user with a smaller number",
        )
    if "/proc/sys/user" in lower and "new namespace" not in lower:  # where a container has made it read-only
        return ClaudeboxError(f"/proc can only be read in parts: {said}", hint=_container_remedy("unmask"))
    if any(word in lower for word in _USER_NAMESPACE):
        return ClaudeboxError(f"the user namespace could not be made: {said}", hint=namespace_remedy(bwrap))
    if "unknown option" in lower:
        return ClaudeboxError(f"bwrap is too old: {said}", hint=f"install bubblewrap {LEAST} or newer")
    if any(word in lower for word in _PRIVILEGE) and bubblewrap.is_restricted():
        return ClaudeboxError(
            f"AppArmor takes the rights of the user namespace away: {said}", hint=bubblewrap.describe_remedy(bwrap)
        )
    if "mount proc" in lower or ("proc" in lower and "mount" in lower):
        return ClaudeboxError(f"/proc of the sandbox could not be mounted: {said}", hint=_container_remedy("unmask"))
    if any(word in lower for word in _PRIVILEGE):
        return ClaudeboxError(f"bwrap may not set up the sandbox: {said}", hint=_container_remedy("permit"))
    if any(word in lower for word in _MOVING) and "permission denied" not in lower:
        return ClaudeboxError(
            f"something that is mounted was replaced or removed while the sandbox was being built: {said}",
            hint="start it again, when nothing changes there",
        )
    if "seccomp" in lower:
        return ClaudeboxError(f"the seccomp filter could not be installed: {said}", hint="use a kernel with seccomp")
    if "landlock" in lower:
        return ClaudeboxError(f"Landlock could not be put in force: {said}", hint="run `claudebox --check`")
    return ClaudeboxError(f"bwrap could not set up the sandbox: {said}", hint="run `claudebox --check`")


def namespace_remedy(bwrap: str = "/usr/bin/bwrap") -> str:
    """Return what to do on this machine so that an ordinary user can make a user namespace."""
    if bubblewrap.is_restricted():
        return bubblewrap.describe_remedy(bwrap)
    for name, value in (("kernel/unprivileged_userns_clone", "1"), ("user/max_user_namespaces", "15000")):
        if _setting(name) == b"0":
            line = f"{name.replace('/', '.')}={value}"
            return f"`sudo sysctl -w {line}`; to keep it: `echo {line} | sudo tee /etc/sysctl.d/60-claudebox.conf`"
    if _in_chroot():
        return (
            "this is a chroot, and the kernel makes no user namespaces in one; "
            "enter the tree with `systemd-nspawn -D` or as a container instead"
        )
    kind = bubblewrap.find_container()
    if kind and bubblewrap.find_lacks():
        return _container_remedy("permit")
    return (
        "something forbids user namespaces here: a chroot, the filter of a container (podman and docker: "
        "`--security-opt seccomp=unconfined`), or a hardened kernel"
    )


def _container_remedy(symptom: str) -> str:
    """Return how to start this container: for what was seen, and for what would come after it."""
    # Who gets as far as /proc has its namespaces.
    later = [lack for lack in bubblewrap.find_lacks() if lack not in ("permit", symptom)]
    return bubblewrap.describe_container_remedy(bubblewrap.find_container(), symptom, *later)


def _in_chroot() -> bool:
    """Return whether / is not where the mounts of this process begin; an ordinary user cannot always see it."""
    try:
        first, ours = os.stat("/proc/1/root"), os.stat("/")
        if (first.st_dev, first.st_ino) != (ours.st_dev, ours.st_ino):
            return True
    except OSError:
        pass
    # A directory in which nothing is mounted has no row of its own.
    table = read_small("/proc/self/mountinfo", limit=1 << 20) or b""
    return bool(table) and not any(row.split(b" ")[4:5] == [b"/"] for row in table.splitlines())


def _setting(name: str) -> bytes:
    return (read_small(f"/proc/sys/{name}") or b"").strip()
