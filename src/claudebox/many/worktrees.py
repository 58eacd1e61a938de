"""Worktrees for agents: ~/.claudebox/work/PROJECT/NAME, each described by the file PROJECT/.NAME beside it.

An agent can write to its worktree only, so that file can be trusted. Git makes the worktree in a sandbox, on a branch
of the user's own repository, with none of that repository's configuration, hooks and filters in force. Submodules get
git directories of their own in the worktree's part of the repository, with hard links to the objects.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import time
from dataclasses import dataclass

from claudebox.base import syscalls, trees
from claudebox.base.console import clean, shorten
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import list_names, read_small, real_path, write_file
from claudebox.base.state import locate, open_state
from claudebox.git import checkout as git_checkout
from claudebox.git import config as git_config
from claudebox.git import plan as git_plan
from claudebox.git import private
from claudebox.git.private import describe_layout
from claudebox.git.refs import HEADS, Move, objection
from claudebox.git.sandbox import GitError, GitSandbox, Limits, render_settings
from claudebox.git.sides import Side, host_mounts, host_side
from claudebox.run.live_sessions import list_sessions
from claudebox.tables import git_keys
from claudebox.tables.paths import COPIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

    from claudebox.git.sandbox import Tools
    from claudebox.many.records import Agent, Records
    from claudebox.plan.records import PrivateGit


LIMITS = Limits(seconds=3600.0, size=64 << 30)  # the user waits, and can interrupt
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_MAX_NAME, _MAX_PROJECT_NAME = 64, 40


def check_name(name: str) -> None:
    """Refuse what cannot be the name of both a branch and a session."""
    reason = objection(f"refs/heads/{name}") if name else "it is empty"
    if len(os.fsencode(name)) > _MAX_NAME:
        reason = f"it is longer than {_MAX_NAME} bytes"
    if name.upper() == "HEAD" or name.startswith(("claudebox/", "refs/")):
        reason = "git or claudebox use it for something else"
    if reason:
        why = reason.replace("its name", "it")
        raise ClaudeboxError(f"`{clean(name)}` cannot be the name of a branch: {why}", hint="choose another name")


def slug(text: str) -> str:
    """Return a text as a file name: every unusual character becomes a dash."""
    return "".join(char if char in _PLAIN else "-" for char in text).strip("-._") or "agent"


def choose_name(records: Records, wanted: str, project: str, *, exact: bool = False) -> tuple[str, list[Agent]]:
    """Return a name that no living session of the project has, and the ended sessions that it replaces.

    A session with an unseen report keeps its name, unless it must be `exact`: that of a worktree, which `finish`
    reports on.
    """
    base = wanted if exact else slug(wanted)[: _MAX_NAME - 4]
    others = [agent for agent in records.all() if agent.project == project]
    unseen = [] if exact else [agent for agent in others if not records.is_seen(agent)]
    taken = {agent.name for agent in others if agent.alive or agent.starting or agent in unseen}
    name = next(name for number in range(1, 1000) if (name := base if number == 1 else f"{base}-{number}") not in taken)
    return name, [agent for agent in others if agent.name == name]


@dataclass(frozen=True)
class Copy:
    """One worktree."""

    name: str
    path: str
    source: str  # the project
    base: str = ""  # the commit that it began with
    onto: str = ""  # the commit below, if `base` holds the user's uncommitted changes
    created: float = 0.0
    brought: tuple[str, ...] = ()  # ignored paths that were copied from the project

    @property
    def project(self) -> str:
        """Return the directory of all worktrees of the project."""
        return os.path.dirname(self.path)

    @property
    def scratch(self) -> str:
        """Return where git in a sandbox can put its output: ~/.claudebox, which may be another file system."""
        return self.path.rsplit("/", 3)[0]

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.name}"


class Copies:
    """All worktrees of a user."""

    def __init__(self, home: str) -> None:
        self.home = home = real_path(home)
        self.state = f"{home}/.claudebox"
        self.directory = f"{self.state}/{COPIES}"

    def place(self, name: str, source: str) -> Copy:
        """Return the worktree of this name; it is yet to be created if `created` is 0."""
        check_name(name)
        project = f"{slug(os.path.basename(source))[:_MAX_PROJECT_NAME]}-{syscalls.sha256(os.fsencode(source))[:6]}"
        directory = slug(name)  # plain, as many tools fail in odd directories
        directory += "" if directory == name else f"-{syscalls.sha256(os.fsencode(name))[:6]}"
        found = self._read(f"{self.directory}/{project}", directory)
        if found is not None and found.name != name:
            raise ClaudeboxError(f"`{name}` is too similar to `{found.name}`", hint="choose another name")
        return found or Copy(name, f"{self.directory}/{project}/{directory}", source)

    def all(self) -> list[Copy]:
        found = []
        for project in list_names(self.directory):
            directory = f"{self.directory}/{project}"
            rows = (self._read(directory, name[1:]) for name in list_names(directory) if name.startswith("."))
            found += [row for row in rows if row is not None]
        return sorted(found, key=lambda copy: (copy.created, copy.path))

    def matching(self, name: str) -> list[Copy]:
        """Return the worktrees called NAME or PROJECT/NAME."""
        return [copy for copy in self.all() if name in (copy.name, f"{os.path.basename(copy.source)}/{copy.name}")]

    def find(self, name: str, source: str) -> Copy:
        """Return the worktree called NAME or PROJECT/NAME, that of this project first."""
        found = self.matching(name)
        here = [copy for copy in found if copy.source == source] or found
        if len(here) == 1:
            return here[0]
        if here:
            known = ", ".join(f"`{os.path.basename(copy.source)}/{copy.name}`" for copy in here[:8])
            raise ClaudeboxError(f"several worktrees are called `{name}`: {known}", hint="give the longer name")
        raise ClaudeboxError(f"there is no worktree `{name}`", hint="`claudebox sessions` lists them")

    def create(self, copy: Copy) -> None:
        """Create the directory, which must not exist."""
        os.close(open_state(self.state, COPIES))
        os.makedirs(copy.project, 0o700, exist_ok=True)
        try:
            os.mkdir(copy.path, 0o755)
        except FileExistsError:
            raise ClaudeboxError(f"`{copy.path}` already exists", hint="remove it, or choose another name") from None

    def save(self, copy: Copy) -> None:
        """Write the file that describes a worktree."""
        began = f"{copy.base} {copy.onto}".strip()
        row = "\0".join((copy.source, began, repr(time.time()), copy.name, *copy.brought))
        write_file(f"{copy.project}/.{os.path.basename(copy.path)}", os.fsencode(row))

    def remove(self, copy: Copy) -> None:
        """Remove a worktree and the state that it has as a project."""
        with contextlib.suppress(FileNotFoundError):
            trees.remove(*os.path.split(copy.path))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{copy.project}/.{os.path.basename(copy.path)}")
        instance = locate(self.home, copy.path)
        with contextlib.suppress(FileNotFoundError):
            trees.remove(os.path.dirname(instance.directory), instance.name)
        with contextlib.suppress(OSError):
            os.rmdir(copy.project)

    def require_idle(self, copy: Copy) -> None:
        """Refuse while a session runs in a worktree."""
        alive = [process for process, workdir, _ in list_sessions(self.state) if workdir == copy.path]
        if alive:
            raise ClaudeboxError(
                f"an agent is at work in `{copy.name}` (process {alive[0]})",
                hint=f"`claudebox stop {shlex.quote(copy.name)}`",
            )

    def _read(self, directory: str, name: str) -> Copy | None:
        content = read_small(f"{directory}/.{name}")
        if content is None:
            return None
        source, base, created, branch, *brought = (*os.fsdecode(content).split("\0"), "", "", "", "")
        try:
            path, (base, _, onto) = f"{directory}/{name}", base.partition(" ")
            more = tuple(filter(None, brought))
            return Copy(branch, path, source, base, onto, float(created), more) if branch else None
        except ValueError:
            return None


def bring(tools: Tools, copy: Copy, relative: str, most: int = 0) -> bool:
    """Copy a path of the project into a worktree, at most so many bytes; return whether it exists.

    In a sandbox that has only these two: an agent may have made it, with links that lead elsewhere. Files of the branch
    are not overwritten.
    """
    parent = os.path.dirname(f"{copy.path}/{relative}")
    if not os.path.lexists(f"{copy.source}/{relative}") or real_path(parent) != parent:
        return False
    mounts = ("--ro-bind", copy.source, copy.source, "--bind", copy.path, copy.path)
    try:
        with GitSandbox(tools, mounts, {}, copy.scratch, LIMITS) as box:
            status = box.script(_BRING, copy.source, copy.path, relative, str(most >> 10))
            if status == _TOO_LARGE:
                raise ClaudeboxError("it is too large; `--copy` copies it anyway")
            if "No space" in box.message():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except GitError as error:
        raise ClaudeboxError(clean(str(error))) from None
    return True


_TOO_LARGE = 9
_BRING = f"""\
cd "$1" || exit
[ "$4" = 0 ] || [ "$(du -sk --apparent-size -- "$3" 2>/dev/null | cut -f 1)" -le "$4" ] || exit {_TOO_LARGE}
target=$(dirname -- "$2/$3")
mkdir -p -- "$target" && cp -dR -n --preserve=mode,timestamps --reflink=auto -- "$3" "$target"
"""
_ATTEMPTS, _PAUSE = 10, 0.1
_LARGE_FILES = "/large-files"
# In force in every git here, over what a repository says. Git LFS finds the objects of the project in its store.
_SETTINGS = (
    ("core.bare", "false"), ("core.hooksPath", "/dev/null"), ("core.fsmonitor", "false"),
    ("core.sparseCheckout", "false"), ("gc.auto", "0"), ("maintenance.auto", "false"), ("checkout.workers", "4"),
    ("protocol.file.allow", "always"), ("lfs.storage", _LARGE_FILES),
    *((f"filter.lfs.{key}", value) for key, value in git_keys.FILTERS["lfs"]), ("filter.lfs.required", "false"),
)  # fmt: skip


def open_git(
    own: PrivateGit, tools: Tools, copy: Copy, mounts: tuple[str, ...] = (), environ: dict[str, str] | None = None
) -> GitSandbox:
    """Return a git that can write to the repository and to the worktree."""
    mounts = (*host_mounts(describe_layout(own)), "--bind", copy.path, copy.path, *mounts)
    return open_plain(own, tools, copy, mounts, {"GIT_DIR": own.git_dir, **(environ or {})})


def open_plain(
    own: PrivateGit, tools: Tools, copy: Copy, mounts: tuple[str, ...], environ: dict[str, str]
) -> GitSandbox:
    """Return a git with these mounts and borrowed objects, that runs nothing which the repository names."""
    mounts += tuple(word for store, _ in own.stores[1:] for word in ("--ro-bind", store, store))
    if os.path.isdir(objects := f"{own.real}/lfs/objects") and real_path(objects) == objects:
        mounts += ("--dir", _LARGE_FILES, "--ro-bind", objects, f"{_LARGE_FILES}/objects")
    names = {f"GIT_{who}_NAME": "claudebox" for who in ("AUTHOR", "COMMITTER")}
    names |= {f"GIT_{who}_EMAIL": "session@claudebox" for who in ("AUTHOR", "COMMITTER")}
    environ = {**names, "GIT_LFS_SKIP_DOWNLOAD_ERRORS": "1", **render_settings(_SETTINGS), **environ}
    lines = own.config.split(b"\n")  # what `config.worktree` says is the host's
    config = b"\n".join(line for line in lines if not line.lower().startswith(b"\tworktreeconfig"))
    return GitSandbox(tools, mounts, environ, copy.scratch, LIMITS, {f"{own.real}/config": config})


def make_worktree(own: PrivateGit, tools: Tools, copy: Copy, start: str) -> str:
    """Make the worktree on a new branch from `start` (default: HEAD), and return the commit."""
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


def refuse_taken(box: GitSandbox, copy: Copy) -> None:
    """Refuse the name of a branch that exists."""
    if box.ask("rev-parse", "-q", "--verify", copy.ref) is not None:
        raise ClaudeboxError(
            f"the repository already has a branch `{copy.name}`",
            hint=f"choose another name, with `--from {shlex.quote(copy.name)}` to start there",
        )


# Another git was making a worktree, which ours could not read; or a gc removed ours, unfinished, as a dead one.
_LOST_RACES = ("failed to read", "No such file or directory")


def _add(box: GitSandbox, own: PrivateGit, copy: Copy, start: str) -> str:
    """Make the branch and an empty worktree; return the commit."""
    refuse_taken(box, copy)
    commit = (box.ask("rev-parse", "-q", "--verify", f"{start or 'HEAD'}^{{commit}}") or b"").decode().strip()
    if not commit:
        what = f"there is no branch, tag or commit `{start}`" if start else "there is no commit yet"
        raise ClaudeboxError(f"{what} in `{own.worktree or own.real}`")
    for left in reversed(range(_ATTEMPTS)):
        try:
            box.git("worktree", "add", "--no-checkout", "-b", copy.name, copy.path, commit)
            break
        except GitError as error:
            forget(own, copy)
            box.ask("update-ref", "-d", copy.ref, commit)
            if not left or not any(text in str(error) for text in _LOST_RACES):
                raise
            time.sleep(_PAUSE)
    return commit


def restore_worktree(own: PrivateGit, tools: Tools, copy: Copy) -> bool:
    """Make a deleted worktree again; return whether its branch still exists."""
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


def find_git_dir(own: PrivateGit, copy: Copy) -> str:
    """Return the worktree's part of the repository, or an empty string."""
    for name in list_names(f"{own.real}/worktrees"):
        git_dir = f"{own.real}/worktrees/{name}"
        if os.fsdecode(read_small(f"{git_dir}/gitdir") or b"").rstrip("\n") == f"{copy.path}/.git":
            return git_dir
    return ""


