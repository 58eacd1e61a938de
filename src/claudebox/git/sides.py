"""The two sides of an import, the agent's repository and the host's, each in a sandbox, and packs between them.

The agent's is composed of links to its refs, HEAD and index: its configuration, hooks and grafts are not visible. Over
the configuration of the host's a generated one is mounted, and its hooks are read-only.
"""

from __future__ import annotations

import contextlib
import os
import stat

from claudebox.base.files import mode_of, read_small, write_all
from claudebox.base.records import Value
from claudebox.git import private
from claudebox.git import state as git_state
from claudebox.git.refs import HEX, Move, put
from claudebox.git.sandbox import GitError, GitSandbox, render_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from claudebox.git.sandbox import Limits, Tools
    from claudebox.git.state import Layout

    Changed = dict[bytes, str] | None  # path -> mode


GITLINK = "160000"  # the mode of a submodule in a tree
_EMPTY_TREES = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
# Faults of objects that honest old history has; an agent may fetch such.
_FORGIVEN = (
    "badEmail", "badTimezone", "missingNameBeforeEmail", "missingSpaceBeforeDate", "missingSpaceBeforeEmail",
    "zeroPaddedDate", "zeroPaddedFilemode",
)  # fmt: skip
_READ_ONLY = ("hooks", "info", "lfs", "modules")  # of the host's
_REFS = (
    "git", "for-each-ref", "--format=%(objectname) %(refname) %(symref)", "refs/heads", "refs/tags", "refs/remotes",
    "refs/claudebox",
)  # fmt: skip
_LINKED = ("refs", "packed-refs", "shallow", "reftable")
_SHARED_INDEX = "sharedindex."
REPLACED = "it was replaced or moved since the session began: commits stay inside"


class Side:
    """A repository in its sandbox."""

    def __init__(self, box: GitSandbox, layout: Layout, git_dir: str, head: str = "HEAD") -> None:
        self.box = box
        self._layout = layout
        self._git_dir = git_dir  # as the host calls it
        self._head = head  # as its git calls the HEAD of the checkout
        self.repository = layout.common
        self.refs: dict[str, str] = {}
        self.carriers: list[str] = []  # temporary refs to objects that no branch leads to
        self.empty_tree = _EMPTY_TREES[layout.object_format]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.box.__exit__()

    @property
    def carrier(self) -> str:
        """The namespace of temporary refs to objects that no branch leads to; each checkout has its own."""
        return f"refs/claudebox/{'carrier' if self._layout.checkout == '.' else self._layout.checkout}/"

    def put(self, move: Move) -> None:
        put(self.refs, move)

    def drop_carriers(self) -> None:
        """Remove the temporary refs: what they lead to is in its place by now, or was refused."""
        if self.carriers:
            self.box.ask("update-ref", "--stdin", data="".join(f"delete {name}\n" for name in self.carriers).encode())
        for place in (os.path.dirname(self.carrier), "refs/claudebox"):
            with contextlib.suppress(OSError):  # git has removed it, or another session uses it
                os.rmdir(f"{self.repository}/{place}")

    def read_refs(self) -> None:
        """Read branches, tags and remote-tracking branches, without symbolic refs."""
        if self.box.run(*_REFS):
            raise GitError(self.box.message() or "git for-each-ref failed")
        self.refs, self.carriers = {}, []
        for row in self.box.output().decode("utf-8", "surrogateescape").split("\n"):
            value, _, rest = row.partition(" ")
            name, _, symbolic = rest.partition(" ")
            if name.startswith(self.carrier):
                self.carriers.append(name)
            elif name and not symbolic and self.is_id(value) and not name.startswith("refs/claudebox/"):
                self.refs[name] = value

    def is_id(self, text: str) -> bool:
        """Return whether a text is the full name of an object."""
        return len(text) == len(_EMPTY_TREES[self._layout.object_format]) and HEX.issuperset(text)

    def head(self) -> tuple[str, str]:
        """Return the text of HEAD, and the commit that it leads to if there is one."""
        if self._layout.ref_format == "files":
            text = os.fsdecode(read_small(f"{self._git_dir}/HEAD", limit=4096) or b"").rstrip("\n")
        else:
            name = os.fsdecode(self.box.ask("symbolic-ref", "-q", self._head) or b"").strip("\n")
            commit = os.fsdecode(self.box.ask("rev-parse", "-q", "--verify", self._head) or b"").strip("\n")
            text = f"ref: {name}" if name else commit
        if text.startswith("ref: "):
            text = f"ref: {text[5:].strip()}"
            return text, self.refs.get(text[5:], "")
        return (text, text) if self.is_id(text) else ("", "")

    def lacks(self, ids: Iterable[str]) -> list[str]:
        """Return those of some objects that are missing."""
        data = "".join(f"{value}\n" for value in ids).encode()
        found = self.box.git("cat-file", "--batch-check", data=data) if data else b""
        return [row.split(" ")[0] for row in found.decode("ascii", "replace").split("\n") if row.endswith(" missing")]

    def has_all(self, ids: Iterable[str]) -> bool:
        """Return whether these objects are there, and everything that they lead to and no ref does.

        To find the objects alone is not enough: a failed import may have left a commit there without its parents.
        """
        words = ("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all")
        data = "".join(f"{value}\n" for value in ids).encode()
        return not data or self.box.ask(*words, data=data) is not None

    def contains(self, tip: str, commit: str) -> bool:
        """Return whether the history of one commit contains another."""
        return self.box.ask("merge-base", "--is-ancestor", commit, tip) is not None


