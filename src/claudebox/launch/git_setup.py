"""Making the git directory that stands inside in the place of a real one: by hand, without running git.

The real one may be hostile: nothing in it is followed if it is a link, only regular files are taken, and there is an
end to how many. What is written lies in the state of the project, out of the agent's reach until it is mounted.
"""

from __future__ import annotations

import os
import stat

from claudebox import syscalls
from claudebox.errors import ClaudeboxError
from claudebox.files import identify, list_names, mode_of, read_at, read_small, reopen, replace_file
from claudebox.launch import git_cleanup, git_copy, git_lock, git_operations, git_state
from claudebox.launch.git_copy import Copier
from claudebox.launch.git_names import find_hidden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from claudebox.plan.model import OwnGit

_FOLDED = 200  # so many loose refs are written as one file
_MOST_LOGS = 200
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
# Of a checkout. The index keeps its time: git compares it with those of files.
_CHECKOUT_FILES = (
    "HEAD", "index", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_AUTOSTASH", "MERGE_RR",
    "SQUASH_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "AUTO_MERGE", "BISECT_LOG", "BISECT_START",
    "BISECT_TERMS", "BISECT_NAMES", "BISECT_EXPECTED_REV", "BISECT_ANCESTORS_OK", "BISECT_FIRST_PARENT",
    "COMMIT_EDITMSG", "info/sparse-checkout",
)  # fmt: skip
_CHECKOUT_TREES = ("rebase-merge", "rebase-apply", "sequencer", "refs/bisect", "refs/worktree", "refs/rewritten")
_COMMON_FILES = ("description", "packed-refs", "shallow", "info/exclude", "info/attributes", "info/grafts")
_COMMON_TREES = ("rr-cache", "reftable")
_TAKEN = ("objects", "lfs", "hooks")  # of the directory before
_ENTRY = ("HEAD", "gitdir", "commondir", "locked")  # of a worktree that is not visible inside


def set_up(own: OwnGit, settled: Callable[[str], bool]) -> int:
    """Make the git directory, and return a descriptor that says for as long as it is open that it is in use.

    It stays as it is while another session uses it.
    """
    lock, alone = git_lock.hold(own.private, alone=True)
    if not alone:
        return lock
    try:
        unchanged = settled(own.private)  # asked once: an attempt that fails changes the directory itself
        try:
            _refresh(own, settled=unchanged)
        except PermissionError:  # an agent has closed something of it
            git_cleanup.remove_special(own.own)
            _refresh(own, settled=unchanged)
    except OSError as error:
        raise ClaudeboxError(
            f"the git directory of `{own.worktree}` cannot be set up in `{own.private}`: {error.strerror}",
            hint="free disk space or fix the directory's permissions",
        ) from None
    git_lock.share(lock)
    return lock


