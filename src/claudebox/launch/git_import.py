"""Bring what the agent did in its own git directory back to the real repository, as checked data (GIT-03).

Two sandboxes: in one the agent's repository is read, and a pack and text come out; in the other `git receive-pack`
takes the pack into the real repository, with quarantine, fsck and compare-and-swap, and nothing of the repository's own
configuration or hooks in force. Branches and new tags only. What the host did meanwhile goes the other way.
"""

from __future__ import annotations

import os
import time

from claudebox.console import shorten
from claudebox.errors import ClaudeboxError
from claudebox.files import list_names, real_path
from claudebox.git.disarm import disarm_paths
from claudebox.launch import (
    git_adopt,
    git_checkout,
    git_cleanup,
    git_kept,
    git_merge,
    git_obeyed,
    git_state,
    git_submodules,
    git_transfer,
)
from claudebox.launch.git_checkout import Checkout
from claudebox.launch.git_merge import Move, put, render_updates
from claudebox.launch.git_names import HEADS, TAGS, find_hidden, remote_names, shorten_ref
from claudebox.launch.git_result import ImportResult, join
from claudebox.launch.git_sandbox import GitError, Limits
from claudebox.launch.git_sides import own_side, own_side_writable, real_side
from claudebox.launch.git_state import Private, read_layout, stamp
from claudebox.launch.git_worktrees import Worktrees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.launch.git_sandbox import Tools
    from claudebox.launch.git_sides import Side

_MOMENT = 0.01  # seconds: more than the clock of a file system needs for the next time
_ATTEMPTS = 3  # after the host moved something in the midst of an import
AT_THE_END = Limits(seconds=240.0)  # nobody waits for ever; `--import` goes on for longer


def private_directories(directory: str) -> list[str]:
    """Return the private directories of a project, submodules before what is around them."""
    paths = [f"{directory}/{name}" for name in list_names(directory) if git_state.has_state(f"{directory}/{name}")]
    return sorted(paths, key=lambda path: -read_layout(path).depth)


def bring_back(
    path: str, tools: Tools, session: str, *, limits: Limits | None = None, outward: bool = True, final: bool = False
) -> ImportResult:
    """Bring one repository back, given its private directory, and bring in what the host did.

    Not `outward`: only the latter. `final`: no agent runs any more.
    """
    with Private(path) as private:
        done = ImportResult()
        for _ in range(_ATTEMPTS):
            attempt = _Import(private, tools, session, limits or Limits(), outward=outward, final=final)
            done = join(done, attempt.run())
            if all(reason != git_transfer.MOVED_MEANWHILE for _, reason in done.refused):
                break
        return done


def finish(
    path: str, tools: Tools, session: str, *, limits: Limits = AT_THE_END, final: bool = True
) -> dict[str, ImportResult]:
    """Bring a repository back at the end, after the submodules that the agent has added to it."""
    done: dict[str, ImportResult] = {}
    if final:
        for module in git_adopt.adopt_submodules(path):
            done |= finish(module, tools, session, limits=limits)
    done[path] = bring_back(path, tools, session, limits=limits, final=final)
    return done


def adopt(path: str, tools: Tools, session: str) -> dict[str, ImportResult]:
    """Bring back a repository that the agent has made where there was none."""
    if not git_adopt.adopt_repository(path):
        return {}
    done = finish(path, tools, session)
    if git_state.settled(path):
        git_adopt.forget_repository(path)
    return done


