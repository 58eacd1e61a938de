"""`claudebox help complete -- WORDS`: completion. The scripts of all shells ask it, so that they know no flag.

Prints what may stand where the last word is: one word per line, with a tab and its meaning; an empty word stands for
files. Writes nothing, and starts nothing but the installed agent, with `--help`, to learn its flags.
"""

from __future__ import annotations

import os
import re
import subprocess

from claudebox.agent import facts, kinds
from claudebox.agent.record import AgentKind
from claudebox.base import console
from claudebox.commands.usage import TOPICS
from claudebox.host import programs
from claudebox.settings.files import SettingsReader
from claudebox.settings.table import SETTINGS
from claudebox.settings.verbs import VERBS, find_verb
from claudebox.tables.network import GROUPS
from claudebox.tables.tools import TOOLCHAINS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from claudebox.settings.records import Setting
    from claudebox.settings.verbs import Verb

    Candidates = Iterable[tuple[str, str]]


FILES = ("", "")
_HELP_SECONDS = 3
_HELP_FLAGS = re.compile(r"^ {1,8}(?=-)(\S.*?)(?:  +(\S.*))?$", re.MULTILINE)
_PATHS = ("SRC[:DEST]", "DIRECTORY", "DIR", "FILE", "NODE", "PATH")  # metavars


def list_candidates(words: Sequence[str], environ: dict[str, str]) -> Iterator[str]:
    """Yield what may stand in the place of the last word."""
    *before, current = words or [""]
    line = _Line(environ)
    for word in before:
        line.take(word)
    found = dict.fromkeys(row for row in line.candidates(current) if row == FILES or row[0].startswith(current))
    for word, meaning in found or [FILES] * line.takes_files:
        yield f"{console.clean(word)}\t{console.clean(meaning)}"


