"""Presets for `permit` of a secret: what hosts of a kind are asked for, by method and path.

Where a preset takes a repository, `{repository}` stands for it. GitHub's GraphQL is one path for everything, so none of
them opens it.
"""

from __future__ import annotations

_GITHUB_READ = (
    "GET /repos/{repository}", "GET /repos/{repository}/**", "GET /{repository}.git/info/refs",
    "POST /{repository}.git/git-upload-pack", "GET /{repository}/info/refs", "POST /{repository}/git-upload-pack",
)  # fmt: skip
PRESETS: dict[str, tuple[str, ...]] = {
    "github:read-all": ("GET /**", "POST /*/*/git-upload-pack"),
    "github:read": _GITHUB_READ,
    "github:push": (
        *_GITHUB_READ, "POST /{repository}.git/git-receive-pack", "POST /{repository}/git-receive-pack",
    ),
    "github:pull-requests": (
        *_GITHUB_READ, "POST /repos/{repository}/pulls", "PATCH /repos/{repository}/pulls/*",
        "POST /repos/{repository}/pulls/*/comments", "POST /repos/{repository}/pulls/*/reviews",
        "POST /repos/{repository}/pulls/*/requested_reviewers", "POST /repos/{repository}/issues/*/comments",
        "POST /repos/{repository}/issues/*/labels",
    ),
}  # fmt: skip