class _Import:
    """One import, under its lock."""

    def __init__(
        self, private: Private, tools: Tools, session: str, limits: Limits, *, outward: bool, final: bool
    ) -> None:
        self._private, self._tools, self._session, self._limits = private, tools, session, limits
        self._outward, self._final = outward, final
        self._state = private.state()
        self._layout = self._state.layout
        self._moved: list[Move] = []
        self._followed: list[Move] = []
        self._renamed: list[tuple[str, str]] = []
        self._refused: dict[str, str] = {}
        self._notes: list[str] = []
        self._named: list[str] = []
        self._obeyed: dict[str, str] = {}  # refs that change what git of the host obeys, and a path of that

    def run(self) -> ImportResult:
        """Do it, and say what was done."""
        private, layout = self._private, self._layout
        removed = tuple(git_cleanup.remove_special(f"{private.path}/own"))
        seen, looked = stamp(f"{private.path}/own", layout.checkout), time.monotonic()
        try:
            with (
                own_side(self._tools, private.path, layout, self._limits) as agent,
                real_side(self._tools, private.path, layout, self._limits, self._session, private.lock) as real,
            ):
                # A change of the same moment could bear the same time: what is read from here on contains it.
                time.sleep(max(0.0, looked + _MOMENT - time.monotonic()))
                agent.begin_refs()
                real.begin_refs()
                agent.read_refs()
                real.read_refs()
                checkout = Checkout(private, layout, agent, real, self._writer, outward=self._outward)
                settled = self._sync(agent, real, checkout)
                moved = tuple(move.replace(commits=_count(agent, move)) for move in self._moved)
        except GitError as error:
            raise ClaudeboxError(f"`{layout.common}`: {error}") from None
        private.update(seen=seen if settled else "")
        refused = tuple(self._refused.items())
        notes = (*self._notes, *checkout.notes)
        return ImportResult(
            moved, tuple(self._renamed), refused, tuple(self._followed), checkout.head, notes, removed,
            tuple(self._told(agent)), tuple(self._named),
        )  # fmt: skip

    def _told(self, agent: Side) -> Iterator[str]:
        """Yield the refs that were refused with the same commit and for the same reason when a session last ended."""
        rows = {name: f"{name} {agent.refs.get(name, '-')} {reason}" for name, reason in self._refused.items()}
        yield from (name for name, row in rows.items() if row in self._state.refused)
        if self._final:
            self._private.update(refused=tuple(rows.values()))

    def _sync(self, agent: Side, real: Side, checkout: Checkout) -> bool:
        """Compare both sides and move what moved; return whether nothing of the agent's is left behind."""
        layout, private = self._layout, self._private
        worktrees = Worktrees(private.path, layout, agent, real)
        elsewhere = git_checkout.other_heads(layout, real.refs, worktrees.reached, real.box)
        remotes = lambda: remote_names(layout.common, real.refs)  # noqa: E731 - only asked for if a ref is new
        hidden = find_hidden(layout.work_tree, layout.git_dir) if layout.only else ().__contains__
        theirs = {name: value for name, value in real.refs.items() if not hidden(name)}
        merged = git_merge.merge_refs(
            agent.refs, theirs, self._state.refs(), agent.contains, elsewhere, remotes, layout.only
        )
        if not self._outward:
            merged = merged.replace(out=(), parted=(), refused=())
        base = merged.agreed
        self._refused.update(merged.refused)
        checkout.read()
        out, parted = self._admit(agent, real, merged.out), self._admit(agent, real, merged.parted)
        guarded = [move for move in out if move.name in self._obeyed]
        out, parted = [move for move in out if move.name not in self._obeyed], [*parted, *guarded]
        renamed = self._under_other_names(parted, real.refs, out)
        private.update(base=git_state.render_refs(base))
        # A branch that is checked out moves with its index, or not at all.
        here = [move for move in out if f"ref: {move.name}" == real.head()[0]]
        there = [move for move in out if move not in here and f"ref: {move.name}" in worktrees.reached.values()]
        free = [move for move in out if move not in (*here, *there)]
        carried = {move.new for move in (*here, *there) if move.new}
        carried |= checkout.needed_objects() if self._outward else set()
        answers = git_transfer.send(agent, real, [*free, *renamed], carried)
        self._refused.update((name, reason) for name, reason in answers.items() if reason and name.startswith("refs/"))
        for move in (*free, *renamed):
            if not answers[move.name]:
                real.put(move)
        self._moved += [move for move in free if not answers[move.name]]
        if out and os.path.lexists(f"{private.path}/own/lfs/objects"):
            self._bring_large_files()
        inward = [move for move in merged.into if f"ref: {move.name}" == agent.head()[0]]
        if len(inward) < len(merged.into):
            self._follow(agent, [move for move in merged.into if move not in inward])
        reason = self._settle(agent, real, checkout, here, inward)
        self._refused.update((move.name, answers[move.new]) for move in (*here, *there) if answers.get(move.new))
        kept = {move: reason for move in here if real.refs.get(move.name, "") != move.new}
        if self._outward and not layout.only:
            self._notes += worktrees.bring_back(checkout, elsewhere, there, final=self._final)
            kept |= {move: worktrees.problem for move in there if real.refs.get(move.name, "") != move.new}
        self._moved += [move for move in (*here, *there) if move not in kept]
        kept = {move: reason for move, reason in kept.items() if move.name not in self._refused}
        if kept and self._final:
            self._divert(agent, real, kept)
        for move in (*self._moved, *self._followed):
            put(base, move)
        private.update(base=git_state.render_refs(base))
        stays = self._what_stays(agent, real, base) if self._outward else []
        if self._final:
            self._notes += stays
        real.drop_carriers()
        settled = checkout.is_settled or bool(parted) or (bool(kept) and self._final)
        return settled and not self._refused and (self._final or not (stays or kept))  # the end has to say it

    def _settle(self, agent: Side, real: Side, checkout: Checkout, moves: list[Move], inward: list[Move]) -> str:
        """Bring HEAD and index in step, with the branches that are checked out; return why the host's stay."""
        staged = checkout.read_changes()
        links = frozenset(path for path, mode in staged.items() if mode == git_submodules.GITLINK)
        closed = self._disarm(links) if self._final else links
        obeyed = git_obeyed.find_checked_out(agent, real, self._layout, staged)
        self._notes += git_obeyed.describe_checkout(obeyed)
        reason = checkout.settle(moves, inward, closed | obeyed)
        self._followed += [move for move in inward if agent.refs.get(move.name, "") == move.new]
        if reason and not closed | obeyed:
            self._notes.append(f"HEAD and index stay as they are: {reason}")
        return reason

    def _divert(self, agent: Side, real: Side, kept: dict[Move, str]) -> None:
        """Let branches arrive under other names whose checkout could not move with them."""
        self._refused.update((move.name, reason) for move, reason in kept.items() if not move.new)
        moves = [move for move in kept if move.new]
        renamed = self._under_other_names(moves, real.refs, [], {move.name: kept[move] for move in moves})
        answers = git_transfer.send(agent, real, renamed, set())
        self._refused.update((name, reason) for name, reason in answers.items() if reason)

    def _what_stays(self, agent: Side, real: Side, base: dict[str, str]) -> list[str]:
        """Return what the user should know of at the end: it stays inside."""
        found = git_kept.describe(f"{self._private.path}/own", base)
        if self._layout.ref_format != "files":  # they cannot be carried over by hand: what has them stays as it is
            rows = (side.box.git("for-each-ref", "--format=%(objectname) %(refname)", *git_kept.NAMES)
                    for side in (agent, real))  # fmt: skip
            mine, theirs = (set(text.decode("utf-8", "surrogateescape").split("\n")) for text in rows)
            stays = "made inside, where `claudebox --exec -- git stash list` and `git notes` find it"
            self._refused.update((row.partition(" ")[2], stays) for row in mine - theirs)
        if self._layout.module and os.path.lexists(f"{git_adopt.own_checkout(self._private.path, self._layout)}/.git"):
            remedy = "`git submodule update --init` brings its commits there"
            found.append(f"it is not initialised outside: {remedy}; what is not committed stays inside")
        return found

    def _bring_large_files(self) -> None:
        from claudebox.launch import git_lfs

        own, limits = f"{self._private.path}/own", self._limits
        try:
            git_lfs.bring_back(own, self._layout.common, size=limits.size, seconds=limits.seconds)
        except GitError as error:
            self._notes.append(str(error))

    def _admit(self, agent: Side, real: Side, moves: Iterable[Move]) -> list[Move]:
        """Return the moves that may come back now, as far as their gitlinks go."""
        moves = list(moves)
        known = git_obeyed.trusted_values(real.refs)
        new = [move for move in moves if move.new not in known]
        paths = git_submodules.changed_paths(agent, new, real.head()[1]) if new else {}
        self._refused.update((name, "objects of it are missing") for name, rows in paths.items() if rows is None)
        found = git_obeyed.find_obeyed(agent, self._layout, paths, {move.name: move.new for move in new}, real)
        self._obeyed.update(found.by_git)
        self._named += git_obeyed.describe_others(found.by_others)
        tags = (name for name in found.by_git if not name.startswith(HEADS))
        self._refused.update((name, git_obeyed.describe("it", found.by_git[name])) for name in tags)
        reason = "it changes a submodule, which comes back at the end of the session"
        changed = git_submodules.select_gitlinks(paths)
        if self._final:
            closed = self._disarm({path for paths in changed.values() for path in paths})
            changed = {name: paths for name, paths in changed.items() if not closed.isdisjoint(paths)}
            reason = "it changes a submodule whose directory cannot be examined"
        self._refused.update(dict.fromkeys(changed, reason))
        return [move for move in moves if move.name not in self._refused]

    def _disarm(self, links: Iterable[bytes]) -> frozenset[bytes]:
        """Disarm what stands at gitlinks that are to come back; return those that must not."""
        layout = self._layout
        known = (real_path(layout.common),)
        notes, closed = disarm_paths(layout.work_tree, links, known, git_state.find_work_tree(layout))
        self._notes += notes
        return closed

    def _under_other_names(
        self, parted: list[Move], theirs: dict[str, str], out: list[Move], why: dict[str, str] | None = None
    ) -> list[Move]:
        """Return how branches arrive that parted from the real ones; nothing to do for those that are there already."""
        moves = []
        session = self._session  # sessions in two worktrees may begin in the same second
        if self._layout.git_dir != self._layout.common:
            session += f"-{os.path.basename(self._layout.git_dir)}"
        for move in parted:
            kind = TAGS if move.name.startswith(TAGS) else HEADS
            known = next((name for name, value in theirs.items() if value == move.new and name.startswith(kind)), "")
            name = known or f"{kind}claudebox/{session}/{move.name.removeprefix(kind)}"
            others = {*theirs, *(other.name for other in out)} - {name}
            if not known and shorten_ref(name) in map(shorten_ref, others):
                self._refused[move.name] = "yours has moved too, and the name that it would arrive under is taken"
            elif move.name in self._obeyed:
                short = shorten(move.name.removeprefix(HEADS), 80)
                self._notes.append(git_obeyed.describe(short, self._obeyed[move.name], name))
            elif why:
                arrived = shorten(name.removeprefix(HEADS), 80)
                self._notes.append(
                    f"{shorten(move.name.removeprefix(HEADS), 80)} arrived as {arrived}: {why[move.name]}"
                )
            else:
                self._renamed.append((move.name, name))
            if move.name not in self._refused and not known:
                moves.append(Move(name, theirs.get(name, ""), move.new))
        return moves

    def _writer(self) -> Side:
        return own_side_writable(self._tools, self._private.path, self._layout, self._limits)

    def _follow(self, agent: Side, moves: Iterable[Move]) -> None:
        """Write inside what the host did, ref by ref: the agent may have moved one since."""
        with self._writer() as side:
            for move in moves:
                row = render_updates([move], len(agent.empty_tree))
                words = ("update-ref", "--no-deref", "-m", "claudebox: host", "--stdin", "-z")
                if side.box.ask(*words, data=row) is not None:
                    agent.put(move)
                    self._followed.append(move)


def _count(agent: Side, move: Move) -> int:
    """Return how many commits a branch has gained."""
    if not move.old or not move.new or not move.name.startswith(HEADS):
        return 0
    found = agent.box.ask("rev-list", "--count", f"{move.old}..{move.new}", "--", index=False) or b"0"
    return int(found)
