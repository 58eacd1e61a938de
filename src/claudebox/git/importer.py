"""Bring what the agent did in its own git directory back to the host's repository, as checked data (GIT-03).

In one sandbox the agent's repository is read, and a pack and text come out; in another `git receive-pack` takes the
pack into the host's repository, with quarantine, fsck and compare-and-swap, and none of its configuration and hooks
in force. Only branches and new tags come back. What the host did meanwhile goes the other way.
"""

from __future__ import annotations

import hashlib
import os
import time

from claudebox.base import console
from claudebox.base.console import shorten
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import Closing, list_names, real_path, write_all
from claudebox.base.records import Value
from claudebox.git import adoption, obeyed, sides
from claudebox.git import checkout as git_checkout
from claudebox.git import private as git_private
from claudebox.git import refs as git_refs
from claudebox.git import state as git_state
from claudebox.git.adoption import Worktrees
from claudebox.git.checkout import Checkout
from claudebox.git.disarm import disarm_paths
from claudebox.git.private import Copier
from claudebox.git.refs import (
    HEADS,
    HEX,
    TAGS,
    Merged,
    Move,
    find_hidden,
    put,
    remote_names,
    render_updates,
    shorten_ref,
)
from claudebox.git.sandbox import GitError, Limits, Tools
from claudebox.git.sides import agent_side, agent_side_writable, host_side
from claudebox.git.state import Private, read_layout, stamp
from claudebox.host import programs
from claudebox.plan import seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.base.state import Instance
    from claudebox.git.sides import Side


