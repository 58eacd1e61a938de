"""Large files of Git LFS in an agent's worktree: written from what the project has, by a filter in git's sandbox.

What git holds of such a file is a pointer: the SHA-256 of its content and its size. No program of Git LFS runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from claudebox.launch.git_sandbox import GitSandbox

TOO_MANY = "not all large files came along: `git lfs checkout` inside brings the rest, and `--copy-size` lets more come"
_STORE = "/large-files"  # where those of the project are mounted
# What is no pointer, or names a file that is not there or one too many, passes as it is. Git takes `%%` for `%` here.
_SMUDGE = (
    "cat >/tmp/pointer; "
    f"id=$(head -c 400 /tmp/pointer | sed -n 's/^oid sha256:\\([0-9a-f]\\{{64\\}}\\)$/\\1/p'); rest=${{id#??}}; "
    f'file={_STORE}/${{id%"$rest"}}/${{rest%"${{rest#??}}"}}/$id; '
    "used=$(cat /tmp/used 2>/dev/null || echo 0); "
    'if [ -n "$id" ] && [ -f "$file" ]; then used=$((used + $(wc -c <"$file"))); '
    'if [ "$used" -le "$LARGE_FILES_MOST" ]; then echo $used >/tmp/used; exec cat "$file"; fi; '
    "echo >/tmp/too-many; fi; "
    "cat /tmp/pointer"
)
_CLEAN = (
    "head -c 1024 >/tmp/head; case $(tr -d '\\0' </tmp/head) in 'version https://git-lfs.github.com/spec/v1'*) "
    "cat /tmp/head -; exit;; esac; [ -p /tmp/pipe ] || mkfifo /tmp/pipe; wc -c </tmp/pipe >/tmp/size & "
    "id=$(cat /tmp/head - | tee /tmp/pipe | sha256sum); wait; "
    "printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%s\\nsize %d\\n' \"${id%%%% *}\" $(cat /tmp/size)"
)


def variables(*more: tuple[str, str], most: int = 0) -> dict[str, str]:
    """Return the environment by which git in a sandbox treats large files, up to so many bytes; `more` settings."""
    rows = (
        ("filter.lfs.smudge", _SMUDGE), ("filter.lfs.clean", _CLEAN), ("filter.lfs.required", "false"), *more,
    )  # fmt: skip
    found = {"GIT_CONFIG_COUNT": str(len(rows)), "LARGE_FILES_MOST": str(most)}
    for number, (key, value) in enumerate(rows):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found


def without_process(config: bytes) -> bytes:
    """Return a configuration without the filters that git would prefer to ours, even to an empty one."""
    lines = config.split(b"\n")
    return b"\n".join(line for line in lines if not line.strip().lower().startswith(b"process"))


def mounts(common: str) -> tuple[str, ...]:
    """Return what bwrap mounts for them: the files that a repository has."""
    store = f"{common}/lfs/objects"
    plain = os.path.isdir(store) and not os.path.islink(f"{common}/lfs") and not os.path.islink(store)
    return ("--ro-bind", store, _STORE) if plain else ()


def were_too_many(box: GitSandbox) -> bool:
    """Return whether a filter left pointers for want of room."""
    return box.run("test", "-e", "/tmp/too-many") == 0
