"""Records of background sessions: one file each in ~/.claudebox/agents, which no sandbox sees.

The kernel says whether one is alive: by process number, start time and boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, fields

from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_LOCK, Closing, parse_object, read_at, read_small, replace_file, write_file
from claudebox.base.state import open_state
from claudebox.report.leftovers import UNSEEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


DIRECTORY = "agents"
_SUFFIX = ".json"
_START_SECONDS = 30.0  # after which a launcher without a process counts as failed
_MAX_ENDED, _MAX_AGE = 32, 7 * 86400.0  # of ended sessions


@dataclass(frozen=True)
class Agent:
    """One background session."""

    id: str
    name: str
    workdir: str
    project: str  # the user's own, if `workdir` is a copy of it
    instance: str  # name of its state
    created: float
    pid: int = 0  # of its launcher
    start: int = 0  # of that process, in ticks since boot
    boot: str = ""
    begun: float = 0.0  # when the payload started
    ended: float = 0.0
    status: int = -1  # -1: unknown

    @property
    def alive(self) -> bool:
        """Return whether its launcher runs."""
        return not self.ended and self.pid > 0 and self.boot == boot_id() and process_start(self.pid) == self.start

    @property
    def starting(self) -> bool:
        """Return whether its launcher may still report its process."""
        return not self.pid and not self.ended and 0 <= time.time() - self.created < _START_SECONDS

    @property
    def full_name(self) -> str:
        """Return PROJECT/NAME."""
        return f"{os.path.basename(self.project)}/{self.name}"


def boot_id() -> str:
    return (read_small("/proc/sys/kernel/random/boot_id") or b"").decode("ascii", "replace").strip()


def process_start(process: int) -> int:
    """Return when a process was started, in ticks since boot; 0 if it does not run."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if words[0] in (b"Z", b"X") else int(words[19])


class Records:
    """The records of all background sessions of a user."""

    def __init__(self, state: str) -> None:
        self.state = state
        self._directory = open_state(state, DIRECTORY)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for choosing names."""
        with Closing(os.open("lock", OPEN_LOCK, 0o600, dir_fd=self._directory)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def all(self) -> list[Agent]:
        """Return every readable record, oldest first."""
        found = [self._read(name) for name in os.listdir(self._directory) if name.endswith(_SUFFIX)]
        return sorted((agent for agent in found if agent is not None), key=lambda agent: (agent.created, agent.id))

    def get(self, identifier: str) -> Agent | None:
        return self._read(f"{identifier}{_SUFFIX}")

    def settle(self, agent: Agent) -> tuple[Agent, bool]:
        """Return the record, and whether its launcher runs; an ended one is read again, as it recorded its end last."""
        alive = agent.alive
        if alive or agent.ended or not agent.pid:
            return agent, alive
        return self.get(agent.id) or agent, False

    def save(self, agent: Agent) -> None:
        replace_file(self._directory, f"{agent.id}{_SUFFIX}", json.dumps(asdict(agent)).encode())

    def remove(self, agent: Agent) -> None:
        self.mark_seen(agent)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{agent.id}{_SUFFIX}", dir_fd=self._directory)

    def prune(self) -> list[Agent]:
        """Remove the oldest ended sessions, and return them."""
        ended = [agent for agent in self.all() if not agent.alive and not agent.starting]
        old = [
            agent
            for index, agent in enumerate(reversed(ended))
            if index >= _MAX_ENDED or time.time() - max(agent.ended, agent.created) > _MAX_AGE
        ]
        for agent in old:
            self.remove(agent)
        return old

    def mark_seen(self, agent: Agent, *, seen: bool = True) -> None:
        """Record whether the user has seen the report of an ended session; the next launch mentions unseen ones."""
        path = self._seen_marker(agent)
        if not seen:
            write_file(path, os.fsencode(agent.name))
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def is_seen(self, agent: Agent) -> bool:
        return not os.path.lexists(self._seen_marker(agent))

    def _seen_marker(self, agent: Agent) -> str:
        return f"{self.state}/instances/{agent.instance}/{UNSEEN}{agent.id}"

    def find(self, name: str, workdir: str) -> Agent:
        """Return the session called NAME, PROJECT/NAME or by id: living ones and those of this directory first."""
        agents = self.all()
        wanted = [agent for agent in agents if name in (agent.name, agent.full_name, agent.id)]
        for subset in ([agent for agent in wanted if agent.alive or agent.starting], wanted):
            here = [agent for agent in subset if _is_within(workdir, agent)] or subset
            if len(here) == 1 or (here and len({agent.full_name for agent in here}) == 1):
                return here[-1]
            if here:
                raise _ambiguous(f"several sessions are called `{name}`", here)
        known = ", ".join(f"`{agent.full_name}`" for agent in agents[-8:])
        raise ClaudeboxError(f"there is no session `{name}`", hint=f"there are {known}" if known else "none is running")

    def find_only(self, workdir: str) -> Agent:
        """Return the only running session, of this directory or of all."""
        agents = [agent for agent in self.all() if agent.alive or agent.starting]
        here = [agent for agent in agents if _is_within(workdir, agent)] or agents
        if not here:
            raise ClaudeboxError("no background session is running", hint="start one with `claudebox --detach`")
        if len(here) > 1:
            raise _ambiguous("there are several sessions", here)
        return here[0]

    def _read(self, name: str) -> Agent | None:
        document = parse_object(read_at(self._directory, name))
        try:
            return Agent(**{field.name: document[field.name] for field in fields(Agent) if field.name in document})
        except TypeError:  # half written on a full disk, or of another version
            return None


def _is_within(workdir: str, agent: Agent) -> bool:
    return any(f"{workdir}/".startswith(f"{place}/") for place in (agent.project, agent.workdir))


def _ambiguous(problem: str, agents: list[Agent]) -> ClaudeboxError:
    names = ", ".join(f"`{agent.full_name}`" for agent in agents[:8])
    return ClaudeboxError(f"{problem}: {names}", hint="give one of these names")