class ImportResult(Value):
    """What one import did."""

    moved: tuple[Move, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()  # diverged branches: name, and the name they arrived under
    refused: tuple[tuple[str, str], ...] = ()  # refs that stay inside, and why
    notes: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # pipes and the like that were in the agent's git directory
    obeyed: tuple[str, ...] = ()  # lines about refs that change paths which tools of the host obey


def join(first: ImportResult, then: ImportResult) -> ImportResult:
    """Return what two imports did, one after the other."""
    return then.replace(
        moved=(*first.moved, *then.moved),
        renamed=tuple(dict((*first.renamed, *then.renamed)).items()),
        removed=(*first.removed, *then.removed),
        obeyed=tuple(dict.fromkeys((*first.obeyed, *then.obeyed))),
    )


_MOMENT = 0.01  # seconds: longer than a tick of file timestamps
_ATTEMPTS = 3  # after the host moved something during an import
_BY_HAND = Limits(seconds=3600.0, size=16 << 30)  # the user waits, and can interrupt
AT_THE_END = Limits(seconds=240.0)  # `claudebox sync` may take longer


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
            if all(reason != sides.MOVED_MEANWHILE for _, reason in done.refused):
                break
        return done


def finish(
    path: str, tools: Tools, session: str, *, limits: Limits = AT_THE_END, final: bool = True
) -> dict[str, ImportResult]:
    """Bring a repository back at the end, after the submodules that the agent has added to it."""
    done: dict[str, ImportResult] = {}
    if final:
        for module in adoption.adopt_submodules(path):
            done |= finish(module, tools, session, limits=limits)
    done[path] = bring_back(path, tools, session, limits=limits, final=final)
    return done


def adopt(path: str, tools: Tools, session: str) -> dict[str, ImportResult]:
    """Bring back a repository that the agent has made where there was none."""
    if not adoption.adopt_repository(path):
        return {}
    done = finish(path, tools, session)
    if git_state.settled(path):
        adoption.forget_repository(path)
    return done


def import_all(instance: Instance, tools: Tools) -> tuple[dict[str, ImportResult], bool]:
    """Import everything pending in a project's state; return the results, and whether something failed."""
    done: dict[str, ImportResult] = {}
    failed = False
    for path in private_directories(f"{instance.directory}/git"):
        if not git_state.is_known(path):
            continue
        name = time.strftime("%Y%m%d-%H%M%S")
        try:
            with git_state.Alone(path) as final:
                if not os.path.lexists(read_layout(path).common):
                    done |= adopt(path, tools, name)
                elif not git_state.settled(path):
                    done |= finish(path, tools, name, limits=_BY_HAND, final=final)
        except ClaudeboxError as error:
            console.report(error)
            failed = True
    return done, failed


def find_tools(path: tuple[str, ...], *, git_needed: bool = True) -> Tools:
    """Return the programs that it takes to run git in a sandbox."""
    found, program = programs.find_bwrap(path), programs.find_tool("git", path)
    if found.problem is not None:
        raise found.problem
    if program is None and git_needed:
        raise ClaudeboxError("git is not installed", hint="install the package `git`")
    directories = (os.path.dirname(program or "/usr/bin/git"), "/usr/bin", "/bin")
    return Tools(found.path, ":".join(directories), seccomp.build(os.uname().machine) or b"")


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
        self._agent: Side
        self._host: Side
        self._checkout: Checkout

    def run(self) -> ImportResult:
        """Run the import."""
        private, layout = self._private, self._layout
        removed = tuple(git_private.remove_special(f"{private.path}/own"))
        seen, looked = stamp(f"{private.path}/own", layout.checkout), time.monotonic()
        try:
            with (
                agent_side(self._tools, private.path, layout, self._limits) as agent,
                host_side(self._tools, private.path, layout, self._limits, self._session, private.lock) as host,
            ):
                self._agent, self._host = agent, host
                # A later change could get the same timestamp as `seen`: what is read after this pause contains it.
                time.sleep(max(0.0, looked + _MOMENT - time.monotonic()))
                agent.read_refs()
                host.read_refs()
                self._checkout = Checkout(private, layout, agent, host, self._writer, outward=self._outward)
                settled = self._sync()
                moved = tuple(move.replace(commits=_count(agent, move)) for move in self._moved)
        except GitError as error:
            raise ClaudeboxError(f"`{layout.common}`: {error}") from None
        private.update(seen=seen if settled else "")
        refused = tuple(self._refused.items())
        notes = (*self._notes, *self._checkout.notes)
        return ImportResult(moved, tuple(self._renamed), refused, notes, removed, tuple(self._named))

    def _sync(self) -> bool:
        """Compare both sides and move what moved; return whether nothing of the agent's is left behind."""
        agent, host, checkout, private = self._agent, self._host, self._checkout, self._private
        worktrees = Worktrees(private.path, self._layout, agent, host)
        elsewhere = git_checkout.other_heads(self._layout, host.refs, worktrees.reached, host.box)
        merged = self._merge(elsewhere)
        base = merged.agreed
        self._refused.update(merged.refused)
        checkout.read()
        outbound, diverged = self._admit(merged.outbound), self._admit(merged.diverged)
        diverged += [move for move in outbound if move.name in self._obeyed]
        outbound = [move for move in outbound if move.name not in self._obeyed]
        renamed = self._under_other_names(diverged, outbound)
        private.update(base=git_state.render_refs(base))

        # First all objects, and the branches that are not checked out. One that is, here or in a worktree, moves with
        # its index or not at all.
        here = [move for move in outbound if f"ref: {move.name}" == host.head()[0]]
        there = [move for move in outbound if move not in here and f"ref: {move.name}" in worktrees.reached.values()]
        free = [move for move in outbound if move not in (*here, *there)]
        carried = {move.new for move in (*here, *there) if move.new}
        carried |= checkout.needed_objects() if self._outward else set()
        answers = sides.send(agent, host, [*free, *renamed], carried)
        self._refused.update((name, reason) for name, reason in answers.items() if reason and name.startswith("refs/"))
        for move in (*free, *renamed):
            if not answers[move.name]:
                host.put(move)
        self._moved += [move for move in free if not answers[move.name]]
        if outbound and os.path.lexists(f"{private.path}/own/lfs/objects"):
            self._bring_large_files()

        # Then what the host has done, and the checkouts.
        inbound = [move for move in merged.inbound if f"ref: {move.name}" == agent.head()[0]]
        if len(inbound) < len(merged.inbound):
            self._follow([move for move in merged.inbound if move not in inbound])
        failed = {value for value in carried if answers.get(value)}  # though some of their objects may be there
        self._refused.update((move.name, answers[move.new]) for move in (*here, *there) if move.new in failed)
        here, there = ([move for move in moves if move.new not in failed] for moves in (here, there))
        checkout.forget(failed)
        reason = self._settle(here, inbound)
        kept = {move: reason for move in here if host.refs.get(move.name, "") != move.new}
        if self._outward and not self._layout.only:
            self._notes += worktrees.bring_back(checkout, elsewhere, there, final=self._final)
            kept |= {move: worktrees.problem for move in there if host.refs.get(move.name, "") != move.new}
        self._moved += [move for move in (*here, *there) if move not in kept]

        # At the end, a branch that could not move with its checkout comes under another name.
        kept = {move: reason for move, reason in kept.items() if move.name not in self._refused}
        if kept and self._final:
            self._divert(kept)
        for move in (*self._moved, *self._followed):
            put(base, move)
        private.update(base=git_state.render_refs(base))
        stays = self._what_stays(base) if self._outward else []
        if self._final:
            self._notes += stays
        host.drop_carriers()
        settled = checkout.is_settled or bool(diverged) or (bool(kept) and self._final)
        return settled and not self._refused and (self._final or not (stays or kept))  # the end has to say it

    def _merge(self, elsewhere: frozenset[str]) -> Merged:
        layout, refs = self._layout, self._host.refs
        is_hidden = find_hidden(layout.work_tree, layout.git_dir) if layout.only else ().__contains__
        merged = git_refs.merge_refs(
            self._agent.refs,
            {name: value for name, value in refs.items() if not is_hidden(name)},
            self._state.refs(),
            self._agent.contains,
            elsewhere,
            lambda: remote_names(layout.common, refs),
            layout.only,
        )
        return merged if self._outward else merged.replace(outbound=(), diverged=(), refused=())

    def _settle(self, moves: list[Move], inbound: list[Move]) -> str:
        """Synchronize HEAD, index and the branches that are checked out; return why the host's stay."""
        staged = self._checkout.read_changes()
        links = frozenset(path for path, mode in staged.items() if mode == sides.GITLINK)
        closed = self._disarm(links) if self._final else links
        armed = obeyed.find_obeyed_in_checkout(self._agent, self._host, self._layout, staged)
        self._notes += obeyed.describe_checkout(armed)
        reason = self._checkout.settle(moves, inbound, closed | armed)
        self._followed += [move for move in inbound if self._agent.refs.get(move.name, "") == move.new]
        if reason and not closed | armed:
            self._notes.append(f"HEAD and index stay as they are: {reason}")
        return reason

    def _divert(self, kept: dict[Move, str]) -> None:
        """Bring branches under other names whose checkout could not move with them."""
        self._refused.update((move.name, reason) for move, reason in kept.items() if not move.new)
        moves = [move for move in kept if move.new]
        renamed = self._under_other_names(moves, [], {move.name: kept[move] for move in moves})
        answers = sides.send(self._agent, self._host, renamed, set())
        self._refused.update((name, reason) for name, reason in answers.items() if reason)

    def _what_stays(self, base: dict[str, str]) -> list[str]:
        """Return the lines about what stays inside at the end."""
        found = git_private.describe_kept(f"{self._private.path}/own", base)
        if self._layout.ref_format != "files":  # they cannot be carried over by hand: what has them stays as it is
            rows = (side.box.git("for-each-ref", "--format=%(objectname) %(refname)", *git_private.KEPT_REFS)
                    for side in (self._agent, self._host))  # fmt: skip
            agent_rows, host_rows = (set(text.decode("utf-8", "surrogateescape").split("\n")) for text in rows)
            stays = "made inside, where `claudebox --exec -- git stash list` and `git notes` find it"
            self._refused.update((row.partition(" ")[2], stays) for row in agent_rows - host_rows)
        if self._layout.module and os.path.lexists(f"{adoption.own_checkout(self._private.path, self._layout)}/.git"):
            remedy = "`git submodule update --init` brings its commits there"
            found.append(f"it is not initialised outside: {remedy}; what is not committed stays inside")
        return found

    def _bring_large_files(self) -> None:
        try:
            bring_back_large_files(f"{self._private.path}/own", self._layout.common, self._limits)
        except (ClaudeboxError, GitError) as error:
            self._notes.append(error.message if isinstance(error, ClaudeboxError) else str(error))

    def _admit(self, moves: Iterable[Move]) -> list[Move]:
        """Return the moves that may come back now; note what they change that git or other tools obey."""
        moves = list(moves)
        known = obeyed.trusted_values(self._host.refs)
        new = [move for move in moves if move.new not in known]
        paths = sides.changed_paths(self._agent, new, self._host.head()[1]) if new else {}
        self._refused.update((name, "objects of it are missing") for name, rows in paths.items() if rows is None)
        values = {move.name: move.new for move in new}
        by_git, by_others = obeyed.find_obeyed(self._agent, self._layout, paths, values, self._host)
        self._obeyed.update(by_git)
        self._named += obeyed.describe_others(by_others)
        tags = (name for name in by_git if not name.startswith(HEADS))
        self._refused.update((name, obeyed.describe("it", by_git[name])) for name in tags)
        reason = "it changes a submodule, which comes back at the end of the session"
        changed = sides.select_gitlinks(paths)
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
        self, diverged: list[Move], outbound: list[Move], why: dict[str, str] | None = None
    ) -> list[Move]:
        """Return the moves by which diverged branches arrive under other names, but for those that are there."""
        moves, host_refs = [], self._host.refs
        session = self._session  # sessions in two worktrees may begin in the same second
        if self._layout.git_dir != self._layout.common:
            session += f"-{os.path.basename(self._layout.git_dir)}"
        for move in diverged:
            kind = TAGS if move.name.startswith(TAGS) else HEADS
            known = next((name for name, value in host_refs.items() if value == move.new and name.startswith(kind)), "")
            name = known or f"{kind}claudebox/{session}/{move.name.removeprefix(kind)}"
            others = {*host_refs, *(other.name for other in outbound)} - {name}
            if not known and shorten_ref(name) in map(shorten_ref, others):
                self._refused[move.name] = "yours has moved too, and the name that it would arrive under is taken"
            elif move.name in self._obeyed:
                short = shorten(move.name.removeprefix(HEADS), 80)
                self._notes.append(obeyed.describe(short, self._obeyed[move.name], name))
            elif why:
                arrived = shorten(name.removeprefix(HEADS), 80)
                self._notes.append(
                    f"{shorten(move.name.removeprefix(HEADS), 80)} arrived as {arrived}: {why[move.name]}"
                )
            else:
                self._renamed.append((move.name, name))
            if move.name not in self._refused and not known:
                moves.append(Move(name, host_refs.get(name, ""), move.new))
        return moves

    def _writer(self) -> Side:
        return agent_side_writable(self._tools, self._private.path, self._layout, self._limits)

    def _follow(self, moves: Iterable[Move]) -> None:
        """Write inside what the host did, ref by ref: the agent may have moved one since."""
        with self._writer() as side:
            for move in moves:
                row = render_updates([move], len(self._agent.empty_tree))
                words = ("update-ref", "--no-deref", "-m", "claudebox: host", "--stdin", "-z")
                if side.box.ask(*words, data=row) is not None:
                    self._agent.put(move)
                    self._followed.append(move)


