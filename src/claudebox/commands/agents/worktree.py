"""The linked worktree of an agent: made by git in a sandbox, on a branch of the user's own repository.

None of the repository's configuration, hooks and filters is in force in that sandbox. Its submodules have git
directories of their own in the worktree's part of the repository, with hard links of the objects.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from typing import TYPE_CHECKING

from claudebox.console import clean, shorten
from claudebox.errors import ClaudeboxError
from claudebox.files import list_names, read_small, real_path
from claudebox.launch import git_checkout, git_copy, git_transfer
from claudebox.launch.git_merge import Move
from claudebox.launch.git_names import HEADS, TAGS
from claudebox.launch.git_sandbox import GitError, GitSandbox, Limits
from claudebox.launch.git_setup import describe_layout
from claudebox.launch.git_sides import Side, real_mounts, real_side
from claudebox.launch.git_submodules import GITLINK
from claudebox.plan import git_settings
from claudebox.report import tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from claudebox.commands.agents.copies import Copy
    from claudebox.launch.git_sandbox import Tools
    from claudebox.plan.model import OwnGit

LIMITS = Limits(seconds=3600.0, size=64 << 30)  # the user waits for it, and can end it
_ATTEMPTS, _PAUSE = 10, 0.1
_ENTRY = ("description", "packed-refs", "shallow", "info/exclude", "info/attributes")
# Git LFS without its programs. What git holds of a large file is a pointer: the SHA-256 of its content and its size.
# A pointer to a file that the project does not have stays one. Git takes `%%` for `%` here.
_LFS_STORE = "/large-files"
_LFS_SMUDGE = (
    "cat >/tmp/pointer; "
    f"id=$(head -c 400 /tmp/pointer | sed -n 's/^oid sha256:\\([0-9a-f]\\{{64\\}}\\)$/\\1/p'); rest=${{id#??}}; "
    f'file={_LFS_STORE}/${{id%"$rest"}}/${{rest%"${{rest#??}}"}}/$id; '
    '[ -n "$id" ] && [ -f "$file" ] && exec cat "$file"; cat /tmp/pointer'
)
_LFS_CLEAN = (
    "head -c 1024 >/tmp/head; case $(tr -d '\\0' </tmp/head) in 'version https://git-lfs.github.com/spec/v1'*) "
    "cat /tmp/head -; exit;; esac; [ -p /tmp/pipe ] || mkfifo /tmp/pipe; wc -c </tmp/pipe >/tmp/size & "
    "id=$(cat /tmp/head - | tee /tmp/pipe | sha256sum); wait; "
    "printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%s\\nsize %d\\n' \"${id%%%% *}\" $(cat /tmp/size)"
)
_CONFIG = git_settings.render([
    ("core", "", "bare", "false"), ("core", "", "hooksPath", "/dev/null"), ("core", "", "fsmonitor", "false"),
    ("gc", "", "auto", "0"), ("maintenance", "", "auto", "false"), ("checkout", "", "workers", "4"),
    ("filter", "lfs", "clean", _LFS_CLEAN), ("filter", "lfs", "smudge", _LFS_SMUDGE),
    ("filter", "lfs", "required", "false"),
])  # fmt: skip


def plain_config(config: bytes, of_checkout: bytes = b"[core]\n\tsparseCheckout = false\n") -> bytes:
    """Return a configuration for git in a sandbox: nothing in it runs, and no second file is read."""
    dropped = (b"worktreeconfig", b"process")  # git would prefer the second to our filter
    plain = b"\n".join(line for line in config.split(b"\n") if not line.strip().lower().startswith(dropped))
    return plain + of_checkout + _CONFIG


def _mount_large_files(common: str) -> tuple[str, ...]:
    store = f"{common}/lfs/objects"
    return ("--ro-bind", store, _LFS_STORE) if os.path.isdir(store) and real_path(store) == store else ()


def open_git(own: OwnGit, tools: Tools, copy: Copy) -> GitSandbox:
    """Return a git that can write to a repository and to the directory of a copy."""
    layout = describe_layout(own)
    mounts = (*real_mounts(layout), "--bind", copy.path, copy.path, *_mount_large_files(own.real))
    environ = {
        "GIT_COMMITTER_EMAIL": "session@claudebox",
        "GIT_COMMITTER_NAME": "claudebox",
        "GIT_DIR": layout.git_dir,
    }
    config = {f"{layout.common}/config": plain_config(own.config)}
    return GitSandbox(tools, mounts, environ, copy.scratch, LIMITS, config)


def make_worktree(own: OwnGit, tools: Tools, copy: Copy, start: str) -> str:
    """Make the worktree, on a new branch, and return the commit that it begins with.

    `start` is a branch, a tag or a commit; nothing: what is checked out.
    """
    try:
        with open_git(own, tools, copy) as box:
            commit = _add(box, own, copy, start)
            try:
                _check_out(box, find_git_dir(own, copy), copy.path)
            except BaseException:
                forget(own, copy)
                delete_branch(own, tools, copy, commit)
                raise
            return commit
    except GitError as error:
        raise ClaudeboxError(f"the worktree could not be made: {clean(str(error))}") from None


def _add(box: GitSandbox, own: OwnGit, copy: Copy, start: str) -> str:
    """Make the branch and a worktree without files; return the commit."""
    if box.ask("rev-parse", "-q", "--verify", copy.ref) is not None:
        raise ClaudeboxError(
            f"the repository has a branch `{copy.name}` already",
            hint=f"choose another name, and `--from {shlex.quote(copy.name)}` to go on from there",
        )
    commit = (box.ask("rev-parse", "-q", "--verify", f"{start or 'HEAD'}^{{commit}}") or b"").decode().strip()
    if not commit:
        what = f"there is no branch `{start}`" if start else "there is no commit yet"
        raise ClaudeboxError(f"{what} in `{own.worktree or own.real}`")
    for left in reversed(range(_ATTEMPTS)):
        try:
            box.git("worktree", "add", "--no-checkout", "-b", copy.name, copy.path, commit)
            break
        except GitError as error:
            forget(own, copy)
            box.ask("update-ref", "-d", copy.ref, commit)
            if not left or "failed to read" not in str(error):
                raise
            time.sleep(_PAUSE)  # git cannot read a worktree that another git is just making
    return commit


def restore_worktree(own: OwnGit, tools: Tools, copy: Copy) -> bool:
    """Make a worktree again that the user has deleted; return whether its branch is still there."""
    try:
        forget(own, copy)
        os.makedirs(copy.path, 0o755)
        with open_git(own, tools, copy) as box:
            if box.ask("rev-parse", "-q", "--verify", copy.ref) is None:
                os.rmdir(copy.path)
                return False
            box.git("worktree", "add", "--no-checkout", copy.path, copy.name)
            _check_out(box, find_git_dir(own, copy), copy.path)
            return True
    except GitError as error:
        raise ClaudeboxError(f"the worktree of `{copy.name}` is gone: {clean(str(error))}") from None


def _check_out(box: GitSandbox, git_dir: str, path: str) -> None:
    box.git("--git-dir", git_dir, "--work-tree", path, "read-tree", "--reset", "-u", "HEAD")


def find_git_dir(own: OwnGit, copy: Copy) -> str:
    """Return the worktree's own part of the repository, nothing if the repository does not know it."""
    for name in list_names(f"{own.real}/worktrees"):
        git_dir = f"{own.real}/worktrees/{name}"
        if os.fsdecode(read_small(f"{git_dir}/gitdir") or b"").rstrip("\n") == f"{copy.path}/.git":
            return git_dir
    return ""


