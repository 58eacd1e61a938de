"""`claudebox task FILE --result DIR`: check out, let the agent work, export the work, and report how it went.

Checkout, agent and the git that makes the patch all run in sandboxes, as sessions without a terminal. The state of
these sessions lies in the task's scratch directory and is deleted with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, NoReturn

from claudebox import __version__, session
from claudebox.agent import facts as agent_facts
from claudebox.agent import kinds
from claudebox.base import console, syscalls
from claudebox.base.errors import FAILED as REFUSED
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
from claudebox.settings.files import SettingsReader, layers
from claudebox.settings.layers import SettingValue, choose_agent, parse_arguments
from claudebox.tables.secrets import looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.agent.record import AgentKind
    from claudebox.settings.layers import Settings


ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KILL_AFTER = 30.0  # seconds between SIGTERM and SIGKILL for a session
_GIT_SECONDS = 600.0  # for git inside, before and after the agent
_PAUSE = 5.0  # seconds before the second try, doubled for each further one
_TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504, 529}  # statuses of an upstream worth another try
_SEARCH_SECONDS = 20.0
_PR_SET_PDEATHSIG = 1
_STATUS_NAMES = {
    DONE: "done", RETRY: "retry", OVER_TIME: "over time", OVER_BUDGET: "over budget", FAILED: "failed",
}  # fmt: skip


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Run one task and return the exit status for the engine."""
    task = read_task(flags.words[0])
    if not flags.all("result"):
        raise ClaudeboxError("`claudebox task` needs `--result DIR`", hint="it is created when the task has ended")
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
        signal.signal(number, signal.SIG_IGN)  # the result is always written
    _add_page(result, staging.path, environ)
    _withhold_secrets(result, staging.path, environ)  # also after a failure or a signal
    result.ended, result.seconds = _moment(time.time()), round(time.time() - begun, 1)
    content = staging.publish(result)
    if not os.isatty(1):  # engines keep the output of a job even if they copy none of its files
        with contextlib.suppress(ClaudeboxError):  # the status is that of the task
            console.write([content], descriptor=1)
    line = f"{task.id}: {result.status}" + (f": {result.why}" if result.why else "")
    console.write([line])
    return result.exit


def _cancel(_number: int, _frame: object) -> NoReturn:
    raise Cancelled


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _judge(result: TaskResult, status: int, why: str = "") -> None:
    result.exit, result.status, result.why = status, _STATUS_NAMES.get(status, "refused"), why
    result.retry = status == RETRY


class Cancelled(BaseException):
    """A signal asks the task to end."""


