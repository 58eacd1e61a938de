"""Make the agent's git directory, which stands inside in the place of the host's, without running git.

The host's may be hostile: no link in it is followed, only regular files are copied, and their number is limited. What
is written lies in the state of the project, out of the agent's reach until it is mounted.
"""

from __future__ import annotations

import os
import stat
import time

from claudebox.base import trees
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import (
    OPEN_DIRECTORY,
    Closing,
    list_names,
    mode_of,
    open_beneath,
    open_up,
    read_at,
    read_small,
    reopen,
    replace_file,
    write_all,
    write_file,
)
from claudebox.git import facts as git_facts
from claudebox.git import plan as git_plan
from claudebox.git import state as git_state
from claudebox.git.refs import HEX, find_hidden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from claudebox.git.state import Layout, Private
    from claudebox.host.records import Identity
    from claudebox.plan.records import PrivateGit


LIMIT = 256 << 20  # bytes of packed-refs and the like
_FOLDED = 200  # so many loose refs are written as one file
_MOST_LOGS = 200
# Of a checkout. The index keeps its time: git compares it with those of files.
_CHECKOUT_FILES = (
    "HEAD", "index", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_AUTOSTASH", "MERGE_RR",
    "SQUASH_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "AUTO_MERGE", "BISECT_LOG", "BISECT_START",
    "BISECT_TERMS", "BISECT_NAMES", "BISECT_EXPECTED_REV", "BISECT_ANCESTORS_OK", "BISECT_FIRST_PARENT",
    "COMMIT_EDITMSG", "info/sparse-checkout",
)  # fmt: skip
_CHECKOUT_TREES = ("rebase-merge", "rebase-apply", "sequencer", "refs/bisect", "refs/worktree", "refs/rewritten")
_COMMON_FILES = ("description", "shallow", "info/exclude", "info/attributes", "info/grafts")
_COMMON_TREES = ("rr-cache", "reftable")
_MOVED_OVER = ("objects", "lfs")  # from the directory before
_ENTRY = ("HEAD", "gitdir", "commondir", "locked")  # of a worktree that is not visible inside
_PACKED = b"# pack-refs with: sorted \n"


def set_up(own: PrivateGit, settled: Callable[[str], bool]) -> int:
    """Make the git directory, unless another session uses it; return a descriptor that marks it as in use."""
    lock, alone = git_state.hold(own.private, alone=True)
    if not alone:
        return lock
    try:
        with git_state.Private(own.private):  # no import writes its state meanwhile
            unchanged = settled(own.private)  # asked once: an attempt that fails changes the directory itself
            try:
                _refresh(own, settled=unchanged)
            except PermissionError:  # an agent has closed something of it
                remove_special(own.directory)
                _refresh(own, settled=unchanged)
    except (ClaudeboxError, OSError) as error:
        os.close(lock)
        if isinstance(error, ClaudeboxError):
            raise
        raise ClaudeboxError(
            f"the git directory of `{own.worktree}` cannot be set up in `{own.private}`: {error.strerror}",
            hint="free disk space or fix the directory's permissions",
        ) from None
    git_state.share(lock)
    return lock


def _refresh(own: PrivateGit, *, settled: bool) -> None:
    """Rebuild the git directory from the host's, or from the agent's own if something in it has not come back."""
    new, old = f"{own.private}/new", f"{own.private}/old"
    _give_back(own.directory, new, old)
    kept = not settled and stat.S_ISDIR(mode_of(own.directory)) and os.path.lexists(f"{own.directory}/HEAD")
    known, layout = git_state.has_state(own.private), describe_layout(own)
    state = (git_state.read_state(own.private) if known else git_state.State(layout)).replace(layout=layout)
    git_state.write_state(own.private, state)
    hooks = _renew_hooks(own, state)
    if kept:
        remove_special(own.directory)
    remove(new)
    os.mkdir(new, 0o700)
    base, head, index = _fill(own, new, kept=kept)
    hooks += [] if kept else [f"hooks/{name}" for name in list_names(f"{new}/hooks")]
    _move_over(own, new, state)
    if read_small(f"{own.private}/config", limit=LIMIT) != own.config:
        write_file(f"{own.private}/config", own.config)
    remove(old)
    _put_in_place(new, own.directory, old)
    if not kept:
        git_state.write_synced(own.private, head=head, index=index)
        seen = git_state.stamp(own.directory, layout.checkout)  # nothing in it has to come back
        operations = tuple(find_states(own.git_dir))
        state = state.replace(base=os.fsdecode(base), seen=seen, operations=operations)
    state = state.replace(hooks=(*hooks, *(name for name in state.hooks if kept and name.startswith("hooks/"))))
    git_state.write_state(own.private, state)


