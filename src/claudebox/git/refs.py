"""Names of branches and tags that the agent may give: none that git or a shell could take for something else."""

from __future__ import annotations

import os

from claudebox.base.files import list_names, read_small
from claudebox.base.records import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


HEADS, TAGS, REMOTES = "refs/heads/", "refs/tags/", "refs/remotes/"
# Git refuses these too, but only the git that they would mislead.
_FORBIDDEN = frozenset(" ~^:?*[\\")
HEX = frozenset("0123456789abcdef")
_SHORTEST_ID, _LONGEST_ID = 4, 64
_LONGEST = 200
_CONFIG_LIMIT = 1 << 20
_PUNCTUATION = frozenset("-./+@#=,%")  # which no shell interprets within a word; letters and digits besides
_NOT_FIRST = frozenset("#=%+@,")
_NAMESPACES = frozenset(("refs", "heads", "tags", "remotes", "notes", "stash", "bisect", "replace"))
_SPECIAL = frozenset(("AUTO_MERGE", "BISECT_EXPECTED_REV", "MERGE_AUTOSTASH", "NOTES_MERGE_PARTIAL", "NOTES_MERGE_REF"))
_ELSE = "its name could be taken for something else"


def objection(name: str) -> str:
    """Return why a ref of the host cannot be moved by its name, "" if it can."""
    if not name.startswith((HEADS, TAGS)):
        return "only branches and tags come back"
    short = shorten_ref(name)
    parts = short.split("/")
    if len(name) > _LONGEST:
        return "its name is too long"
    if not name.isprintable() or not _FORBIDDEN.isdisjoint(name) or "@{" in name or ".." in name:
        return "its name has characters that refs cannot have"
    if any(not part or part[0] in ".-" or part.endswith((".", ".lock")) for part in parts) or short == "@":
        return _ELSE
    if short.endswith("HEAD") and short.replace("_", "").isupper():
        return _ELSE
    if len(short) in (40, 64) and HEX.issuperset(short.lower()):
        return "its name could be taken for a commit"
    return ""


def objection_to_new(name: str, known: Iterable[str] = (), remotes: frozenset[str] = frozenset()) -> str:
    """Return why a ref cannot be made by this name, "" if it can.

    `known` are the short names of the refs that there are: git would take the one for the other.
    """
    reason = objection(name)
    if reason:
        return reason
    short = shorten_ref(name)
    if short[0] in _NOT_FIRST or not is_plain(short):
        return "its name has characters that shells interpret"
    if is_like_id(short):
        return "its name could be taken for a commit"
    if short.partition("/")[0] in _NAMESPACES or short in _SPECIAL or short.upper() == "HEAD":
        return _ELSE
    if any(f"{short}/".startswith(f"{remote}/") for remote in remotes):
        return "its name could be taken for a branch of a remote"
    return "another ref of yours has the same short name" if short in known else ""


def shorten_ref(name: str) -> str:
    """Return what users call a ref: `main` for `refs/heads/main`."""
    return name.split("/", 2)[-1]


def find_hidden(worktree: str, git_dir: str) -> Callable[[str], bool]:
    """Return a test for refs that an agent in this worktree does not see: the user's stash, those of other agents."""
    parent, own = os.path.split(worktree)
    records = (read_small(f"{parent}/{name}") for name in list_names(parent) if name[0] == "." and name[1:] != own)
    heads = {HEADS + os.fsdecode(row.split(b"\0")[3]) for row in records if row and row.count(b"\0") > 2}
    arrived, session = (f"{HEADS}claudebox/", f"{TAGS}claudebox/"), f"-{os.path.basename(git_dir)}/"

    def is_hidden(name: str) -> bool:
        return name == "refs/stash" or name in heads or (name.startswith(arrived) and session not in name)

    return is_hidden


def is_plain(text: str) -> bool:
    """Return whether a text has only letters, digits and what no shell interprets."""
    return all(char in _PUNCTUATION or f"a{char}".isidentifier() for char in text)


def is_like_id(short: str) -> bool:
    """Return whether git could read a name as a commit: digits of one, or what `git describe` says."""
    digits = short.rpartition("-g")[2]
    return _SHORTEST_ID <= len(digits) <= _LONGEST_ID and HEX.issuperset(digits.lower())