def forget(own: OwnGit, copy: Copy) -> None:
    """Remove the worktree's own part of the repository; its branch and its files stay."""
    if git_dir := find_git_dir(own, copy):
        tree.remove(*os.path.split(git_dir))
        with contextlib.suppress(OSError):
            os.rmdir(f"{own.real}/worktrees")


def delete_branch(own: OwnGit, tools: Tools, copy: Copy, tip: str) -> bool:
    """Delete the branch, if it is where it was when the user was asked; return whether that was done."""
    layout = describe_layout(own)
    with real_side(tools, copy.scratch, layout, LIMITS, f"agent {copy.name}") as real:
        here = os.fsdecode(real.box.ask("symbolic-ref", "-q", "HEAD") or b"").strip()
        if copy.ref in (here, *git_checkout.other_heads(layout, (copy.ref,), {}, real.box)):
            return False  # the user has checked it out
        return real.box.ask("update-ref", "-d", copy.ref, tip) is not None


def is_untouched(own: OwnGit, tools: Tools, copy: Copy) -> bool:
    """Return whether nothing was done since a worktree was made."""
    git_dir = find_git_dir(own, copy)
    try:
        with open_git(own, tools, copy) as box:
            tip = box.git("rev-parse", "-q", "--verify", copy.ref).decode().strip()
            return tip == copy.base and not box.git(
                "--git-dir", git_dir, "--work-tree", copy.path, "status", "--porcelain"
            )
    except GitError:
        return False


