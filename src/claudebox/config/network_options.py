"""Rows of the table of settings: the network, and what is asked of the model."""

from __future__ import annotations

from claudebox.config.model import Field, Setting
from claudebox.tables.tiers import TIERS

NETWORK: tuple[Setting, ...] = (
    Setting(
        "network", ("--network",), "choice", "Restrictions",
        "`full`: the host's network with its loopback and LAN; `inet`: the internet, not the LAN nor this machine; "
        "`allow`: only the domains that you name; `none`: loopback of the sandbox only",
        metavar="TIER", choices=tuple(TIERS), default="full", in_files="project", widest="first",
    ),
    Setting(
        "allow_domain", ("--allow-domain",), "list", "Restrictions",
        "in tier `allow`: let programs inside reach this domain (`github.com`), all beneath one (`*.example.org`), "
        "another port than 443 and 80 (`example.org:8443`), or a group (`pypi` or `@pypi`): `anthropic`, `github`, "
        "`pypi`, `npm`, `crates`, `go`, `debian`, `nix`, `huggingface`, or one of your own; repeatable",
        metavar="DOMAIN", in_files="project", name="allow_domains",
    ),
    Setting(
        "now", ("--now",), "switch", "Restrictions",
        "with --allow-domain: let these domains into the session that runs in this project, and stop", verb=True,
    ),
    Setting(
        "allow_address", ("--allow-address",), "list", "Restrictions",
        "in tier `inet`: let programs inside reach this address or network of the LAN or a VPN, on one port if you "
        "name it: `10.1.2.3:443`, `10.1.0.0/16`, `[fd77::50]:22`; in tier `allow`: let domains that you name lead "
        "there; never metadata services nor this machine; repeatable",
        metavar="ADDRESS", in_files="project", name="allow_addresses",
    ),
    Setting(
        "domains", (), "groups", "Restrictions",
        "groups of domains of your own, to be used by name in `allow_domains`", in_files="user",
        fields=(Field("hosts", "the domains of the group, written as in `allow_domains`", example="git.example.org"),),
    ),
    Setting(
        "allow_host_port", ("--allow-host-port",), "list", "Restrictions",
        "in all tiers but `full`: let programs inside reach this TCP port of the host's loopback; repeatable",
        metavar="PORT", in_files="project",
    ),
    Setting(
        "publish", ("--publish",), "list", "Restrictions",
        "in all tiers but `full`: make this TCP port of the sandbox reachable at localhost of the host; repeatable",
        metavar="PORT", in_files="project",
    ),
    Setting(
        "uplink", ("--uplink",), "choice", "Restrictions",
        "the program that connects tier `inet`: `pasta`, `slirp4netns`, or whichever works (`auto`)",
        metavar="PROGRAM", choices=("auto", "pasta", "slirp4netns"), default="auto", in_files="user",
    ),
    Setting(
        "budget", ("--budget",), "text", "Restrictions",
        "what the model may cost in this session, in US dollars, by the broker's table of prices; then requests end "
        "with a billing error", metavar="DOLLARS", in_files="user",
    ),
    Setting(
        "tokens", ("--tokens",), "text", "Restrictions",
        "how many tokens the model may take in this session, those of caches included: `200k`, `2M`",
        metavar="COUNT", in_files="user",
    ),
)  # fmt: skip
