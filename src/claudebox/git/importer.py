"""Bring what the agent did in its own git directory back to the real repository, as checked data (GIT-03).

Two sandboxes: in one the agent's repository is read, and a pack and text come out; in the other `git receive-pack`
takes the pack into the real repository, with quarantine, fsck and compare-and-swap, and nothing of the repository's own
configuration or hooks in force. Branches and new tags only. What the host did meanwhile goes the other way.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time

from claudebox.base import console
from claudebox.base.console import shorten
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import list_names, real_path, write_all
from claudebox.base.records import Value
from claudebox.git import adoption, sides, submodules
from claudebox.git import checkout as git_checkout
from claudebox.git import private as git_private
from claudebox.git import refs as git_refs
from claudebox.git import state as git_state
from claudebox.git.adoption import Worktrees, open_below
from claudebox.git.checkout import Checkout
from claudebox.git.disarm import disarm_paths
from claudebox.git.refs import HEADS, HEX, TAGS, Move, find_hidden, put, remote_names, render_updates, shorten_ref
from claudebox.git.sandbox import GitError, Limits, Tools
from claudebox.git.sides import own_side, own_side_writable, real_side
from claudebox.git.state import Private, read_layout, stamp
from claudebox.host import bubblewrap, programs
from claudebox.plan import seccomp
from claudebox.tables import paths as tables_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from claudebox.base.state import Instance
    from claudebox.git.sides import Side
    from claudebox.git.state import Layout
    from claudebox.git.submodules import Changed


# What an import of git did, as a value.


class ImportResult(Value):
    """What one import did."""

    moved: tuple[Move, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()  # branches that parted: name, and the name they arrived under
    refused: tuple[tuple[str, str], ...] = ()  # refs that stay inside, and why
    followed: tuple[Move, ...] = ()  # what the host did, written inside
    head: str = ""  # the new HEAD of the real repository, if it changed
    notes: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # pipes and the like that were in the agent's git directory
    told: tuple[str, ...] = ()  # refs of `refused` that an earlier session has named already
    obeyed: tuple[str, ...] = ()  # what is said about refs that change what tools of the host obey


def join(first: ImportResult, then: ImportResult) -> ImportResult:
    """Return what two imports did, one after the other."""
    new = {name for name, _ in first.refused if name not in first.told}
    return then.replace(
        moved=(*first.moved, *then.moved),
        renamed=tuple(dict((*first.renamed, *then.renamed)).items()),
        followed=(*first.followed, *then.followed),
        head=then.head or first.head,
        removed=(*first.removed, *then.removed),
        obeyed=tuple(dict.fromkeys((*first.obeyed, *then.obeyed))),
        told=tuple(name for name in then.told if name not in new),
    )


# Commits that change what tools of the host obey: hooks, included configuration, programs that git is told to run.
#
# Such paths are read-only in the project, but a commit can change them all the same, and the next `git checkout`,
# `stash` or `reset` of the user writes them. So a branch that does arrives under another name, for the user to look
# at.


ARRIVED = f"{HEADS}claudebox/"  # what stands there has come from an agent, and nobody may have looked at it
_MOST_NAMED = 3


class ObeyedPaths(Value):
    """What some refs change."""

    by_git: dict[str, str]  # ref -> a path that git of the host obeys
    by_others: dict[str, tuple[str, ...]]  # ref -> paths that other tools obey


def trusted_values(refs: dict[str, str]) -> set[str]:
    """Return the commits of the host that are not there only because an agent made them."""
    return {value for name, value in refs.items() if not name.startswith(ARRIVED)}


def find_obeyed(
    agent: Side, layout: Layout, changed: Mapping[str, Changed], new: dict[str, str], real: Side
) -> ObeyedPaths:
    """Return what refs change that the agent moved, given the paths that each changes and its new value."""
    by_git: dict[str, str] = {}
    by_others: dict[str, tuple[str, ...]] = {}
    obeyed = [os.fsencode(path).lower() for path in layout.obeyed]
    others = [name.encode() for name, _, _ in tables_paths.PROTECTED]
    for name, rows in changed.items():
        hit = _find_hit(rows or (), obeyed)
        if hit and not _is_theirs(agent, layout, new[name], trusted_values(real.refs), hit):
            by_git[name] = hit
        paths = tuple(os.fsdecode(path) for path in rows or () if _is_in(path.lower(), others))
        by_others.update({name: paths} if paths and name not in by_git else {})
    return ObeyedPaths(by_git, by_others)


def find_checked_out(agent: Side, real: Side, layout: Layout, staged: Iterable[bytes]) -> frozenset[bytes]:
    """Return paths that git of the host would obey if HEAD and index of the agent came back."""
    obeyed = [os.fsencode(path).lower() for path in layout.obeyed]
    rows = frozenset(path for path in staged if obeyed and _find_hit([path], obeyed))
    (mine, commit), (theirs, before) = agent.head(), real.head()
    if obeyed and not rows and mine != theirs and commit and commit not in trusted_values(real.refs):
        changed = submodules.changed_paths(agent, [Move("HEAD", before, commit)], "")
        found = find_obeyed(agent, layout, changed, {"HEAD": commit}, real)
        return frozenset(map(os.fsencode, found.by_git.values()))
    return rows


def _find_hit(changed: Iterable[bytes], obeyed: list[bytes]) -> str:
    """Return the first path that is obeyed, lies in such a one, or stands in the place of a directory around one."""
    for path in changed:
        lower = path.lower()
        if _is_in(lower, obeyed) or any(other.startswith(lower + b"/") for other in obeyed):
            return os.fsdecode(path)
    return ""


def _is_in(path: bytes, places: Iterable[bytes]) -> bool:
    return any(place in (b".", path) or path.startswith(place + b"/") for place in places)


def _is_theirs(agent: Side, layout: Layout, new: str, known: set[str], hit: str) -> bool:
    """Return whether all of these paths are as in a commit of the host: a merge or a switch is no change."""
    if any(path.lower().startswith(f"{hit.lower()}/") for path in layout.obeyed):
        return False
    since = "".join(f"^{value}\n" for value in sorted(known))
    inner = (path for path in layout.obeyed if "\n" not in path and not path.endswith(tables_paths.PASSED))
    paths = "".join(f":(top,icase,literal){path}\n" for path in inner)
    data = os.fsencode(f"{new}\n{since}--\n{paths}")
    words = ("rev-list", "-n1", "--ignore-missing", "--stdin")
    return agent.box.ask(*words, data=data) == b"" and not any("\n" in path for path in layout.obeyed)


def describe(name: str, path: str, arrived: str = "") -> str:
    """Return what is said about a ref that git of the host would obey."""
    what = f"{name} changes `{shorten(path, 80)}`, which your git obeys"
    where = shorten(arrived.removeprefix(HEADS), 120)
    return f"{what}: it arrived as {where}; look at it, then merge that" if arrived else what


def describe_checkout(paths: frozenset[bytes]) -> list[str]:
    """Return what is said about HEAD and index, if they stay."""
    rows = [f"`{shorten(os.fsdecode(path), 80)}`" for path in sorted(paths)[:1]]
    return [f"HEAD or index inside change {row}, which your git obeys: yours stay as they are" for row in rows]


def describe_others(rows: dict[str, tuple[str, ...]]) -> list[str]:
    """Return what is said about refs that change what other tools obey."""
    found = []
    for name, paths in rows.items():
        more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
        named = ", ".join(f"`{shorten(path, 80)}`" for path in paths[:_MOST_NAMED])
        found.append(f"`{shorten(name.removeprefix(HEADS), 80)}` changes what tools of the host obey: {named}{more}")
    return found


_MOMENT = 0.01  # seconds: more than the clock of a file system needs for the next time
_ATTEMPTS = 3  # after the host moved something in the midst of an import
_BY_HAND = Limits(seconds=3600.0, size=16 << 30)  # the user waits, and can interrupt
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
    found, program = bubblewrap.find_bwrap(path), programs.find_tool("git", path)
    if found.problem:
        raise ClaudeboxError(found.problem, hint=found.remedy)
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

    def run(self) -> ImportResult:
        """Do it, and say what was done."""
        private, layout = self._private, self._layout
        removed = tuple(git_private.remove_special(f"{private.path}/own"))
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
        merged = git_refs.merge_refs(
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
        answers = sides.send(agent, real, [*free, *renamed], carried)
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
        links = frozenset(path for path, mode in staged.items() if mode == submodules.GITLINK)
        closed = self._disarm(links) if self._final else links
        obeyed = find_checked_out(agent, real, self._layout, staged)
        self._notes += describe_checkout(obeyed)
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
        answers = sides.send(agent, real, renamed, set())
        self._refused.update((name, reason) for name, reason in answers.items() if reason)

    def _what_stays(self, agent: Side, real: Side, base: dict[str, str]) -> list[str]:
        """Return what the user should know of at the end: it stays inside."""
        found = git_private.describe(f"{self._private.path}/own", base)
        if self._layout.ref_format != "files":  # they cannot be carried over by hand: what has them stays as it is
            rows = (side.box.git("for-each-ref", "--format=%(objectname) %(refname)", *git_private.NAMES)
                    for side in (agent, real))  # fmt: skip
            mine, theirs = (set(text.decode("utf-8", "surrogateescape").split("\n")) for text in rows)
            stays = "made inside, where `claudebox --exec -- git stash list` and `git notes` find it"
            self._refused.update((row.partition(" ")[2], stays) for row in mine - theirs)
        if self._layout.module and os.path.lexists(f"{adoption.own_checkout(self._private.path, self._layout)}/.git"):
            remedy = "`git submodule update --init` brings its commits there"
            found.append(f"it is not initialised outside: {remedy}; what is not committed stays inside")
        return found

    def _bring_large_files(self) -> None:

        own, limits = f"{self._private.path}/own", self._limits
        try:
            bring_back_lfs(own, self._layout.common, size=limits.size, seconds=limits.seconds)
        except GitError as error:
            self._notes.append(str(error))

    def _admit(self, agent: Side, real: Side, moves: Iterable[Move]) -> list[Move]:
        """Return the moves that may come back now, as far as their gitlinks go."""
        moves = list(moves)
        known = trusted_values(real.refs)
        new = [move for move in moves if move.new not in known]
        paths = submodules.changed_paths(agent, new, real.head()[1]) if new else {}
        self._refused.update((name, "objects of it are missing") for name, rows in paths.items() if rows is None)
        found = find_obeyed(agent, self._layout, paths, {move.name: move.new for move in new}, real)
        self._obeyed.update(found.by_git)
        self._named += describe_others(found.by_others)
        tags = (name for name in found.by_git if not name.startswith(HEADS))
        self._refused.update((name, describe("it", found.by_git[name])) for name in tags)
        reason = "it changes a submodule, which comes back at the end of the session"
        changed = submodules.select_gitlinks(paths)
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
                self._notes.append(describe(short, self._obeyed[move.name], name))
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


# Bring large files back: what Git LFS keeps in the agent's git directory, into the real one, each checked by its
# name.
#
# The name of such a file is the SHA-256 of its content. It is copied first and examined then, so that nobody can
# change what was examined; commits would be useless without them, since git itself holds only their names.


_PIECE = 1 << 20
_MOST = 100_000  # files in one import
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def bring_back_lfs(own: str, common: str, *, size: int, seconds: float) -> int:
    """Copy what is missing; return how many files came. More than `size` bytes or `seconds` are refused."""
    limit, came = time.monotonic() + seconds, 0
    for directory, first, second, name in _files(own):
        target = f"{common}/lfs/objects/{first}/{second}"
        if os.path.lexists(f"{target}/{name}"):
            continue
        if os.path.islink(f"{common}/lfs"):
            raise GitError(f"`{common}/lfs` is a link: large files stay inside")
        os.makedirs(target, exist_ok=True)
        length = _take(directory, name, target, size, limit)
        if length is not None:
            size -= length
            came += 1
    return came


def _files(own: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield the files of the agent's store: an open directory, its two names, and the name in it."""
    count = 0
    for first in _names(own, "lfs/objects", 2):
        for second in _names(own, f"lfs/objects/{first}", 2):
            for name in _names(own, f"lfs/objects/{first}/{second}", 64):
                count += 1
                if count > _MOST:
                    raise GitError(f"there are more than {_MOST} large files inside")
                directory = open_below(own, f"lfs/objects/{first}/{second}")
                try:
                    yield directory, first, second, name
                finally:
                    os.close(directory)


