"""Plan → a running sandbox: descriptors, the gate, and the checks before the first instruction of the payload.

Acts and decides nothing. `prepare` opens everything before the person is asked, so that what was shown is what is
started (E07); `start` goes on from there.
"""

from __future__ import annotations

import fcntl
import os
import resource
import time

from claudebox import syscalls
from claudebox.errors import ClaudeboxError
from claudebox.files import read_small
from claudebox.launch import freezer, inspect
from claudebox.plan import bwrap_args
from claudebox.plan.bwrap_args import FORWARDED_SIGNALS, GATE_DESCRIPTOR, IGNORED_SIGNALS, STDERR_DESCRIPTOR
from claudebox.syscalls import signal, socket
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from claudebox.facts.model import Identity
    from claudebox.launch.sidecars import Sidecar
    from claudebox.plan.model import Plan

_FIRST_OWN_DESCRIPTOR = 10  # below are the standard ones and those of the gate
_READY_TIMEOUT, _END_TIMEOUT = 30.0, 2.0
_LOOK = 0.5  # seconds between two looks whether bwrap is still there
_PR_SET_CHILD_SUBREAPER = 36
_MAX_PROCESSES = 16384  # of the sandbox alone: set inside its user namespace (H08)
_SPARE_DESCRIPTORS = 64

# Taken by `supervise`, never by default: a read inside must not stop us, who have to freeze it (B15).
JOB_CONTROL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT)

_interruptions: list[int] = []  # signals that came while the sandbox was being set up


class Prepared(Value):
    """Everything that bwrap will be handed, already open."""

    plan: Plan
    argv: tuple[str, ...]
    descriptors: tuple[int, ...]
    open_files: tuple[int, int]  # the limit that the person's shell gave us
    sidecars: tuple[Sidecar, ...] = ()  # processes of ours beside the sandbox
    pipes: tuple[tuple[str, int], ...] = ()  # through which the broker writes what bwrap puts into files


class Sandbox(Value):
    """A sandbox that has been let go."""

    monitor: int  # bwrap outside, our child
    init: int  # bwrap inside, the first process there
    payload: int  # the program inside, as a process of the host
    init_descriptor: int
    payload_descriptor: int
    sidecars: tuple[Sidecar, ...] = ()


class Interrupted(Exception):  # noqa: N818 - not an error
    """A signal came while the sandbox was being set up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def prepare(plan: Plan) -> Prepared:
    """Open every descriptor that the plan needs."""
    rows = list(bwrap_args.options(plan))
    words = sum(len(row) for row in rows)
    if words > bwrap_args.MAX_WORDS - len(plan.gate) - len(plan.command):
        raise ClaudeboxError(f"the sandbox needs {words} words of options, and bwrap takes {bwrap_args.MAX_WORDS}")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = sum(not isinstance(word, str) for row in rows for word in row) + _SPARE_DESCRIPTORS
    if limit[0] != resource.RLIM_INFINITY and needed > limit[0]:
        _raise_limit(needed, limit)
    sidecars, places = _sidecars(plan)
    descriptors: list[int] = []
    arguments: list[str] = []
    pipes: list[tuple[str, int]] = []
    for row in rows:
        for word in row:
            if isinstance(word, str):
                arguments.append(word)
            elif isinstance(word, bwrap_args.Socket):
                arguments.append(places[word.name])
            elif isinstance(word, bwrap_args.Pipe):
                entry, writer = os.pipe2(os.O_CLOEXEC)
                descriptors.append(_own(entry))
                pipes.append((word.name, _own(writer)))
                arguments.append(str(descriptors[-1]))
            else:
                descriptors.append(_pin(word) if isinstance(word, bwrap_args.Pin) else _own(syscalls.memory_file(word)))
                arguments.append(str(descriptors[-1]))
    descriptors.append(_own(syscalls.memory_file(os.fsencode("\0".join((*arguments, ""))))))
    argv = ("bwrap", "--args", str(descriptors[-1]), "--", *plan.gate, *plan.command)
    return Prepared(plan, argv, tuple(descriptors), limit, sidecars, tuple(pipes))


def _sidecars(plan: Plan) -> tuple[tuple[Sidecar, ...], dict[str, str]]:
    if plan.link is None and plan.broker is None and plan.relay is None:
        return (), {}
    from claudebox.launch import sidecars  # noqa: PLC0415 - most sandboxes need none

    return sidecars.prepare(plan)


def _raise_limit(needed: int, limit: tuple[int, int]) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, limit[1]))
    except (OSError, ValueError):
        raise ClaudeboxError(
            f"the sandbox needs {needed} open files, and the limit is {limit[1]}", hint="raise it with `ulimit -n`"
        ) from None


def _own(descriptor: int) -> int:
    """Move a descriptor out of the way of those that the gate gets."""
    if descriptor >= _FIRST_OWN_DESCRIPTOR:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN_DESCRIPTOR)
    os.close(descriptor)
    return moved


def _pin(pin: bwrap_args.Pin) -> int:
    """Open the very thing that was checked; its name may mean something else by now (C10)."""
    try:
        descriptor = _own(os.open(pin.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        raise ClaudeboxError(f"`{pin.path}` cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != pin.identity:
        raise ClaudeboxError(f"`{pin.path}` was replaced by something else while it was being examined")
    return descriptor


def check_project(prepared: Prepared) -> None:
    """Refuse if the project was replaced while the person was asked: stand-ins are made in it by name (C10, C21)."""
    plan = prepared.plan
    pinned = next(mount.pinned for mount in plan.mounts if mount.dest == plan.workdir)
    try:
        status = os.lstat(plan.workdir)
    except OSError:
        status = None
    if status is None or (status.st_dev, status.st_ino) != pinned:
        raise ClaudeboxError(f"`{plan.workdir}` was replaced by something else since it was shown")


def start(
    prepared: Prepared,
    standing: Mapping[str, Identity],
    prelude: Callable[[], None] | None = None,
    *,
    meanwhile: Callable[[], int] | None = None,
) -> Sandbox:
    """Start bwrap, after `prelude` in the child; see that every protection is in force, and let the payload go.

    `meanwhile` is done while bwrap is at work, and returns where sidecars write their decisions.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    gate = _own(theirs.detach())
    messages, message_end = os.pipe()
    message_end = _own(message_end)
    taken = (number for number in IGNORED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)
    _interruptions.clear()
    handlers = {number: signal.signal(number, _interrupt) for number in taken}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may ignore it, and then nobody tells the end
    syscalls.call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    monitor = 0
    try:
        for sidecar in prepared.sidecars:
            sidecar.open()
        monitor = os.fork()
        if monitor == 0:
            _become_bwrap(prepared, gate, message_end, prelude)
        os.close(gate)
        os.close(message_end)
        try:
            log = meanwhile() if meanwhile is not None else -1
            for sidecar in prepared.sidecars:
                sidecar.begin((*prepared.pipes, *((("log", log),) if log >= 0 else ())))
        finally:
            for _, descriptor in prepared.pipes:  # bwrap waits for the end of each
                os.close(descriptor)
        for descriptor in prepared.descriptors:
            os.close(descriptor)
        payload = _await_ready(ours, messages, monitor)
        init = inspect.confinement(payload, prepared.plan)
        inspect.mounts(payload, prepared.plan, standing)
        _limit(payload, prepared.open_files)
        for sidecar in prepared.sidecars:  # the sandbox is complete, and nothing of the payload has run
            sidecar.attach(payload)
        # Before the word: afterwards they may have ended already.
        descriptors = os.pidfd_open(init), os.pidfd_open(payload)
        # From here on signals are taken one at a time by `supervise`.
        signal.pthread_sigmask(signal.SIG_BLOCK, [*IGNORED_SIGNALS, *FORWARDED_SIGNALS, signal.SIGCHLD, *JOB_CONTROL])
        if _interruptions:
            raise Interrupted(_interruptions[0])
        freezer.bind(init)  # now that nothing can interrupt us: whom we hold cannot end without us
        ours.send(b"go\n")
        return Sandbox(monitor, init, payload, *descriptors, prepared.sidecars)
    except BaseException:
        ours.close()  # the gate ends everything when it hears no more of us
        for sidecar in prepared.sidecars:
            sidecar.finish()
        if monitor:
            _await_end(monitor)
            _end_orphans(monitor)
        raise
    finally:
        syscalls.call("prctl", _PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        ours.close()
        os.close(messages)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def release_signals() -> None:
    """Take signals again as before a launch, for those who go on when its sandbox has ended."""
    taken = [*IGNORED_SIGNALS, *FORWARDED_SIGNALS, signal.SIGCHLD, *JOB_CONTROL]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)


