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
from claudebox.base.files import Closing, write_all
from claudebox.base.records import Value
from claudebox.tables import paths as tables_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self


# Descriptors in the sandbox, of one digit each, for every sh.
_COMMANDS, _STATUS, _INPUT, _OUTPUT, _MESSAGES, _GLOBAL, _SECCOMP = 0, 4, 5, 6, 7, 8, 9
_FILES = (1, 3)  # read by bwrap, closed when the shell starts
_HELD = 20
_FREE = 32  # from here on, none of these
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
_END = 2.0  # seconds in which a sandbox that is still being set up has to end
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
        self._has_answered = False
        self._seconds, self._limit = limits.seconds, time.monotonic() + limits.seconds
        self.input_file, self.output_file, self._messages = (_scratch_file(scratch) for _ in range(3))
        commands, self._commands = os.pipe2(os.O_CLOEXEC)
        self._status, status = os.pipe2(os.O_CLOEXEC)
        handed = {_COMMANDS: commands, _STATUS: status, _GLOBAL: syscalls.memory_file(_OWNERS)}
        words = [
            tools.bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", *system_mounts(),
            "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--dir", "/empty",
            "--ro-bind-data", str(_GLOBAL), "/claudebox-config", *mounts, "--chdir", "/empty",
        ]  # fmt: skip
        for number, (path, content) in zip(_FILES, (files or {}).items(), strict=False):
            handed[number] = syscalls.memory_file(content)
            words += ["--ro-bind-data", str(number), path]
        if tools.seccomp:
            handed[_SECCOMP] = syscalls.memory_file(tools.seccomp)
            words += ["--seccomp", str(_SECCOMP)]
        words += ["--", "/bin/sh", "-c", _SERVE]
        kept = {_INPUT: self.input_file, _OUTPUT: self.output_file, _MESSAGES: self._messages}
        kept |= {_HELD: held} if held >= 0 else {}
        environ = {**_ENVIRONMENT, "PATH": tools.path, **environ}
        self._process = _spawn(words, {**handed, **kept}, environ, limits.size)
        for here in handed.values():
            os.close(here)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End everything in it.

        Before it has answered it may still be setting up, when the inner bwrap would wait for a killed outer one for
        ever: it gets time to read the end of its input.
        """
        for descriptor in (self._commands, self._status, self.input_file, self.output_file, self._messages):
            os.close(descriptor)
        if not self._has_answered:
            with Closing(os.pidfd_open(self._process)) as ended:
                select.select([ended], [], [], _END)
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

    def run(self, *words: str, data: bytes | None = b"") -> int:
        """Run a program with this input, or with what was written to `input_file`; return its status."""
        self._start(words, data)
        return self._await()

    def _start(self, words: tuple[str, ...], data: bytes | None = b"") -> None:
        for descriptor in (self.output_file, self._messages, *([self.input_file] if data is not None else [])):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
        write_all(self.input_file, data or b"")
        os.lseek(self.input_file, 0, os.SEEK_SET)
        rows = [str(len(words)), *(row for word in words for row in (str(word.count("\n") + 1), word))]
        try:
            write_all(self._commands, "".join(f"{row}\n" for row in rows).encode("utf-8", "surrogateescape"))
        except OSError:
            raise GitError(self.message() or "the sandbox of git did not start") from None

    def _await(self) -> int:
        answer = b""
        while not answer.endswith(b"\n"):
            left = self._limit - time.monotonic()
            if left <= 0 or not select.select([self._status], [], [], left)[0]:
                raise GitError(f"git did not finish within {self._seconds:.0f} seconds")
            piece = os.read(self._status, 16)
            if not piece or len(answer) > 16:
                raise GitError(self.message() or "the sandbox of git ended")
            answer += piece
        self._has_answered = True
        return int(answer) if answer.strip().isdigit() else 1

    def output(self) -> bytes:
        return _content(self.output_file)

    def message(self) -> str:
        """Return the last error messages of a command."""
        text = _content(self._messages)[-4096:].decode("utf-8", "replace")
        lines = [line for line in text.split("\n") if line.strip()]
        errors = [line for line in lines if line.startswith(("fatal: ", "error: "))]  # advice may follow
        return "; ".join(errors[-2:] or lines[-2:])[-300:]


def _spawn(words: list[str], handed: dict[int, int], environ: dict[str, str], size: int) -> int:
    def body() -> None:
        import resource

        free = {there: fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, _FREE) for there, here in handed.items()}
        for there, here in free.items():
            os.dup2(here, there)

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


def _content(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    if size > _MOST_TEXT:
        raise GitError(f"git output exceeds {_MOST_TEXT >> 20} MiB")
    return os.pread(descriptor, size, 0) if size else b""


def _scratch_file(directory: str) -> int:
    """Return a nameless file in a directory."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # not every file system can do that
        return syscalls.memory_file(b"")


def render_settings(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the variables by which git takes these settings before any of its files."""
    named: dict[str, str] = {}
    for number, (key, value) in enumerate(rows):
        named |= {"GIT_CONFIG_COUNT": str(number + 1), f"GIT_CONFIG_KEY_{number}": key,
                  f"GIT_CONFIG_VALUE_{number}": value}  # fmt: skip
    return named


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