def forget(own: PrivateGit, copy: Copy) -> None:
    """Remove the worktree's part of the repository; branch and files stay."""
    if git_dir := find_git_dir(own, copy):
        trees.remove(*os.path.split(git_dir))
        with contextlib.suppress(OSError):
            os.rmdir(f"{own.real}/worktrees")


def delete_branch(own: PrivateGit, tools: Tools, copy: Copy, tip: str) -> bool:
    """Delete the branch if it is still at `tip` and nobody has it checked out; return whether it was deleted."""
    layout = describe_layout(own)
    with host_side(tools, copy.scratch, layout, LIMITS, f"agent {copy.name}") as real:
        here = os.fsdecode(real.box.ask("symbolic-ref", "-q", "HEAD") or b"").strip()
        if copy.ref in (here, *git_checkout.other_heads(layout, (copy.ref,), {}, real.box)):
            return False
        return real.box.ask("update-ref", "-d", copy.ref, tip) is not None


def is_untouched(own: PrivateGit, tools: Tools, copy: Copy) -> bool:
    """Return whether nothing has changed since the worktree was made."""
    git_dir = find_git_dir(own, copy)
    try:
        with open_git(own, tools, copy) as box:
            tip = box.git("rev-parse", "-q", "--verify", copy.ref).decode().strip()
            return tip == copy.base and not box.git(
                "--git-dir", git_dir, "--work-tree", copy.path, "status", "--porcelain"
            )
    except GitError:
        return False


