"""Paths of a project that the host's own tools execute or obey, and that are protected from the agent."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.facts.model import StubKind

GIT = "git-config"  # the name that opens what the configuration of git makes the host execute in the project
SUBMODULES = "submodules"  # their directories; nothing opens them
OWN = "claudebox"  # settings of the user that lie in the project; nothing opens them
SERVERS = ".mcp.json"  # the client fails on anything else than a file here, or nothing
WORKTREES = ".claude/worktrees"  # where Claude Code makes worktrees
ASIDE = ".claudebox"  # what follows the name of an entry that was put aside
PASSED = "/.."  # what follows a directory of which only the place counts

# In the project: path, what stands in if it is missing, why.
PROTECTED: tuple[tuple[str, StubKind, str], ...] = (
    (".claude", "directory", "the host's own claude runs hooks and commands from here"),
    (SERVERS, "directory", "the host's own claude starts these servers"),
    (".vscode", "directory", "the editor runs tasks and programs named here"),
    (".idea", "directory", "the editor runs programs named here"),
    (".devcontainer", "directory", "the editor runs commands named here"),
    (".devcontainer.json", "directory", "the editor runs commands named here"),
    (".claudebox.toml", "directory", "claudebox reads it"),
)

NAMES = (GIT, *(name for name, _, _ in PROTECTED))  # what `--allow` takes

# Names of directories that no snapshot keeps: large, and made again by the tool that made them.
UNKEPT = ("node_modules", "__pycache__", ".venv", ".tox", ".mypy_cache", ".pytest_cache", ".ruff_cache")