def list_submodules(rows: Sequence[OwnGit]) -> dict[str, OwnGit]:
    """Return the submodules of the checkout that is worked in by their place in its part of the git directory.

    Each comes before those that lie in it.
    """
    git_dir = next((row.git_dir for row in rows if row.real and not row.place), "")
    below = ((os.path.relpath(row.real, git_dir), row) for row in rows if row.place and row.real)
    return {place: row for place, row in below if place.startswith("modules/")}


def fill_submodules(copy: Copy, own: OwnGit, rows: dict[str, OwnGit], tools: Tools) -> Iterator[str]:
    """Check out each submodule that the project has, at the commit of the branch; yield what the user should know."""
    git_dir = find_git_dir(own, copy)
    made = {"": (copy.path, git_dir)}  # by place: where it is checked out, and its git directory
    links: dict[str, dict[str, str]] = {}
    for place, row in rows.items():
        around = max(
            (known for known in made if place.startswith(f"{known}/modules/" if known else "modules/")), key=len
        )
        above, outer = made[around]
        if around not in links:
            links[around] = _read_links(own, copy, outer, tools)
        checkout = os.path.normpath(f"{copy.path}/{os.path.relpath(row.worktree or '/', copy.source)}")
        commit = links[around].get(os.path.relpath(checkout, above), "")
        if not commit or not commit.isalnum() or real_path(checkout) != checkout:
            continue  # the branch has no such submodule
        inner = f"{git_dir}/{place}"
        try:
            _fill(copy, row, tools, (checkout, inner, git_dir), commit)
            made[place] = (checkout, inner)
        except GitError as error:
            tree.remove(*os.path.split(inner))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{checkout}/.git")
            name = shorten(os.path.relpath(checkout, copy.path), 200)
            yield f"the submodule `{name}` is empty in the worktree: {shorten(str(error), 200)}"


def _read_links(own: OwnGit, copy: Copy, outer: str, tools: Tools) -> dict[str, str]:
    """Return path and commit of each submodule in what is checked out."""
    mounts, config = ("--ro-bind", own.real, own.real), {f"{own.real}/config": plain_config(own.config)}
    with GitSandbox(tools, mounts, {"GIT_DIR": outer}, copy.scratch, Limits(), config) as box:
        raw = box.git("ls-files", "-s", "-z")
    found = {}
    for line in raw.split(b"\0"):
        head, _, path = line.partition(b"\t")
        mode, _, rest = head.decode("ascii", "replace").partition(" ")
        if mode == GITLINK:
            found[os.fsdecode(path)] = rest.partition(" ")[0]
    return found


def _fill(copy: Copy, row: OwnGit, tools: Tools, places: tuple[str, str, str], commit: str) -> None:
    checkout, inner, git_dir = places
    _make_directory(row, inner, commit, os.path.relpath(checkout, inner))
    os.makedirs(checkout, exist_ok=True)
    git_copy.write(f"{checkout}/.git", b"gitdir: " + os.fsencode(os.path.relpath(inner, checkout)) + b"\n")
    mounts = ("--bind", copy.path, copy.path, "--bind", git_dir, git_dir, *_mount_large_files(row.real))
    environ = {"GIT_DIR": inner, "GIT_WORK_TREE": checkout}
    stores = tuple(word for store, _ in row.stores[1:] for word in ("--ro-bind", store, store))
    config = {f"{inner}/config": plain_config(row.config)}
    with GitSandbox(tools, (*mounts, *stores), environ, copy.scratch, LIMITS, config) as box:
        if box.ask("cat-file", "-e", f"{commit}^{{commit}}") is None:
            raise GitError("the project does not have its commit")
        box.git("read-tree", "--reset", "-u", "HEAD")