# Uncommitted changes of the user: a commit on which the branch of an agent begins, taken off again when it is finished.


_UNCOMMITTED = ("--untracked-files=all", "--ignore-submodules=all", "--no-renames")
_MOST_CHANGED, _MOST_BYTES = 10_000, 256 << 20


class Uncommitted:
    """What the user has changed in the project and not committed."""

    def __init__(self, own: PrivateGit, tools: Tools, copy: Copy, secret: Iterable[str]) -> None:
        """Look, in a sandbox; files that are `secret` and what goes through filters stay where they are."""
        self._own = own
        tree = own.worktree
        mounts = ("--ro-bind", tree, tree, *host_mounts(describe_layout(own)))
        environ = {"GIT_DIR": own.git_dir, "GIT_WORK_TREE": tree, "GIT_INDEX_FILE": "/tmp/index"}
        self.box = open_plain(own, tools, copy, mounts, environ)
        self.paths: list[str] = []
        self.left: list[str] = []  # paths that stay where they are
        self._examine({os.path.relpath(path, tree) for path in secret})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.box.__exit__()

    def _examine(self, secret: set[str]) -> None:
        self.box.script('cp "$GIT_DIR/index" /tmp/index')
        found = self._git("status", "--porcelain", "-z", *_UNCOMMITTED).split(b"\0")
        rows = [(row[:2], os.fsdecode(row[3:])) for row in found if row and not row.endswith(b"/")]
        if any(b"U" in state or state in (b"AA", b"DD") for state, _ in rows) or len(rows) > _MOST_CHANGED:
            self.left = [path for _, path in rows]  # a merge is under way
            return
        names = [path for _, path in rows]
        data = "".join(f"{path}\0" for path in names).encode("utf-8", "surrogateescape")
        words = self._git("check-attr", "-z", "--stdin", "filter", data=data).split(b"\0") if names else []
        filtered = {os.fsdecode(path) for path, value in zip(words[::3], words[2::3], strict=False)
                    if value not in (b"unspecified", b"unset")}  # fmt: skip
        size = 0
        for path in names:
            with contextlib.suppress(OSError):
                size += os.lstat(f"{self._own.worktree}/{path}").st_size
            fine = path not in secret and path not in filtered and size <= _MOST_BYTES
            (self.paths if fine else self.left).append(path)

    def commit(self) -> tuple[str, str]:
        """Commit what is to come along; return that commit and the one below."""
        head = self._git("rev-parse", "-q", "--verify", "HEAD^{commit}").decode().strip()
        data = "".join(f"{path}\0" for path in self.paths).encode("utf-8", "surrogateescape")
        self._git("read-tree", head)
        self._git("update-index", "--add", "--remove", "-z", "--stdin", data=data)
        tree = self._git("write-tree").decode().strip()
        message = b"Uncommitted changes of the project\n\n`claudebox finish` takes this commit off the branch.\n"
        return self._git("commit-tree", tree, "-p", head, data=message).decode().strip(), head

    def _git(self, *words: str, data: bytes = b"") -> bytes:
        return self.box.git("-C", self._own.worktree, *words, data=data)


def take_off(own: PrivateGit, tools: Tools, copy: Copy) -> bool:
    """Take the user's changes off the branch while its worktree stands; return whether they are not on it any more.

    The agent's commits are made again on the commit below. That fails where they changed the same lines.
    """
    with open_git(own, tools, copy) as box:
        git = ("git", "--git-dir", find_git_dir(own, copy), "--work-tree", copy.path, "-C", copy.path)
        if box.run(*git, "merge-base", "--is-ancestor", copy.base, copy.ref):
            return True
        box.run(*git, "log", "-1", "--format=%cn%n%ce", copy.ref)
        name, email, *_ = os.fsdecode(box.output()).split("\n")
        agent = ("env", f"GIT_COMMITTER_NAME={name}", f"GIT_COMMITTER_EMAIL={email}")
        words = ("rebase", "-q", "--rebase-merges", "--committer-date-is-author-date", "--onto", copy.onto, copy.base)
        failed = box.run(*agent, *git, *words, copy.name)
        if failed:
            box.run(*git, "rebase", "--abort")
        return not failed


# The branches, tags and remote-tracking branches of the repository that a submodule was cloned from.
_MIRROR = """\
git fetch -q --prune "$(git config remote.origin.url)" "+refs/heads/*:refs/heads/*" "+refs/tags/*:refs/tags/*" \
"+refs/remotes/*:refs/remotes/*"
"""


def list_submodules(rows: Sequence[PrivateGit]) -> dict[str, PrivateGit]:
    """Return the submodules of the current checkout by their place in its git directory, outer ones first."""
    git_dir = next((row.git_dir for row in rows if row.real and not row.place), "")
    below = ((os.path.relpath(row.real, git_dir), row) for row in rows if row.place and row.real)
    return {place: row for place, row in below if place.startswith("modules/")}


def fill_submodules(copy: Copy, own: PrivateGit, rows: dict[str, PrivateGit], tools: Tools) -> Iterator[str]:
    """Check out each submodule that the project has, at the commit of the branch; yield what failed.

    Git clones them from the project's, with hard links to their objects, which survive a `git gc` there.
    """
    if not rows:
        return
    git_dir = find_git_dir(own, copy)
    settings = [*_SETTINGS]
    for place, row in rows.items():
        outer = max((other for other in rows if place.startswith(f"{other}/modules/")), key=len, default="")
        name = place.removeprefix(f"{outer}/").removeprefix("modules/")
        settings.append((f"submodule.{name}.url", row.real))
    borrowed = {store for row in rows.values() for store, _ in row.stores[1:]}
    mounts = tuple(word for store in sorted(borrowed) for word in ("--ro-bind", store, store))
    with open_git(own, tools, copy, mounts, render_settings(settings)) as box:
        git = ("env", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", "git", "-C", copy.path, "submodule", "--quiet")
        failed = box.run(*git, "update", "--recursive")
        why = box.message()
        box.run(*git, "foreach", "--recursive", _MIRROR)
    for place, row in rows.items():
        config = read_small(f"{git_dir}/{place}/config")
        if config is not None:
            checkout = git_config.last(tuple(git_config.parse_config(config)), "core", "worktree")
            made = row.config + git_plan.render([("core", "", "worktree", checkout)])
            private.write(f"{git_dir}/{place}/config", made)
    if failed:
        yield f"not all submodules are in the worktree: {shorten(why, 300)}"


def find_submodule_work(
    copy: Copy, rows: dict[str, PrivateGit], sources: dict[str, PrivateGit], tools: Tools
) -> Iterator[tuple[str, str, list[Move]]]:
    """Yield place and path of each submodule with commits that the project lacks, and the refs to import them as."""
    for place, row in rows.items():
        with _agent_side(copy, row, tools) as side:
            side.read_refs()
            tips = {name.removeprefix(HEADS): value for name, value in side.refs.items() if name.startswith(HEADS)}
            if (head := side.head()[1]) not in (*tips.values(), ""):
                tips["detached"] = head
        path = os.path.relpath(row.worktree, copy.path) if row.worktree else place
        new = set(tips.values())
        if place in sources:
            with host_side(tools, copy.scratch, describe_layout(sources[place]), LIMITS, "finish") as real:
                new = set(find_unreachable(real, new))
        moves = [Move(f"{HEADS}claudebox/{copy.name}/{name}", "", tip) for name, tip in tips.items() if tip in new]
        if moves:
            yield place, path, moves


def find_unreachable(real: Side, tips: set[str]) -> list[str]:
    """Return those of some objects that HEAD, branches, tags and remote-tracking branches do not reach."""
    real.read_refs()
    known = {*real.refs.values(), *filter(None, real.head()[1:])}
    rows = real.box.git("cat-file", "--batch-check", data="".join(f"{tip}\n" for tip in tips - known).encode())
    kinds = dict(row.split(" ")[:2] for row in rows.decode("ascii", "replace").split("\n") if row)
    commits = [tip for tip, kind in kinds.items() if kind == "commit"]
    data = "".join(f"{value}\n" for value in (*commits, *(f"^{value}" for value in sorted(known)))).encode()
    new = set(real.box.git("rev-list", "--stdin", data=data).decode().split()) if commits else set()
    return sorted(tip for tip, kind in kinds.items() if kind != "commit" or tip in new)


def bring_submodule(copy: Copy, row: PrivateGit, source: PrivateGit, moves: list[Move], tools: Tools) -> str:
    """Import commits of a submodule into the project's; return why that failed, or an empty string."""
    mounts = ("--ro-bind", row.real, row.real, "--ro-bind", copy.path, copy.path)
    with open_plain(
        source, tools, copy, (*host_mounts(describe_layout(source)), *mounts), {"GIT_DIR": source.real}
    ) as box:
        failed = box.run(
            "git", "fetch", "-q", "--no-write-fetch-head", row.real, *(f"+{move.new}:{move.name}" for move in moves)
        )
        return clean(box.message()) if failed else ""


def _agent_side(copy: Copy, row: PrivateGit, tools: Tools) -> Side:
    """Open a submodule of the worktree read-only; its content was imported as checked data."""
    box = open_plain(row, tools, copy, ("--ro-bind", row.real, row.real), {"GIT_DIR": row.real})
    return Side(box, describe_layout(row), row.real)
