"""What the user's own configuration of git says about a checkout: who commits, what is ignored, how git behaves."""

from __future__ import annotations

import os

from claudebox.facts import git_config
from claudebox.files import read_small
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.facts.git_model import Repository

_LIMIT = 256 << 10


class UserSettings(Value):
    """The user's configuration, as git would compute it for a checkout."""

    rows: tuple[git_config.Row, ...] = ()
    ignored: bytes = b""  # what `core.excludesFile` holds
    attributes: bytes = b""


def read_user_settings(home: str, environ: dict[str, str], repository: Repository | None) -> UserSettings:
    """Read the files of the user and of the system, with the includes whose conditions are met."""
    context = git_config.IncludeContext(home)
    local: tuple[git_config.Row, ...] = ()
    if repository is not None and repository.directory is not None:
        local = (*repository.directory.rows, *repository.directory.worktree_rows)
        spelled = f"{repository.root}/.git" if repository.gitfile is None else repository.git_dir
        head = os.fsdecode(read_small(f"{repository.git_dir}/HEAD") or b"").strip()
        branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else ""
        git_dirs = tuple(dict.fromkeys((spelled, repository.git_dir)))
        context = git_config.IncludeContext(home, git_dirs, branch, tuple(git_config.urls(local)))
    rows = git_config.read_config(git_config.user_files(home, environ), context).rows
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    # Only the user's own files name a file whose content enters: a repository could name a key (C09).
    return UserSettings(
        rows,
        _file(git_config.last(rows, "core", "excludesfile") or f"{base}/git/ignore", home),
        _file(git_config.last(rows, "core", "attributesfile") or f"{base}/git/attributes", home),
    )


def _file(name: str, home: str) -> bytes:
    return read_small(git_config.expand(name, home, home), limit=_LIMIT, follow=True) or b""