def _count(agent: Side, move: Move) -> int:
    """Return how many commits a branch has gained."""
    if not move.old or not move.new or not move.name.startswith(HEADS):
        return 0
    found = agent.box.ask("rev-list", "--count", f"{move.old}..{move.new}", "--", index=False) or b"0"
    return int(found)


# Large files: what Git LFS keeps in the agent's git directory. Commits would be useless without them, since git itself
# holds only their names, which are the SHA-256 of their content. Each is copied before it is checked, so that it
# cannot change in between.


_PIECE = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def bring_back_large_files(own: str, common: str, limits: Limits) -> None:
    """Copy the LFS objects that the host lacks."""
    left, deadline = limits.size, time.monotonic() + limits.seconds
    with Copier(own, own, None) as agent:
        for path in agent.below("lfs/objects"):
            name = os.path.basename(path)
            target = f"{common}/lfs/objects/{name[:2]}/{name[2:4]}"
            if len(name) != 64 or not HEX.issuperset(name) or os.path.lexists(f"{target}/{name}"):
                continue
            if os.path.islink(f"{common}/lfs"):
                raise GitError(f"`{common}/lfs` is a link: large files stay inside")
            if (source := agent.open(path)) >= 0:
                with Closing(source):
                    left -= _copy_checked(source, name, target, left, deadline)


