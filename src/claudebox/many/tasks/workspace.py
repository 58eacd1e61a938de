"""The scratch directory of a task, and its repository: fetched on the host, checked out inside.

On the host, git only fetches objects into a new repository. Everything that content could make git run (filters,
hooks, submodules, links) comes with a working tree, which is made in the sandbox.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import subprocess
import tempfile
from typing import Self

from claudebox.base import trees
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing
from claudebox.many.tasks.task import RETRY, Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


BRANCH = "claudebox-task"
_PREFIX = "claudebox-task-"
_LOCK = "lock"
_FETCH_LIMIT = 900  # seconds
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HARDENED = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.symlinks=true",
    "-c", "protocol.ext.allow=never", "-c", "submodule.recurse=false", "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
)  # fmt: skip


class Unreachable(ClaudeboxError):  # noqa: N818
    """The repository could not be fetched; elsewhere or later it may be."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=RETRY)


def fetch(task: Task, work: str, git: str, environ: dict[str, str]) -> str:
    """Clone the repository to `work` without a checkout, and return the commit that the task starts from."""
    run = _runner(git, environ)
    template = ("--template=", "--no-checkout", "--no-local", "--no-recurse-submodules", "--quiet")
    done = run("clone", *template, "--", task.repo, work)
    if done.returncode:
        raise Unreachable(f"the repository cannot be cloned: {_last_line(done.stderr)}")
    names = [f"refs/remotes/origin/{task.ref}", f"refs/tags/{task.ref}", task.ref] if task.ref else ["HEAD"]
    if task.ref and _COMMIT.fullmatch(task.ref):
        run("-C", work, "fetch", "--quiet", "--no-tags", "origin", task.ref)  # may be on no branch
    for name in names:
        found = run("-C", work, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        base = found.stdout.strip()
        if found.returncode == 0 and _COMMIT.fullmatch(base):
            break
    else:
        raise ClaudeboxError(
            f"the repository has no `{task.ref}`" if task.ref else "the repository has no commit yet",
            hint="name a branch, a tag or a commit as `ref`",
        )
    if run("-C", work, "config", "user.email").returncode:  # the agent is to commit, and nodes have no user
        run("-C", work, "config", "user.name", "claudebox")
        run("-C", work, "config", "user.email", "claudebox@localhost")
    run("-C", work, "update-ref", f"refs/heads/{BRANCH}", base)
    run("-C", work, "symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
    return base


def _runner(git: str, environ: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs git without prompts."""
    inherited = {name: value for name, value in environ.items() if not name.startswith("GIT_") or name in _KEPT}
    env = {**inherited, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [git, *_HARDENED, *words], env=env, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                errors="replace", timeout=_FETCH_LIMIT, start_new_session=True, check=False, cwd="/",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unreachable(f"git took longer than {_FETCH_LIMIT} seconds to fetch the repository") from None
        except OSError as error:
            raise ClaudeboxError(f"git cannot be run: {error.strerror}") from None

    return run


_KEPT = {"GIT_SSH_COMMAND", "GIT_SSH", "GIT_ASKPASS", "GIT_SSL_CAINFO", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("fatal:")), lines[-1] if lines else "no error output")
    return re.sub(r"//[^/@\s]*@", "//", "".join(filter(str.isprintable, said)))[:300]


def checkout_words() -> tuple[str, ...]:
    """Return the command, for inside, that fills the working tree."""
    return ("git", "-c", "advice.detachedHead=false", "reset", "--quiet", "--hard")


# Everything that differs from the base, committed or not, ignored files aside.
_TREE = "export GIT_INDEX_FILE=/tmp/claudebox-index; git read-tree HEAD && git add -A ."


def patch_words(base: str) -> tuple[str, ...]:
    """Return the command, for inside, that prints the work as a patch."""
    script = f'{_TREE} && git diff --cached --binary --full-index --no-color --no-ext-diff --no-textconv "$1"'
    return ("sh", "-c", script, "sh", base)


def bundle_words(base: str) -> tuple[str, ...]:
    """Return the command, for inside, that prints the work as a bundle, with a commit for uncommitted changes."""
    script = f"""{_TREE} && tree=$(git write-tree) && head=$(git rev-parse HEAD) || exit
export GIT_AUTHOR_NAME=claudebox GIT_AUTHOR_EMAIL=claudebox GIT_COMMITTER_NAME=claudebox GIT_COMMITTER_EMAIL=claudebox
[ "$tree" = "$(git rev-parse 'HEAD^{{tree}}')" ] ||
  head=$(git -c commit.gpgSign=false commit-tree -p HEAD -m 'Work that was not committed' "$tree") || exit
[ "$head" != "$1" ] || exit 0
git update-ref refs/heads/{BRANCH}-result "$head" && git bundle create -q - "$1"..refs/heads/{BRANCH}-result"""
    return ("sh", "-c", script, "sh", base)


def head_of_bundle(path: str) -> str:
    """Return the head commit from the header of a bundle, or an empty string."""
    with open(path, "rb") as file:
        for _ in range(64):
            words = file.readline(4096).split()
            if (
                len(words) == 2
                and words[1].startswith(b"refs/heads/")
                and _COMMIT.fullmatch(words[0].decode("latin-1"))
            ):
                return words[0].decode("ascii")
            if not words:
                break
    return ""


class Scratch:
    """A locked directory for one task; those of killed tasks are removed by the next one."""

    def __init__(self, environ: dict[str, str]) -> None:
        # Not /tmp by default: the work may be too large for memory.
        self._base = environ.get("TMPDIR") or "/var/tmp"
        self.path = ""

    def __enter__(self) -> Self:
        try:
            self._sweep()
            while not self._make():
                pass
            os.mkdir(f"{self.path}/state", 0o700)
        except OSError as error:
            raise ClaudeboxError(
                f"no scratch directory can be made in `{self._base}`: {error.strerror}",
                hint="set TMPDIR to a directory of yours",
            ) from None
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        remove(self.path)
        os.close(self._lock)

    def _make(self) -> bool:
        """Make and lock a directory; False if another task removed it before it was locked."""
        self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=self._base)
        self._lock = os.open(f"{self.path}/{_LOCK}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if os.fstat(self._lock).st_nlink:
            return True
        os.close(self._lock)
        return False

    def _sweep(self) -> None:
        with os.scandir(self._base) as entries:
            found = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
        for path in found:
            try:
                status = os.lstat(path)
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                    continue
                lock = os.open(f"{path}/{_LOCK}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            with Closing(lock):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(path)
                except BlockingIOError:
                    pass  # in use


def remove(path: str) -> None:
    """Remove a directory that an agent has written to, if it exists."""
    with contextlib.suppress(OSError):  # the next task tries again
        trees.remove(*os.path.split(path))
