"""Starting the scripted model and listening to what it tells."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from claudebox.errors import ClaudeboxError
from claudebox.files import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PROGRAM = f"import sys; sys.path.insert(0, {PACKAGE!r}); from claudebox.demo.server import main; sys.exit(main())"
_START_LIMIT = 20.0  # seconds


class ModelProcess:
    """A running model; use it with `with`."""

    def __init__(
        self,
        script: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        socket: str = "",
        canaries: Mapping[str, str] | None = None,
        listener: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.port = 0
        self._configuration = {"script": script or {}, "key": key, "socket": socket, "canaries": dict(canaries or {})}
        self._listener = listener
        self._ready: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Return the address for ANTHROPIC_BASE_URL."""
        return f"http://127.0.0.1:{self.port}" if self.port else "http://localhost"

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Return what is known of the requests so far."""
        return [event for event in self.events if event["event"] == "request"]

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Return the answers of the script so far, with what the model had seen before each."""
        return [event for event in self.events if event["event"] == "answer" and event["kind"] == "script"]

    @property
    def results(self) -> str:
        """Return everything that tools have returned."""
        return "\n".join(result for answer in self.answers for result in answer["results"])

    @property
    def leaks(self) -> list[str]:
        """Return the names of canaries that stood in a request."""
        return sorted({event["name"] for event in self.events if event["event"] == "leak"})

    def __enter__(self) -> Self:
        self._process = process = subprocess.Popen(
            [sys.executable, "-IS", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
            cwd="/",
            encoding="utf-8",
            start_new_session=True,  # the terminal's Ctrl+C is for the client
        )
        self._thread = threading.Thread(target=self._listen, args=(process,), daemon=True)
        self._thread.start()
        try:
            assert process.stdin is not None  # noqa: S101 - said to mypy
            process.stdin.write(json.dumps(self._configuration) + "\n")
            process.stdin.flush()
            first = self._ready.get(timeout=_START_LIMIT)
        except (queue.Empty, OSError):
            first = None
        if first is None:
            self.__exit__()
            raise ClaudeboxError("the scripted model did not start")
        self.port = int(first.get("port") or 0)
        return self

    def __exit__(self, *_exception: object) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._thread is not None:
            self._thread.join(timeout=5)
        if process.stdout is not None:
            process.stdout.close()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            event = json.loads(line)
            if event["event"] == "listening":
                self._ready.put(event)
                continue
            self.events.append(event)
            if self._listener is not None:
                self._listener(event)
        self._ready.put(None)