def _put_in_place(new: str, place: str, old: str) -> None:
    if os.path.lexists(place):
        os.rename(place, old)
    os.rename(new, place)


def _give_back(place: str, new: str, old: str) -> None:
    """Undo what a set-up did that was killed: what it had moved over is nowhere else."""
    if not os.path.lexists(place) and os.path.lexists(old):
        os.rename(old, place)
    for name in _MOVED_OVER if stat.S_ISDIR(mode_of(place)) else ():
        if not os.path.lexists(f"{place}/{name}") and os.path.isdir(f"{new}/{name}"):
            os.rename(f"{new}/{name}", f"{place}/{name}")


def _fill(own: PrivateGit, new: str, *, kept: bool) -> tuple[bytes, bytes, bytes]:
    """Fill a new directory from the real one, but for objects; return refs, HEAD and index that both sides have.

    With `kept` from the agent's own, of which git may not be able to read everything.
    """
    source, identity = (own.directory, None) if kept else (own.real, own.identity)
    with Copier(source, new, identity) as copier:
        for path in ("hooks", "info", "refs"):
            os.mkdir(f"{new}/{path}")
        checkout = "." if own.git_dir == own.real else os.path.relpath(own.git_dir, own.real)
        copier.files((*_COMMON_FILES, *(_CHECKOUT_FILES if checkout == "." else ("HEAD",))))
        copier.files(name for name in copier.names("") if name.startswith("sharedindex."))
        hidden = find_hidden(own.worktree, own.git_dir) if own.only else None
        for tree in (*(_CHECKOUT_TREES if checkout == "." else ()), *_COMMON_TREES):
            copier.tree(tree)
        if kept:
            _mend(own, new, checkout)
        head = read_small(f"{new}/HEAD") or b""
        loose = _copy_refs(copier, new, head, own.ref_format, hidden)
        _copy_logs(copier, new, head, own.only)
        copier.hooks()
        _copy_worktrees(own, copier, new)
        write(f"{new}/config", own.config)
        if own.worktree_config:
            write(f"{new}/{checkout}/config.worktree", own.worktree_config)
        for submodule in own.mountpoints:
            os.makedirs(f"{new}/{submodule}", exist_ok=True)
        head = read_small(f"{new}/{checkout}/HEAD") or b""
        packed = read_small(f"{new}/packed-refs", limit=LIMIT) or b""
        index = read_small(f"{new}/{checkout}/index", limit=LIMIT) or b""
        _mask_files(own, new, f"{new}/{checkout}/index")
        return b"".join((packed, *loose)), head.strip(), index


def _mask_files(own: PrivateGit, new: str, index: str) -> None:
    """Keep git from reading masked files: by attributes, and by an index that does not know their sizes."""
    place = f"{new}/info/attributes"
    before = read_small(place, limit=LIMIT) or b""
    content = git_plan.drop_attributes(before) + git_plan.render_attributes(own.masked)
    if content != before:
        write(place, content)
    names = frozenset(map(os.fsencode, own.masked))
    entries = read_small(index, limit=LIMIT) or b"" if names else b""
    if any(name in entries for name in names) or entries[4:8] == b"\0\0\0\4":  # which cuts names
        status = os.lstat(index)
        write(index, git_facts.forget_sizes(entries, names, 32 if own.object_format == "sha256" else 20))
        os.utime(index, ns=(status.st_atime_ns, status.st_mtime_ns))


