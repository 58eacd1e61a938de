"""What the tests of git share: a repository, a git directory of the agent's own for it, and imports by hand."""

from __future__ import annotations

import json
import marshal
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import Box, need

if TYPE_CHECKING:
    from collections.abc import Callable

    Git = Callable[..., str]

PYTHON = "/usr/bin/python3"
GITCONFIG = """\
[user]
\tname = n
\temail = n@example.org
[init]
\tdefaultBranch = main
[protocol "file"]
\tallow = always
[advice]
\tdetachedHead = false
[gc]
\tautoDetach = false
[maintenance]
\tautoDetach = false
"""  # what git does in the background writes into repositories while a test looks at them

# Runs as the account, as claudebox does: nothing of the tests is imported.
IMPORT = """
import json, sys
source, path, session, options = sys.argv[1:]
sys.path.insert(0, source)
from claudebox.base.errors import ClaudeboxError
from claudebox.git.importer import bring_back
from claudebox.git.sandbox import Limits, Tools
from claudebox.plan import seccomp
import os
options = json.loads(options)
limits = Limits(**options.pop("limits", {}))
tools = Tools("/usr/bin/bwrap", "/usr/bin:/bin", seccomp.build(os.uname().machine) or b"")
try:
    done = bring_back(path, tools, session, limits=limits, **options)
except ClaudeboxError as error:
    print(json.dumps({"error": error.message}))
else:
    print(json.dumps({name: [list(row.as_tuple()) if hasattr(row, "name") else row for row in value]
                      if isinstance(value, tuple) else value for name, value in zip(done._fields, done.as_tuple())}))
"""

# The sidecar as the launcher starts it: a line of input is the end of the session.
FOLLOW = """
import json, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [1, 2, 15])
source, path, session, mode = sys.argv[1:]
sys.path.insert(0, source)
from claudebox.git.sidecar import Follower
from claudebox.git.sandbox import Tools
follower = Follower((path,), lambda: Tools("/usr/bin/bwrap"), session, mode)
follower.begin()
follower.attach(0)
while follower.look() < 1:
    time.sleep(0.05)
print("ready", flush=True)
sys.stdin.readline()
lines = follower.finish()
for line in (*follower.moved, *lines):
    print(line, flush=True)
"""


@dataclass
class Result:
    """What an import said."""

    moved: list[list[str]] = field(default_factory=list)
    renamed: list[list[str]] = field(default_factory=list)
    refused: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    obeyed: list[str] = field(default_factory=list)
    error: str = ""


