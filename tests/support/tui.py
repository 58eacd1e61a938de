"""A user at a terminal: tmux holds the screen, so that a test reads what somebody would see."""

from __future__ import annotations

import shlex
import time
import uuid
from typing import TYPE_CHECKING, Self

from tests.conftest import configure

if TYPE_CHECKING:
    from tests.conftest import Box

SHELL_PROMPT = "host$"
_POLL = 0.1


class Tui:
    """An interactive bash in a terminal of its own, as the account of a box, in its project."""

    def __init__(
        self,
        box: Box,
        env: dict[str, str] | None = None,
        *,
        columns: int = 100,
        rows: int = 30,
        configured: bool = True,
    ) -> None:
        self.box = box
        if configured:
            configure(box)
        self._socket = f"{box.mkdir(f'{box.base}/tmux')}/{uuid.uuid4().hex[:8]}"
        self._env = {**(env or {}), "TERM": "xterm-256color", "PS1": f"{SHELL_PROMPT} ", "LANG": "C.UTF-8"}
        self._size = ("-x", str(columns), "-y", str(rows))

    def __enter__(self) -> Self:
        # Job control is what makes Ctrl+Z and `fg` mean something.
        self._tmux("new-session", "-d", *self._size, "bash", "--norc", "--noprofile", "-i")
        try:
            self.expect(SHELL_PROMPT)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self._tmux("kill-server", check=False)

    def _tmux(self, *words: str, check: bool = True) -> str:
        result = self.box.host("tmux", "-S", self._socket, "-f", "/dev/null", *words, env=self._env, timeout=20)
        if check and result.returncode:
            raise AssertionError(f"tmux {words[0]}: {result.stderr}")
        return result.stdout

    def screen(self) -> str:
        """Return what stands on the screen."""
        return self._tmux("capture-pane", "-p")

    def expect(self, text: str, *, timeout: float = 30.0) -> str:
        """Wait until a text is on the screen, and return the screen."""
        return self._wait(lambda screen: text in screen, f"`{text}` did not appear", timeout)

    def expect_any(self, condition, *, timeout: float = 30.0) -> str:
        """Wait until the screen is as it should be, and return it."""
        return self._wait(condition, "what was expected did not appear", timeout)

    def settled(self, *, during: float = 1.0) -> str:
        """Wait until nothing has changed on the screen for so many seconds, and return it."""
        seen: list[str] = []

        def same(screen: str) -> bool:
            if seen and seen[-1] != screen:
                seen.clear()
            seen.append(screen)
            return len(seen) * _POLL > during

        return self._wait(same, "the screen did not come to rest", 30.0)

    def expect_gone(self, text: str, *, timeout: float = 30.0) -> str:
        """Wait until a text has left the screen."""
        return self._wait(lambda screen: text not in screen, f"`{text}` did not go away", timeout)

    def _wait(self, condition, problem: str, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while not condition(screen := self.screen()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{problem} within {timeout:.0f} s; the screen is:\n{screen}")
            time.sleep(_POLL)
        return screen

    def shell(self, *words: str) -> None:
        """Start a program from the shell."""
        self.type(shlex.join(words))

    def type(self, text: str) -> None:
        """Type a line: Enter comes after the text was shown, or a client would take both for a paste."""
        self._tmux("send-keys", "-l", text)
        packed = "".join(text.split())
        self._wait(lambda screen: packed in "".join(screen.split()), f"`{text}` was not echoed", 30.0)
        self.key("Enter")

    def key(self, *names: str) -> None:
        """Press keys, by the names that tmux has for them."""
        self._tmux("send-keys", *names)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def status(self) -> int:
        """Return the exit status of the last program of the shell, once the shell is back."""
        self._wait(lambda screen: screen.rstrip().endswith(f"\n{SHELL_PROMPT}"), "the shell did not come back", 30.0)
        marker = f"status-{uuid.uuid4().hex[:6]}"
        self._tmux("send-keys", "-l", f"echo {marker}=$?")
        self.key("Enter")

        def find(screen: str) -> list[str]:
            return [line[len(marker) + 1 :] for line in screen.splitlines() if line.startswith(f"{marker}=")]

        return int(find(self._wait(lambda screen: bool(find(screen)), "no exit status appeared", 20.0))[0])

    def modes(self) -> dict[str, str]:
        """Return what a program has switched on in the terminal."""
        names = ("alternate_on", "cursor_flag", "mouse_any_flag", "keypad_cursor_flag")
        values = self._tmux("display-message", "-p", " ".join(f"#{{{name}}}" for name in names)).split()
        return dict(zip(names, values, strict=True))