def _interrupt(number: int, _frame: object) -> NoReturn:
    _interruptions.append(number)  # the interpreter loses an exception that comes in the midst of an import
    raise Interrupted(number)


def _become_bwrap(prepared: Prepared, gate: int, messages: int, prelude: Callable[[], None] | None) -> NoReturn:
    """In the child: put on every restriction that comes before bwrap, and become it."""
    try:
        if prelude is not None:
            prelude()
        os.dup2(2, STDERR_DESCRIPTOR)
        os.dup2(gate, GATE_DESCRIPTOR)
        os.dup2(messages, 2)
        for number in (*IGNORED_SIGNALS, *FORWARDED_SIGNALS):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, programs expect them
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core for the host's handler to parse (A19)
        syscalls.join_new_keyring()
        if prepared.plan.scoped and not syscalls.restrict_scope():
            raise OSError("Landlock did not take the restriction of abstract sockets")
        last = STDERR_DESCRIPTOR
        for descriptor in sorted(prepared.descriptors):  # everything else that the shell left open goes (A04)
            os.closerange(last + 1, descriptor)
            os.set_inheritable(descriptor, True)  # noqa: FBT003
            last = descriptor
        os.closerange(last + 1, 1 << 20)
        os.execve(prepared.plan.bwrap, prepared.argv, {})
    except BaseException as error:  # noqa: BLE001 - nothing may return from here
        os.write(2, f"claudebox: {error}\n".encode("utf-8", "backslashreplace"))
    os._exit(125)


def _end_orphans(monitor: int) -> None:
    """End what bwrap has left: its inner half waits for the outer one, even if that died before it bound it (E10)."""
    for process in (read_small(f"/proc/self/task/{os.getpid()}/children") or b"").split():
        if int(process) != monitor and (read_small(f"/proc/{int(process)}/comm") or b"").strip() == b"bwrap":
            os.kill(int(process), signal.SIGKILL)
            os.waitpid(int(process), 0)


def _await_ready(gate: socket.socket, messages: int, monitor: int) -> int:
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
        from claudebox.launch import bwrap_errors  # noqa: PLC0415 - only when something went wrong

        raise bwrap_errors.explain(bwrap_errors.last_words(messages))
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
    freezer.kill(monitor)
    os.waitpid(monitor, 0)


def _limit(payload: int, open_files: tuple[int, int]) -> None:
    """Set limits that only count from inside."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    ceiling = _MAX_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, _MAX_PROCESSES)
    resource.prlimit(payload, resource.RLIMIT_NPROC, (ceiling, ceiling))
    if resource.getrlimit(resource.RLIMIT_NOFILE) != open_files:
        resource.prlimit(payload, resource.RLIMIT_NOFILE, open_files)
