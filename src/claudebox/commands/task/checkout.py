"""The repository of a task: fetched on the host, which has the keys for it, and checked out in a sandbox.

On the host git only moves objects into a fresh repository of ours. Whatever the content could make it run (filters,
hooks, submodules, links) comes with a working tree, and that is made where it can do no harm.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from claudebox.commands.task.model import RETRY, Task
from claudebox.errors import ClaudeboxError

if TYPE_CHECKING:
    from collections.abc import Callable

BRANCH = "claudebox-task"
_FETCH_LIMIT = 900  # seconds
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HARDENED = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.symlinks=true",
    "-c", "protocol.ext.allow=never", "-c", "submodule.recurse=false", "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
)  # fmt: skip


class Unreachable(ClaudeboxError):  # noqa: N818 - what it is, not that it is one
    """The repository could not be had; elsewhere or later it may be."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=RETRY)


def fetch(task: Task, work: str, git: str, environ: dict[str, str]) -> str:
    """Bring the repository to `work`, with no file of it checked out, and return the commit that the task begins at."""
    run = _runner(git, environ)
    template = ("--template=", "--no-checkout", "--no-local", "--no-recurse-submodules", "--quiet")
    done = run("clone", *template, "--", task.repo, work)
    if done.returncode:
        raise Unreachable(f"the repository cannot be cloned: {_last_line(done.stderr)}")
    names = [f"refs/remotes/origin/{task.ref}", f"refs/tags/{task.ref}", task.ref] if task.ref else ["HEAD"]
    if task.ref and _COMMIT.fullmatch(task.ref):
        run("-C", work, "fetch", "--quiet", "--no-tags", "origin", task.ref)  # it may be on no branch
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
    if run("-C", work, "config", "user.email").returncode:  # a node has no user, and the agent is to commit
        run("-C", work, "config", "user.name", "claudebox")
        run("-C", work, "config", "user.email", "claudebox@localhost")
    run("-C", work, "update-ref", f"refs/heads/{BRANCH}", base)
    run("-C", work, "symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
    return base


def _runner(git: str, environ: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs git without a terminal: nothing may ask."""
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
    said = next((line for line in lines if line.startswith("fatal:")), lines[-1] if lines else "git said nothing")
    return re.sub(r"//[^/@\s]*@", "//", "".join(filter(str.isprintable, said)))[:300]


def checkout_words() -> tuple[str, ...]:
    """Return what fills the working tree, inside."""
    return ("git", "-c", "advice.detachedHead=false", "reset", "--quiet", "--hard")


# Everything that differs from the base, committed or not, ignored files aside.
_TREE = "export GIT_INDEX_FILE=/tmp/claudebox-index; git read-tree HEAD && git add -A ."


def patch_words(base: str) -> tuple[str, ...]:
    """Return what prints the work as one patch, inside."""
    script = f'{_TREE} && git diff --cached --binary --full-index --no-color --no-ext-diff --no-textconv "$1"'
    return ("sh", "-c", script, "sh", base)


def bundle_words(base: str) -> tuple[str, ...]:
    """Return what prints the work as a bundle, its commits with one more for what was not committed, inside."""
    script = f"""{_TREE} && tree=$(git write-tree) && head=$(git rev-parse HEAD) || exit
export GIT_AUTHOR_NAME=claudebox GIT_AUTHOR_EMAIL=claudebox GIT_COMMITTER_NAME=claudebox GIT_COMMITTER_EMAIL=claudebox
[ "$tree" = "$(git rev-parse 'HEAD^{{tree}}')" ] ||
  head=$(git -c commit.gpgSign=false commit-tree -p HEAD -m 'Work that was not committed' "$tree") || exit
[ "$head" != "$1" ] || exit 0
git update-ref refs/heads/{BRANCH}-result "$head" && git bundle create -q - "$1"..refs/heads/{BRANCH}-result"""
    return ("sh", "-c", script, "sh", base)


def head_of_bundle(path: str) -> str:
    """Return the commit that a bundle leads to, as its header says, or nothing."""
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