@dataclass
class Pair:
    """A real repository and the agent's, at the same place."""

    box: Box
    source: str  # of claudebox

    @property
    def project(self) -> str:
        return self.box.project

    @property
    def real(self) -> str:
        return f"{self.box.project}/.git"

    @property
    def private(self) -> str:
        return f"{self.box.home}/.claudebox/instances/{'0' * 16}/git/{'1' * 16}"

    @property
    def own(self) -> str:
        return f"{self.private}/own"

    @property
    def objects(self) -> str:
        """Return where the real objects are inside."""
        return f"{self.box.base}/objects"

    def host(self, script: str, *, check: bool = True, **options: object) -> str:
        """Run a script on the host, in the project."""
        result = self.box.host("sh", "-ec", script, **options)
        assert not check or result.returncode == 0, result.stderr + result.stdout
        return result.stdout

    def enter(self, script: str, words: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the words that run a script where the agent's git directory is in the place of the real one."""
        return (
            "/usr/bin/bwrap", "--dev-bind", "/", "/", "--bind", self.own, self.real, "--ro-bind", self.outer_objects,
            self.objects, "--die-with-parent", "--chdir", self.project, "--", "sh", "-ec", script, "sh", *words,
        )  # fmt: skip

    @property
    def outer_objects(self) -> str:
        return f"{self.real}/objects"

    def agent(self, script: str, words: tuple[str, ...] = (), *, check: bool = True, **options: object) -> str:
        """Run a script inside, with these words as its arguments."""
        result = self.box.host(*self.enter(script, words), **options)
        assert not check or result.returncode == 0, result.stderr + result.stdout
        return result.stdout

    def import_words(self, session: str = "s1", **options: object) -> tuple[str, ...]:
        return (PYTHON, "-IS", "-c", IMPORT, self.source, self.private, session, json.dumps(options))

    def bring_back(self, session: str = "s1", **options: object) -> Result:
        """Import, as the account."""
        result = self.box.host(*self.import_words(session, **options))
        assert result.returncode == 0, result.stderr
        return Result(**json.loads(result.stdout))

    def finish(self) -> None:
        """Bring everything back, with what the agent has made, as at the end of a session."""
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); from claudebox.git import importer as git_import; "
            "from claudebox.git.sandbox import Tools; "
            "git_import.finish(sys.argv[2], Tools('/usr/bin/bwrap'), 's1')"
        )
        result = self.box.host(PYTHON, "-IS", "-c", program, self.source, self.private)
        assert result.returncode == 0, result.stderr

    def follow(self, mode: str = "auto") -> subprocess.Popen[str]:
        """Start the sidecar and wait until it watches."""
        words = (PYTHON, "-IS", "-c", FOLLOW, self.source, self.private, "s1", mode)
        process = start(self, *words, stdin=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def set_up(self, *, object_format: str = "sha1") -> None:
        """Make the agent's git directory as set-up does: by hand, nothing executed."""
        for directory in (self.own, f"{self.own}/objects/info", f"{self.own}/objects/pack", f"{self.own}/refs/heads",
                          f"{self.own}/refs/tags", self.objects):  # fmt: skip
            self.box.mkdir(directory)
        for name in ("HEAD", "index", "packed-refs", "shallow"):
            if os.path.isfile(f"{self.real}/{name}"):
                shutil.copy2(f"{self.real}/{name}", f"{self.own}/{name}")
        base = Path(f"{self.real}/packed-refs").read_bytes() if os.path.exists(f"{self.real}/packed-refs") else b""
        for top in ("refs", "logs"):
            for directory, _, names in os.walk(f"{self.real}/{top}"):
                for name in names:
                    relative = os.path.relpath(f"{directory}/{name}", self.real)
                    self.box.mkdir(os.path.dirname(f"{self.own}/{relative}"))
                    shutil.copy2(f"{self.real}/{relative}", f"{self.own}/{relative}")
                    if top == "refs":
                        base += Path(f"{self.real}/{relative}").read_bytes().strip() + b" " + relative.encode() + b"\n"
        extension = "\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = sha256\n"
        self.box.write(f"{self.own}/config", "[core]\n\tbare = false\n\tlogallrefupdates = true\n"
                       + (extension if object_format != "sha1" else "\trepositoryformatversion = 0\n"))  # fmt: skip
        self.box.write(f"{self.own}/objects/info/alternates", f"{self.objects}\n")
        self.box.mkdir(f"{self.private}/synced")
        self.box.write(f"{self.private}/synced/head", Path(f"{self.real}/HEAD").read_bytes())
        if os.path.isfile(f"{self.real}/index"):
            self.box.write(f"{self.private}/synced/index", Path(f"{self.real}/index").read_bytes())
        layout = {"common": self.real, "git_dir": self.real, "work_tree": self.project,
                  "stores": [f"{self.real}/objects"], "object_format": object_format}  # fmt: skip
        self.write_state(layout=layout, base=os.fsdecode(base))
        for directory, names, files in os.walk(self.own):
            for name in (*names, *files):
                os.chown(f"{directory}/{name}", self.box.account.uid, self.box.account.gid)

    def write_state(self, **changes: object) -> None:
        """Change what set-up has written down."""
        self.box.write(f"{self.private}/state", marshal.dumps({**self.read_state(), **changes}, 4))

    def read_state(self) -> dict[str, Any]:
        place = Path(f"{self.private}/state")
        return marshal.loads(place.read_bytes()) if place.exists() else {}

    def refs(self) -> dict[str, str]:
        rows = self.host("git for-each-ref --format='%(refname) %(objectname)'").split("\n")
        return dict(row.split(" ") for row in rows if row)

    def fsck(self) -> None:
        """See that nothing is broken or missing."""
        said = self.host("git fsck --full --strict 2>&1 || true")
        assert not [row for row in said.split("\n") if row and not row.startswith(("dangling", "notice"))], said


@pytest.fixture
def pair(box: Box, checkout: str) -> Pair:
    """Return a repository with one commit, and the agent's beside it."""
    need(shutil.which("git"), "git")
    os.chown(box.base, box.account.uid, box.account.gid)
    box.write(f"{box.home}/.gitconfig", GITCONFIG)
    made = Pair(box, f"{checkout}/src")
    made.host("git init -q; echo a >a; echo b >b; git add .; git commit -qm first")
    made.set_up()
    return made


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something that must come."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not come"
        time.sleep(0.02)


def start(pair: Pair, *words: str, **options: object) -> subprocess.Popen[str]:
    """Start a program as the account and return at once."""
    settings: dict[str, object] = {
        "cwd": pair.project, "env": pair.box.variables(), "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT, "encoding": "utf-8", **options,
    }  # fmt: skip
    return subprocess.Popen((*pair.box.account.words, *words), **settings)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def repository(box: Box) -> Git:
    """Return a function that runs git in the project as its owner, with one commit."""
    return make_repository(box)


@pytest.fixture
def user_repository(user_box: Box) -> Git:
    """Return the same for an ordinary user."""
    return make_repository(user_box)


def make_repository(box: Box) -> Git:
    """Make the project a repository with one commit and an ignored directory."""

    def git(*words: str) -> str:
        result = box.host("git", *words)
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    git("init", "-q", "-b", "main")
    git("config", "user.name", "user")
    git("config", "user.email", "user@example.org")
    box.write("kept.txt", "kept\n")
    box.write("gone.txt", "gone\n")
    box.write(".gitignore", "node_modules\n.env\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    box.write("node_modules/left-pad/index.js", "module.exports = 1\n")
    box.write("node_modules/left-pad/large.js", "//" + "x" * 1200)
    os.symlink("left-pad", f"{box.project}/node_modules/link")
    return git


def run_git(*argv: object, cwd) -> str:
    """Run git on a repository of this test alone, with no configuration of the user's."""
    environ = {
        "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip
    words = ["git", "-c", "protocol.file.allow=always", *map(str, argv)]
    return subprocess.run(words, cwd=cwd, env=environ, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def main(tmp_path):
    """Return a repository with one commit."""
    need(shutil.which("git"), "git")
    repository = tmp_path / "main"
    run_git("init", "-q", repository, cwd=tmp_path)
    run_git("commit", "-q", "--allow-empty", "-m", "first", cwd=repository)
    return repository


@pytest.fixture
def worktree(main, tmp_path):
    """Return a linked worktree of it."""
    run_git("worktree", "add", "-q", tmp_path / "tree", cwd=main)
    return tmp_path / "tree"
