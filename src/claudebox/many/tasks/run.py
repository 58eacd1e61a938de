"""`--task FILE --result DIR`: check out, let the agent work, take the work out, and say how it went.

Everything that runs on the repository runs in the sandbox of a session: the checkout, the agent, and git when it makes
the patch. Nothing is asked and no terminal is needed. The state of these sessions lies with the task and goes with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from datetime import UTC, datetime
from typing import Any, NoReturn

from claudebox import __version__, session
from claudebox.agent import facts as agent_facts
from claudebox.base import console, syscalls
from claudebox.base.errors import ClaudeboxError, describe_failure
from claudebox.base.files import Closing
from claudebox.host import machine, programs
from claudebox.many.tasks import workspace
from claudebox.many.tasks.result import (
    Staging,
    TaskResult,
    add_usage,
    copy_messages,
    copy_state,
    find_errors,
    read_answer,
    take_over,
)
from claudebox.many.tasks.task import DONE, FAILED, OVER_BUDGET, OVER_TIME, RETRY, Task, read_task
from claudebox.report import leaks
from claudebox.report.leaks import find_forms
from claudebox.settings.layers import parse_arguments
from claudebox.tables.secrets import looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.settings.layers import Settings


# A session of claudebox as a child of the task: begun without a terminal, waited for, and ended in time.


ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_GRACE = 30.0  # seconds between the polite end of a session and the forced one
_PR_SET_PDEATHSIG = 1


class Cancelled(BaseException):
    """Somebody wants the task to end."""


def play(
    words: list[str], work: str, environ: dict[str, str], state: str, *, limit: float, files: tuple[str, str, str]
) -> int:
    """Run a session and wait for its end; return its status, or that it took too long.

    `files` are its standard input, which may be nothing, its output and its messages.
    """
    process = os.fork()
    if not process:
        _become_session(words, work, environ, state, files)
    with Closing(os.pidfd_open(process)) as ending:
        try:
            if _ended(ending, limit):
                return _status(process)
            _end(process, ending)
            return OVER_TIME
        except Cancelled:
            _end(process, ending)
            raise


def _become_session(
    words: list[str], work: str, environ: dict[str, str], state: str, files: tuple[str, str, str]
) -> NoReturn:
    """In the child: be a session of claudebox without a terminal, and end with whoever waits for it."""
    status = FAILED
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.setsid()
        syscalls.call("prctl", _PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        os.dup2(os.open(files[0] or "/dev/null", os.O_RDONLY), 0)
        for descriptor, path in ((1, files[1]), (2, files[2])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
        os.chdir(work)
        status = session.run(parse_arguments(words), environ, state=state)
    except ClaudeboxError as error:
        console.report(error)
        status = error.status
    except OSError as error:
        console.report(describe_failure(error))
        status = 125
    except BaseException as error:  # noqa: BLE001 - nothing may return from here
        console.warn(f"the session ended with {type(error).__name__}")
        status = 125
    finally:
        os._exit(status)


def _ended(descriptor: int, limit: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(limit * 1000))


def _end(process: int, descriptor: int) -> None:
    """End a session politely, then by force."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    os.kill(process, signal.SIGTERM)
    if not _ended(descriptor, _GRACE):
        os.kill(process, signal.SIGKILL)
    _status(process)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _status(process: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if code >= 0 else 128 - code


_ASIDE_LIMIT = 600.0  # seconds that git may take inside, before and after the agent
_PAUSE = 5.0  # seconds before the second try, then twice as long each time
_CLIENT_RETRIES = 3
# Of the upstream or of something on the way to it, and gone after a while.
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_SEARCH = 20.0  # seconds
_WORDS = {
    DONE: "done", RETRY: "retry", OVER_TIME: "over time", OVER_BUDGET: "over budget", FAILED: "failed",
}  # fmt: skip


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Do one task and return the exit status that engines know."""
    task = read_task(flags.one("task").value)
    if not flags.all("result"):
        raise ClaudeboxError("`--task` needs `--result DIR`", hint="the directory is made when the task has ended")
    if flags.words:
        raise ClaudeboxError(f"`--task` takes no further words: `{flags.words[0]}`", hint="the prompt is in the task")
    staging = Staging(flags.one("result").value)
    result = TaskResult(task.id, host=socket.gethostname(), versions={"claudebox": __version__})
    begun = time.time()
    result.started = _moment(begun)
    for number in ENDING:
        signal.signal(number, _cancel)
    try:
        with workspace.Scratch(environ) as scratch:
            _Runner(task, scratch.path, staging.path, environ, result).work()
    except Cancelled:
        result.status, result.exit, result.retry, result.why = "cancelled", RETRY, True, "the task was cancelled"
    except (ClaudeboxError, OSError) as problem:
        error = problem if isinstance(problem, ClaudeboxError) else describe_failure(problem)
        console.report(error)
        _judge(result, error.status, str(error))
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)  # the result is written in any case
    _withhold_secrets(result, staging.path, environ)  # also after a failure or a signal
    result.ended, result.seconds = _moment(time.time()), round(time.time() - begun, 1)
    content = staging.publish(result)
    if not os.isatty(1):  # for engines that keep what a job prints even where they copy nothing of one that is removed
        console.write([content], descriptor=1)
    line = f"{task.id}: {result.status}" + (f": {result.why}" if result.why else "")
    console.write([line])
    return result.exit


def _cancel(_number: int, _frame: object) -> NoReturn:
    raise Cancelled


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _judge(result: TaskResult, status: int, why: str = "") -> None:
    result.exit, result.status, result.why = status, _WORDS.get(status, "refused"), why
    result.retry = status == RETRY


class _Runner:
    """One task at work."""

    def __init__(self, task: Task, scratch: str, target: str, environ: dict[str, str], result: TaskResult) -> None:
        self._task, self._scratch, self._target, self._result = task, scratch, target, result
        self._environ = environ
        self._state = f"{scratch}/state"
        self._spent = 0.0  # US dollars, by all tries, as the broker counts towards a budget
        self._lost: list[str] = []  # why a part of the work could not be taken out
        # Checking out and taking out need nothing of the host's.
        self._bare: dict[str, str] = {name: environ[name] for name in ("HOME", "PATH", "LANG") if name in environ}

    def work(self) -> None:
        """Try as often as the task permits and it makes sense."""
        git = programs.find_tool("git", programs.search_path(self._environ, self._scratch))
        if not git:
            raise ClaudeboxError("there is no git", hint="install the package `git`")
        for number in range(self._task.tries):
            if number:
                time.sleep(_PAUSE * 2 ** (number - 1) * (0.75 + os.getpid() % 64 / 128))  # not all at once
            self._result.tries = number + 1
            try:
                self._attempt(git)
            except workspace.Unreachable as error:
                _judge(self._result, RETRY, str(error))
            if not self._result.retry:
                return

    def _attempt(self, git: str) -> None:
        work = f"{self._scratch}/work"
        workspace.remove(work)
        self._result.base = workspace.fetch(self._task, work, git, self._environ)
        self._aside(work, workspace.checkout_words(), "checkout")
        try:
            status = self._let_work(work)
        finally:  # also what was done before a cancellation
            held, self._result.head = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING), self._result.base
            self._take_out(work)
            answer, said = self._collect()
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        _judge(self._result, *_verdict(status, answer, said, find_errors(self._state)))
        if self._lost and self._result.exit == DONE:
            _judge(self._result, FAILED, f"the work could not be taken out: {self._lost[0]}")

    def _collect(self) -> tuple[dict[str, Any], str]:
        """Bring what the session left into the result; return what the client said of itself, and the last message."""
        answer = read_answer(f"{self._scratch}/answer")
        take_over(self._result, answer)
        self._spent = add_usage(self._result, self._state)
        version = copy_state(self._state, self._target, self._result.session)
        if version:
            self._result.versions["client"] = version
        said = copy_messages(f"{self._scratch}/said", f"{self._target}/messages.txt")
        for name in ("answer", "said"):  # the next try may come to none
            with contextlib.suppress(OSError):
                os.unlink(f"{self._scratch}/{name}")
        return answer, said

    def _let_work(self, work: str) -> int:
        task = self._task
        retries = self._environ.get("CLAUDE_CODE_MAX_RETRIES", "")
        words = ["-y", "--profile", task.profile, "--receipt", "always", "--undo-keep", "0", "--set-env"]
        # The client would wait for many minutes; an engine has another node, and `tries` waits as well.
        words.append(f"CLAUDE_CODE_MAX_RETRIES={retries if retries.isdigit() else _CLIENT_RETRIES}")
        if task.budget_usd:
            left = task.budget_usd - self._spent
            if left <= 0:
                return OVER_BUDGET
            words += ["--budget", f"{max(int(left * 100), 1) / 100:.2f}"]
        with open(f"{self._scratch}/prompt", "w", encoding="utf-8") as file:
            file.write(task.prompt)
        words += ["-p", "--output-format", "json"]
        files = (f"{self._scratch}/prompt", f"{self._scratch}/answer", f"{self._scratch}/said")
        return play(words, work, self._environ, self._state, limit=task.timeout, files=files)

    def _take_out(self, work: str) -> None:
        """Have git inside write what was done; a crafted index or object never meets the git of the host."""
        for name, words in (
            ("work.patch", workspace.patch_words(self._result.base)),
            ("work.bundle", workspace.bundle_words(self._result.base)),
        ):
            path = f"{self._target}/{name}"
            try:
                self._aside(work, words, name, output=path)
            except ClaudeboxError as error:
                self._lost.append(str(error))
            if os.path.exists(path) and not os.path.getsize(path):
                os.unlink(path)
        if os.path.exists(f"{self._target}/work.bundle"):
            self._result.head = workspace.head_of_bundle(f"{self._target}/work.bundle")

    def _aside(self, work: str, words: tuple[str, ...], name: str, *, output: str = "/dev/null") -> None:
        """Run something of ours in the sandbox of the task, without a network and without anything of the host's."""
        messages = f"{self._scratch}/messages"
        options = ["-y", "--profile", self._task.profile, "--network", "none", "--receipt", "never", "--exec", "--"]
        files = ("", output, messages)
        status = play([*options, *words], work, self._bare, self._state, limit=_ASIDE_LIMIT, files=files)
        if status:
            last = copy_messages(messages, "/dev/null")
            why = f"took longer than {_ASIDE_LIMIT:.0f} seconds" if status == OVER_TIME else f"ended with {status}"
            raise ClaudeboxError(f"{name} {why}: {last}", status=status if status in (125, 126, 127) else FAILED)


def _withhold_secrets(result: TaskResult, target: str, environ: dict[str, str]) -> None:
    """Take files out of the result in which a secret of the host stands; all of them, if they cannot be searched."""
    paths = [f"{target}/{name}" for name in sorted(os.listdir(target))]
    try:
        forms = find_forms(_secrets(environ))
        for name in ("said", "why"):  # the agent's words, and those of programs that it may have led
            text = getattr(result, name).encode("utf-8", "surrogateescape")
            if any(form in text for form, _, _ in forms):
                setattr(result, name, "withheld: a secret of the host stood here")
        found = leaks.search(forms, paths, time.monotonic() + _SEARCH)
        why = {path: f"not searched for secrets: {reason}" for path, reason in found.unsearched}
        why |= {hit.path: f"the value of {hit.name} stands in it" for hit in found.hits}
    except Exception as error:  # noqa: BLE001 - what was not searched does not leave
        result.said = result.why = ""
        why = dict.fromkeys(paths, f"not searched for secrets: {type(error).__name__}")
    for path, reason in sorted(why.items()):
        os.unlink(path)
        result.withheld.append(f"{os.path.basename(path)}: {reason}")
    if result.withheld and result.exit == DONE:
        _judge(result, FAILED, "a part of the result was withheld")


def _secrets(environ: dict[str, str]) -> Iterator[tuple[str, str]]:
    yield from ((name, value) for name, value in environ.items() if looks_secret(name, value))
    yield from agent_facts.list_tokens(f"{machine.current_home(environ)}/.claude/.credentials.json")


def _verdict(status: int, answer: dict[str, Any], said_last: str, errors: set[int] | None) -> tuple[int, str]:
    """Return the exit status of the task, and why; `subtype` says `success` even where the model was never reached.

    `answer` may be the agent's own: what it says of the upstream counts only if the broker has seen it among `errors`.
    """
    if status in (OVER_TIME, OVER_BUDGET):
        return status, "the time of the task is over" if status == OVER_TIME else "the budget of the task is spent"
    if status in (125, 126, 127):
        return status, f"claudebox did not start the agent: {said_last}"
    upstream = answer.get("api_error_status")
    said = str(answer.get("result"))
    if answer and not answer.get("is_error") and status == 0:
        return DONE, ""
    if (errors is None and upstream == 402 and "budget" in said) or OVER_BUDGET in (errors or ()):
        return OVER_BUDGET, "the budget of the task is spent"
    if type(upstream) is int and upstream in _PASSING and (errors is None or upstream in errors):
        return RETRY, f"the model's API answered with {upstream}"
    if not answer and status >= 128:
        return RETRY, f"the agent was ended by signal {status - 128}"
    what = f"the model's API answered with {upstream}" if type(upstream) is int else f"the agent ended with {status}"
    return FAILED, what
