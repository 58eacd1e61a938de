"""The real client, the scripted model that answers it, and ways to start it in a sandbox and without one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import REPOSITORY, Account, Box, need
from tests.support.scripted import Scripted
from tests.support.tui import Tui

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TOKEN = "placeholder-of-the-tests"  # what the client holds where no key is asked for
_LONG = 120  # seconds that one run of the client may take


@pytest.fixture(scope="session")
def real_client(ordinary_account: Account) -> Iterator[str]:
    """Return the program of the pinned client, at a place that every account can reach."""
    chosen = os.environ.get("CLAUDEBOX_TEST_CLIENT")
    with reachable(Path(chosen) if chosen else installed("client"), ordinary_account) as path:
        yield path


@contextlib.contextmanager
def reachable(program: Path, account: Account) -> Iterator[str]:
    """Yield where an account can reach this client."""
    need(program.is_file(), "client for the tests: run `scripts/client`, or set CLAUDEBOX_TEST_CLIENT")
    path = os.path.realpath(program)
    if subprocess.run(["test", "-x", path], check=False, **account.demotion).returncode == 0:  # type: ignore[call-overload]
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="claudebox-client-") as directory:
        os.chmod(directory, 0o755)
        copy = f"{directory}/claude"
        try:
            os.link(path, copy)
        except OSError:
            shutil.copy2(path, copy)
        yield copy


def installed(name: str) -> Path:
    """Return the program that `scripts/client` installs under this name."""
    machine = "arm64" if os.uname().machine == "aarch64" else "x64"
    return REPOSITORY / f".local/{name}/node_modules/@anthropic-ai/claude-code-linux-{machine}/claude"


@pytest.fixture
def model() -> Iterator[Callable[..., Scripted]]:
    """Return a function that starts a scripted model: `model(script, key=, socket=, canaries=)`."""
    with contextlib.ExitStack() as stack:
        yield lambda script=None, **options: stack.enter_context(Scripted(script, **options))


def conversation(prompt: str, *steps: object) -> dict[str, object]:
    """Return a script of one conversation."""
    return {"conversations": [{"prompt": prompt, "steps": list(steps)}]}


def bash(command: str) -> dict[str, object]:
    """Return a call of the Bash tool."""
    return {"name": "Bash", "input": {"command": command, "description": "Try something"}}


def variables(model: Scripted, **extra: str) -> dict[str, str]:
    """Return what the client must know to speak to a model."""
    return {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_AUTH_TOKEN": _TOKEN, "CLAUDE_CODE_MAX_RETRIES": "0", **extra}


def flags(names: object) -> list[str]:
    """Return the flags that let these variables into the sandbox."""
    return [word for name in names for word in ("--env", name)]  # type: ignore[attr-defined]


@pytest.fixture
def claude(real_client: str):
    """Return a function that runs claudebox with the client: `claude(box, model, "-p", "hello")`."""

    def run(box: Box, model: Scripted, *words: str, pass_fds: tuple[int, ...] = (), **extra: str):
        env = variables(model, **extra)
        equip(box, real_client)
        return box.claudebox("-y", *flags(env), *words, env=env, timeout=_LONG, pass_fds=pass_fds)

    return run


@pytest.fixture
def bare(real_client: str):
    """Return a function that runs the client without a sandbox, with the same permissions: the positive control."""

    def run(box: Box, model: Scripted, *words: str, pass_fds: tuple[int, ...] = (), **extra: str):
        env = {**variables(model), **unsandboxed(box), **extra}
        argv = (real_client, "--dangerously-skip-permissions", *words)
        return box.host(*argv, env=env, timeout=_LONG, pass_fds=pass_fds)

    return run


def equip(box: Box, client: str) -> None:
    """Put the client on the PATH of a box."""
    box.environ["PATH"] = f"{os.path.dirname(client)}:/usr/local/bin:/usr/bin:/bin"


def unsandboxed(box: Box) -> dict[str, str]:
    """Return the environment for a client outside, with its first-time questions answered."""
    directory = f"{box.base}/client-state"
    if not os.path.isdir(directory):
        box.mkdir(directory)
        trust = {"hasCompletedOnboarding": True, "projects": {box.project: {"hasTrustDialogAccepted": True}}}
        box.write(f"{directory}/.claude.json", json.dumps(trust))
        box.write(f"{directory}/settings.json", json.dumps({"skipDangerousModePermissionPrompt": True}))
    return {
        "CLAUDE_CONFIG_DIR": directory,
        "CLAUDE_CODE_TMPDIR": box.mkdir(f"{box.base}/client-tmp"),
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
        "IS_SANDBOX": "1",  # or root is refused
    }


@pytest.fixture
def terminal():
    """Return a function that opens a terminal: `terminal(box, env)`."""
    need(shutil.which("tmux"), "tmux")
    with contextlib.ExitStack() as stack:
        yield lambda box, env=None, **options: stack.enter_context(Tui(box, env, **options))