def _mend(own: PrivateGit, new: str, checkout: str) -> None:
    """Take HEAD and index of the host where the agent's are broken."""
    with Copier(own.real, new, own.identity) as copier:
        head = (read_small(f"{new}/HEAD") or b"").strip()
        if not head.startswith(b"ref: refs/") and len(head) not in (40, 64):
            copier.files(("HEAD",))
        place = os.path.normpath(f"{checkout}/index")
        if not (read_small(f"{new}/{place}", limit=LIMIT) or b"DIRC").startswith(b"DIRC"):
            copier.files((place,))


def _hide_packed(path: str, hidden: Callable[[str], bool]) -> None:
    """Remove from a copy of `packed-refs` what the agent must not see."""
    refs = _read_packed(path)
    if any(map(hidden, refs)):
        _write_packed(path, {name: value for name, value in refs.items() if not hidden(name)})


def _copy_refs(
    copier: Copier, new: str, head: bytes, ref_format: str, hidden: Callable[[str], bool] | None
) -> Iterable[bytes]:
    """Copy loose refs, or fold them into `packed-refs` where there are many; return them as rows."""
    if ref_format == "reftable":
        copier.files(("refs/heads",))
        return ()
    os.makedirs(f"{new}/refs/heads", exist_ok=True)
    os.makedirs(f"{new}/refs/tags", exist_ok=True)
    of_checkout = ("refs/bisect/", "refs/worktree/", "refs/rewritten/")
    found = {name: value for name, value in copier.contents("refs") if not name.startswith(of_checkout)}
    copier.files(("packed-refs",))  # after the loose ones, which a gc on the host may be moving there
    if hidden is not None:
        _hide_packed(f"{new}/packed-refs", hidden)
        found = {name: value for name, value in found.items() if not hidden(name)}
    plain = {name: value for name, value in found.items() if not value.startswith(b"ref:")}
    written = found
    if len(plain) > _FOLDED:
        packed, current = f"{new}/packed-refs", os.fsdecode(head.removeprefix(b"ref: ").strip())
        _write_packed(packed, _read_packed(packed) | {name: os.fsdecode(value) for name, value in plain.items()})
        written = {name: value for name, value in found.items() if name == current or name not in plain}
    for name, value in written.items():
        write(f"{new}/{name}", value + b"\n")
    return (value + b" " + os.fsencode(name) + b"\n" for name, value in plain.items())


def _read_packed(path: str) -> dict[str, str]:
    return git_state.parse_refs(os.fsdecode(read_small(path, limit=LIMIT) or b""))


def _write_packed(path: str, refs: dict[str, str]) -> None:
    """Write a file `packed-refs`, sorted by bytes as git expects."""
    rows = {name: refs[name] for name in sorted(refs, key=os.fsencode)}
    write(path, _PACKED + os.fsencode(git_state.render_refs(rows)))


def _copy_logs(copier: Copier, new: str, head: bytes, only: str) -> None:
    """Copy reflogs; `only` that of an agent's branch: those of the user's stay outside."""
    current = os.fsdecode(head.removeprefix(b"ref: ").strip())
    names = [f"logs/{only}"] if only else copier.below("logs")
    few = ("logs/HEAD", "logs/refs/stash", f"logs/{current}")
    names = names if len(names) <= _MOST_LOGS else [name for name in names if name in few]
    copier.files(names)
    for name in names:
        _hide_logins(f"{new}/{name}")


def _hide_logins(path: str) -> None:
    """Drop logins from the addresses in a reflog: `git pull https://USER:TOKEN@HOST` writes its words there."""
    content = read_small(path, limit=LIMIT) or b""
    if b"://" in content:
        lines = (map(git_plan.drop_login, line.split(" ")) for line in os.fsdecode(content).split("\n"))
        write(path, os.fsencode("\n".join(map(" ".join, lines))))


def _copy_worktrees(own: PrivateGit, copier: Copier, new: str) -> None:
    """Copy what belongs to linked worktrees; those that are not visible inside are locked, so that git leaves them."""
    for name in copier.names("worktrees"):
        place = f"worktrees/{name}"
        where = os.path.dirname(os.fsdecode(copier.content(f"{place}/gitdir") or b"").strip())
        mine = f"{own.real}/{place}" == own.git_dir
        if own.only and not mine:
            continue
        if mine or any(where == base or where.startswith(f"{base}/") for base in own.visible):
            copier.files(f"{place}/{part}" for part in (*_CHECKOUT_FILES, *_ENTRY[1:], "logs/HEAD", "refs/heads"))
            _hide_logins(f"{new}/{place}/logs/HEAD")
            for tree in (*_CHECKOUT_TREES, "reftable"):
                copier.tree(f"{place}/{tree}")
        else:
            copier.files(f"{place}/{part}" for part in _ENTRY)
            if not os.path.lexists(f"{new}/{place}/locked") and os.path.lexists(f"{new}/{place}/HEAD"):
                write(f"{new}/{place}/locked", b"not visible in this sandbox\n")


