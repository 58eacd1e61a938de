"""Paths of a project that the host's own tools execute or obey, and that are protected from the agent."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.facts.model import StubKind

GIT = "git-config"  # the name that opens the git directory for a launch
OWN = "claudebox"  # settings of the person that lie in the project; nothing opens them

# In the project: path, what stands in if it is missing, why. The name is also what `--allow` takes.
PROTECTED: tuple[tuple[str, StubKind, str], ...] = (
    (".claude", "directory", "the host's own claude runs hooks and commands from here"),
    (".mcp.json", "directory", "the host's own claude starts these servers"),
    (".vscode", "directory", "the editor runs tasks and programs named here"),
    (".idea", "directory", "the editor runs programs named here"),
    (".devcontainer", "directory", "the editor runs commands named here"),
    (".devcontainer.json", "directory", "the editor runs commands named here"),
    (".claudebox.toml", "directory", "claudebox reads it"),
)

# In a git directory. `commondir` would redirect all the others (D06); git takes `.` for "here".
PROTECTED_IN_GIT: tuple[tuple[str, StubKind, str], ...] = (
    ("config", "file", "git runs programs named here"),
    ("hooks", "directory", "git runs these"),
    ("commondir", "dot", "git would look elsewhere for its configuration"),
    ("config.worktree", "file", "git runs programs named here"),
    ("modules", "none", "repositories of submodules, with hooks of their own"),
    ("worktrees", "none", "git directories of other checkouts"),
    ("info/attributes", "none", "chooses programs that git runs"),
)
