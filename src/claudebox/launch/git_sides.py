"""The two sides of an import, each behind a sandbox: what the agent's repository has, what the real one has.

The agent's is composed of links to its refs, HEAD and index, so that none of its configuration, hooks or grafts is
there to be read. Over the real one's configuration a generated one is mounted, and its hooks are read-only.
"""

from __future__ import annotations

import os
import stat

from claudebox.launch.git_merge import Row
from claudebox.launch.git_sandbox import GitError, GitSandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from claudebox.launch.git_sandbox import Limits, Tools
    from claudebox.launch.git_state import Layout

_EMPTY_TREES = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
_HEX = frozenset("0123456789abcdef")
# Faults of objects that honest old history has; an agent may fetch such.
_FORGIVEN = (
    "badEmail", "badTimezone", "missingNameBeforeEmail", "missingSpaceBeforeDate", "missingSpaceBeforeEmail",
    "zeroPaddedDate", "zeroPaddedFilemode",
)  # fmt: skip
_READ_ONLY = ("hooks", "info", "lfs", "modules")  # of the real one, while it takes objects in
# A pipe in the place of a file would make git wait for ever.
_COMPOSE = (
    "mkdir /g && cat >/g/config && "
    'test -z "$(find -L /own/refs "/own/$CHECKOUT/index" /own/packed-refs ! -type f ! -type d 2>/dev/null)" && '
    'for part in refs packed-refs shallow reftable; do test ! -e "/own/$part" || ln -s "/own/$part" /g/; done && '
    'for part in "/own/$CHECKOUT/index" /own/sharedindex.*; do test ! -f "$part" || ln -s "$part" /g/; done && '
    "mkdir -p /g/refs && "
)
_COPY_HEAD = 'test ! -f "/own/$CHECKOUT/HEAD" || head -c 4096 "/own/$CHECKOUT/HEAD" >/g/HEAD; '  # which must be no link
_HEAD = 'git symbolic-ref -q HEAD; echo "="; git rev-parse -q --verify "HEAD^{commit}"'


class Side:
    """A repository in its sandbox."""

    def __init__(self, box: GitSandbox, layout: Layout, prelude: str = "") -> None:
        self.box = box
        self._layout = layout
        self._prelude = prelude  # what is done before HEAD is read

    def __enter__(self) -> Self:
        """Stay open."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the sandbox."""
        self.box.__exit__()

    def refs(self) -> dict[str, str]:
        """Return branches, tags and remote-tracking branches; none that is only another name of one."""
        names = ("refs/heads", "refs/tags", "refs/remotes")
        rows = self.box.git("for-each-ref", "--format=%(objectname) %(refname) %(symref)", *names)
        found: dict[str, str] = {}
        for row in rows.decode("utf-8", "surrogateescape").split("\n"):
            value, _, rest = row.partition(" ")
            name, _, symbolic = rest.partition(" ")
            if name and not symbolic and self.is_id(value):
                found[name] = value
        return found

    def is_id(self, text: str) -> bool:
        """Return whether a text is the full name of an object."""
        return len(text) == len(_EMPTY_TREES[self._layout.object_format]) and _HEX.issuperset(text)

    def head(self) -> tuple[str, str]:
        """Return the text of HEAD, and the commit that it leads to if there is one."""
        self.box.run(self._prelude + _HEAD)
        name, _, commit = self.box.output().decode("utf-8", "surrogateescape").partition("=\n")
        name, commit = name.strip("\n"), commit.strip("\n")
        if not self.is_id(commit):
            commit = ""
        return (f"ref: {name}" if name else commit), commit

    def rows(self, commit: str) -> dict[bytes, Row] | None:
        """Return the paths of the index that differ from a commit; None if there is no telling."""
        tree = commit or _EMPTY_TREES[self._layout.object_format]
        raw = self.box.ask("diff-index", "--cached", "--raw", "-z", "--no-renames", "--no-abbrev", tree)
        return None if raw is None else parse_rows(raw)

    def has(self, *ids: str) -> bool:
        """Return whether all these objects are there."""
        found = self.box.ask("cat-file", "--batch-check", data="".join(f"{value}\n" for value in ids).encode())
        return found is not None and b" missing" not in found and b" ambiguous" not in found

    def contains(self, tip: str, commit: str) -> bool:
        """Return whether the history of one commit contains another."""
        return self.box.ask("merge-base", "--is-ancestor", commit, tip) is not None