def _make_directory(row: OwnGit, inner: str, commit: str, worktree: str) -> None:
    """Make the git directory of a submodule: refs are copied, objects are hard links, so that no `git gc` takes any."""
    for part in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks"):
        os.makedirs(f"{inner}/{part}")
    copier = git_copy.Copier(row.real, inner, row.identity)
    try:
        copier.files(_ENTRY)
        refs = {
            path: value
            for path, value in copier.contents("refs")
            if path.startswith((HEADS, TAGS, "refs/remotes/")) and not value.startswith(b"ref:")
        }
        git_copy.fold(f"{inner}/packed-refs", refs)
        for path in copier.below("objects"):
            if path != "objects/info/alternates":
                os.makedirs(os.path.dirname(f"{inner}/{path}"), exist_ok=True)
                try:
                    os.link(f"{row.real}/{path}", f"{inner}/{path}", follow_symlinks=False)
                except OSError:  # another owner
                    copier.files((path,))
    finally:
        copier.close()
    lent = b"".join(os.fsencode(store) + b"\n" for store, _ in row.stores[1:])
    if lent:
        git_copy.write(f"{inner}/objects/info/alternates", lent)
    git_copy.write(f"{inner}/HEAD", f"{commit}\n".encode())
    git_copy.write(f"{inner}/config", row.config + git_settings.render([("core", "", "worktree", worktree)]))


def find_submodule_work(
    copy: Copy, rows: dict[str, OwnGit], sources: dict[str, OwnGit], tools: Tools
) -> Iterator[tuple[str, str, list[Move]]]:
    """Yield place and path of each submodule with commits that the project does not have, and the refs for them."""
    for place, row in rows.items():
        with _agent_side(copy, row, tools) as side:
            side.begin_refs()
            side.read_refs()
            tips = {name.removeprefix(HEADS): value for name, value in side.refs.items() if name.startswith(HEADS)}
            if (head := side.head()[1]) not in (*tips.values(), ""):
                tips["detached"] = head
        path = os.path.relpath(row.worktree, copy.path) if row.worktree else place
        new = set(tips.values())
        if place in sources:
            with real_side(tools, copy.scratch, describe_layout(sources[place]), LIMITS, "finish") as real:
                new = set(find_unreachable(real, new))
        moves = [Move(f"{HEADS}claudebox/{copy.name}/{name}", "", tip) for name, tip in tips.items() if tip in new]
        if moves:
            yield place, path, moves


def find_unreachable(real: Side, tips: set[str]) -> list[str]:
    """Return those of some commits that neither HEAD nor a branch, tag or remote-tracking branch leads to."""
    real.begin_refs()
    real.read_refs()
    known = {*real.refs.values(), *filter(None, real.head()[1:])}
    rows = real.box.git("cat-file", "--batch-check", data="".join(f"{tip}\n" for tip in tips - known).encode())
    kinds = dict(row.split(" ")[:2] for row in rows.decode("ascii", "replace").split("\n") if row)
    commits = [tip for tip, kind in kinds.items() if kind == "commit"]
    data = "".join(f"{value}\n" for value in (*commits, *(f"^{value}" for value in sorted(known)))).encode()
    new = set(real.box.git("rev-list", "--stdin", data=data).decode().split()) if commits else set()
    return sorted(tip for tip, kind in kinds.items() if kind != "commit" or tip in new)


def bring_submodule(copy: Copy, row: OwnGit, source: OwnGit, moves: list[Move], tools: Tools) -> str:
    """Bring commits of a submodule into that of the project as checked data; return why they stay, or nothing."""
    with (
        _agent_side(copy, row, tools) as side,
        real_side(tools, copy.scratch, describe_layout(source), LIMITS, f"agent {copy.name}") as real,
    ):
        for one in (side, real):
            one.begin_refs()
            one.read_refs()
        moves = [Move(move.name, real.refs.get(move.name, ""), move.new) for move in moves]
        answers = git_transfer.send(side, real, moves, set())
    return next((clean(reason) for reason in answers.values() if reason), "")


def _agent_side(copy: Copy, row: OwnGit, tools: Tools) -> Side:
    """Open a submodule of the worktree to be read: what is in it was taken in as checked data."""
    layout = describe_layout(row)
    stores = (word for store in layout.stores[1:] for word in ("--ro-bind", store, store))
    mounts = ("--ro-bind", row.real, row.real, *stores)
    config = {f"{row.real}/config": plain_config(row.config)}
    return Side(GitSandbox(tools, mounts, {"GIT_DIR": row.real}, copy.scratch, LIMITS, config), layout, row.real)
