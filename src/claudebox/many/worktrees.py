"""Worktrees for agents: ~/.claudebox/work/PROJECT/NAME, each described by the file PROJECT/.NAME beside it.

An agent can write to its worktree only, so that file can be trusted. Git makes the worktree in a sandbox, on a branch
of the user's own repository, with none of that repository's configuration, hooks and filters in force. Submodules get
git directories of their own in the worktree's part of the repository, with hard links to the objects.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import time
from dataclasses import dataclass

from claudebox.base import syscalls, trees
from claudebox.base.console import clean, shorten
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_DIRECTORY, Closing, list_names, open_beneath, read_small, real_path, write_file
from claudebox.base.state import locate, open_state
from claudebox.git import checkout as git_checkout
from claudebox.git import plan as git_plan
from claudebox.git import private, sides
from claudebox.git.private import describe_layout
from claudebox.git.refs import HEADS, TAGS, Move, objection
from claudebox.git.sandbox import GitError, GitSandbox, Limits
from claudebox.git.sides import GITLINK, Side, host_mounts, host_side
from claudebox.run.live_sessions import list_sessions
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
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check_name(name: str) -> None:
    """Refuse what cannot be the name of both a branch and a session."""
    reason = objection(f"refs/heads/{name}") if name else "it is empty"
    if len(os.fsencode(name)) > _MAX_NAME:
        reason = f"it is longer than {_MAX_NAME} bytes"
    if name.upper() == "HEAD" or name.startswith(("claudebox/", "refs/")):
        reason = "git or claudebox use it for something else"
    if reason:
        raise ClaudeboxError(f"`{clean(name)}` cannot be the name of an agent: {reason}", hint="choose another name")


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


def bring(source: str, target: str, relative: str, most: float) -> bool:
    """Copy a path of the project into a worktree, at most so many bytes; return whether it exists.

    An agent may have made it: no link is followed, nothing is hard-linked, and sockets, pipes and devices are left out.
    Files of the branch are not overwritten.
    """
    parent, _, name = relative.rpartition("/")
    place = f"{target}/{parent}".rstrip("/")
    if not os.path.lexists(f"{source}/{relative}") or real_path(place) != place:
        return False
    os.makedirs(place, exist_ok=True)
    waiting: list[tuple[str, list[str]]] = [(parent, [name])]
    with Closing(os.open(source, OPEN_DIRECTORY)) as old_top, Closing(os.open(target, OPEN_DIRECTORY)) as new_top:
        while waiting:
            path, names_in_it = waiting.pop()
            with contextlib.ExitStack() as stack:
                try:
                    old = stack.enter_context(Closing(open_beneath(old_top, path, listed=True)))
                except PermissionError:
                    continue
                new = stack.enter_context(Closing(open_beneath(new_top, path, listed=True)))
                for name in names_in_it or os.listdir(old):
                    status = os.lstat(name, dir_fd=old)
                    if stat.S_ISDIR(status.st_mode):
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, status.st_mode & 0o777 | 0o700, dir_fd=new)
                        waiting.append((os.path.join(path, name), []))
                    elif os.path.lexists(f"/proc/self/fd/{new}/{name}"):
                        continue
                    elif stat.S_ISLNK(status.st_mode):
                        os.symlink(os.readlink(name, dir_fd=old), name, dir_fd=new)
                    elif stat.S_ISREG(status.st_mode):
                        most -= status.st_size
                        if most < 0:
                            raise ClaudeboxError("it is too large; `--copy` copies it anyway")
                        _copy_file(old, new, name)
    return True


def _copy_file(old: int, new: int, name: str) -> None:
    try:
        source = os.open(name, _READ, dir_fd=old)
    except PermissionError:
        return
    with Closing(source):
        status = os.fstat(source)
        with Closing(os.open(name, _WRITE, status.st_mode & 0o777, dir_fd=new)) as target:
            private.copy_range(source, target, status.st_size)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


_ATTEMPTS, _PAUSE = 10, 0.1
_ENTRY = ("description", "packed-refs", "shallow", "info/exclude", "info/attributes")
# Git LFS filters as shell scripts. In git, a large file is a pointer: the SHA-256 of its content and its size. Pointers
# to files that the project lacks stay as they are. Git turns `%%` into `%` here.
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
_CONFIG = git_plan.render([
    ("core", "", "bare", "false"), ("core", "", "hooksPath", "/dev/null"), ("core", "", "fsmonitor", "false"),
    ("core", "", "sparseCheckout", "false"), ("gc", "", "auto", "0"),
    ("maintenance", "", "auto", "false"), ("checkout", "", "workers", "4"),
    ("filter", "lfs", "clean", _LFS_CLEAN), ("filter", "lfs", "smudge", _LFS_SMUDGE),
    ("filter", "lfs", "required", "false"),
])  # fmt: skip


def plain_config(config: bytes) -> bytes:
    """Return a configuration for git in a sandbox that runs no programs and reads no other file."""
    dropped = (b"worktreeconfig", b"process")  # git would prefer a filter's `process` to our commands
    plain = b"\n".join(line for line in config.split(b"\n") if not line.strip().lower().startswith(dropped))
    return plain + _CONFIG


def _mount_large_files(common: str) -> tuple[str, ...]:
    store = f"{common}/lfs/objects"
    return ("--ro-bind", store, _LFS_STORE) if os.path.isdir(store) and real_path(store) == store else ()


def open_git(own: PrivateGit, tools: Tools, copy: Copy) -> GitSandbox:
    """Return a git that can write to the repository and to the worktree."""
    mounts = (*host_mounts(describe_layout(own)), "--bind", copy.path, copy.path, *_mount_large_files(own.real))
    names = {"GIT_COMMITTER_EMAIL": "session@claudebox", "GIT_COMMITTER_NAME": "claudebox"}
    return open_plain(own, tools, copy, mounts, {**names, "GIT_DIR": own.git_dir})


def open_plain(
    own: PrivateGit, tools: Tools, copy: Copy, mounts: tuple[str, ...], environ: dict[str, str], config: str = ""
) -> GitSandbox:
    """Return a git with these mounts and borrowed objects, that runs nothing which a repository's `config` names."""
    stores = (word for store, _ in own.stores[1:] for word in ("--ro-bind", store, store))
    files = {config or f"{own.real}/config": plain_config(own.config)}
    return GitSandbox(tools, (*mounts, *stores), environ, copy.scratch, LIMITS, files)


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


