"""Start bwrap, and let the payload run once everything that was planned is seen to be in force.

bwrap starts the gate instead of the payload. It reports to us, and waits until the sandbox has been examined from
outside; what does not hold ends it.
"""

from __future__ import annotations

import fcntl
import os
import resource
import stat
import time

from claudebox.base import process, syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import (
    Closing,
    keep_descriptors,
    keep_owner_rights,
    open_beneath,
    read_small,
    restore_umask,
)
from claudebox.base.records import Value
from claudebox.base.syscalls import signal, socket
from claudebox.host import programs
from claudebox.plan.bwrap import (
    FORWARDED_SIGNALS,
    GATE_DESCRIPTOR,
    IGNORED_SIGNALS,
    STDERR_DESCRIPTOR,
    place,
)
from claudebox.run import mounts
from claudebox.run.prepare import Prepared, move_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

    from claudebox.host.records import Identity
    from claudebox.plan.records import Mount, Plan
    from claudebox.run.terminal import Terminal
    from claudebox.settings.records import LimitRequest


_READY_TIMEOUT, _END_TIMEOUT = 30.0, 2.0
_FILTER_TIMEOUT = 20.0
_LOOK = 0.5  # seconds between two looks whether bwrap is still there
_LAST_WORDS = 8192
_LARGEST_GATE = 1 << 16
_MAX_PROCESSES = 16384  # counted in the user namespace of the sandbox alone (H08)
_PR_SET_CHILD_SUBREAPER = 36
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_DROPPED = "run `claudebox --check`; bwrap may be a wrapper that drops options"

JOB_CONTROL = (signal.SIGTSTP, signal.SIGCONT)  # taken by `supervise`, which restores the terminal first
_BWRAP_IGNORES = (*IGNORED_SIGNALS, *FORWARDED_SIGNALS)  # while it starts, each of them ends the launch
_TAKEN = (*_BWRAP_IGNORES, signal.SIGCHLD, *JOB_CONTROL)  # by `supervise`

_interruptions: list[int] = []  # signals that came while the sandbox was being set up


class Building(Value):
    """A sandbox that bwrap is setting up."""

    monitor: int  # our child: bwrap outside, or the leader of its session, which ends with it
    gate: socket.socket
    messages: int  # what bwrap writes


class Sandbox(Value):
    """A complete sandbox; all processes as the host numbers them."""

    monitor: int  # as in `Building`
    init: int  # bwrap inside, the first process there
    payload: int  # the gate, which becomes the program inside
    init_descriptor: int
    payload_descriptor: int
    seconds: int = 0  # that it may run; 0: no limit


class Interrupted(Exception):  # noqa: N818 - not an error
    """A signal came while the sandbox was being set up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


class Interruptible:
    """While a sandbox is set up, signals raise `Interrupted`; afterwards `supervise` takes them."""

    def __enter__(self) -> None:
        _interruptions.clear()
        taken = (number for number in _BWRAP_IGNORES if signal.getsignal(number) is not signal.SIG_IGN)
        self._handlers = {number: signal.signal(number, _interrupt) for number in taken}
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would lose the status of children
        _adopt_orphans(yes=True)  # until `reap_orphans`

    def __exit__(self, *_reason: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def build(plan: Plan, prepared: Prepared, terminal: Terminal) -> Building:
    """Start bwrap."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    gate = move_up(theirs.detach())
    messages, message_end = os.pipe()
    message_end = move_up(message_end)
    monitor = 0
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BWRAP_IGNORES)
        try:
            words = _make_words(plan, prepared, before, terminal)
            monitor = _start_bwrap(prepared, words, terminal, (gate, message_end))
        finally:
            for descriptor in (gate, message_end, *prepared.descriptors):
                os.close(descriptor)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # one that came is taken now that we know whom to end
    except BaseException:
        abandon(Building(monitor, ours, messages))
        raise
    return Building(monitor, ours, messages)


def examine(
    building: Building, plan: Plan, stubs: Mapping[str, Identity], open_files: tuple[int, int] | None
) -> Sandbox:
    """Wait for the gate, complete the mounts, and check that every protection is in force.

    `stubs` are those that were made, `open_files` is the user's own limit if it had to be raised.
    """
    payload = _await_ready(building.gate, building.messages, building.monitor, plan.bwrap)
    init = _check_confinement(payload, plan)  # among others that its mounts are its own
    with Closing(open_program()) as program:
        mounts.mount_all(payload, plan, stubs, program)
    _check_mounts(payload, plan)
    _set_limits(payload, open_files, plan.policy.limits)
    seconds = plan.policy.limits.seconds if plan.policy.limits is not None else 0
    return Sandbox(building.monitor, init, payload, os.pidfd_open(init), os.pidfd_open(payload), seconds)


