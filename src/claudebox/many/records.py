"""What claudebox knows of sessions without a terminal: one file each in ~/.claudebox/agents, which no sandbox sees.

Whether one is alive is asked of the kernel: the process with this number, started at this moment of this boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, fields, replace

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_DIRECTORY, OPEN_LOCK, Closing, read_at, read_small, replace_file
from claudebox.base.state import open_state
from claudebox.report.leftovers import UNSEEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


DIRECTORY = "agents"
_SUFFIX = ".json"
_STARTING = 30.0  # seconds until a session that never said a word has failed
_MOST_ENDED, _OLDEST = 32, 7 * 86400.0  # of ended sessions: how many are kept, and how long


@dataclass(frozen=True)
class Agent:
    """One session without a terminal."""

    id: str
    name: str
    workdir: str  # where it works
    project: str  # the project of the user that it belongs to
    instance: str  # the name of its state
    words: str  # what was asked for, in short
    created: float
    pid: int = 0  # of its launcher
    start: int = 0  # when that was started, in ticks since boot
    boot: str = ""
    begun: float = 0.0  # when its payload was let go
    ended: float = 0.0
    status: int = -1  # -1: nobody wrote one down

    @property
    def alive(self) -> bool:
        """Return whether its launcher runs."""
        return not self.ended and self.pid > 0 and self.boot == boot_id() and process_start(self.pid) == self.start

    @property
    def starting(self) -> bool:
        """Return whether its launcher may be about to say its first word."""
        return not self.pid and not self.ended and 0 <= time.time() - self.created < _STARTING

    @property
    def full_name(self) -> str:
        """Return the name with that of its project."""
        return f"{os.path.basename(self.project)}/{self.name}"


def boot_id() -> str:
    """Return which boot of this machine this is."""
    return (read_small("/proc/sys/kernel/random/boot_id") or b"").decode("ascii", "replace").strip()


def process_start(process: int) -> int:
    """Return when a process was started, in ticks since boot; 0 if there is none, or only its remains."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if words[0] in (b"Z", b"X") else int(words[19])


class Records:
    """All of them."""

    def __init__(self, state: str) -> None:
        self.state = state
        self._directory = open_state(state, DIRECTORY)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock under which names are given."""
        with Closing(os.open("lock", OPEN_LOCK, 0o600, dir_fd=self._directory)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def all(self) -> list[Agent]:
        """Return every record that can be read, oldest first."""
        found = [self._read(name) for name in os.listdir(self._directory) if name.endswith(_SUFFIX)]
        return sorted((agent for agent in found if agent is not None), key=lambda agent: (agent.created, agent.id))

    def get(self, identifier: str) -> Agent | None:
        """Return one, as it is now."""
        return self._read(f"{identifier}{_SUFFIX}")

    def settle(self, agent: Agent) -> tuple[Agent, bool]:
        """Return whether its launcher runs, with the last record: before one is gone it writes how it ended."""
        alive = agent.alive
        if alive or agent.ended or not agent.pid:
            return agent, alive
        return self.get(agent.id) or agent, False

    def save(self, agent: Agent) -> None:
        """Write one down."""
        replace_file(self._directory, f"{agent.id}{_SUFFIX}", json.dumps(asdict(agent)).encode())

    def mark_seen(self, agent: Agent, *, seen: bool = True) -> None:
        """Write down whether somebody has seen the report of one that has ended."""
        path = self._note(agent)
        if not seen:
            with Closing(os.open(os.path.dirname(path), OPEN_DIRECTORY)) as directory:
                replace_file(directory, os.path.basename(path), os.fsencode(agent.name))
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def is_seen(self, agent: Agent) -> bool:
        """Return whether there is nothing to be seen."""
        return not os.path.lexists(self._note(agent))

    def _note(self, agent: Agent) -> str:
        return f"{self.state}/instances/{agent.instance}/{UNSEEN}{agent.id}"

    def remove(self, agent: Agent) -> None:
        """Forget one."""
        self.mark_seen(agent)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{agent.id}{_SUFFIX}", dir_fd=self._directory)

    def find(self, name: str, workdir: str) -> Agent:
        """Return the one that a user means in this directory: by name, PROJECT/NAME or id, living ones first."""
        agents = self.all()
        wanted = [agent for agent in agents if name in (agent.name, agent.full_name, agent.id)]
        for subset in ([agent for agent in wanted if agent.alive or agent.starting], wanted):
            here = [agent for agent in subset if _is_within(workdir, agent)] or subset
            if len(here) == 1 or (here and len({agent.full_name for agent in here}) == 1):
                return here[-1]
            if here:
                names = ", ".join(f"`{agent.full_name}`" for agent in here[:8])
                raise ClaudeboxError(f"several sessions are called `{name}`: {names}", hint="give the longer name")
        known = ", ".join(f"`{agent.full_name}`" for agent in agents[-8:])
        raise ClaudeboxError(f"there is no session `{name}`", hint=f"there are {known}" if known else "none runs here")

    def find_only(self, workdir: str) -> Agent:
        """Return the one that a user means who gives no name: the one of this project, or the only one."""
        agents = [agent for agent in self.all() if agent.alive or agent.starting]
        here = [agent for agent in agents if _is_within(workdir, agent)] or agents
        if len(here) == 1:
            return here[0]
        if not here:
            raise ClaudeboxError("no session runs without a terminal", hint="start one with `claudebox --detach`")
        names = ", ".join(f"`{agent.full_name}`" for agent in here[:8])
        raise ClaudeboxError(f"there are several sessions: {names}", hint="give one of these names")

    def prune(self) -> list[Agent]:
        """Forget the oldest of those that have ended, and return them."""
        over = [agent for agent in self.all() if not agent.alive and not agent.starting]
        old = [
            agent
            for index, agent in enumerate(reversed(over))
            if index >= _MOST_ENDED or time.time() - max(agent.ended, agent.created) > _OLDEST
        ]
        for agent in old:
            self.remove(agent)
        return old

    def _read(self, name: str) -> Agent | None:
        content = read_at(self._directory, name)
        try:
            document = json.loads(content or b"")
            known = {field.name: document[field.name] for field in fields(Agent) if field.name in document}
            return Agent(**known)
        except (ValueError, TypeError):  # half written on a full disk, or of another version
            return None


def _is_within(workdir: str, agent: Agent) -> bool:
    return any(f"{workdir}/".startswith(f"{place}/") for place in (agent.project, agent.workdir))


def mark_begun(records: Records, agent: Agent) -> Agent:
    """Write down that the payload runs."""
    agent = replace(agent, begun=time.time())
    records.save(agent)
    return agent