class _Line:
    """A command line as far as the cursor."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.takes_files = True  # where nothing else fits
        self._environ = environ
        self._home = environ.get("HOME", "")
        self._rows = {flag: row for row in SETTINGS for flag in row.flags}
        self._flag: Setting | None = None  # whose value is next
        self._verb: Verb | None = None
        self._operands = 0
        self._agent: AgentKind | None = kinds.find_kind(kinds.USUAL)  # none: a command
        self._begun = self._rest = False  # words of the agent were there; only such follow

    def take(self, word: str) -> None:
        """Take a word before the cursor."""
        row = self._rows.get(word)
        if self._flag is not None:
            self._flag = None
        elif self._rest:
            return
        elif word == "--":
            self._rest = True
        elif row is not None and row.shape != "switch":
            self._flag = row
        elif row is not None:
            self._agent = None if row.key in ("exec", "shell") else self._agent
        elif word.startswith("-") and word.partition("=")[0] in self._rows:
            return
        elif self._verb is not None and (not self._verb.launches or not self._operands):
            self._operands += 1
        elif self._begun or self._agent is None:
            self._begun, self._rest = True, self._agent is None
        elif self._verb is None and (verb := find_verb(word)) is not None:
            self._verb, self._rows = verb, verb.rows(self._rows)
        else:
            self._begun = True
            self._rest = word in kinds.list_names() or word in self._agent.subcommands
            if word in kinds.list_names():
                self._agent = kinds.find_kind(word)

    def candidates(self, current: str) -> Candidates:
        """Return what may follow, of which not everything begins like the word that is there."""
        flag, assigned, value = current.partition("=")
        if self._flag is not None:
            return self._values(self._flag, current)
        if assigned and not self._rest and flag in self._rows:
            return ((f"{flag}={word}", meaning) for word, meaning in self._values(self._rows[flag], value))
        launching = self._verb is None or (self._verb.launches and self._operands > 0)
        if current.startswith("-"):
            self.takes_files = launching
            own = [] if self._rest else [(name, row.help) for name, row in self._rows.items()]
            return [*own, *(self._agent_flags() if launching else ())]
        if not launching and self._verb is not None:
            return self._names(self._verb)
        if self._rest or self._begun or self._agent is None:
            return [*(self._agent_words() if self._rest else ()), FILES]
        verbs = () if self._verb else ((verb.word, verb.help) for verb in VERBS)
        return [*verbs, *((name, "start this agent") for name in kinds.list_names()), *self._agent_words()]

    def _agent_words(self) -> Candidates:
        agent = self._agent or AgentKind("")
        return ((word, f"of {agent.name}") for word in sorted(agent.subcommands - {*agent.not_inside}))

    def _agent_flags(self) -> Iterator[tuple[str, str]]:
        """Yield the flags that the help of the installed agent names; it sees neither the home nor the project."""
        path = programs.search_path(self._environ, os.getcwd())
        agent = self._agent or AgentKind("")
        client, _ = facts.look_for_client(agent, self._home, path, os.getcwd(), "")
        if client is None:
            return
        environ = {"HOME": "/nonexistent", "PATH": ":".join(path)}
        try:
            done = subprocess.run(
                [client.path, "--help"], env=environ, cwd="/", stdin=subprocess.DEVNULL, capture_output=True,
                encoding="utf-8", errors="replace", timeout=_HELP_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return
        for flags, meaning in _HELP_FLAGS.findall(done.stdout):
            yield from ((flag, meaning or f"of {agent.name}") for flag in re.findall(r"(?<![\w-])--?\w[\w-]*", flags))

    def _values(self, row: Setting, text: str) -> Candidates:
        """Return what may be the value of a flag."""
        self.takes_files = row.metavar in _PATHS
        if row.key == "set":
            return _find_assignments() if "=" in text else _find_keys(self._home, "=")
        if row.key == "env":
            return ((name, "") for name in self._environ if name.isidentifier())
        if row.metavar in ("DOMAIN", "PROFILE"):
            return _SOURCES[row.metavar](self._home)
        return ((word, "") for word in _list_values(row))

    def _names(self, verb: Verb) -> Iterator[tuple[str, str]]:
        """Yield what may be the next operand of a verb: its words in lower case, and names of the others."""
        operands = verb.operands.replace("[", "").replace("]", "").split()
        self.takes_files = False
        if self._operands < len(operands) or (operands[-1:] and operands[-1].endswith("...")):
            for kind in operands[min(self._operands, len(operands) - 1)].rstrip(".").split("|"):
                source = _SOURCES.get(f"{verb.word} {kind}") or _SOURCES.get(kind)
                yield from ((kind, ""),) if kind.islower() else source(self._home) if source is not None else ()


def _find_keys(_home: str, end: str = "") -> Candidates:
    return ((f"{row.file_key}{end}", row.help) for row in SETTINGS if row.in_files != "none")


def _list_values(row: Setting) -> Sequence[str]:
    match row.file_key:
        case "toolchains":
            return ("auto", "none", *TOOLCHAINS)
        case "allow":
            return kinds.list_protected_names()
        case "agent":
            return kinds.list_names()
        case _:
            return ("true", "false") if row.shape == "switch" else row.choices


def _find_assignments() -> Iterator[tuple[str, str]]:
    for row in SETTINGS:
        if row.in_files in ("user", "project"):
            yield from ((f"{row.file_key}={value}", "") for value in _list_values(row))


def _find_profiles(home: str) -> Candidates:
    return ((name, "") for name in SettingsReader(home).names())


def _find_domains(home: str) -> Iterator[tuple[str, str]]:
    """Yield groups, and what was denied here last."""
    from claudebox.base import state
    from claudebox.report import denied, log

    yield from ((name, ", ".join(domains[:3])) for name, domains in GROUPS.items())
    directory = f"{home}/.claudebox/{log.DIRECTORY}"
    for name in log.records(directory, state.locate(home, os.getcwd()).name)[-1:]:
        lines = log.LogReader(directory, name).lines()
        yield from ((domain, "was denied") for domain in filter(None, map(denied.find_domain, lines)))


def _find_agents(home: str) -> Iterator[tuple[str, str]]:
    """Yield the names of background sessions and worktrees."""
    from claudebox.many.records import DIRECTORY, Records

    state = f"{home}/.claudebox"
    for agent in Records(state).all() if os.path.isdir(f"{state}/{DIRECTORY}") else ():
        yield agent.name, agent.workdir
    yield from _find_worktrees(home)


def _find_worktrees(home: str) -> Candidates:
    from claudebox.many.worktrees import Copies

    return ((copy.name, copy.source) for copy in Copies(home).all())


def _find_sessions(home: str) -> Iterator[tuple[str, str]]:
    """Yield the sessions of this directory that have a snapshot."""
    from claudebox.base import state
    from claudebox.undo.store import SnapshotStore

    store = SnapshotStore(f"{state.locate(home, os.getcwd()).directory}/undo", writing=False)
    yield from ((name, "") for name in reversed(store.names()))


# An operand, in one verb or in all.
_SOURCES: dict[str, Callable[[str], Candidates]] = {
    "new NAME": _find_worktrees,
    "finish NAME": _find_worktrees,
    "help NAME": _find_keys,
    "NAME": _find_agents,
    "AGENT": _find_agents,
    "review SESSION": lambda home: (*_find_agents(home), *_find_sessions(home)),
    "SESSION": _find_sessions,
    "DOMAIN": _find_domains,
    "PROFILE": _find_profiles,
    "TOPIC": lambda _home: (*TOPICS.items(), *((verb.word, verb.help) for verb in VERBS)),
    **dict.fromkeys(("FILE", "FILES", "PATH"), lambda _home: (FILES,)),
}