def _set_limits(payload: int, open_files: tuple[int, int] | None, limits: LimitRequest | None) -> None:
    """Limit the number of processes, and restore the limit on open files that the user's shell gave us."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = limits.processes if limits is not None and limits.processes else _MAX_PROCESSES
    ceiling = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.prlimit(payload, resource.RLIMIT_NPROC, (ceiling, ceiling))
    if open_files is not None:
        resource.prlimit(payload, resource.RLIMIT_NOFILE, open_files)


def _check_confinement(payload: int, plan: Plan) -> int:
    """Check that the process at the gate is confined as planned, and return its parent (E08)."""
    status = _status(payload)
    for field, wanted, protection in (
        ("Seccomp", "2", "the seccomp filter"),
        ("NoNewPrivs", "1", "no_new_privs"),
        ("CapEff", "0" * 16, "the drop of capabilities"),
        ("CapBnd", "0" * 16, "the drop of capabilities"),
    ):
        if status.get(field) != wanted:
            raise ClaudeboxError(f"{protection} is not in force inside; nothing was started", hint=_DROPPED)
    for name in ("mnt", *plan.namespaces):
        if os.readlink(f"/proc/{payload}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}"):
            raise ClaudeboxError(f"the sandbox got no {name} namespace of its own; nothing was started", hint=_DROPPED)
    if os.getsid(payload) == os.getsid(0):
        raise ClaudeboxError("the sandbox got no session of its own; nothing was started", hint=_DROPPED)
    init = int(status["PPid"])
    # bwrap's init installs the filter last. Until then it does not yet die with its parent (E10), and the payload could
    # make it do what the filter forbids (H03).
    limit = time.monotonic() + _FILTER_TIMEOUT
    while _status(init).get("Seccomp") != "2":
        if time.monotonic() > limit:
            raise ClaudeboxError("the first process inside did not install the seccomp filter; nothing was started")
        time.sleep(0.0005)
    return init


def _check_mounts(payload: int, plan: Plan) -> None:
    """Check that what bwrap bound by name is what was examined: another session may have replaced it (C10).

    What is masked must show the mask, and cover the very file that was examined.
    """
    placed = {row.mount.dest for row in place(plan)}
    inside = _Inside(payload)
    try:
        for mount in plan.mounts:
            if mount.dest in placed:
                continue
            if mount.kind in ("mask", "copy") and mount.role == "masked":
                _check_mask(inside.look(mount.dest), mount)
            elif mount.kind in ("bind", "ro-bind", "device") and mount.pinned:
                found = inside.look(mount.dest)
                if found is None or (found.st_dev, found.st_ino) != mount.pinned:
                    raise ClaudeboxError(
                        f"`{mount.source}` was replaced by something else while the sandbox was being built"
                    )
    finally:
        inside.close()


class _Inside:
    """The files of a sandbox, seen from outside."""

    def __init__(self, payload: int) -> None:
        self._root = os.open(f"/proc/{payload}/root", _PATH)
        self._above, self._parent = "", os.dup(self._root)  # kept open: neighbours follow each other

    def look(self, path: str) -> os.stat_result | None:
        """Return the status of what is at a path that leads through no link."""
        above, _, name = path.rpartition("/")
        try:
            if above != self._above:
                parent = open_beneath(self._root, above.strip("/"))
                os.close(self._parent)
                self._above, self._parent = above, parent
            return os.lstat(name, dir_fd=self._parent)
        except OSError:
            return None

    def close(self) -> None:
        os.close(self._parent)
        os.close(self._root)


def _check_mask(inside: os.stat_result | None, mount: Mount) -> None:
    """Check that a file is covered inside, and that its name still means the same file outside."""
    if inside is None:
        masked = False
    elif mount.kind == "mask":
        masked = stat.S_ISCHR(inside.st_mode)
    else:
        masked = inside.st_size == len(mount.content) and (inside.st_dev, inside.st_ino) != mount.pinned
    if masked and mount.pinned is not None:
        outside = os.lstat(mount.dest)
        masked = (outside.st_dev, outside.st_ino) == mount.pinned
    if not masked:
        raise ClaudeboxError(f"`{mount.dest}` was replaced by something else while it was being masked")


def _status(process: int) -> dict[str, str]:
    text = os.fsdecode(read_small(f"/proc/{process}/status") or b"")
    return dict(line.split(":\t", 1) for line in text.split("\n") if ":\t" in line)


def open_gate(building: Building, sandbox: Sandbox) -> None:
    """Let the payload run; signals are blocked from here on, for `supervise` to take."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    if _interruptions:
        raise Interrupted(_interruptions[0])
    process.bind(sandbox.init)  # now that no signal can interrupt us: a traced process cannot end without us
    building.gate.send(b"go\n")
    _close(building)