def _move_over(own: PrivateGit, new: str, state: git_state.State) -> None:
    """Move over from the directory before what is only there."""
    if stat.S_ISDIR(mode_of(own.directory)):
        for name in _MOVED_OVER:
            if stat.S_ISDIR(mode_of(f"{own.directory}/{name}")):
                reopen(f"{own.directory}/{name}")  # a directory that cannot be written cannot be moved either
                os.rename(f"{own.directory}/{name}", f"{new}/{name}")
        _carry_over(own.directory, state.refs(), new, state.hooks)
    os.makedirs(f"{new}/objects", exist_ok=True)
    _renew_alternates(f"{new}/objects", [inside for _, inside in own.stores])


def _renew_alternates(objects: str, stores: list[str]) -> None:
    """Name the stores in a directory of objects, in which an agent may have put anything."""
    with Closing(os.open(objects, OPEN_DIRECTORY)) as directory:
        for name in ("info", "pack"):
            if not stat.S_ISDIR(mode := mode_of(name, directory)):
                if mode:
                    os.unlink(name, dir_fd=directory)
                os.mkdir(name, 0o755, dir_fd=directory)
        with Closing(os.open("info", OPEN_DIRECTORY, dir_fd=directory)) as info:
            if stat.S_ISDIR(mode_of("alternates", info)):
                os.rename("alternates", f"alternates.{os.getpid()}", src_dir_fd=info, dst_dir_fd=info)
            content = b"".join(os.fsencode(store) + b"\n" for store in stores)
            if read_at(info, "alternates") != content:
                replace_file(info, "alternates", content)


def find_moved(own: PrivateGit) -> None:
    """Take over the private directory of a project that was renamed since."""
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
                remove(own.private)  # made for this launch
                os.rename(place, own.private)
                write_layout(own)
                return


def write_layout(own: PrivateGit) -> None:
    """Write the layout of a repository that was made inside."""
    layout = describe_layout(own)
    state = git_state.read_state(own.private) if git_state.has_state(own.private) else git_state.State(layout)
    git_state.write_state(own.private, state.replace(layout=layout))


def describe_layout(own: PrivateGit) -> Layout:
    return git_state.Layout(
        common=own.real,
        git_dir=own.git_dir,
        work_tree=own.worktree,
        stores=tuple(outside for outside, _ in own.stores),
        object_format=own.object_format,
        ref_format=own.ref_format,
        depth=own.place.count("modules/"),
        module=own.place.rpartition("modules/")[2],
        only=own.only,
        obeyed=own.obeyed,
        common_inode=own.identity[1] if own.identity is not None else 0,
        work_tree_inode=git_state.find_inode(own.worktree),
    )


# Stashes and notes that were made inside do not come back: they are carried over from session to session.


KEPT_REFS = _STASH, _NOTES = "refs/stash", "refs/notes"
_REF_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")


def _find_kept(copier: Copier, before: dict[str, str]) -> dict[str, str]:
    """Return the stash and notes of the agent that differ from what both sides had in common."""
    found = git_state.parse_refs(os.fsdecode(copier.content("packed-refs", LIMIT) or b""))
    stash = (copier.content(_STASH) or b"").strip()
    loose = {**dict(copier.contents(_NOTES)), **({_STASH: stash} if stash else {})}
    found |= {name: os.fsdecode(value) for name, value in loose.items()}
    return {name: value for name, value in found.items() if before.get(name) != value and _is_kept(name, value)}


