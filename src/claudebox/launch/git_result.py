"""What an import of git did, as a value."""

from __future__ import annotations

from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.launch.git_merge import Move


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