class _Runner:
    """Runs one task."""

    def __init__(self, task: Task, scratch: str, target: str, environ: dict[str, str], result: TaskResult) -> None:
        self._task, self._scratch, self._target, self._result = task, scratch, target, result
        self._environ = environ
        self._state = f"{scratch}/state"
        self._agent = _choose_agent(task, environ)
        self._spent = 0.0  # US dollars, by all tries, as the broker counts towards a budget
        self._lost: list[str] = []  # why parts of the work could not be exported
        self._git_environ: dict[str, str] = {
            name: environ[name] for name in ("HOME", "PATH", "LANG") if name in environ
        }

    def work(self) -> None:
        """Try until a try succeeds or is not worth repeating, at most `tries` times."""
        git = programs.find_tool("git", programs.search_path(self._environ, self._scratch))
        if not git:
            raise ClaudeboxError("there is no git", hint="install the package `git`")
        for number in range(self._task.tries):
            if number:
                time.sleep(_PAUSE * 2 ** (number - 1) * (0.75 + os.getpid() % 64 / 128))  # spread over tasks
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
        self._run_git(work, workspace.checkout_words(), "checkout")
        try:
            status = self._run_agent(work)
        finally:  # also after a cancellation
            held, self._result.head = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING), self._result.base
            self._export(work)
            answer, said = self._collect()
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        answers = self._agent.name == kinds.USUAL
        _judge(self._result, *_verdict(status, answer, said, find_errors(self._state), answers=answers))
        if self._lost and self._result.exit == DONE:
            _judge(self._result, FAILED, f"the work could not be exported: {self._lost[0]}")

    def _collect(self) -> tuple[dict[str, Any], str]:
        """Copy what the session left into the result; return the client's answer and the last message."""
        printed = f"{self._scratch}/answer"
        answer = read_answer(printed, self._agent.said)
        take_over(self._result, answer, self._agent.said)
        self._spent = add_usage(self._result, self._state)
        version = copy_state(self._state, self._target, self._result.session, self._agent, printed)
        if version:
            self._result.versions["client"] = version
        said = copy_messages(f"{self._scratch}/said", f"{self._target}/messages.txt")
        for name in ("answer", "said"):  # the next try may write none
            with contextlib.suppress(OSError):
                os.unlink(f"{self._scratch}/{name}")
        return answer, said

    def _run_agent(self, work: str) -> int:
        task = self._task
        words = ["-y", "--profile", task.profile, "--set", "receipt=always", "--set", "undo_keep=0"]
        for name, number in self._agent.task_env:
            given = self._environ.get(name, "")
            words += ["--env", f"{name}={given if given.isdigit() else number}"]
        if task.budget_usd:
            left = task.budget_usd - self._spent
            if left <= 0:
                return OVER_BUDGET
            words += ["--budget", f"{max(int(left * 100), 1) / 100:.2f}"]
        with open(f"{self._scratch}/prompt", "w", encoding="utf-8") as file:
            file.write(task.prompt)
        words += [self._agent.name, *self._agent.task]
        files = (f"{self._scratch}/prompt", f"{self._scratch}/answer", f"{self._scratch}/said")
        return play(words, work, self._environ, self._state, limit=task.timeout, files=files)

    def _export(self, work: str) -> None:
        """Export the work by git inside: crafted indexes and objects never reach git of the host."""
        for name, words in (
            ("work.patch", workspace.patch_words(self._result.base)),
            ("work.bundle", workspace.bundle_words(self._result.base)),
        ):
            path = f"{self._target}/{name}"
            try:
                self._run_git(work, words, name, output=path)
            except ClaudeboxError as error:
                self._lost.append(str(error))
            if os.path.exists(path) and not os.path.getsize(path):
                os.unlink(path)
        if os.path.exists(f"{self._target}/work.bundle"):
            self._result.head = workspace.head_of_bundle(f"{self._target}/work.bundle")

    def _run_git(self, work: str, words: tuple[str, ...], name: str, *, output: str = "/dev/null") -> None:
        """Run a command of ours in the task's sandbox, without a network or variables of the host."""
        messages = f"{self._scratch}/messages"
        options = ["-y", "--profile", self._task.profile, "--network", "none", "--set", "receipt=never", "--exec", "--"]
        files = ("", output, messages)
        status = play([*options, *words], work, self._git_environ, self._state, limit=_GIT_SECONDS, files=files)
        if status:
            last = copy_messages(messages, "/dev/null")
            why = f"took longer than {_GIT_SECONDS:.0f} seconds" if status == OVER_TIME else f"ended with {status}"
            raise ClaudeboxError(f"{name} {why}: {last}", status=status if status in (125, 126, 127) else FAILED)


def _add_page(result: TaskResult, target: str, environ: dict[str, str]) -> None:
    """Add a page to look at what the task did, unless a secret of the host would stand in it."""
    from claudebox.review.gather import PAGE, gather_task
    from claudebox.review.search import require_clean
    from claudebox.review.session_page import render_session

    try:
        story = gather_task(asdict(result), target)
        page = render_session(story)
        result.changed = story.changed
        require_clean(story, page, list_secrets(environ))
        with open(f"{target}/{PAGE}", "wb") as file:
            file.write(page)
    except Exception as error:  # noqa: BLE001 - a result without its page is a result
        result.withheld.append(f"{PAGE}: {error if isinstance(error, ClaudeboxError) else type(error).__name__}")


def _withhold_secrets(result: TaskResult, target: str, environ: dict[str, str]) -> None:
    """Remove files with secrets of the host from the result, and all that could not be searched."""
    paths = [f"{target}/{name}" for name in sorted(os.listdir(target))]
    try:
        forms = find_forms(list_secrets(environ))
        for name in ("said", "why"):  # the agent controls both
            text = getattr(result, name).encode("utf-8", "surrogateescape")
            if any(form in text for form, _, _ in forms):
                setattr(result, name, "withheld: contained a secret of the host")
        found = leaks.search(forms, paths, time.monotonic() + _SEARCH_SECONDS)
        why = {path: f"not searched for secrets: {reason}" for path, reason in found.unsearched}
        why |= {hit.path: f"contains the value of {hit.name}" for hit in found.hits}
    except Exception as error:  # noqa: BLE001 - nothing unsearched leaves
        result.said = result.why = ""
        why = dict.fromkeys(paths, f"not searched for secrets: {type(error).__name__}")
    for path, reason in sorted(why.items()):
        os.unlink(path)
        result.withheld.append(f"{os.path.basename(path)}: {reason}")
    if result.withheld and result.exit == DONE:
        _judge(result, FAILED, "part of the result was withheld")


