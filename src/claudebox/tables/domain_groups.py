"""Groups of domains that claudebox brings for tier `allow`: what a tool needs that talks to a public registry.

Each has its source: where the tool or its registry says which names it uses, and what of it was compared with a stored
copy of that page in November 2026; the rest is how these tools have worked for years. A group leads to whatever anybody
has published there; it is for getting packages, not for keeping data in.
"""

from __future__ import annotations

GROUPS: dict[str, tuple[str, ...]] = {
    # The client's own documentation, "Network access requirements".
    "anthropic": (
        "api.anthropic.com", "console.anthropic.com", "platform.claude.com", "claude.ai", "downloads.claude.ai",
        "code.claude.com", "docs.claude.com",
    ),
    # GitHub's API, `GET /meta` ("domains"), and docs.github.com, "Using SSH over the HTTPS port". Compared: releases
    # come from release-assets.githubusercontent.com. Artifacts of Actions and files of LFS lie in stores of clouds that
    # everybody can rent (*.blob.core.windows.net, github-cloud.s3.amazonaws.com): list the name that `--log` shows.
    "github": (
        "github.com", "github.com:22", "ssh.github.com", "api.github.com", "uploads.github.com", "codeload.github.com",
        "gist.github.com", "*.githubusercontent.com", "*.pkg.github.com", "ghcr.io",
    ),
    # warehouse.pypa.io, "API reference": the index, and where it says that files are. Compared.
    "pypi": ("pypi.org", "files.pythonhosted.org"),
    # docs.npmjs.com, `registry`; yarn's name for the same registry (yarnpkg.com, "npmRegistryServer").
    "npm": ("registry.npmjs.org", "registry.yarnpkg.com"),
    # doc.rust-lang.org/cargo, "Registry index", with config.json of index.crates.io (compared); rustup,
    # "RUSTUP_DIST_SERVER".
    "crates": ("index.crates.io", "static.crates.io", "crates.io", "static.rust-lang.org"),
    # go.dev/ref/mod, "Module proxy protocol" and "Checksum database"; go.dev/dl for toolchains.
    "go": ("proxy.golang.org", "sum.golang.org", "go.dev", "dl.google.com"),
    # wiki.debian.org/SourcesList: the archive, security updates, and what redirects to mirrors of them.
    "debian": ("deb.debian.org", "security.debian.org", "ftp.debian.org", "snapshot.debian.org"),
    # nixos.org, "substituters"; flakes that name `github:` need the group github beside it.
    "nix": ("cache.nixos.org", "channels.nixos.org", "releases.nixos.org", "tarballs.nixos.org"),
    # huggingface.co/.well-known/meta.json, which lists the names of the site and of where large files are; all of them
    # but the site itself end in hf.co. Compared.
    "huggingface": (
        "huggingface.co", "hf.co", "*.hf.co", "cdn-lfs.huggingface.co", "datasets-server.huggingface.co",
    ),
}  # fmt: skip