def _names(own: str, path: str, length: int) -> list[str]:
    try:
        directory = open_below(own, path)
    except OSError:
        return []
    try:
        return sorted(name for name in os.listdir(directory) if len(name) == length and HEX.issuperset(name))
    finally:
        os.close(directory)


def _take(directory: int, name: str, target: str, size: int, limit: float) -> int | None:
    """Copy a file and keep the copy if it is what its name says; return its length."""
    try:
        source = os.open(name, _READ, dir_fd=directory)
    except OSError:
        return None
    temporary = f"{target}/.{name}.claudebox"
    copy = -1
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return None
        if os.path.lexists(temporary):
            os.unlink(temporary)
        copy = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        digest, length = hashlib.sha256(), 0
        while piece := os.read(source, _PIECE):
            length += len(piece)
            if length > size or time.monotonic() > limit:
                raise GitError("large files inside are more than can be brought back at once")
            digest.update(piece)
            write_all(copy, piece)
        if digest.hexdigest() != name:
            return None
        os.rename(temporary, f"{target}/{name}")
        return length
    finally:
        os.close(source)
        if copy >= 0:
            os.close(copy)
        if os.path.lexists(temporary):
            os.unlink(temporary)


# What both sides of a repository start a session with where set-up could only copy it, since only git reads it.


def read_base(path: str, tools: Tools) -> None:
    """Write down the refs and the HEAD that both sides start with: the agent has not run yet."""
    with Private(path) as private:
        layout = private.state().layout
        if private.read_head() != git_state.REFTABLE_HEAD:
            return
        try:
            if layout.only:  # the user's stash and reflogs, and other agents, stay outside
                hidden = find_hidden(layout.work_tree, layout.git_dir)
                with own_side_writable(tools, path, layout, Limits()) as own:
                    own.begin_refs()
                    own.read_refs()
                    rows = "".join(f"delete {name}\0\0" for name in ("refs/stash", *filter(hidden, own.refs)))
                    own.box.git("update-ref", "--stdin", "-z", data=rows.encode("utf-8", "surrogateescape"))
                    own.box.git("reflog", "expire", "--expire=now", "--all")
                    own.box.git("pack-refs", "--all")
            with own_side(tools, path, layout, Limits()) as own:
                own.begin_refs()
                own.read_refs()
                private.update(base=git_state.render_refs(own.refs))
                private.write_head(own.head()[0])
        except GitError as error:
            raise ClaudeboxError(f"`{layout.common}`: {error}") from None
