"""HEAD, index and checked-out branch of the host, which move together or not at all.

If a branch moved without the index, the user's next commit would delete what the agent has added. So git merges the
indexes first: `read-tree -m` carries what the agent staged into a copy of the host's index, and refuses where both
changed a path. Then, under the lock of the index, HEAD and branch move and the copy is renamed into place, in one
script that outlives us. The agent's index file itself is never used: a forged one lies to `git status`. Its tree has
passed `receive-pack`.

`synced` in the private directory holds what both sides had in common: the `index`, and the text of `head`.
"""

from __future__ import annotations

import os
import time

from claudebox.base.files import read_small
from claudebox.git import private as git_private
from claudebox.git.refs import HEADS, HEX, objection, objection_to_new, remote_names, render_updates, shorten_ref
from claudebox.git.sides import parse_changes
from claudebox.git.state import REFTABLE_HEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from claudebox.git.refs import Move
    from claudebox.git.sandbox import GitSandbox
    from claudebox.git.sides import Side
    from claudebox.git.state import Layout, Private


_ATTEMPTS = 5
_LOCK_TIMEOUT, _LOCK_POLL = 2.0, 0.05  # seconds for which another git may hold a lock
CONFLICTED = "-"  # instead of the tree of an index with conflicts
_HEADS = 'for place; do git --git-dir="$place" symbolic-ref -q HEAD; echo "$?"; done'
_CONFLICT, _LOCKED, _CHANGED, _FAILED, _PARTLY = 10, 11, 12, 13, 14
# Print the tree of the common index and that of a copy of the host's, and how many different indexes these are.
_TREES = """\
cp -p "$GIT_DIR/index" /synced/host 2>/dev/null || rm -f /synced/host
for name in index host; do
	GIT_INDEX_FILE=/synced/$name git write-tree || echo -
done
git hash-object --no-filters /synced/index /synced/host | uniq | wc -l
"""
_AGENT_TREE = "cp /g/index /scratch/index 2>/dev/null; GIT_INDEX_FILE=/scratch/index git write-tree"
# In one repository: carry the difference between two trees into its index, move HEAD and branches, all or nothing.
# $1, $2: the other side's index before and now, as trees; $3: the expected HEAD; $4: the new one, if any; $5: the
# reflog message; $6: which index both sides have then, if that is to be kept; $7: the owner of the lock; $8: where a
# copy of the index can lie. Standard input: branches for update-ref. An entry as young as the index may have changed
# in the same second, so the time of the index stays.
_SETTLE = f"""\
index=$GIT_DIR/index
identify() {{ stat -c "%i %s %y" "$index" 2>/dev/null; }}
end() {{ rm -f "$index.claudebox" "$index.lock"; exit "$1"; }}
rm -f "$8/new" "$8/new.lock"
before=$(identify)
cp -p "$index" "$8/new" 2>/dev/null
export GIT_INDEX_FILE="$8/new"
if [ "$1" = - ]; then git read-tree -i --reset "$2"; else git read-tree -i -m "$1" "$2"; fi || exit {_CONFLICT}
unset GIT_INDEX_FILE
if [ -e "$GIT_DIR/HEAD.lock" ]; then echo "$GIT_DIR/HEAD.lock" >&2; exit {_LOCKED}; fi
[ "$(cat "$index.lock" 2>/dev/null)" != "$7" ] || rm -f "$index.lock" "$index.claudebox"
(set -C; echo "$7" >"$index.lock") 2>/dev/null || {{ echo "$index.lock" >&2; exit {_LOCKED}; }}
head=$(git symbolic-ref -q HEAD) && head="ref: $head" || head=$(git rev-parse -q --verify HEAD)
[ "$before" = "$(identify)" ] && [ "$3" = "$head" ] || end {_CHANGED}
cp -p "$index" "$index.claudebox" 2>/dev/null
cat "$8/new" >"$index.claudebox" || end {_FAILED}
[ -z "$before" ] || touch -r "$index" "$index.claudebox"
status=0
case $4 in
"") ;;
"ref: "*) git symbolic-ref -m "$5" HEAD "${{4#ref: }}" || end {_FAILED} ;;
*) git update-ref --no-deref -m "$5" HEAD "$4" || end {_FAILED} ;;
esac
if ! git update-ref --no-deref -m "$5" -z --stdin; then
	[ -n "$4" ] || end {_FAILED}
	status={_PARTLY}
fi
mv -f "$index.claudebox" "$index"
rm -f "$index.lock"
case $6 in
host) cp -p /synced/new /synced/index.new ;;
agent) GIT_INDEX_FILE=/synced/index.new git read-tree "$2" ;;
esac
if [ -n "$6" ]; then
	mv -f /synced/index.new /synced/index
	printf "%s\\n" "${{4:-$3}}" >/synced/head.new
	mv -f /synced/head.new /synced/head
	mv -f /synced/new /synced/host
fi
exit "$status"
"""