def _add(box: GitSandbox, own: PrivateGit, copy: Copy, start: str) -> str:
    """Make the branch and an empty worktree; return the commit."""
    if box.ask("rev-parse", "-q", "--verify", copy.ref) is not None:
        raise ClaudeboxError(
            f"the repository already has a branch `{copy.name}`",
            hint=f"choose another name, with `--from {shlex.quote(copy.name)}` to start there",
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
            time.sleep(_PAUSE)  # another git is just making a worktree, which this one could not read
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
_MOST_REPLAYED = 500  # commits
_PICK = """\
rm -rf /tmp/tree /tmp/index; mkdir /tmp/tree; cd /tmp/tree
git read-tree -i -m --aggressive "$1" "$2" "$3" && git merge-index -q git-merge-one-file -a >/dev/null && git write-tree
"""


class Uncommitted:
    """What the user has changed in the project and not committed."""

    def __init__(self, own: PrivateGit, tools: Tools, copy: Copy, secret: Iterable[str]) -> None:
        """Look, in a sandbox; files that are `secret` and what goes through filters stay where they are."""
        self._own, self._copy = own, copy
        layout, tree = describe_layout(own), own.worktree
        mounts = ("--ro-bind", tree, tree, *host_mounts(layout))
        environ = {"GIT_DIR": layout.git_dir, "GIT_WORK_TREE": tree, "GIT_INDEX_FILE": "/tmp/index"}
        environ |= {f"GIT_{who}_NAME": "claudebox" for who in ("AUTHOR", "COMMITTER")}
        environ |= {f"GIT_{who}_EMAIL": "session@claudebox" for who in ("AUTHOR", "COMMITTER")}
        config = {f"{layout.common}/config": plain_config(own.config)}
        self._box = GitSandbox(tools, mounts, environ, copy.scratch, LIMITS, config)
        self.paths: list[str] = []
        self.left: list[str] = []  # paths that stay where they are
        self._examine({os.path.relpath(path, tree) for path in secret})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._box.__exit__()

    def _examine(self, secret: set[str]) -> None:
        self._box.script('cp "$GIT_DIR/index" /tmp/index')
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
        return self._box.git("-C", self._own.worktree, *words, data=data)


def take_off(own: PrivateGit, tools: Tools, copy: Copy, tip: str) -> str:
    """Take the user's changes off the branch; return its new tip, "" if it stays as it is.

    The agent's commits are made again on the commit below. That fails where they changed the same lines.
    """
    layout = describe_layout(own)
    environ = {"GIT_DIR": layout.git_dir, "GIT_WORK_TREE": "/tmp/tree", "GIT_INDEX_FILE": "/tmp/index"}
    config = {f"{layout.common}/config": plain_config(own.config)}
    with GitSandbox(tools, host_mounts(layout), environ, copy.scratch, LIMITS, config) as box:
        found = box.git("rev-list", "--reverse", "--topo-order", "--parents", tip, f"^{copy.base}").decode()
        rows = [line.split() for line in found.splitlines()]
        parents = [copy.base, *(row[0] for row in rows)]
        straight = [row[1:] for row in rows] == [[parent] for parent in parents[:-1]]
        if parents[-1] != tip or not straight or len(rows) > _MOST_REPLAYED:
            return ""  # merges, or another history
        now = copy.onto
        for commit, parent in rows:
            if box.script(_PICK, parent, now, commit):
                return ""
            tree = box.output().decode().strip()
            named = box.git("log", "-1", "--format=%an%x00%ae%x00%ad%x00%cn%x00%ce%x00%cd%x00%B", "--date=raw", commit)
            *who, message = named.split(b"\0", 6)
            keys = ("AUTHOR_NAME", "AUTHOR_EMAIL", "AUTHOR_DATE", "COMMITTER_NAME", "COMMITTER_EMAIL", "COMMITTER_DATE")
            given = (f"GIT_{key}={os.fsdecode(value)}" for key, value in zip(keys, who, strict=True))
            if box.run("env", *given, "git", "commit-tree", tree, "-p", now, data=message.rstrip(b"\n") + b"\n"):
                return ""
            now = box.output().decode().strip()
        box.git("update-ref", "-m", "claudebox: finish", copy.ref, now, tip)
        return now


def list_submodules(rows: Sequence[PrivateGit]) -> dict[str, PrivateGit]:
    """Return the submodules of the current checkout by their place in its git directory, outer ones first."""
    git_dir = next((row.git_dir for row in rows if row.real and not row.place), "")
    below = ((os.path.relpath(row.real, git_dir), row) for row in rows if row.place and row.real)
    return {place: row for place, row in below if place.startswith("modules/")}


def fill_submodules(copy: Copy, own: PrivateGit, rows: dict[str, PrivateGit], tools: Tools) -> Iterator[str]:
    """Check out each submodule that the project has, at the commit of the branch; yield what failed."""
    git_dir = find_git_dir(own, copy)
    made = {"": (copy.path, git_dir)}  # place: checkout and git directory
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
            trees.remove(*os.path.split(inner))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{checkout}/.git")
            name = shorten(os.path.relpath(checkout, copy.path), 200)
            yield f"the submodule `{name}` is empty in the worktree: {shorten(str(error), 200)}"


def _read_links(own: PrivateGit, copy: Copy, outer: str, tools: Tools) -> dict[str, str]:
    """Return path and commit of each submodule in a checkout."""
    with open_plain(own, tools, copy, ("--ro-bind", own.real, own.real), {"GIT_DIR": outer}) as box:
        raw = box.git("ls-files", "-s", "-z")
    found = {}
    for line in raw.split(b"\0"):
        head, _, path = line.partition(b"\t")
        mode, _, rest = head.decode("ascii", "replace").partition(" ")
        if mode == GITLINK:
            found[os.fsdecode(path)] = rest.partition(" ")[0]
    return found


def _fill(copy: Copy, row: PrivateGit, tools: Tools, places: tuple[str, str, str], commit: str) -> None:
    checkout, inner, git_dir = places
    _make_directory(row, inner, commit, os.path.relpath(checkout, inner))
    os.makedirs(checkout, exist_ok=True)
    private.write(f"{checkout}/.git", b"gitdir: " + os.fsencode(os.path.relpath(inner, checkout)) + b"\n")
    mounts = ("--bind", copy.path, copy.path, "--bind", git_dir, git_dir, *_mount_large_files(row.real))
    environ = {"GIT_DIR": inner, "GIT_WORK_TREE": checkout}
    with open_plain(row, tools, copy, mounts, environ, f"{inner}/config") as box:
        if box.ask("cat-file", "-e", f"{commit}^{{commit}}") is None:
            raise GitError("the project does not have its commit")
        box.git("read-tree", "--reset", "-u", "HEAD")


def _make_directory(row: PrivateGit, inner: str, commit: str, worktree: str) -> None:
    """Make the git directory of a submodule with copied refs and hard-linked objects, which survive a `git gc`."""
    for part in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks"):
        os.makedirs(f"{inner}/{part}")
    with private.Copier(row.real, inner, row.identity) as copier:
        copier.files(_ENTRY)
        refs = {
            path: os.fsdecode(value)
            for path, value in copier.contents("refs")
            if path.startswith((HEADS, TAGS, "refs/remotes/")) and not value.startswith(b"ref:")
        }
        private.write_packed(f"{inner}/packed-refs", private.read_packed(f"{inner}/packed-refs") | refs)
        for path in copier.below("objects"):
            if path != "objects/info/alternates":
                os.makedirs(os.path.dirname(f"{inner}/{path}"), exist_ok=True)
                try:
                    os.link(f"{row.real}/{path}", f"{inner}/{path}", follow_symlinks=False)
                except OSError:  # another owner
                    copier.files((path,))
    lent = b"".join(os.fsencode(store) + b"\n" for store, _ in row.stores[1:])
    if lent:
        private.write(f"{inner}/objects/info/alternates", lent)
    private.write(f"{inner}/HEAD", f"{commit}\n".encode())
    private.write(f"{inner}/config", row.config + git_plan.render([("core", "", "worktree", worktree)]))


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
    """Import commits of a submodule into the project's; return why they were refused, or an empty string."""
    with (
        _agent_side(copy, row, tools) as side,
        host_side(tools, copy.scratch, describe_layout(source), LIMITS, f"agent {copy.name}") as real,
    ):
        for one in (side, real):
            one.read_refs()
        moves = [Move(move.name, real.refs.get(move.name, ""), move.new) for move in moves]
        answers = sides.send(side, real, moves, set())
    return next((clean(reason) for reason in answers.values() if reason), "")


def _agent_side(copy: Copy, row: PrivateGit, tools: Tools) -> Side:
    """Open a submodule of the worktree read-only; its content was imported as checked data."""
    box = open_plain(row, tools, copy, ("--ro-bind", row.real, row.real), {"GIT_DIR": row.real})
    return Side(box, describe_layout(row), row.real)