def _is_kept(name: str, value: str) -> bool:
    parts = name.split("/")
    is_odd = any(not part or part[0] == "." or part.endswith(".lock") for part in parts)
    is_ours = name == _STASH or name.startswith(f"{_NOTES}/")
    return (
        is_ours and not is_odd and _REF_CHARACTERS.issuperset(name) and HEX.issuperset(value) and len(value) in (40, 64)
    )


def _carry_over(own: str, base: dict[str, str], new: str, of_host: tuple[str, ...]) -> None:
    """Copy stash, notes and hooks of the agent into the git directory that replaces this one."""
    with Copier(own, new, None) as copier:
        kept = _find_kept(copier, base)
        for name, value in kept.items():
            write(f"{new}/{name}", f"{value}\n".encode())
        if _STASH in kept:
            copier.files((f"logs/{_STASH}",))  # the older ones stand there
        copier.files(_find_made_hooks(copier, "hooks", f"{new}/hooks", of_host))


def describe_kept(own: str, base: dict[str, str]) -> list[str]:
    """Return the lines for the end of a session about the stash and notes that were made inside."""
    with Copier(own, own, None) as copier:
        kept = _find_kept(copier, base)
    notes = ["stashes made inside stay there: `claudebox --exec -- git stash list`"] if kept.pop(_STASH, "") else []
    return notes + [f"{name.removeprefix('refs/')} made inside stay there" for name in sorted(kept)][:3]


# Hooks: those of the host are copied at each launch, those that were made inside stay inside.


_MOST_HOOKS = 256  # of one directory


def read_settings(private: str) -> tuple[bytes, list[str]]:
    """Return the configuration of the agent's git directory, and the names of its hooks."""
    hooks = f"{private}/own/hooks"
    names = list_names(hooks) if stat.S_ISDIR(mode_of(hooks)) else []
    return read_small(f"{private}/own/config", limit=1 << 20) or b"", names


def _find_made_hooks(copier: Copier, place: str, new: str, of_host: tuple[str, ...]) -> list[str]:
    """Return the hooks in a directory that were made inside and have no namesake in the new one."""
    found = [f"{place}/{name}" if place else name for name in copier.names(place) if not name.endswith(".sample")]
    there = list_names(new)
    return [path for path in found if path not in of_host and os.path.basename(path) not in there][:_MOST_HOOKS]


def _renew_hooks(own: PrivateGit, state: git_state.State) -> list[str]:
    """Rebuild the copies of directories of hooks; return which of the hooks are the host's."""
    copied = []
    for hooks in own.hooks:
        name, new, old = os.path.basename(hooks.copy), f"{hooks.copy}.new", f"{hooks.copy}.old"
        _give_back(hooks.copy, new, old)
        remove(new)
        os.mkdir(new, 0o755)
        if hooks.identity is not None:
            with Copier(hooks.host, new, hooks.identity) as copier:
                copier.files(copier.names("")[:_MOST_HOOKS])
        of_host = [f"{name}/{hook}" for hook in list_names(new)]
        made = tuple(row.partition("/")[2] for row in state.hooks if row.startswith(f"{name}/"))
        reopen(hooks.copy)
        if os.path.isdir(hooks.copy):
            with Copier(hooks.copy, new, None) as copier:
                copier.files(_find_made_hooks(copier, "", new, made))
        remove(old)
        _put_in_place(new, hooks.copy, old)
        remove(old)
        copied += of_host
    return copied


# Operations that are under way, such as a rebase or a merge. Git moves HEAD and index to and fro meanwhile, and some of
# the files of an operation name commands: none comes back.


_OPERATIONS = {
    "rebase-merge": "rebase", "rebase-apply": "rebase", "sequencer": "cherry-pick", "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert", "BISECT_START": "bisect",
}  # fmt: skip


def find_operation(directory: str) -> str:
    """Return which operation is under way in a git directory, nothing if none is."""
    return next((_OPERATIONS[name] for name in _states(directory)), "")


def describe_operation(operation: str) -> str:
    """Return the line about an operation that is under way inside."""
    words = "bisect reset" if operation == "bisect" else f"{operation} --abort"
    return (
        f"a {operation} is under way inside; the next session can go on with it, and "
        f"`claudebox --exec -- git {words}` ends it"
    )


def _states(directory: str) -> list[str]:
    return [name for name in _OPERATIONS if os.path.lexists(f"{directory}/{name}")]


