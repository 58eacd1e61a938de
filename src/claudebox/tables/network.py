"""Address ranges that are closed in the tiers `inet` and `allow`, with reasons, and groups of domains for `allow`.

Over IPv4 everything is open that is not barred. Over IPv6 only the prefixes of `OPEN6` are open, except what is barred,
because new special ranges appear there (F03).
"""

from __future__ import annotations

from claudebox.base.addresses import NAT64

# Closed whatever `allow_addresses` names: this machine, cloud metadata (which gives out credentials), and
# addresses that embed others.
ALWAYS_BARRED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "this machine"),
    ("10.0.2.0/24", "the uplink's own: one of its addresses is the resolver of this machine, on every port"),
    ("100.100.100.200/32", "Alibaba's metadata"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "Azure's metadata"),
    ("169.254.0.0/16", "link-local, and most clouds' metadata"),
    ("192.0.0.0/24", "protocol assignments, and Oracle's metadata"),
    ("224.0.0.0/4", "multicast: all of the LAN"),
    ("240.0.0.0/4", "reserved, and broadcast"),
    ("::/16", "loopback, and IPv4 addresses in another spelling"),
    ("2001::/32", "Teredo carries IPv4 addresses, private ones too"),
    ("2002::/16", "6to4 carries IPv4 addresses, private ones too"),
    ("fd00::/64", "the uplink's own"),
    ("fd00:42::42/128", "Scaleway's metadata"),
    ("fd00:c1::a9fe:a9fe/128", "Oracle's metadata"),
    ("fd00:ec2::/32", "Amazon's metadata"),
    ("fd20:ce::254/128", "Google's metadata"),
    ("fe80::/10", "link-local"),
    ("ff00::/8", "multicast: all of the LAN"),
)
# Closed unless a user opens an address or a network in them.
BARRED: tuple[tuple[str, str], ...] = (
    ("10.0.0.0/8", "private networks"),
    ("100.64.0.0/10", "carriers' and VPNs' own networks (Tailscale)"),
    ("172.16.0.0/12", "private networks"),
    ("192.168.0.0/16", "private networks"),
    ("198.18.0.0/15", "networks of test laboratories"),
    ("2001:2::/48", "networks of test laboratories"),
)
OPEN6 = ("2000::/3", NAT64)


# Built-in groups of domains for tier `allow`: what tools of public registries connect to.
#
# Each names its source, the page of the tool or registry that lists its names; "compared" means checked against a copy
# of that page in November 2026. Anybody can publish there: a group is for getting packages, not for keeping data in.


GROUPS: dict[str, tuple[str, ...]] = {
    # The client's own documentation, "Network access requirements".
    "anthropic": (
        "api.anthropic.com", "console.anthropic.com", "platform.claude.com", "claude.ai", "downloads.claude.ai",
        "code.claude.com", "docs.claude.com",
    ),
    # GitHub's API, `GET /meta` ("domains"), and docs.github.com, "Using SSH over the HTTPS port". Compared: releases
    # come from release-assets.githubusercontent.com. Artifacts of Actions and files of LFS lie in stores of clouds that
    # everybody can rent (*.blob.core.windows.net, github-cloud.s3.amazonaws.com): list the name that the log shows.
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

# Fields of a request's head that say how it is read and where it goes: nobody may set them.
FRAMING = frozenset((
    "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization",
    "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip
