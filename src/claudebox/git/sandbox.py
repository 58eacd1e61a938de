"""Git in a sandbox of its own: one bwrap with a shell that runs commands one after the other.

No git of claudebox runs anywhere else. The shell reads the arguments of a command and never interprets them; input,
output and messages are files of limited size. Output is untrusted.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import time

from claudebox.base import process as base_process
from claudebox.base import syscalls
from claudebox.base.files import write_all
from claudebox.base.records import Value
from claudebox.tables import paths as tables_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


# One digit each, for every sh.
_COMMANDS, _STATUS, _INPUT, _OUTPUT, _MESSAGES, _GLOBAL, _SECCOMP = 0, 4, 5, 6, 7, 8, 9
_FILES = (1, 3)  # read by bwrap, closed when the shell starts
_HELD = 20

_FREE = 32  # from here on, descriptors collide with none of these
# A command comes as the number of its words, and each word as the number of its lines and these lines.
_SERVE = """\
while IFS= read -r count; do
	set --
	while [ "$count" -gt 0 ]; do
		IFS= read -r lines
		IFS= read -r word
		while [ "$lines" -gt 1 ]; do
			IFS= read -r line
			word="$word
$line"
			lines=$((lines - 1))
		done
		set -- "$@" "$word"
		count=$((count - 1))
	done
	"$@" <&5 >&6 2>&7
	echo $? >&4
done
"""
_MORE_ROOTS = ("/usr", "/nix/store", "/gnu/store")
_END = 2.0  # seconds in which a sandbox has to end by itself
_STALL, _POLL = 20.0, 1.0  # seconds without processor time after which git counts as blocked
_MOST_TEXT = 256 << 20
_ENVIRONMENT = {
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/claudebox-config",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_WORK_TREE": "/empty",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
}
# The only configuration besides that of the repository, which is never its own: owners do not matter here, since a
# repository can make nothing run.
_OWNERS = b"[safe]\n\tdirectory = *\n"


_ending: list[int] = []  # sandboxes that end by themselves, to be reaped


class Tools(Value):
    """The programs that a sandbox of git needs."""

    bwrap: str
    path: str = "/usr/bin:/bin"
    seccomp: bytes = b""  # the filter of system calls that the agent has


class Limits(Value):
    """How long an import may take, and how large its pack may be."""

    seconds: float = 60.0
    size: int = 2 << 30


class GitError(Exception):
    """A git command failed; the last lines of its messages."""


class GitSandbox:
    """A sandbox with a shell that waits for git commands; `with` ends it."""

    def __init__(
        self,
        tools: Tools,
        mounts: tuple[str, ...],
        environ: dict[str, str],
        scratch: str,
        limits: Limits,
        files: dict[str, bytes] | None = None,
        held: int = -1,
    ) -> None:
        """Start it. If we are killed, a running command completes under the lock that is `held`."""
        _ending[:] = [pid for pid in _ending if not _has_ended(pid)]
        self._answered = self._idle = False
        self._line = ""
        self._held: list[tuple[int, bytes]] = []  # commands that ended before `wait` was called
        self._shown: bytes | None = None  # the output of one of those
        self._limit = time.monotonic() + limits.seconds
        self._seconds = limits.seconds
        self._files = [_scratch_file(scratch) for _ in range(3)]
        commands, self._commands = (_out_of_the_way(end) for end in os.pipe2(os.O_CLOEXEC))
        self._status, status = (_out_of_the_way(end) for end in os.pipe2(os.O_CLOEXEC))
        handed = {_COMMANDS: commands, _STATUS: status, _GLOBAL: _out_of_the_way(syscalls.memory_file(_OWNERS))}
        handed |= dict(zip((_INPUT, _OUTPUT, _MESSAGES), self._files, strict=True))
        words = [
            tools.bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", *system_mounts(),
            "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--dir", "/empty",
            "--ro-bind-data", str(_GLOBAL), "/claudebox-config", *mounts, "--chdir", "/empty",
        ]  # fmt: skip
        for number, (path, content) in enumerate((files or {}).items()):
            handed[_FILES[number]] = _out_of_the_way(syscalls.memory_file(content))
            words += ["--ro-bind-data", str(_FILES[number]), path]
        if tools.seccomp:
            handed[_SECCOMP] = _out_of_the_way(syscalls.memory_file(tools.seccomp))
            words += ["--seccomp", str(_SECCOMP)]
        words += ["--", "/bin/sh", "-c", _SERVE]
        if held >= 0:
            handed[_HELD] = fcntl.fcntl(held, fcntl.F_DUPFD_CLOEXEC, _FREE)
        self._process = _spawn(words, handed, {**_ENVIRONMENT, "PATH": tools.path, **environ}, limits.size)
        for here in handed.values():
            if here not in self._files:
                os.close(here)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End everything in it: the shell reads the end of its input.

        An idle one ends by itself, without our waiting. One that has not answered yet may still be setting up, when the
        inner bwrap would wait for a killed outer one for ever: it gets time to complete.
        """
        for descriptor in (self._commands, self._status, *self._files):
            os.close(descriptor)
        if self._idle:
            _ending.append(self._process)
            return
        if not self._answered:
            ended = os.pidfd_open(self._process)
            select.select([ended], [], [], _END)
            os.close(ended)
        base_process.end(self._process)

    def git(self, *words: str, data: bytes = b"") -> bytes:
        """Run a git command and return its output, or raise."""
        status = self.run("git", *words, data=data)
        if status:
            raise GitError(f"git {words[0]}: {self.message() or f'status {status}'}")
        return self.output()

    def ask(self, *words: str, data: bytes = b"", index: bool = True) -> bytes | None:
        """Run a git command and return its output, None if it fails; without `index`, git sees an empty one."""
        before = () if index else ("env", "GIT_INDEX_FILE=/empty/index")
        return None if self.run(*before, "git", *words, data=data) else self.output()

    def script(self, text: str, *arguments: str, data: bytes = b"") -> int:
        """Run a shell script with arguments; return its status."""
        return self.run("sh", "-c", text, "sh", *arguments, data=data)

    def run(self, *words: str, data: bytes = b"") -> int:
        """Run a program with this input; return its status."""
        self.begin(*words, data=data)
        return self._await()

    def begin(self, *words: str, data: bytes = b"") -> None:
        """Start a program, after a running one has ended; `wait` waits for the first of them."""
        if not self._idle and self._line:
            self._held.append((self._await(), self.output()))
        entry = self._files[0]
        os.ftruncate(entry, 0)
        os.lseek(entry, 0, os.SEEK_SET)
        write_all(entry, data)
        self._send(words)

    def go_on(self, *words: str) -> int:
        """Run a program with the input that was written to `input_file`."""
        self._send(words)
        return self._await()

    def wait(self) -> int:
        """Wait for the command that was begun first; return its status."""
        if not self._held:
            return self._await()
        status, self._shown = self._held.pop(0)
        return status

    def _send(self, words: tuple[str, ...]) -> None:
        entry, *others = self._files
        os.lseek(entry, 0, os.SEEK_SET)
        for descriptor in others:
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
        self._idle, self._line, self._shown = False, " ".join(words), None
        rows = [str(len(words)), *(row for word in words for row in (str(word.count("\n") + 1), word))]
        try:
            write_all(self._commands, "".join(f"{row}\n" for row in rows).encode("utf-8", "surrogateescape"))
        except OSError:
            raise GitError(self.message() or "the sandbox of git did not start") from None

    def _await(self) -> int:
        """Wait for the running command; return its status."""
        answer, done, since = b"", "", time.monotonic()
        while not answer.endswith(b"\n"):
            left = self._limit - time.monotonic()
            if left <= 0:
                raise GitError(f"git did not finish within {self._seconds:.0f} seconds")
            if not select.select([self._status], [], [], min(left, _POLL))[0]:
                before, done = done, _work(self._process)
                since = since if done == before else time.monotonic()
                if time.monotonic() > since + _STALL:
                    raise GitError(f"`{self._line.strip()[:60]}` did nothing for {_STALL:.0f} seconds")
                continue
            piece = os.read(self._status, 16)
            if not piece or len(answer) > 16:
                raise GitError(self.message() or "the sandbox of git ended")
            answer += piece
        self._answered = self._idle = True
        return int(answer) if answer.strip().isdigit() else 1

    def output(self) -> bytes:
        return _content(self._files[1]) if self._shown is None else self._shown

    @property
    def output_file(self) -> int:
        return self._files[1]

    @property
    def input_file(self) -> int:
        return self._files[0]

    def message(self) -> str:
        """Return the last error messages of a command."""
        text = _content(self._files[2])[-4096:].decode("utf-8", "replace")
        lines = [line for line in text.split("\n") if line.strip()]
        errors = [line for line in lines if line.startswith(("fatal: ", "error: "))]  # advice may follow
        return "; ".join(errors[-2:] or lines[-2:])[-300:]


def _spawn(words: list[str], handed: dict[int, int], environ: dict[str, str], size: int) -> int:
    def body() -> None:
        for there, here in handed.items():
            os.dup2(here, there)
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # bwrap sets its own death signal (--die-with-parent) once its inner half would notice. Killed before that, it
        # would leave an inner one that waits for ever; not killed, the shell inside reads the end of its input.
        base_process.outlive_parent()
        if _HELD in handed and (child := os.fork()):  # it dies with this process, and this one not with us
            os.closerange(0, 1 << 10)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
        os.execve(words[0], words, environ)

    return base_process.fork(body, handed.values())


def _work(top: int) -> str:
    """Return the processor time of a process and its descendants, as text to compare."""
    rows, waiting = [], [str(top)]
    while waiting:
        process = waiting.pop()
        try:
            with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
                rows.append(f"{process} {file.read().rpartition(')')[2].split()[11:13]}")
            for task in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{task}/children", encoding="ascii") as file:
                    waiting += file.read().split()
        except FileNotFoundError:
            if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # this kernel does not say
                return str(time.monotonic())
        except OSError:
            continue
    return " ".join(rows)


def _has_ended(child: int) -> bool:
    try:
        return bool(os.waitpid(child, os.WNOHANG)[0])
    except ChildProcessError:  # it was the child of the process that forked this one
        return True


def _content(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    if size > _MOST_TEXT:
        raise GitError(f"git output exceeds {_MOST_TEXT >> 20} MiB")
    return os.pread(descriptor, size, 0) if size else b""


def _out_of_the_way(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FREE)
    os.close(descriptor)
    return moved


def _scratch_file(directory: str) -> int:
    """Return a nameless file in a directory."""
    try:
        return _out_of_the_way(os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError:  # not every file system can do that
        return _out_of_the_way(syscalls.memory_file(b""))


def system_mounts() -> list[str]:
    """Return bwrap arguments for the system directories."""
    words: list[str] = []
    for root in (*_MORE_ROOTS, *tables_paths.SYSTEM_ROOTS):
        try:
            mode = os.lstat(root).st_mode
        except OSError:
            continue
        words += ["--symlink", os.readlink(root), root] if stat.S_ISLNK(mode) else ["--ro-bind", root, root]
    return words