def find_states(git_dir: str) -> list[str]:
    """Return rows that change when an operation of the host goes on."""
    found = ((name, os.lstat(f"{git_dir}/{name}")) for name in _states(git_dir))
    return [f"{name} {status.st_ino} {status.st_mtime_ns}" for name, status in found]


def find_ongoing(private: Private) -> str:
    """Return which operation of the host is under way that the agent has not ended, nothing if none is."""
    state = private.state()
    rows = (row for row in find_states(state.layout.git_dir) if row not in state.operations)
    return next((_OPERATIONS[row.partition(" ")[0]] for row in rows), "")


def put_operation_aside(private: Private, layout: Layout) -> list[str]:
    """Put aside an operation of the host that the agent has finished; return what to tell.

    Otherwise `git rebase --abort` on the host would throw the result away.
    """
    notes = []
    for name in _states(layout.git_dir):
        aside = f"{layout.git_dir}/claudebox.{name}.{time.time_ns()}"
        try:
            os.rename(f"{layout.git_dir}/{name}", aside)
        except OSError as error:
            notes.append(f"`{name}` cannot be put aside: {error.strerror}")
        else:
            notes.append(f"the {_OPERATIONS[name]} that was under way has ended inside; its state is in `{aside}`")
    if notes:
        private.update(operations=())
    return notes


# Repair what an agent left in its git directory, following no link.


_READ_BY_GIT = ("objects", "refs", "reftable", "logs", "info", "worktrees")
_DAEMON = "fsmonitor--daemon.ipc"  # a socket of git's own, which it does not read
_MOST_ENTRIES, _DEEPEST = 1 << 20, 32


