"""Lines about what came back from the agent's repositories, and a preview of what would."""

from __future__ import annotations

import os
import re

from claudebox.base.console import list_some, shorten
from claudebox.base.errors import ClaudeboxError
from claudebox.git import config as git_config
from claudebox.git import private
from claudebox.git import state as git_state
from claudebox.git.refs import HEADS, TAGS, Move, merge_refs, remote_names
from claudebox.git.sandbox import GitError, Limits
from claudebox.git.sides import agent_side, host_side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from claudebox.git.importer import ImportResult
    from claudebox.git.sandbox import Tools


_REMOTE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# No `::`, which names a program, and no user name in a web address, which may be a token.
_ADDRESS = re.compile(r"(?!.*::)(?:https://[A-Za-z0-9/._~+:-]+|(?!http)(?:ssh://)?[A-Za-z0-9/.][A-Za-z0-9/._~+:@-]*)")
_SHORT = 7  # digits of a commit
_MOST = 50  # names in a line
_MOST_MOVED = 8  # refs that are named, branches that grew first
_MOST_REFUSED = 500  # high, so that an agent cannot bury one
_MOST_COMMITS, _MOST_FILES = 20, 20


def lines(done: Mapping[str, ImportResult]) -> list[str]:
    """Return what came back from each repository, by its private directory."""
    moved, rest = divide(done)
    return [*([f"git: {', '.join(moved)}"] if moved else []), *rest]


def divide(done: Mapping[str, ImportResult]) -> tuple[list[str], list[str]]:
    """Return a few words for each branch that moved, and the lines about the rest."""
    moved, rest = [], []
    for path, result in done.items():
        layout = git_state.read_layout(path)
        where = f"git ({layout.module})" if layout.depth else "git"
        moved += [f"{layout.module}: {row}" if layout.depth else row for row in _moves(result.moved)]
        rest += of_one(where, result, layout.only)
    return moved, rest


def of_one(where: str, result: ImportResult, only: str = "") -> list[str]:
    """Return the lines about one repository, besides its branches that moved."""
    found = []
    if result.renamed:
        why = "" if only else ": yours has moved too"
        rows = [f"{name_of(name)} arrived as {name_of(other)}{why}" for name, other in result.renamed]
        found.append(f"{where}: {list_some(rows, _MOST)}")
    for reason in dict.fromkeys(reason for _, reason in result.refused):  # one line for all that share it
        names = [name_of(name) for name, why in result.refused if why == reason]
        stay = "stays" if len(names) == 1 else "stay"
        found.append(f"{where}: {list_some(names, _MOST_REFUSED)} {stay} inside: {shorten(reason, 160)}")
    if result.removed:
        names = [shorten(name, 80) for name in dict.fromkeys(result.removed)]
        what = "removed from the git directory inside, where git would wait for them for ever"
        found.append(f"{where}: pipes and the like {what}: {list_some(names, _MOST)}")
    found += [f"{where}: {shorten(note, 300)}" for note in dict.fromkeys((*result.obeyed, *result.notes))]
    return found


def _moves(moves: Iterable[Move]) -> list[str]:
    """Return a few words for each ref, from the first of its moves to the last; branches that grew come first."""
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    commits: dict[str, int] = {}
    for move in moves:
        first.setdefault(move.name, move.old)
        last[move.name] = move.new
        commits[move.name] = commits.get(move.name, 0) + move.commits
    grown = [name for name in last if commits[name] and first[name] and last[name] not in ("", first[name])]
    rows = [f"{name_of(name)} +{_commits(commits[name])} ({_span(first[name], last[name])})" for name in grown]
    rows += [f"{name_of(name)} new" for name in sorted(last) if last[name] and not first[name]]
    for name, new in last.items():
        if first[name] and not new:
            rows.append(f"{name_of(name)} deleted (was {first[name][:_SHORT]})")
        elif first[name] and new != first[name] and name not in grown:
            rows.append(f"{name_of(name)} moved ({_span(first[name], new)})")
    more = [f"{len(rows) - _MOST_MOVED} more branches and tags"] if len(rows) > _MOST_MOVED else []
    return rows[:_MOST_MOVED] + more


def _commits(count: int) -> str:
    return f"{count} commit{'s' * (count != 1)}"


def _span(old: str, new: str) -> str:
    return f"{old[:_SHORT]}..{new[:_SHORT]}"


def describe_settings(path: str, config: bytes, hooks: list[str]) -> list[str]:
    """Return the lines about remotes and hooks that were made inside since the session began.

    A command is named only if it means nothing but an address: the agent has chosen it.
    """
    config_now, hooks_now = private.read_settings(path)
    before, now = (dict(_remotes(text)) for text in (config, config_now))
    rows = []
    for name, address in [(name, now[name]) for name in now if name not in before][:_MOST_MOVED]:
        plain = _ADDRESS.fullmatch(address) and _REMOTE.fullmatch(name)
        remedy = f": `git remote add {name} {address}` adds it here" if plain else ""
        rows.append(f"git: the remote {shorten(name, 80)} was added inside only{remedy}")
    made = [shorten(name, 80) for name in hooks_now if name not in hooks and not name.endswith(".sample")]
    return rows + ([f"git: hooks made inside run only there: {list_some(made, _MOST_MOVED)}"] if made else [])


def _remotes(config: bytes) -> Iterator[tuple[str, str]]:
    rows = git_config.parse_config(config)
    return ((name, value) for section, name, key, value in rows if section == "remote" and name and key == "url")


def name_of(ref: str) -> str:
    """Return a branch or tag as users call it."""
    short = ref.removeprefix(HEADS)
    return shorten(f"tag {ref.removeprefix(TAGS)}" if ref.startswith(TAGS) else short, 80)


def preview(path: str, tools: Tools) -> list[str]:
    """Return the commits and changed files that would come back."""
    if git_state.settled(path):
        return []
    state, limits, rows = git_state.read_state(path), Limits(), []
    layout = state.layout
    private.remove_special(f"{path}/own")
    try:
        with (
            agent_side(tools, path, layout, limits) as agent,
            host_side(tools, path, layout, limits, "preview") as host,
        ):
            for side in (agent, host):
                side.read_refs()
            names = remote_names(layout.common, host.refs)
            merged = merge_refs(
                agent.refs, host.refs, state.refs(), agent.contains, remotes=lambda: names, only=layout.only
            )
            for move in (*merged.outbound, *merged.diverged):
                since = [f"^{value}" for value in sorted(set(host.refs.values()))]
                rows.append(f"{name_of(move.name)}:" if move.new else f"{name_of(move.name)}: deleted")
                if move.new:
                    data = "\n".join([move.new, *since, ""]).encode()
                    log = agent.box.git("log", "--stdin", "--format=%h %s", f"-n{_MOST_COMMITS}", data=data)
                    rows += [f"  {row}" for row in log.decode("utf-8", "surrogateescape").split("\n") if row]
                if move.new and move.old:
                    changed = agent.box.git("diff", f"--stat-count={_MOST_FILES}", "--stat=100", move.old, move.new)
                    rows += [f"  {row}" for row in changed.decode("utf-8", "surrogateescape").split("\n") if row]
            if not rows and agent.head() != host.head():
                rows.append(f"HEAD: {agent.head()[0]}")
    except GitError as error:
        raise ClaudeboxError(f"`{layout.common}`: {error}") from None
    return [f"{os.path.basename(layout.work_tree)}:", *rows] if rows else []
