"""A signal while bwrap is started ends what was started."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from claudebox.run import start
from claudebox.run.terminal import Terminal


class Interrupting:
    """Descriptors that are closed at the moment of a signal."""

    def __iter__(self):
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # or a thread of an earlier test may take it
        return iter(())


def test_a_signal_after_bwrap_was_started_ends_it(monkeypatch):
    # proves C21, E15
    started = []

    def start_bwrap(*_):
        started.append(os.posix_spawnp("sleep", ["sleep", "20"], os.environ))
        return started[0]

    monkeypatch.setattr(start, "_END_TIMEOUT", 0.1)
    monkeypatch.setattr(start, "_adopt_orphans", lambda **_: None)
    monkeypatch.setattr(start, "_make_words", lambda *_: ())
    monkeypatch.setattr(start, "_start_bwrap", start_bwrap)
    plan: Any = None
    prepared: Any = SimpleNamespace(descriptors=Interrupting())
    with pytest.raises(start.Interrupted), start.Interruptible():
        start.build(plan, prepared, Terminal())

    with pytest.raises(ChildProcessError):
        os.waitpid(started[0], os.WNOHANG)