def abandon(building: Building) -> None:
    """End what was begun: the gate ends everything when its socket is closed."""
    _close(building)
    if building.monitor:
        _await_end(building.monitor)
        _end_orphans(building.monitor)


def _close(building: Building) -> None:
    building.gate.close()
    os.close(building.messages)


def _adopt_orphans(*, yes: bool) -> None:
    """Set or clear PR_SET_CHILD_SUBREAPER."""
    syscalls.call("prctl", _PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def reap_orphans() -> None:
    """Reap what has ended, and adopt no more orphans; the first process of a container may reap none."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        pass
    _adopt_orphans(yes=False)


def end(sandbox: Sandbox) -> None:
    """Kill a sandbox that nothing supervises any more, and wait until nothing in it runs."""
    process.kill_tree(sandbox.monitor)
    limit = time.monotonic() + _END_TIMEOUT
    try:
        signal.pidfd_send_signal(sandbox.init_descriptor, signal.SIGKILL)
    except ProcessLookupError:  # it had ended
        pass
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != sandbox.monitor and time.monotonic() < limit:
            process.note_end(*ended)  # it may be that of a sidecar
            time.sleep(0.001 if not ended[0] else 0)
    except ChildProcessError:
        pass
    _end_orphans(sandbox.monitor)


def release_signals() -> None:
    """Take signals again as before a launch, for a caller that goes on after the sandbox has ended."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TAKEN)


def _interrupt(number: int, _frame: object) -> NoReturn:
    _interruptions.append(number)  # the interpreter loses an exception that is raised during an import
    raise Interrupted(number)


def _start_bwrap(prepared: Prepared, words: tuple[str, ...], terminal: Terminal, handed: tuple[int, int]) -> int:
    """Start the gate program, which prepares the process that bwrap runs in, and becomes bwrap."""
    program = open_program()
    try:
        keep_descriptors()  # what the shell left open stays with us (A04)
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
            f"the program that starts bwrap may be run neither from memory nor from `{_place_gate()}`",
            hint="set `vm.memfd_noexec` to 0 or 1, or install claudebox where programs may be run",
        ) from None
    finally:
        os.close(program)


def _make_words(plan: Plan, prepared: Prepared, blocked: Iterable[int], terminal: Terminal) -> tuple[str, ...]:
    """Return the arguments of the gate program; `blocked` are the signals that our caller has blocked."""
    # A session of its own (B05); no core dump (A19); not the keyring of the login, which seccomp denies as well (A08);
    # no abstract sockets of the host, and no signals to it (F15).
    measures = terminal.measures + ("cks" if plan.scoped else "ck")
    masks = (_BWRAP_IGNORES, frozenset(_BWRAP_IGNORES) - frozenset(blocked))
    return ("start", *(str(sum(1 << number for number in mask)) for mask in masks), measures,
            plan.bwrap, *prepared.argv)  # fmt: skip


def open_program() -> int:
    """Return a descriptor on the gate program: in memory, or on its file if the kernel runs nothing from memory."""
    file = os.open(_place_gate(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        program = syscalls.memory_file(os.read(file, _LARGEST_GATE), executable=True)
    except PermissionError:  # vm.memfd_noexec
        return move_up(file)
    os.close(file)
    return move_up(program)


def _place_gate() -> str:
    return programs.place_gate(os.uname().machine)


def _end_orphans(monitor: int) -> None:
    """End what bwrap has left: its inner half waits for ever if the outer one died too early (E10)."""
    for child in map(int, (read_small(f"/proc/self/task/{os.getpid()}/children") or b"").split()):
        if child != monitor and (read_small(f"/proc/{child}/comm") or b"").strip() == b"bwrap":
            os.kill(child, signal.SIGKILL)
            process.note_end(*os.waitpid(child, 0))  # it may be that of a sidecar


def _await_ready(gate: socket.socket, messages: int, monitor: int, bwrap: str) -> int:
    """Wait for the gate inside; return its process, as the kernel reports it."""
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
        from claudebox.host import remedies

        raise remedies.explain(_last_words(messages), bwrap)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int.from_bytes(data[:4], "little")
    raise ClaudeboxError("the kernel did not tell which process is in the sandbox")


def _await_end(monitor: int) -> None:
    """Wait for the end of what was begun, then kill it.

    Killing bwrap at once would leave its child waiting for ever if they had not spoken yet (E15).
    """
    limit = time.monotonic() + _END_TIMEOUT
    while time.monotonic() < limit:
        if os.waitpid(monitor, os.WNOHANG)[0]:
            return
        time.sleep(0.001)
    process.kill_tree(monitor)
    os.waitpid(monitor, 0)


def _last_words(messages: int) -> str:
    """Return what bwrap wrote until it closed the pipe."""
    text = b""
    while len(text) < _LAST_WORDS and (piece := os.read(messages, _LAST_WORDS)):
        text += piece
    return os.fsdecode(text)