class Checkout:
    """One checkout in one import."""

    def __init__(
        self,
        private: Private,
        layout: Layout,
        agent: Side,
        host: Side,
        writer: Callable[[], Side],
        *,
        outward: bool = True,
    ) -> None:
        self._private, self._layout, self._owner = private, layout, os.path.basename(private.path)
        self._agent, self._host = agent, host
        self._writer = writer  # opens the agent's repository to be written
        self._outward = outward
        self.notes: list[str] = []
        self.is_settled = False
        self._problem = ""  # of the agent's index
        self._agent_tree = self._base_tree = self._host_tree = ""  # of the agent's index, the common one, the host's

    def read(self) -> None:
        """Write the indexes of both sides, and the common one, as trees."""
        status = self._host.box.script(_TREES)
        rows = self._host.box.output().decode().split("\n")
        self._base_tree, self._host_tree = (
            ("", "") if status else (row if self._host.is_id(row) else "" for row in rows[:2])
        )
        if not self._host_tree and rows[2:3] == ["1"]:  # a conflict that the agent was handed, and may have resolved
            self._base_tree = self._host_tree = CONFLICTED
        failed = self._agent.box.script(_AGENT_TREE)
        tree = "" if failed else self._agent.box.output().decode("ascii", "replace").strip()
        commit = self._agent.head()[1]
        if not self._agent.is_id(tree) and commit:  # what is staged stays inside
            self._problem = "the index inside holds a conflict, or cannot be read (`git reset` there makes it anew)"
            tree = (self._agent.box.ask("rev-parse", "-q", "--verify", f"{commit}^{{tree}}") or b"").decode().strip()
        self._agent_tree = tree if self._agent.is_id(tree) else ""

    def needed_objects(self) -> set[str]:
        """Return the objects that the agent's index or detached HEAD need, and that no branch leads to."""
        head, commit = self._agent.head()
        found = {commit} if commit and head == commit and commit not in self._host.refs.values() else set()
        return found | ({self._agent_tree} - {"", self._base_tree, self._host_tree})

    def forget(self, failed: set[str]) -> None:
        """Bring no index whose objects did not come."""
        if self._agent_tree in failed:
            self._agent_tree = ""

    def read_changes(self) -> dict[bytes, str]:
        """Return paths and modes of what the agent has staged, once its objects have come."""
        if not self._agent_tree or self._agent_tree == self._base_tree:
            return {}
        known = self._base_tree if self._base_tree.isalnum() else self._host.head()[1] or self._host.empty_tree
        words = ("diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-abbrev", known, self._agent_tree)
        raw = self._host.box.ask(*words)
        if raw is None:
            self._agent_tree = ""  # its objects did not come
        return {path: row.mode for path, row in (parse_changes(raw or b"") or {}).items()}

    def settle(self, outbound: list[Move], inbound: list[Move], refused: frozenset[bytes]) -> str:
        """Synchronize HEAD, index and checked-out branches; return why the host's stay as they are.

        `outbound` moves go into the host's repository, `inbound` into the agent's. `refused` are paths that the index
        of the host must not get.
        """
        reason = "they hold what cannot come back" if refused else self._find_obstacle()
        (agent_head, commit), (host_head, host_commit) = self._agent.head(), self._host.head()
        ends = [move.new for move in inbound] or [commit], [move.new for move in outbound] or [host_commit]
        if reason or (agent_head == host_head and ends[0] != ends[1]):
            return reason  # the branch diverged: each side keeps its index
        head, inside, before = "", "", self._private.read_head()
        if agent_head != host_head and agent_head == before:
            if outbound:
                return "you have switched to a branch that moved inside"
            inside = host_head
        elif host_head not in (agent_head, before):
            return "HEAD moved on both sides"
        elif agent_head != host_head and self._outward:
            reason = self._object_to(agent_head, commit)
            head = agent_head
        reason = reason or self._move_out(host_head, head, outbound) or self._move_in(inside, inbound)
        if not reason and self._agent.head() == self._host.head():
            self._private.write_head(self._host.head()[0])
            self.notes += git_private.put_operation_aside(self._private, self._layout)
            self.is_settled = not self._problem
            self.notes += [self._problem] if self._problem else []
        return reason

    def _find_obstacle(self) -> str:
        """Return why neither HEAD nor index can be synchronized."""
        operation = git_private.find_operation(f"{self._private.path}/own/{self._layout.checkout}")
        if operation:
            return git_private.describe_operation(operation)
        ongoing = git_private.find_ongoing(self._private)
        if ongoing:
            return f"a {ongoing} is under way in your repository"
        if not self._agent.head()[0]:
            head = self._host.head()[0]
            return f"HEAD inside names no branch and no commit: write `{head}` into `.git/HEAD` there"
        if not self._agent_tree:
            return self._problem or "the index inside did not come back"
        return "" if self._host_tree else "your index holds a conflict, or cannot be read"

    def _object_to(self, head: str, commit: str) -> str:
        """Return why the host cannot have this HEAD."""
        if not head.startswith("ref: "):
            lacking = self._layout.only or not commit or not self._host.has_all([commit])
            return "the commit of HEAD inside did not come back" if lacking else ""
        name, refs = head[5:], self._host.refs
        if name in refs:
            reason = objection(name)
        else:  # the next commit would make it
            reason = objection_to_new(name, map(shorten_ref, refs), remote_names(self._layout.common, refs))
        if reason or not name.startswith(HEADS) or refs.get(name, "") != commit or self._layout.only not in ("", name):
            return f"HEAD inside is `{name}`{f': {reason}' if reason else ', which did not come back'}"
        return ""

    def _move_out(self, host_head: str, head: str, moves: list[Move]) -> str:
        if not head and not moves and (self._agent_tree == self._base_tree or not self._outward):
            return ""
        for _ in range(_ATTEMPTS):
            same, trees = self._host_tree == self._base_tree, (self._base_tree, self._agent_tree)
            common = "host" if same else "agent"
            reason, changed = self.move_together(self._layout.git_dir, trees, (host_head, head), moves, common)
            if not reason:
                self._base_tree = self._host_tree = self._agent_tree
                if not same and not self._host.box.script("GIT_INDEX_FILE=/synced/host git write-tree"):
                    self._host_tree = self._host.box.output().decode().strip()
                return ""
            if not changed:
                return reason
            self.read()
        return "your index changes all the time"

    def move_together(
        self, git_dir: str, trees: tuple[str, str], heads: tuple[str, str], moves: list[Move], common: str = ""
    ) -> tuple[str, bool]:
        """Apply the difference of two trees to an index of the host, and move HEAD and branches: all or nothing.

        Return why not, and whether another git changed it meanwhile.
        """
        names = (text.removeprefix(f"ref: {HEADS}") for text in heads)
        why = "checkout: moving from {} to {}".format(*names) if heads[1] else "claudebox"
        return settle_side(
            self._host, self._owner, trees, heads, moves, why, git_dir=git_dir, common=common, scratch="/synced"
        )

    def _move_in(self, head: str, moves: list[Move]) -> str:
        """Apply what the host has staged to the agent's index, and move HEAD and branches there."""
        if self._host_tree == self._base_tree and not head and not moves:
            return ""
        if head.startswith("ref: ") and objection(head[5:]):
            return f"HEAD is `{head[5:]}` there"
        trees, heads = (self._base_tree, self._host_tree), (self._agent.head()[0], head)
        with self._writer() as side:
            reason, _ = settle_side(side, self._owner, trees, heads, moves, "claudebox: host")
        if not reason:
            for move in moves:
                self._agent.put(move)
            os.rename(f"{self._private.path}/synced/host", f"{self._private.path}/synced/index")
        return reason