def remove_special(own: str) -> list[str]:
    """Remove pipes, sockets, devices, links among objects and refs, and refs that lie too deep; return their paths.

    Git would wait for ever to open a pipe. Files and directories that deny the owner reading are opened up, but for
    objects, which are too many.
    """
    removed: list[str] = []
    pending, count = [""], 0
    try:
        top = os.open(own, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # the import fails, and names it
        return removed
    with Closing(top):
        while pending and count < _MOST_ENTRIES:  # beyond, the time limit of git ends the import
            path = pending.pop()
            try:
                with Closing(_reopen_beneath(top, path)) as directory:
                    entries = list(os.scandir(directory))
                    count += len(entries)
                    for entry in entries:
                        name = f"{path}/{entry.name}" if path else entry.name
                        is_deep = name.count("/") >= _DEEPEST
                        if entry.is_dir(follow_symlinks=False):
                            if is_deep and path.startswith("refs/"):
                                os.rename(entry.name, f"deep.{time.time_ns()}", src_dir_fd=directory, dst_dir_fd=top)
                                removed.append(name)
                            elif not is_deep if path else name in _READ_BY_GIT:
                                pending.append(name)
                        elif _is_special(entry, name):
                            os.unlink(entry.name, dir_fd=directory)
                            removed.append(name)
                        elif not name.startswith("objects/") and entry.is_file(follow_symlinks=False):
                            _let_read(directory, entry)
            except OSError:
                continue
    return sorted(removed)


def _reopen_beneath(top: int, path: str) -> int:
    """Open a directory, and give the owner back the rights in it that an agent took away."""
    with Closing(open_beneath(top, path)) as held:
        open_up(held)
        return os.open(".", OPEN_DIRECTORY, dir_fd=held)


def _is_special(entry: os.DirEntry[str], name: str) -> bool:
    if entry.is_symlink():
        return name.partition("/")[0] in ("objects", "refs")
    return not entry.is_file(follow_symlinks=False) and entry.name != _DAEMON


def _let_read(directory: int, entry: os.DirEntry[str]) -> None:
    mode = entry.stat(follow_symlinks=False).st_mode
    if not mode & stat.S_IRUSR:
        with Closing(os.open(entry.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as held:
            os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(mode) | stat.S_IRUSR | stat.S_IWUSR)


def remove(path: str) -> None:
    """Remove a file or a tree that an agent may have made; nothing to do where there is none."""
    if stat.S_ISDIR(mode_of(path)):
        trees.remove(*os.path.split(path))
    elif os.path.lexists(path):
        os.unlink(path)


# Copy parts of a git directory that may be hostile.


MOST_FILES = 200_000
_SMALL = 1 << 16
_DEPTH = 32
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_TOO_MANY = f"the git directory has more than {MOST_FILES} files besides objects"


class Copier:
    """Copies files out of one directory, following no link."""

    def __init__(self, source: str, target: str, identity: Identity | None) -> None:
        self._source = os.open(source, OPEN_DIRECTORY)
        self._target = target
        self._left = MOST_FILES
        self._made = {target}
        status = os.fstat(self._source)
        if identity is not None and (status.st_dev, status.st_ino) != identity:
            os.close(self._source)
            raise ClaudeboxError(f"`{source}` was replaced by something else since it was shown")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._source)

    def files(self, names: Iterable[str]) -> None:
        """Copy regular files, with their times."""
        for name in names:
            if (source := self.open(name)) >= 0:
                with Closing(source):
                    self._copy(source, name)

    def tree(self, name: str) -> None:
        """Copy the files in a directory and beneath."""
        self.files(self.below(name))

    def hooks(self) -> None:
        """Copy the hooks, without the examples that git brings."""
        self.files(f"hooks/{name}" for name in self.names("hooks") if not name.endswith(".sample"))

    def content(self, name: str, limit: int = _SMALL) -> bytes | None:
        """Return the content of a regular file, if it is that small."""
        if (source := self.open(name)) < 0:
            return None
        with Closing(source):
            return os.read(source, limit) if os.fstat(source).st_size <= limit else None

    def contents(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Yield the names and the trimmed contents of all files beneath a directory."""
        for path in self.below(name):
            content = self.content(path)
            if content and content.strip() and b"\n" not in content.strip():
                yield path, content.strip()

    def names(self, name: str) -> list[str]:
        """Return the names in a directory."""
        if (directory := self._enter(name)) < 0:
            return []
        with Closing(directory):
            return sorted(os.listdir(directory))

    def below(self, name: str) -> list[str]:
        """Return the files beneath a directory, without locks."""
        if (directory := self._enter(name)) < 0:
            return []
        with Closing(directory):
            return [f"{name}/{path}" for path in _walk(directory, self._left) if not path.endswith(".lock")]

    def _enter(self, name: str) -> int:
        """Return a descriptor on a directory, -1 if there is none or a link is in the way."""
        try:
            return open_beneath(self._source, name, listed=True)
        except OSError:
            return -1

    def open(self, name: str) -> int:
        """Return a descriptor on a regular file, -1 if there is none."""
        parent, _, last = name.rpartition("/")
        if (directory := self._enter(parent)) < 0:
            return -1
        try:
            with Closing(directory):
                descriptor = os.open(last, _READ, dir_fd=directory)
        except OSError:
            return -1
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        return -1

    def _copy(self, source: int, name: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise ClaudeboxError(_TOO_MANY)
        status, path = os.fstat(source), f"{self._target}/{name}"
        parent = os.path.dirname(path)
        if parent not in self._made:
            os.makedirs(parent, exist_ok=True)
            self._made.add(parent)
        with Closing(os.open(path, _WRITE, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)) as target:
            while piece := os.read(source, 1 << 20):
                write_all(target, piece)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def write(path: str, content: bytes) -> None:
    """Write a file, with the directories above it."""
    try:
        descriptor = os.open(path, _WRITE, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, _WRITE, 0o644)
    with Closing(descriptor):
        write_all(descriptor, content)


def _walk(top: int, most: int) -> list[str]:
    """Return the regular files beneath a directory, relative to it."""
    found: list[str] = []
    pending = [("", 0)]
    while pending:
        prefix, depth = pending.pop()
        try:
            with Closing(open_beneath(top, prefix, listed=True)) as directory, os.scandir(directory) as entries:
                for entry in entries:
                    path = f"{prefix}/{entry.name}" if prefix else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        pending += [(path, depth + 1)] if depth < _DEPTH else []
                    elif entry.is_file(follow_symlinks=False):
                        found.append(path)
        except OSError:
            continue
        if len(found) > most:
            raise ClaudeboxError(_TOO_MANY)
    return sorted(found)