def list_secrets(environ: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield names and values of the secrets of the host that no result may hold."""
    yield from ((name, value) for name, value in environ.items() if looks_secret(name, value))
    home = machine.current_home(environ)
    yield from agent_facts.list_secrets(kinds.find_kinds(), home)


def _choose_agent(task: Task, environ: dict[str, str]) -> AgentKind:
    """Return the agent that the task names, or else the settings."""
    flags = parse_arguments(["--profile", task.profile])
    if task.agent:
        flags = flags.replace(given={**flags.given, "agent": (SettingValue(task.agent, "agent"),)})
    reader = SettingsReader(machine.current_home(environ))
    agent = choose_agent(flags, environ, layers(flags, environ, reader)).agent
    if not agent.task:
        raise ClaudeboxError(f"`{agent.name}` cannot do a task", hint="its row has no `task`, the words for one answer")
    return agent


def _verdict(
    status: int, answer: dict[str, Any], said_last: str, errors: set[int] | None, *, answers: bool = True
) -> tuple[int, str]:
    """Return the exit status of the task, and why.

    The agent may have forged `answer`: an upstream status in it counts only if the broker saw it, in `errors`. Its
    `subtype` is `success` even if the model was never reached. Other agents have no answer of this form.
    """
    if status in (OVER_TIME, OVER_BUDGET):
        return status, "the task ran out of time" if status == OVER_TIME else "the budget of the task is spent"
    if status in (125, 126, 127):
        return status, f"claudebox did not start the agent: {said_last}"
    transient = (errors or set()) & _TRANSIENT
    upstream = answer.get("api_error_status") if answers else min(transient, default=None)
    said = str(answer.get("result"))
    if status == 0 and (answer and not answer.get("is_error") if answers else OVER_BUDGET not in (errors or ())):
        return DONE, ""
    if (errors is None and upstream == 402 and "budget" in said) or OVER_BUDGET in (errors or ()):
        return OVER_BUDGET, "the budget of the task is spent"
    if type(upstream) is int and upstream in _TRANSIENT and (errors is None or upstream in errors):
        return RETRY, f"the model's API answered with {upstream}"
    if not answer and status >= 128:
        return RETRY, f"the agent was ended by signal {status - 128}"
    what = f"the model's API answered with {upstream}" if type(upstream) is int else f"the agent ended with {status}"
    return FAILED, what


def play(
    words: list[str], work: str, environ: dict[str, str], state: str, *, limit: float, files: tuple[str, str, str]
) -> int:
    """Run a session and return its status, or OVER_TIME.

    `files` are its standard input (may be empty), output and error.
    """
    process = os.fork()
    if not process:
        _become_session(words, work, environ, state, files)
    with Closing(os.pidfd_open(process)) as ending:
        try:
            if _has_ended(ending, limit):
                return _status(process)
            _end(process, ending)
            return OVER_TIME
        except Cancelled:
            _end(process, ending)
            raise


def _become_session(
    words: list[str], work: str, environ: dict[str, str], state: str, files: tuple[str, str, str]
) -> NoReturn:
    """Be a session without a terminal, which gets SIGTERM when its parent dies."""
    status = REFUSED
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
        status = console.run_guarded(lambda: session.run(parse_arguments(words), environ, state=state))
    except BaseException as error:  # noqa: BLE001 - nothing may return from here
        console.warn(f"the session ended with {type(error).__name__}")
    finally:
        os._exit(status)


def _has_ended(descriptor: int, limit: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(limit * 1000))


def _end(process: int, descriptor: int) -> None:
    """SIGTERM, then SIGKILL."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    os.kill(process, signal.SIGTERM)
    if not _has_ended(descriptor, _KILL_AFTER):
        os.kill(process, signal.SIGKILL)
    _status(process)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _status(process: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if code >= 0 else 128 - code
