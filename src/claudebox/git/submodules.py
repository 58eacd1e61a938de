"""Gitlinks that branches add or change.

On the host `git status` enters the repository at a gitlink and does what its configuration says. So a branch that adds
one waits for the end of the session, when nobody can put a `.git` there any more, and what stands there is disarmed
before the branch moves. What cannot be examined is not taken in.
"""

from __future__ import annotations

from claudebox.git.sides import parse_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.git.refs import Move
    from claudebox.git.sides import Side

    Changed = dict[bytes, str] | None  # path -> mode


GITLINK = "160000"


def changed_paths(agent: Side, moves: Iterable[Move], base: str) -> dict[str, Changed]:
    """Return the paths that each ref changes and their new modes, compared with its old value or with a commit.

    None where that cannot be said: such a ref does not come back.
    """
    wanted = {move.name: (move.old or base or agent.empty_tree, move.new) for move in moves if move.new}
    values = sorted({value for pair in wanted.values() for value in pair})
    trees = _find_trees(agent, values)
    pairs = {tuple(trees.get(value, "") for value in pair) for pair in wanted.values()}
    known = _compare(agent, sorted(pair for pair in pairs if all(pair)))
    return {name: known.get(tuple(trees.get(value, "") for value in pair)) for name, pair in wanted.items()}


def _find_trees(agent: Side, values: list[str]) -> dict[str, str]:
    """Return the trees of commits and tags."""
    data = "".join(f"{value}^{{tree}}\n" for value in values).encode()
    rows = (
        (agent.box.ask("cat-file", "--batch-check=%(objectname)", data=data, index=False) or b"").decode().split("\n")
    )
    return {value: row for value, row in zip(values, rows, strict=False) if agent.is_id(row)}


def _compare(agent: Side, pairs: list[tuple[str, ...]]) -> dict[tuple[str, ...], Changed]:
    """Return what differs between trees, two and two; the index is not read, which an agent may have broken."""
    if not pairs:
        return {}
    words = ("diff-tree", "--stdin", "-r", "--raw", "-z", "--no-renames", "--no-abbrev")
    raw = agent.box.ask(*words, data="".join(f"{old} {new}\n" for old, new in pairs).encode(), index=False)
    if raw is None and len(pairs) > 1:  # one is broken, and the others are not
        return {pair: rows for one in pairs for pair, rows in _compare(agent, [one]).items()}
    found: dict[tuple[str, ...], Changed] = dict.fromkeys(pairs)  # what git does not name is not known
    parts, pair = iter((raw or b"").split(b"\0")), pairs[0]
    for part in parts:
        head, row = b"", part
        while row and not row.startswith(b":"):
            head, _, row = row.partition(b"\n")
            pair = tuple(head.decode("ascii", "replace").split(" "))
            found[pair] = {}
        changed, rows = parse_rows(row + b"\0" + next(parts, b"")) if row else {}, found[pair]
        if changed is None or rows is None:
            found[pair] = None
        else:
            rows.update((path, changed[path].mode) for path in changed)
    return found


def select_gitlinks(changed: dict[str, Changed]) -> dict[str, set[bytes]]:
    """Return the gitlinks that each branch adds or changes, for those that do."""
    found = {name: {path for path, mode in (rows or {}).items() if mode == GITLINK} for name, rows in changed.items()}
    return {name: links for name, links in found.items() if links}


def links_of_tree(raw: bytes) -> set[bytes]:
    """Return the gitlinks in the answer of `ls-tree -r -z`."""
    return {row.partition(b"\t")[2] for row in raw.split(b"\0") if row.startswith(GITLINK.encode())}