class TreeChange(Value):
    """A path that differs between two trees; mode 0 is none."""

    mode: str
    oid: str


def parse_changes(raw: bytes) -> dict[bytes, TreeChange] | None:
    """Return the paths of a `diff --raw -z`; None if one is not merged, or a row is malformed."""
    found: dict[bytes, TreeChange] = {}
    words = raw.split(b"\0")
    for head, path in zip(words[0::2], words[1::2], strict=False):
        parts = head.decode("ascii", "replace").removeprefix(":").split(" ")
        if len(parts) != 5 or parts[4][:1] not in "AMDT":
            return None
        found[path] = TreeChange(parts[1], parts[3])
    return found


# Gitlinks: on the host `git status` enters the repository at a gitlink and does what its configuration says. So a
# branch that adds one waits for the end of the session, when no agent can put a `.git` there any more, and what stands
# there is disarmed before the branch moves.


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
    data = "".join(f"{value}^{{tree}}\n" for value in values).encode()
    rows = (
        (agent.box.ask("cat-file", "--batch-check=%(objectname)", data=data, index=False) or b"").decode().split("\n")
    )
    return {value: row for value, row in zip(values, rows, strict=False) if agent.is_id(row)}


def _compare(agent: Side, pairs: list[tuple[str, ...]]) -> dict[tuple[str, ...], Changed]:
    """Return the changes for each pair of trees. The index is not read: an agent may have broken it."""
    if not pairs:
        return {}
    words = ("diff-tree", "--stdin", "-r", "--raw", "-z", "--no-renames", "--no-abbrev")
    raw = agent.box.ask(*words, data="".join(f"{old} {new}\n" for old, new in pairs).encode(), index=False)
    if raw is None and len(pairs) > 1:  # one is broken, and the others are not
        return {pair: rows for one in pairs for pair, rows in _compare(agent, [one]).items()}
    found: dict[tuple[str, ...], Changed] = dict.fromkeys(pairs)  # None for what git does not name
    parts, pair = iter((raw or b"").split(b"\0")), pairs[0]
    for part in parts:
        head, row = b"", part
        while row and not row.startswith(b":"):
            head, _, row = row.partition(b"\n")
            pair = tuple(head.decode("ascii", "replace").split(" "))
            found[pair] = {}
        changed, rows = parse_changes(row + b"\0" + next(parts, b"")) if row else {}, found[pair]
        if changed is None or rows is None:
            found[pair] = None
        else:
            rows.update((path, changed[path].mode) for path in changed)
    return found


def select_gitlinks(changed: dict[str, Changed]) -> dict[str, set[bytes]]:
    """Return the gitlinks that branches add or change."""
    found = {name: {path for path, mode in (rows or {}).items() if mode == GITLINK} for name, rows in changed.items()}
    return {name: links for name, links in found.items() if links}


def links_of_tree(raw: bytes) -> set[bytes]:
    """Return the gitlinks in the answer of `ls-tree -r -z`."""
    return {row.partition(b"\t")[2] for row in raw.split(b"\0") if row.startswith(GITLINK.encode())}


