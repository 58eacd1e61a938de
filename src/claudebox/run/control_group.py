"""The control group of a sandbox, which limits memory, CPU and processes."""

from __future__ import annotations

import os
import time

from claudebox.base import process
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, read_small
from claudebox.run.sidecars import Sidecar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.plan.records import GroupLimits


_PERIOD = 100_000  # microseconds
_PREFIX = "claudebox-"
_PATIENCE, _POLL = 20.0, 0.01  # seconds
_KEEPER = "trap '' HUP INT TERM; read -r line"
_GO_ON = ["OOMPolicy", "s", "continue"]


class CgroupSidecar(Sidecar):
    """The control group of a sandbox: made and read back before the payload runs, removed at the end (LIMIT-02).

    Only bwrap and what it starts are in it: launcher, broker and tmux survive when the kernel kills a sandbox that
    takes too much memory.
    """

    def __init__(self, limits: GroupLimits) -> None:
        self._limits = limits
        self._name = f"{_PREFIX}{os.getpid()}-{time.monotonic_ns():x}"
        self._place = ""
        self._keeper, self._keeping = 0, -1  # a process that keeps systemd from removing the group, and its pipe

    def attach(self, payload: int) -> None:
        """Put the sandbox into a group with its limits, and check that both are in force."""
        processes = [payload]
        while (parent := process.parent(processes[-1])) not in (os.getpid(), 0, 1):
            processes.append(parent)
        try:
            if self._limits.way == "systemd":
                self._ask_manager(processes, payload)
            else:
                self._make(processes)
            self._inspect(payload)
        except OSError as error:
            raise ClaudeboxError(f"the limits cannot be set: {error.strerror} (`{error.filename}`)") from None

    def finish(self) -> tuple[str, ...]:
        """Remove the group; return what the kernel killed."""
        if not self._place:
            return ()
        events = dict(line.split() for line in _text(f"{self._place}/memory.events").splitlines())
        limit = time.monotonic() + 1.0
        while self._limits.way == "direct" and not _removed(self._place) and time.monotonic() < limit:
            time.sleep(_POLL)
        if self._keeper:
            os.close(self._keeping)
            process.end(self._keeper)
            self._keeper = 0
        killed = int(events.get("oom_kill", 0))
        return (f"the memory limit was reached: the kernel killed {killed} processes inside",) if killed else ()

    def _make(self, processes: list[int]) -> None:
        above = self._limits.place
        for name in os.listdir(above):  # left by killed launchers; only empty ones can be removed
            if name.startswith(_PREFIX):
                _removed(f"{above}/{name}")
        enabled = _text(f"{above}/cgroup.subtree_control").split()
        missing = [word for word in self._limits.controllers if word not in enabled]
        if missing:
            _write(f"{above}/cgroup.subtree_control", " ".join(f"+{word}" for word in missing))
        self._place = f"{above}/{self._name}"
        os.mkdir(self._place)
        for name, value in self._values():
            if name != "memory.swap.max" or os.path.exists(f"{self._place}/{name}"):  # a kernel without swap
                _write(f"{self._place}/{name}", value)
        for number in processes:
            _write(f"{self._place}/cgroup.procs", str(number))

    def _ask_manager(self, processes: list[int], payload: int) -> None:
        """Have the user's systemd put these processes into a scope.

        systemd removes an empty scope at once, and the kernel's counters with it, so a shell that waits for our end is
        in it as well.
        """
        theirs, self._keeping = os.pipe()
        self._keeper = process.spawn(("/bin/sh", "-c", _KEEPER), {0: theirs})
        os.close(theirs)
        numbers = [*processes, self._keeper]
        rows = [["PIDs", "au", str(len(numbers)), *map(str, numbers)], ["CollectMode", "s", "inactive-or-failed"]]
        if self._limits.memory:
            rows += [["MemoryMax", "t", str(self._limits.memory)], ["MemorySwapMax", "t", "0"]]
        if self._limits.cpus:
            rows.append(["CPUQuotaPerSecUSec", "t", str(self._limits.cpus * 10_000)])
        if self._limits.processes:
            rows.append(["TasksMax", "t", str(self._limits.processes)])
        problem = self._call_manager([*rows, _GO_ON])
        if _GO_ON[0] in problem:  # an old systemd, which ends the scope if the kernel kills a process of it
            problem = self._call_manager(rows)
        if problem:
            raise ClaudeboxError(f"the limits cannot be set: systemd refused: {problem}")
        limit = time.monotonic() + _PATIENCE
        while self._name not in (group := _group_of(payload)) and time.monotonic() < limit:
            time.sleep(_POLL)
        self._place = f"{self._limits.mount}{group}"

    def _call_manager(self, rows: list[list[str]]) -> str:
        """Request the scope; return the error, if any."""
        import subprocess

        words = [
            self._limits.place, "--user", "--quiet", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))", f"{self._name}.scope", "fail",
            str(len(rows)), *(word for row in rows for word in row), "0",
        ]  # fmt: skip
        environ = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", "PATH": "/usr/bin:/bin"}
        try:
            done = subprocess.run(words, env=environ, capture_output=True, timeout=_PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            return "no answer"
        message = done.stderr.decode("utf-8", "replace").strip()[-200:]
        return (message or f"status {done.returncode}") if done.returncode else ""

    def _values(self) -> list[tuple[str, str]]:
        rows = []
        if self._limits.memory:
            rows += [("memory.max", str(self._limits.memory)), ("memory.swap.max", "0")]
        if self._limits.cpus:
            rows.append(("cpu.max", f"{self._limits.cpus * _PERIOD // 100} {_PERIOD}"))
        if self._limits.processes:
            rows.append(("pids.max", str(self._limits.processes)))
        return rows

    def _inspect(self, payload: int) -> None:
        """Refuse unless the gate is in the group and the kernel reports the limits that were asked for."""
        if self._name not in _group_of(payload):
            raise ClaudeboxError("the limits are not in force: the sandbox is not in its control group")
        for name, value in self._values():
            said = _text(f"{self._place}/{name}").strip()
            page = os.sysconf("SC_PAGE_SIZE")
            rounded = str(int(value) // page * page) if name == "memory.max" else value
            if said != rounded and not (name == "memory.swap.max" and not said):
                raise ClaudeboxError(f"the limits are not in force: `{name}` is `{said}`, not `{rounded}`")


def _group_of(number: int) -> str:
    rows = (row for row in _text(f"/proc/{number}/cgroup").splitlines() if row.startswith("0::"))
    return next(rows, "0::")[3:]


def _text(path: str) -> str:
    return (read_small(path) or b"").decode("utf-8", "replace")


def _write(path: str, text: str) -> None:
    with Closing(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
        try:
            os.write(descriptor, text.encode())
        except OSError as error:
            error.filename = path
            raise


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