def _refresh(own: OwnGit, *, settled: bool) -> None:
    """Build the git directory anew, from the real one or from what has not come back: nothing that was broken lasts."""
    directory = os.open(own.private, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        kept = not settled and stat.S_ISDIR(mode_of(own.own)) and os.path.lexists(f"{own.own}/HEAD")
        known = git_state.has_state(own.private)
        layout = describe_layout(own)
        state = git_state.read_state(own.private) if known else git_state.State(layout)
        if not known or state.layout != layout:
            state = state.replace(layout=layout)
            git_state.write_state(own.private, state)
        new = f"{own.private}/new"
        _give_back(own, new)
        git_cleanup.remove(new)
        os.mkdir(new, 0o700)
        hooks = git_copy.signature(f"{own.real}/hooks")
        taken = _find_taken(own, same_hooks=kept or hooks == state.hooks)
        if kept:
            git_cleanup.remove_special(own.own)
        base, head, index = _make(own, new, taken, kept=kept)
        _take_along(own, new, taken, state)
        if read_at(directory, "config") != own.config:
            replace_file(directory, "config", own.config)
        old = f"{own.private}/old"
        git_cleanup.remove(old)
        _put_in_place(new, own.own, old)
        state = state.replace(hooks=hooks)
        if not kept:
            git_state.write_synced(own.private, head=head, index=index)
            seen = git_state.stamp(own.own, layout.checkout)  # nothing in it has to come back
            operations = tuple(git_operations.find_states(own.git_dir))
            state = state.replace(base=os.fsdecode(base), seen=seen, operations=operations)
        git_state.write_state(own.private, state)
    finally:
        os.close(directory)


def _mend(own: OwnGit, new: str, checkout: str) -> None:
    """Take HEAD and index of the host where the agent's are none."""
    copier = Copier(own.real, new, own.identity)
    try:
        head = (read_small(f"{new}/HEAD") or b"").strip()
        if not head.startswith(b"ref: refs/") and len(head) not in (40, 64):
            copier.files(("HEAD",))
        place = os.path.normpath(f"{checkout}/index")
        if not (read_small(f"{new}/{place}", limit=git_copy.LIMIT) or b"DIRC").startswith(b"DIRC"):
            copier.files((place,))
    finally:
        copier.close()


def _put_in_place(new: str, place: str, old: str) -> None:
    """Replace a directory at once, where the file system can: bwrap may look whether it is there at any moment."""
    if os.path.lexists(place):
        names = os.fsencode(new), os.fsencode(place)
        try:
            exchanged = syscalls.call("renameat2", _HERE, names[0], _HERE, names[1], _EXCHANGE) == 0
        except OSError:  # another C library
            exchanged = False
        os.rename(new if exchanged else place, old)
        if exchanged:
            return
    os.rename(new, place)


def _make(own: OwnGit, new: str, taken: tuple[str, ...], *, kept: bool) -> tuple[bytes, bytes, bytes]:
    """Fill a new directory from the real one, but for what is `taken`; return refs, HEAD and index that both have.

    What is `kept` has not come back: it is taken from the agent's own, as far as git can read it.
    """
    copier = Copier(own.own, new, None) if kept else Copier(own.real, new, own.identity)
    try:
        for path in ("objects/info", "objects/pack", "hooks", "info", "refs"):
            if path.partition("/")[0] not in taken:  # a directory takes longer to make than most files
                os.makedirs(f"{new}/{path}")
        linked = own.git_dir != own.real
        copier.files(("HEAD", *_COMMON_FILES) if linked else (*_CHECKOUT_FILES, *_COMMON_FILES))
        hidden = find_hidden(own.worktree, own.git_dir) if own.only else None
        if hidden is not None:
            _hide_packed(f"{new}/packed-refs", hidden)
        for tree in _COMMON_TREES if linked else (*_CHECKOUT_TREES, *_COMMON_TREES):
            copier.tree(tree)
        copier.files(name for name in copier.names("") if name.startswith("sharedindex."))
        checkout = "." if not linked else os.path.relpath(own.git_dir, own.real)
        if kept:
            _mend(own, new, checkout)
        head = read_small(f"{new}/HEAD") or b""
        loose = _refs(copier, new, head, own.ref_format, hidden)
        if own.only:  # reflogs of the user's other branches stay outside
            copier.files((f"logs/{own.only}",))
        else:
            _logs(copier, head)
        if "hooks" not in taken:
            copier.hooks()
        _worktrees(own, copier, new)
        git_copy.write(f"{new}/config", own.config)
        if own.worktree_config:
            git_copy.write(f"{new}/{checkout}/config.worktree", own.worktree_config)
        for submodule in own.mountpoints:
            os.makedirs(f"{new}/{submodule}", exist_ok=True)
        head = read_small(f"{new}/{checkout}/HEAD") or b""
        packed = read_small(f"{new}/packed-refs", limit=git_copy.LIMIT) or b""
        index = read_small(f"{new}/{checkout}/index", limit=git_copy.LIMIT) or b""
        return b"".join((packed, *loose)), head.strip(), index
    finally:
        copier.close()


def _hide_packed(path: str, hidden: Callable[[str], bool]) -> None:
    """Take what an agent does not see out of a copy of `packed-refs`."""
    rows, kept, shown = (read_small(path, limit=git_copy.LIMIT) or b"").splitlines(keepends=True), [], True
    for row in rows:
        if not row.startswith((b"#", b"^")):  # a row with `^` belongs to the one before it
            shown = not hidden(os.fsdecode(row.rstrip(b"\n").partition(b" ")[2]))
        kept += [row] if shown else []
    if len(kept) < len(rows):
        git_copy.write(path, b"".join(kept))


def _refs(
    copier: Copier, new: str, head: bytes, ref_format: str, hidden: Callable[[str], bool] | None
) -> Iterable[bytes]:
    """Copy loose refs, or fold them into `packed-refs` where there are many; return them as rows."""
    if ref_format == "reftable":
        copier.files(("refs/heads",))
        return ()
    os.makedirs(f"{new}/refs/heads", exist_ok=True)
    os.makedirs(f"{new}/refs/tags", exist_ok=True)
    skipped = ("refs/bisect/", "refs/worktree/", "refs/rewritten/")
    found = {name: value for name, value in copier.contents("refs") if not name.startswith(skipped)}
    if hidden is not None:
        found = {name: value for name, value in found.items() if not hidden(name)}
    plain = {name: value for name, value in found.items() if not value.startswith(b"ref:")}
    current = os.fsdecode(head.removeprefix(b"ref: ").strip())
    if len(plain) > _FOLDED:
        git_copy.fold(f"{new}/packed-refs", plain)
        written = {name: value for name, value in found.items() if name == current or name not in plain}
    else:
        written = found
    for name, value in written.items():
        git_copy.write(f"{new}/{name}", value + b"\n")
    return (value + b" " + os.fsencode(name) + b"\n" for name, value in plain.items())


def _logs(copier: Copier, head: bytes) -> None:
    current = os.fsdecode(head.removeprefix(b"ref: ").strip())
    names = copier.below("logs")
    few = ("logs/HEAD", "logs/refs/stash", f"logs/{current}")
    copier.files(names if len(names) <= _MOST_LOGS else (name for name in names if name in few))


def _worktrees(own: OwnGit, copier: Copier, new: str) -> None:
    """Copy what belongs to linked worktrees; those that are not visible inside are locked, so that git leaves them."""
    for name in copier.names("worktrees"):
        place = f"worktrees/{name}"
        where = os.path.dirname(os.fsdecode(copier.content(f"{place}/gitdir") or b"").strip())
        mine = f"{own.real}/{place}" == own.git_dir
        if own.only and not mine:
            continue
        if mine or any(where == base or where.startswith(f"{base}/") for base in own.visible):
            copier.files(f"{place}/{part}" for part in (*_CHECKOUT_FILES, *_ENTRY[1:], "logs/HEAD", "refs/heads"))
            for tree in (*_CHECKOUT_TREES, "reftable"):
                copier.tree(f"{place}/{tree}")
        else:
            copier.files(f"{place}/{part}" for part in _ENTRY)
            if not os.path.lexists(f"{new}/{place}/locked") and os.path.lexists(f"{new}/{place}/HEAD"):
                git_copy.write(f"{new}/{place}/locked", b"not visible in this sandbox\n")


def _give_back(own: OwnGit, new: str) -> None:
    """Put back what a set-up had taken along that was killed before it was complete: it is nowhere else."""
    for name in _TAKEN if stat.S_ISDIR(mode_of(own.own)) else ():
        if not os.path.lexists(f"{own.own}/{name}") and os.path.isdir(f"{new}/{name}"):
            os.rename(f"{new}/{name}", f"{own.own}/{name}")


def _find_taken(own: OwnGit, *, same_hooks: bool) -> tuple[str, ...]:
    """Return what is kept of the one before: objects, and hooks that the host has not changed since."""
    names = _TAKEN if same_hooks else _TAKEN[:2]
    if os.path.islink(own.own):
        return ()
    return tuple(name for name in names if stat.S_ISDIR(mode_of(f"{own.own}/{name}")))


def _take_along(own: OwnGit, new: str, taken: tuple[str, ...], state: git_state.State) -> None:
    """Keep of the one before what is only inside."""
    for name in taken:
        reopen(f"{own.own}/{name}")  # a directory that cannot be written cannot be moved either
        os.rename(f"{own.own}/{name}", f"{new}/{name}")
    if os.path.isdir(own.own) and not os.path.islink(own.own):
        from claudebox.launch import git_kept

        git_kept.take_along(own.own, state.refs(), new)
    git_cleanup.renew_alternates(f"{new}/objects", [inside for _, inside in own.stores])


def find_moved(own: OwnGit) -> None:
    """Take over what was kept for a git directory whose project has been renamed since."""
    name, instance = os.path.basename(own.private), os.path.dirname(os.path.dirname(own.private))
    if git_state.has_state(own.private):
        return
    for other in list_names(os.path.dirname(instance)):
        place = f"{os.path.dirname(instance)}/{other}/git/{name}"
        if not git_state.has_state(place):
            continue
        layout = git_state.read_layout(place)
        if os.path.lexists(layout.common) and not git_state.is_replaced(layout):
            continue
        with git_state.Alone(place) as unused:
            if unused and not os.path.lexists(f"{own.private}/sessions"):
                git_cleanup.remove(own.private)  # made for this launch
                os.rename(place, own.private)
                write_layout(own)
                return


def write_layout(own: OwnGit) -> None:
    """Write down where a repository is that was made inside."""
    layout = describe_layout(own)
    state = git_state.read_state(own.private) if git_state.has_state(own.private) else git_state.State(layout)
    git_state.write_state(own.private, state.replace(layout=layout))


def describe_layout(own: OwnGit) -> git_state.Layout:
    """Return what an import has to know."""
    return git_state.Layout(
        common=own.real,
        git_dir=own.git_dir,
        work_tree=own.worktree,
        stores=tuple(outside for outside, _ in own.stores),
        object_format=own.object_format,
        ref_format=own.ref_format,
        depth=own.place.count("modules/"),
        module=own.place.rpartition("modules/")[2],
        unmapped=own.unmapped,
        only=own.only,
        obeyed=own.obeyed,
        identities=git_state.describe_identities(own.identity, identify(own.worktree)),
    )