def settle_side(  # noqa: PLR0913 - the arguments of the script
    side: Side, owner: str, trees: tuple[str, str], heads: tuple[str, str], moves: list[Move], why: str, *,
    git_dir: str = "", common: str = "", scratch: str = "/tmp",
) -> tuple[str, bool]:  # fmt: skip
    """Apply the difference of two trees to an index, and move HEAD and branches, once a lock is free: all or nothing.

    `heads` are the expected and the new one. Return why not, and whether another git changed something meanwhile.
    """
    data = render_updates(moves, len(side.empty_tree))
    variables = (f"GIT_DIR={git_dir}",) if git_dir else ()
    arguments = (*(tree or side.empty_tree for tree in trees), *heads, why, common, f"claudebox {owner}", scratch)
    limit = time.monotonic() + _LOCK_TIMEOUT
    while True:
        status = side.box.run("env", *variables, "sh", "-c", _SETTLE, "sh", *arguments, data=data)
        if status != _LOCKED or time.monotonic() > limit:
            break
        time.sleep(_LOCK_POLL)
    if status in (0, _PARTLY):
        for move in moves if not status else ():
            side.put(move)
        return "", False
    if status == _CONFLICT:
        return "staged on both sides, yours stays", False
    if status == _LOCKED:
        return f"`{side.box.message()}` is held by another git, or is left from one: remove it then", False
    return side.box.message() or f"status {status}", status == _CHANGED