def parse_rows(raw: bytes) -> dict[bytes, Row] | None:
    """Return the rows of a `diff --raw -z`; None if something in it is not merged, or not a row at all."""
    found: dict[bytes, Row] = {}
    words = raw.split(b"\0")
    for head, path in zip(words[0::2], words[1::2], strict=False):
        parts = head.decode("ascii", "replace").removeprefix(":").split(" ")
        if len(parts) != 5 or parts[4][:1] not in "AMDT":
            return None
        found[path] = Row(parts[1], parts[3], parts[0], parts[2])
    return found


def own_side(tools: Tools, path: str, layout: Layout, limits: Limits) -> Side:
    """Open the agent's repository to be read, with objects of the real one."""
    _require_directory(f"{path}/own")
    stores = tuple(f"/objects/{number}" for number in range(len(layout.stores)))
    mounts = ("--ro-bind", f"{path}/own", "/own", *_read_only(layout.stores, stores))
    environ = {
        "CHECKOUT": layout.checkout,
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(stores),
        "GIT_DIR": "/g",
        "GIT_OBJECT_DIRECTORY": "/own/objects",
    }
    box = GitSandbox(tools, mounts, environ, path, limits)
    config = "[core]\n\tcommitGraph = false\n\tmultiPackIndex = false\n[pack]\n\tthreads = 2\n"
    if box.run(_COMPOSE + _COPY_HEAD, (_format(layout) + config).encode()):
        box.__exit__()
        raise GitError("refs or index inside are no files")
    return Side(box, layout, _COPY_HEAD)


def own_side_writable(tools: Tools, path: str, layout: Layout, limits: Limits) -> Side:
    """Open the agent's repository to be written: all that its sandbox can write is the agent's already."""
    _require_directory(f"{path}/own")
    stores = tuple(f"/objects/{number}" for number in range(len(layout.stores)))
    mounts = ("--bind", f"{path}/own", "/own", *_read_only(layout.stores, stores))
    environ = {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(stores),
        "GIT_CONFIG_COUNT": "3",
        "GIT_CONFIG_KEY_0": "core.hooksPath",
        "GIT_CONFIG_KEY_1": "core.fsmonitor",
        "GIT_CONFIG_KEY_2": "core.bare",
        "GIT_CONFIG_VALUE_0": "/dev/null",
        "GIT_CONFIG_VALUE_1": "false",
        "GIT_CONFIG_VALUE_2": "false",
        "GIT_COMMITTER_EMAIL": "host@claudebox",
        "GIT_COMMITTER_NAME": "host",
        "GIT_DIR": os.path.normpath(f"/own/{layout.checkout}"),
    }
    return Side(GitSandbox(tools, mounts, environ, path, limits), layout)


def real_side(tools: Tools, path: str, layout: Layout, limits: Limits, session: str) -> Side:
    """Open the real repository, which runs nothing of its own here."""
    for part in ("config", "objects"):
        if not _is_plain(f"{layout.common}/{part}"):
            raise GitError(f"`{layout.common}/{part}` is a link, or is missing")
    held = tuple(f"{layout.common}/{part}" for part in _READ_ONLY)
    held = tuple(part for part in held if _is_plain(part))
    mounts = (
        *_read_only(layout.stores[1:], layout.stores[1:]), "--bind", layout.common, layout.common,
        *_read_only(held, held),
    )  # fmt: skip
    environ = {
        "GIT_COMMITTER_EMAIL": "session@claudebox",
        "GIT_COMMITTER_NAME": f"claudebox {session}",
        "GIT_DIR": layout.git_dir,
        "REPOSITORY": layout.common,
    }
    config = f"{layout.common}/config", _real_config(layout, limits).encode()
    return Side(GitSandbox(tools, mounts, environ, path, limits, config), layout)


def _real_config(layout: Layout, limits: Limits) -> str:
    """Return what stands in for the configuration of the real repository."""
    promisor = ""
    if any(name.endswith(".promisor") for name in os.listdir(f"{layout.common}/objects/pack")):
        promisor = '[remote "claudebox"]\n\tpromisor = true\n\turl = /nonexistent\n'
    forgiven = "".join(f'[receive "fsck"]\n\t{name} = ignore\n' for name in _FORGIVEN)
    return (
        f"{_format(layout)}[core]\n\thooksPath = /dev/null\n\tlogAllRefUpdates = true\n\tfsyncMethod = batch\n"
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


def _read_only(sources: tuple[str, ...], places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for row in zip(sources, places, strict=True) for word in ("--ro-bind", *row))


def _is_plain(path: str) -> bool:
    """Return whether a file or directory is there that is no link."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _require_directory(path: str) -> None:
    """Refuse a link in the place of the agent's git directory: bwrap would follow it."""
    try:
        plain = stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        plain = False
    if not plain:
        raise GitError(f"`{path}` is not a directory")