def _copy_checked(source: int, name: str, target: str, left: int, deadline: float) -> int:
    """Copy a file, and keep the copy if its content has this name; return its length."""
    os.makedirs(target, exist_ok=True)
    temporary, digest, length = f"{target}/.{name}.claudebox", hashlib.sha256(), 0
    git_private.remove(temporary)
    try:
        with Closing(os.open(temporary, _NEW, 0o644)) as copy:
            while piece := os.read(source, _PIECE):
                length += len(piece)
                if length > left or time.monotonic() > deadline:
                    raise GitError("large files inside exceed the size or time limit of one import")
                digest.update(piece)
                write_all(copy, piece)
        if digest.hexdigest() == name:
            os.rename(temporary, f"{target}/{name}")
        return length
    finally:
        git_private.remove(temporary)


def read_base(path: str, tools: Tools) -> None:
    """Record the refs and HEAD that both sides start with, in formats that only git reads: set-up just copied files."""
    with Private(path) as private:
        layout = private.state().layout
        if private.read_head() != git_state.REFTABLE_HEAD:
            return
        try:
            if layout.only:  # the user's stash and reflogs, and other agents, stay outside
                hidden = find_hidden(layout.work_tree, layout.git_dir)
                with agent_side_writable(tools, path, layout, Limits()) as own:
                    own.read_refs()
                    rows = "".join(f"delete {name}\0\0" for name in ("refs/stash", *filter(hidden, own.refs)))
                    own.box.git("update-ref", "--stdin", "-z", data=rows.encode("utf-8", "surrogateescape"))
                    own.box.git("reflog", "expire", "--expire=now", "--all")
                    own.box.git("pack-refs", "--all")
            with agent_side(tools, path, layout, Limits()) as own:
                own.read_refs()
                private.update(base=git_state.render_refs(own.refs))
                private.write_head(own.head()[0])
        except GitError as error:
            raise ClaudeboxError(f"`{layout.common}`: {error}") from None