def agent_side(tools: Tools, path: str, layout: Layout, limits: Limits) -> Side:
    """Open the agent's repository read-only, with the objects of the host's."""
    own = f"{path}/own"
    git_dir = os.path.normpath(f"{own}/{layout.checkout}")
    names = _examine(own, git_dir)
    stores = _places(layout)
    links = [(f"/own/{name}", f"/g/{name}") for name in (*_LINKED, *names)]
    links.append((os.path.normpath(f"/own/{layout.checkout}/index"), "/g/index"))
    head = os.path.normpath(f"{layout.checkout}/HEAD")
    if layout.ref_format != "files" and layout.checkout != ".":  # a linked worktree has refs in tables of its own
        links.append((f"/own/{layout.checkout}/reftable", f"/g/{layout.checkout}/reftable"))
        links.append((f"/own/{layout.checkout}/refs", f"/g/{layout.checkout}/refs"))
    private.remove(f"{path}/scratch")
    os.makedirs(f"{path}/scratch/objects")
    mounts = (
        "--ro-bind", own, "/own", *_read_only(layout.stores, stores), "--bind", f"{path}/scratch", "/scratch",
        "--dir", "/g",
        *(word for row in links for word in ("--symlink", *row)),
    )  # fmt: skip
    environ = {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(("/own/objects", *stores)),
        "GIT_DIR": "/g",
        "GIT_OBJECT_DIRECTORY": "/scratch/objects",
    }
    config = _format(layout) + "[core]\n\tcommitGraph = false\n\tmultiPackIndex = false\n[pack]\n\tthreads = 2\n"
    files = {"/g/config": config.encode(), "/g/HEAD": b"ref: refs/heads/none\n"}  # HEAD is read by hand
    return Side(GitSandbox(tools, mounts, environ, path, limits, files), layout, git_dir, head)


def _examine(own: str, git_dir: str) -> list[str]:
    """Refuse what would mislead bwrap or block git; return the parts of a split index."""
    if not _is_directory(own) or not _is_directory(f"{own}/refs"):
        raise GitError(f"`{own}` is not a git directory any more: move it away, and the next launch makes one")
    for name in (f"{own}/packed-refs", f"{git_dir}/index", f"{git_dir}/HEAD"):
        if mode_of(name) and not stat.S_ISREG(mode_of(name)):
            raise GitError(f"`{name}` is not a regular file: remove it")
    return [name for name in os.listdir(own) if name.startswith(_SHARED_INDEX)]


def agent_side_writable(tools: Tools, path: str, layout: Layout, limits: Limits) -> Side:
    """Open the agent's repository writable; its sandbox can write nothing else."""
    own = f"{path}/own"
    if not _is_directory(own):
        raise GitError(f"`{own}` is not a directory")
    stores = _places(layout)
    synced = ("--ro-bind", f"{path}/synced", "/synced")
    mounts = ("--bind", own, "/own", *synced, *_read_only(layout.stores, stores))
    environ = {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(stores),
        **render_settings((("core.hooksPath", "/dev/null"), ("core.fsmonitor", "false"), ("core.bare", "false"))),
        "GIT_COMMITTER_EMAIL": "host@claudebox",
        "GIT_COMMITTER_NAME": "host",
        "GIT_DIR": os.path.normpath(f"/own/{layout.checkout}"),
    }
    return Side(GitSandbox(tools, mounts, environ, path, limits), layout, own)


def host_side(tools: Tools, path: str, layout: Layout, limits: Limits, session: str, held: int = -1) -> Side:
    """Open the host's repository writable, with none of its configuration in force, under the lock that is `held`."""
    mounts = host_mounts(layout)
    if held >= 0:
        mounts += ("--bind", f"{path}/synced", "/synced")
    environ = {
        "GIT_COMMITTER_EMAIL": "session@claudebox",
        "GIT_COMMITTER_NAME": f"claudebox {session}",
        "GIT_DIR": layout.git_dir,
    }
    return _open_host(tools, mounts, environ, path, layout, limits, held)