def remote_names(common: str, refs: Iterable[str]) -> frozenset[str]:
    """Return the remotes of a repository: the configured ones, those that were fetched from, and `origin`."""
    text = (read_small(f"{common}/config", limit=_CONFIG_LIMIT) or b"").decode("utf-8", "surrogateescape")
    heads = (piece.partition("]")[0].strip() for piece in text.split("["))
    configured = {head[6:].strip(' ."\t') for head in heads if head[:6].lower() == "remote"} - {""}
    fetched = {shorten_ref(name).partition("/")[0] for name in refs if name.startswith(REMOTES)}
    return frozenset(("origin", *configured, *fetched))


# Merge: from three states of refs, which move in the host's repository and which in the agent's.


class Move(Value):
    """One change of a ref: from an old value to a new one; an empty value is none."""

    name: str
    old: str
    new: str
    commits: int = 0  # that only the new one has, if counted


def put(refs: dict[str, str], move: Move) -> None:
    """Apply a move to `refs`."""
    if move.new:
        refs[move.name] = move.new
    else:
        refs.pop(move.name, None)


def render_updates(moves: Iterable[Move], digits: int) -> bytes:
    """Return what `git update-ref -z --stdin` reads, in a repository whose ids have so many digits."""
    zero = "0" * digits
    return os.fsencode("".join(f"update {move.name}\0{move.new or zero}\0{move.old or zero}\0" for move in moves))


class Merged(Value):
    """How refs are to move."""

    outbound: tuple[Move, ...]  # into the host's repository
    inbound: tuple[Move, ...]  # into the agent's
    diverged: tuple[Move, ...]  # both sides moved it: the agent's value needs another name
    refused: tuple[tuple[str, str], ...]  # refs of the agent that stay where they are, and why
    agreed: dict[str, str]  # what both sides have in common: the next base


def merge_refs(
    agent: dict[str, str],
    host: dict[str, str],
    base: dict[str, str],
    contains: Callable[[str, str], bool],
    elsewhere: frozenset[str] = frozenset(),
    remotes: Callable[[], frozenset[str]] = frozenset,
    only: str = "",
) -> Merged:
    """Compare the agent's refs with the host's, and with what both last had in common.

    `contains(a, b)`: the history of `a` contains `b`. `elsewhere`: branches that are checked out in another worktree.
    `remotes` are those of the host. `only`: no other ref of the host moves.
    """
    outbound: list[Move] = []
    inbound: list[Move] = []
    diverged: list[Move] = []
    refused: list[tuple[str, str]] = []
    # Stashes and notes are not merged: their base stays.
    agreed = {name: value for name, value in base.items() if not name.startswith((HEADS, TAGS, REMOTES))}
    strange = _objections(sorted(agent.keys() - host.keys() - base.keys()), host, remotes)
    for name in sorted({*agent, *host, *base}):
        inside, outside, before = agent.get(name, ""), host.get(name, ""), base.get(name, "")
        if inside == outside:
            if inside:
                agreed[name] = inside
            continue
        if before:
            agreed[name] = before
        reason = strange.get(name) or objection(name)
        if inside == before:
            inbound.append(Move(name, inside, outside))
        elif name.startswith(REMOTES) or (name.startswith(TAGS) and not inside):
            continue  # what the agent fetched is its own, and a tag that it deleted stays on the host
        elif reason or (name.startswith(TAGS) and (before or outside)):
            refused.append((name, reason or "tags are only added"))
        elif not inside:  # deleted or renamed inside: it goes, unless the host has moved it since
            free = outside == before and name not in elsewhere and not only
            (outbound if free else inbound).append(Move(name, outside if free else "", "" if free else outside))
        elif name in elsewhere or only not in ("", name):
            diverged.append(Move(name, before, inside))
        elif outside == before or (outside and contains(inside, outside)):
            outbound.append(Move(name, outside, inside))
        elif outside and contains(outside, inside):
            inbound.append(Move(name, inside, outside))
        else:
            diverged.append(Move(name, before, inside))
    outbound.sort(key=lambda move: bool(move.new))  # deletions first: `a` may make room for `a/b`
    return Merged(tuple(outbound), tuple(inbound), tuple(diverged), tuple(refused), agreed)


def _objections(new: list[str], host: dict[str, str], remotes: Callable[[], frozenset[str]]) -> dict[str, str]:
    """Return why refs cannot be made, for those that cannot: of two with the same short name the first one can."""
    known, reserved = {shorten_ref(name) for name in host}, remotes() if new else frozenset()
    found = {}
    for name in (name for name in new if name.startswith((HEADS, TAGS))):
        reason = objection_to_new(name, known, reserved)
        if reason:
            found[name] = reason
        known.add(shorten_ref(name))
    return found