def other_heads(
    layout: Layout, names: Iterable[str], reached: Mapping[str, str], box: GitSandbox | None = None
) -> frozenset[str]:
    """Return the branches that other worktrees of the host's repository have checked out, or rebase or bisect.

    Without the branches of worktrees that are `reached`, by their HEADs: those move with them. Where neither git in its
    `box` nor the file HEAD tells, all of `names` count, but for those and the one that is checked out here.
    """
    places, known = _list_places(layout)
    others = [place for place in places if place != layout.git_dir]
    texts = {place: _read_head(place) for place in others} if box is None else _ask_heads(box, others)
    found: set[str] = set()
    for place in others:
        text, busy = texts.get(place), _find_busy(place)
        known = known and text is not None and busy is not None
        found |= busy or set()
        if text and f"ref: {text}" != reached.get(place):
            found.add(text)
    here = "" if known else (_read_head(layout.git_dir) or "")
    safe = {here, *(head.removeprefix("ref: ") for head in reached.values())}
    return frozenset(found if known else found | (set(names) - safe))


def _list_places(layout: Layout) -> tuple[list[str], bool]:
    """Return the git directories of all checkouts, and whether these are all."""
    places, known = [] if _is_bare(layout.common) else [layout.common], True
    try:
        found = [f"{layout.common}/worktrees/{name}" for name in os.listdir(f"{layout.common}/worktrees")]
    except OSError as error:
        return places, isinstance(error, FileNotFoundError)
    for place in found:
        try:
            os.lstat(f"{place}/HEAD")
        except (FileNotFoundError, NotADirectoryError):
            continue  # not a worktree
        except OSError:
            known = False
        places.append(place)
    return places, known


def _ask_heads(box: GitSandbox, places: list[str]) -> dict[str, str]:
    """Return the branch that each git directory has checked out, "" for none; without those that git cannot read."""
    found, name = {}, ""
    waiting = iter(places)
    box.script(_HEADS, *places)
    for row in os.fsdecode(box.output()).split("\n"):
        if row.startswith("refs/"):
            name = row
        elif row:
            place, answer, name = next(waiting), name, ""
            if row in ("0", "1"):  # 1: a commit is checked out
                found[place] = answer
    return found


def _read_head(place: str) -> str | None:
    """Return the branch that a git directory has checked out, "" for none; None where its file does not tell."""
    try:
        target = os.readlink(f"{place}/HEAD")
    except OSError:
        text = os.fsdecode(read_small(f"{place}/HEAD") or b"").strip()
    else:
        text = f"ref: {target}"
    if text.startswith("ref:"):
        name = text[4:].strip()
        return name if name.startswith("refs/") and f"ref: {name}" != REFTABLE_HEAD else None
    return "" if text and HEX.issuperset(text) else None


def _find_busy(place: str) -> set[str] | None:
    """Return the branches to which a rebase or bisect returns; None where that cannot be read."""
    rows: list[str] = []
    for name in ("rebase-merge/head-name", "rebase-apply/head-name", "rebase-merge/update-refs", "BISECT_START"):
        content = read_small(f"{place}/{name}", limit=1 << 20)
        if content is not None:
            text = os.fsdecode(content)
            rows += [f"{HEADS}{text.strip().removeprefix(HEADS)}"] if name == "BISECT_START" else text.split("\n")
        elif os.path.lexists(f"{place}/{name}"):
            return None
    return {row for row in rows if row.startswith(HEADS)}


def _is_bare(common: str) -> bool:
    """Return whether the repository has no checkout of its own."""
    config = (read_small(f"{common}/config", limit=1 << 20) or b"").lower()
    return any(row.replace(b" ", b"").replace(b"\t", b"") == b"bare=true" for row in config.split(b"\n"))