def host_side_read_only(tools: Tools, scratch: str, layout: Layout, limits: Limits) -> Side:
    """Open the host's repository to look at it, with none of its configuration and attributes in force."""
    if git_state.is_replaced(layout):
        raise GitError(REPLACED)
    mounts = _read_only((layout.common, *layout.stores[1:]), (layout.common, *layout.stores[1:]))
    environ = {"GIT_DIR": layout.git_dir, "GIT_INDEX_FILE": "/empty/index"}
    return _open_host(tools, mounts, environ, scratch, layout, limits)


def _open_host(
    tools: Tools, mounts: tuple[str, ...], environ: dict[str, str], scratch: str, layout: Layout, limits: Limits,
    held: int = -1,
) -> Side:  # fmt: skip
    """Open the host's repository; refuse another git directory than that of the session: bwrap mounts by name."""
    files = {f"{layout.common}/config": _real_config(layout, limits).encode()}
    box = GitSandbox(tools, mounts, environ, scratch, limits, files, held)
    try:
        if box.run("stat", "-c", "%i", "--", layout.common):
            raise GitError(box.message() or "it cannot be examined")
        if git_state.is_replaced(layout, int(box.output())):
            raise GitError(REPLACED)
    except GitError:
        box.__exit__()
        raise
    return Side(box, layout, layout.git_dir)


def host_mounts(layout: Layout) -> tuple[str, ...]:
    """Return the mounts of a writable host repository; what git executes in it is read-only."""
    if git_state.is_replaced(layout):
        raise GitError(REPLACED)
    for part in ("config", "objects"):
        if not _is_plain(f"{layout.common}/{part}"):
            raise GitError(f"`{layout.common}/{part}` is a link, or is missing")
    held = tuple(f"{layout.common}/{part}" for part in _READ_ONLY)
    held = tuple(part for part in held if _is_plain(part))
    return (
        *_read_only(layout.stores[1:], layout.stores[1:]), "--bind", layout.common, layout.common,
        *_read_only(held, held),
    )  # fmt: skip


def _real_config(layout: Layout, limits: Limits) -> str:
    """Return the configuration that is mounted over the host's."""
    promisor = ""
    if any(name.endswith(".promisor") for name in os.listdir(f"{layout.common}/objects/pack")):
        promisor = '[remote "claudebox"]\n\tpromisor = true\n\turl = /nonexistent\n'
    forgiven = "".join(f'[receive "fsck"]\n\t{name} = ignore\n' for name in _FORGIVEN)
    return (
        f"{_format(layout)}[core]\n\thooksPath = /dev/null\n\tlogAllRefUpdates = true\n\tfsyncMethod = batch\n"
        "\tfilesRefLockTimeout = 2000\n\tpackedRefsTimeout = 2000\n"  # a gc of the user may hold a ref
        "\tpreloadIndex = false\n\talternateRefsCommand = true\n"  # no files to look at, no refs of other stores
        "[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
        "[receive]\n\tfsckObjects = true\n\tdenyCurrentBranch = ignore\n\tdenyDeleteCurrent = ignore\n"
        "\tautogc = false\n\tupdateServerInfo = false\n\tunpackLimit = 200\n"
        f"\tmaxInputSize = {limits.size}\n{forgiven}{promisor}"
    )


def _format(layout: Layout) -> str:
    extensions = ""
    if layout.object_format != "sha1":
        extensions += f"\tobjectFormat = {layout.object_format}\n"
    if layout.ref_format != "files":
        extensions += f"\trefStorage = {layout.ref_format}\n"
    version = f"[core]\n\trepositoryFormatVersion = {int(bool(extensions))}\n\tbare = false\n"
    return version + (f"[extensions]\n{extensions}" if extensions else "")


def _places(layout: Layout) -> tuple[str, ...]:
    """Return where the object stores are mounted: names that need no quoting."""
    return tuple(f"/objects/{number}" for number in range(len(layout.stores)))


def _read_only(sources: tuple[str, ...], places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for row in zip(sources, places, strict=True) for word in ("--ro-bind", *row))


def _is_plain(path: str) -> bool:
    return stat.S_ISREG(mode_of(path)) or _is_directory(path)


def _is_directory(path: str) -> bool:
    return stat.S_ISDIR(mode_of(path))


# Packs: made by `git pack-objects` in the agent's sandbox, taken by `git receive-pack` in the host's. That is git's own
# way to take untrusted data: quarantine, fsck, connectivity, compare-and-swap, and an answer for each ref.


MOVED_MEANWHILE = "it moved meanwhile"
_CAPABILITIES = "report-status delete-refs ofs-delta object-format="
_PACK = ("git", "pack-objects", "--revs", "--stdout", "-q", "--delta-base-offset")
_MOST_ALONE = 50  # refs that are sent one by one after a pack was refused
# "unable to migrate": a gc on the host removed the directory that an object was to go into.
_LOST_RACES = ("failed to update ref", "fetch first", "failed to lock", "reference already", "unable to migrate")


def send(agent: Side, host: Side, moves: list[Move], carried: set[str], *, alone: bool = False) -> dict[str, str]:
    """Send refs, and objects that none of them leads to; return for each why it was refused, "" if it was not.

    Temporary refs lead to such objects until `drop_carriers`.
    """
    lacking = [] if host.has_all(carried) else sorted(carried)
    first = len(host.carriers)
    carriers = [Move(f"{host.carrier}{first + number}", "", value) for number, value in enumerate(lacking)]
    request = [*moves, *carriers]
    if not request:
        return {}
    wanted = [move.new for move in request if move.new]
    known = sorted(set(host.refs.values()))
    words = "".join(f"{value}\n" for value in (*wanted, *(f"^{value}" for value in known))).encode()
    answers: dict[str, str] = {}
    if agent.box.run(*_PACK, data=words):
        failure = agent.box.message() or "its objects cannot be packed"
    else:
        failure, answers = _receive(agent, host, request)
    host.carriers += [move.name for move in carriers if not failure and not answers.get(move.name)]
    if failure and not alone and len(request) > 1:
        # One bad object would keep everything else inside.
        answers = {}
        for move in moves[:_MOST_ALONE]:
            answers |= send(agent, host, [move], set(), alone=True)
        for value in lacking:
            answers |= {value: "", **send(agent, host, [], {value}, alone=True)}  # it may have come with another
        return {name: answers.get(name, failure) for name in (*(move.name for move in moves), *lacking)}
    said = {move.name: failure or answers.get(move.name, "git did not say why") for move in request}
    return {move.name: said[move.name] for move in moves} | {move.new: said[move.name] for move in carriers}


def _receive(agent: Side, host: Side, request: list[Move]) -> tuple[str, dict[str, str]]:
    """Return why the whole request failed, or an answer for each ref."""
    zero = "0" * max(len(value) for move in request for value in (move.old, move.new))
    object_format = "sha256" if len(zero) == 64 else "sha1"
    entry = host.box.input_file
    os.ftruncate(entry, 0)
    os.lseek(entry, 0, os.SEEK_SET)
    for number, move in enumerate(request):
        row = f"{move.old or zero} {move.new or zero} {move.name}".encode("utf-8", "surrogateescape")
        if number == 0:
            row += f"\0{_CAPABILITIES}{object_format}".encode()
        write_all(entry, b"%04x" % (len(row) + 4) + row)
    write_all(entry, b"0000")
    if any(move.new for move in request):
        _copy(agent.box.output_file, entry)
    host.box.run("git", "receive-pack", "--stateless-rpc", host.repository, data=None)
    answers: dict[str, str] = {}
    failure = "git receive-pack gave no answer"
    for row in _packets(host.box.output()):
        word, _, rest = row.decode("utf-8", "surrogateescape").rstrip("\n").partition(" ")
        name, _, reason = rest.partition(" ")
        if word == "unpack":
            failure = "" if rest == "ok" else f"{host.box.message() or rest}"
        elif word == "ok":
            answers[name] = ""
        elif word == "ng":
            answers[name] = MOVED_MEANWHILE if reason.startswith(_LOST_RACES) else reason or "refused"
    return failure, answers


def _packets(data: bytes) -> list[bytes]:
    rows = []
    while len(data) >= 4:
        size = int(data[:4], 16)
        rows.append(data[4 : max(size, 4)])
        data = data[max(size, 4) :]
    return rows


def _copy(source: int, target: int) -> None:
    offset, size = 0, os.fstat(source).st_size
    while offset < size:
        done = os.sendfile(target, source, offset, min(size - offset, 1 << 26))
        if not done:
            return
        offset += done
