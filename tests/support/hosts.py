"""Hosts built by hand: what the reader would find on the distributions that people use.

Nothing here looks at the machine; `test_hosts` compares the Debian of this file with what the reader finds on one.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from claudebox.agent.facts import Client, Login
from claudebox.base import state as base_state
from claudebox.git.facts import GitDirectory, Repository, Store, UserSettings
from claudebox.host.records import (
    AgentFacts,
    Bubblewrap,
    Destination,
    Git,
    Hidden,
    Host,
    HostTools,
    KnownPlaces,
    Machine,
    Mounted,
    Network,
    PathFact,
    Project,
    ProtectedPath,
    Secrets,
    SocketSearch,
    System,
)  # fmt: skip
from claudebox.nix.records import Daemon, Location, Nix
from claudebox.tables import paths as tables_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal

    from claudebox.host.records import Identity
    from claudebox.settings.records import Policy

    Kind = Literal["directory", "file", "socket", "other", "missing"]

HOME = "/home/alice"
PROJECT = f"{HOME}/project"
ENVIRON = {
    "HOME": HOME,
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "TERM": "xterm-256color",
    "LANG": "en_GB.UTF-8",
    "USER": "alice",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    "SSH_AUTH_SOCK": "/run/user/1000/keyring/ssh",
}
# What systemd-resolved writes: a stub on loopback, in a file that /etc/resolv.conf links to.
RESOLVED = b"""\
# This is /run/systemd/resolve/stub-resolv.conf managed by man:systemd-resolved(8).
# Do not edit.

nameserver 127.0.0.53
options edns0 trust-ad
search fritz.box
"""
_HIDDEN = (
    ".ssh", ".gnupg", ".aws", ".config/gh", ".gitconfig", ".bash_history", ".claude", ".claudebox", "/etc/ssh",
    "/etc/shadow", "/etc/ssl/private",
)  # fmt: skip
_FILES = frozenset((".gitconfig", ".bash_history", "/etc/shadow"))
_NOT_PROJECTS = (
    "/", "/dev", "/etc", "/home", "/opt", "/proc", "/root", "/run", "/run/media", "/srv", "/sys", "/tmp", "/usr",
    "/var", HOME, f"{HOME}/.cache", f"{HOME}/.config", f"{HOME}/.local",
)  # fmt: skip
_NOT_BENEATH = ("/boot", "/dev", "/proc", "/run", "/sys", "/etc")


def identity(path: str) -> Identity:
    """Return a device and an inode that no other path has."""
    return 2049, int.from_bytes(sha256(path.encode("utf-8", "surrogateescape")).digest()[:6], "little")


def lineage(path: str) -> tuple[Identity, ...]:
    """Return the identities of a path and of everything above it."""
    parts = path.strip("/").split("/") if path != "/" else []
    return tuple(identity("/" + "/".join(parts[:length])) for length in range(len(parts), -1, -1))


def fact(path: str, kind: Kind = "directory", *, real: str = "", owner: int = 1000) -> PathFact:
    """Return a fact about a path, which leads to `real` if that is given."""
    if kind == "missing":
        return PathFact(path, path)
    return PathFact(path, real or path, kind, lineage(real or path), owner)


def place(path: str) -> PathFact:
    """Return a fact as the reader takes it of the places in its tables: without what lies above."""
    return PathFact(path, path, "directory", (identity(path),), 0)


def git_directory(path: str, worktree: str, **changes: Any) -> GitDirectory:
    """Return what the reader would find of an ordinary git directory."""
    stores = (Store(f"{path}/objects", identity(f"{path}/objects")),)
    rows = (("core", "", "bare", "false"),)
    name = sha256(path.encode()).hexdigest()[:16]
    return GitDirectory(path, identity(path), name, worktree, rows=rows, stores=stores).replace(**changes)


REPOSITORY = Repository(PROJECT, PROJECT, git_directory(f"{PROJECT}/.git", PROJECT), f"{PROJECT}/.git")


def asking(host: Host, policy: Policy, *facts: PathFact, there: Iterable[str] = ()) -> Host:
    """Return the host with what the reader would add for the mounts that a policy asks for.

    Sources that are not among `facts` are directories. Destinations are missing on the host, except those `there`.
    """
    known = {row.path: row for row in facts}
    sources = {request.source: known.get(request.source) or fact(request.source) for request in policy.mounts}
    stand = set(there) & {request.dest for request in policy.mounts}
    destinations = {request.dest: Destination() for request in policy.mounts}
    destinations |= {dest: Destination(exists=True, directory=True) for dest in stand}
    return changed(host, sources=sources, destinations=destinations)


def protected(*present: str, links: tuple[str, ...] = ()) -> tuple[ProtectedPath, ...]:
    """Return what the reader would find of the tables in a project where only some of it exists."""
    rows = [(name, f"{PROJECT}/{name}", stub, why) for name, stub, why in tables_paths.PROTECTED]
    made = []
    for name, path, stub, why in rows:
        short = path.removeprefix(f"{PROJECT}/")
        if short in present:
            made.append(ProtectedPath(name, path, why, stub, "present", identity(path)))
        else:
            made.append(ProtectedPath(name, path, why, stub, "link" if short in links else "missing"))
    return tuple(made)


def base(**changes: Any) -> Host:
    """Return what all of them have in common: Alice, her project, and a recent kernel and bwrap."""
    why = dict(tables_paths.HIDDEN)
    hidden = ((row if row.startswith("/") else f"{HOME}/{row}", row) for row in _HIDDEN)
    facts: dict[str, Any] = {
        "uid": 1000,
        "gid": 1000,
        "user": "alice",
        "home": HOME,
        "workdir": fact(PROJECT),
        "environ": dict(ENVIRON),
        "memory": 16 << 30,
        "bwrap": Bubblewrap("/usr/bin/bwrap"),
        "landlock": 6,
        "home_fact": fact(HOME),
        "hidden": tuple(Hidden(fact(path, "file" if row in _FILES else "directory"), why[row]) for path, row in hidden),
        "not_projects": tuple(place(path) for path in _NOT_PROJECTS),
        "not_beneath": tuple(place(path) for path in _NOT_BENEATH),
        "allowed_beneath": (place("/dev/shm"), place("/run/media")),
        "masked": tables_paths.MASKED[:3],
        "git_user": UserSettings((("user", "", "name", "Alice Example"), ("user", "", "email", "alice@example.org"))),
        "client": Client(f"{HOME}/.local/bin/claude", f"{HOME}/.local/share/claude/versions/2.1.325"),
        "instance": base_state.locate(HOME, PROJECT),
        "memory_files": (b"", b""),
    }
    return changed(_BLANK, **{**facts, **changes})


# Facts by short names, where the part of a host that they belong to does not say enough.
_NAMES = {
    "machine": ("machine", "architecture"), "home_fact": ("places", "home"), "sockets": ("sockets", "paths"),
    "sockets_note": ("sockets", "note"), "git_user": ("git", "user"), "empty_git": ("git", "empty"),
    "claude_parts": ("agent", "parts"), "held_secrets": ("secrets", "held"),
}  # fmt: skip
_PARTS = ("machine", "system", "places", "project", "mounted", "sockets", "git", "agent", "network", "tools", "secrets")
_BLANK = Host(
    0, 0, "", "", {}, fact("/", "missing"), base_state.Instance("", "", ""), "session", Machine(gate=b"its code"),
    System(), Bubblewrap(), KnownPlaces(), Project(), Mounted(), SocketSearch(), Git(UserSettings()),
    AgentFacts(Login()), Network(), HostTools(), Secrets(),
)  # fmt: skip


def changed(host: Host, **changes: Any) -> Host:
    """Return a host with other facts, each named as in the part that it belongs to."""
    for name, value in changes.items():
        part, field = _NAMES.get(name, ("", name))
        part = part or next((part for part in _PARTS if name in getattr(host, part)._fields), "")
        if name in Host._fields and name not in _NAMES:
            host = host.replace(**{name: value})
        else:
            host = host.replace(**{part: getattr(host, part).replace(**{field: value})})
    return host


def _etc(rows: Iterable[tuple[str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Give each path of /etc the reason from the table, in which a star stands for the rest of a name."""

    def reason(path: str) -> str:
        return next(
            why
            for known, why in tables_paths.ETC
            if path == known or (known[-1] == "*" and path.startswith(known[:-1]))
        )

    return tuple((path, real or path, reason(path)) for path, real in rows)


_MERGED = (("/bin", "usr/bin"), ("/lib", "usr/lib"), ("/lib64", "usr/lib64"), ("/sbin", "usr/sbin"))
_DEBIAN_ETC = (
    ("/etc/alternatives", ""),
    ("/etc/ld.so.cache", ""),
    ("/etc/localtime", "/usr/share/zoneinfo/Etc/UTC"),
    ("/etc/os-release", "/usr/lib/os-release"),
    ("/etc/mime.types", ""),
    ("/etc/protocols", ""),
    ("/etc/services", ""),
    ("/etc/terminfo", ""),
    ("/etc/perl", ""),
    ("/etc/python3", ""),
    ("/etc/python3.11", ""),
    ("/etc/ssl/certs", ""),
    ("/etc/ssl/openssl.cnf", ""),
)


def debian(**changes: Any) -> Host:
    """Debian 12: /usr merged, certificates as files of /etc, programs chosen by alternatives."""
    facts: dict[str, Any] = {
        "roots": (_MERGED[0], _MERGED[1], ("/lib32", "usr/lib32"), _MERGED[2], ("/libx32", "usr/libx32"), _MERGED[3]),
        "opt": True,
        "etc": _etc(_DEBIAN_ETC),
        "ca_bundle": fact("/etc/ssl/certs/ca-certificates.crt", "file", owner=0),
        "resolv_conf": b"domain example.org\nsearch example.org\nnameserver 192.0.2.53\nnameserver 2001:db8::53\n",
    }
    return base(**{**facts, **changes})


def ubuntu(**changes: Any) -> Host:
    """Ubuntu 24.04: as Debian, but resolv.conf leads to systemd-resolved and bwrap cannot bind by descriptor."""
    facts: dict[str, Any] = {
        "roots": _MERGED,
        "bwrap": Bubblewrap("/usr/bin/bwrap"),
        "resolv_conf": RESOLVED,
    }
    return debian(**{**facts, **changes})


def fedora(**changes: Any) -> Host:
    """Fedora: certificates under /etc/pki, to which /etc/ssl/certs is a link, and a TLS policy."""
    bundle = "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
    facts: dict[str, Any] = {
        "roots": _MERGED,
        "opt": True,
        "etc": _etc((
            ("/etc/alternatives", ""),
            ("/etc/ld.so.cache", ""),
            ("/etc/localtime", "/usr/share/zoneinfo/Europe/Berlin"),
            ("/etc/os-release", "/usr/lib/os-release"),
            ("/etc/protocols", ""),
            ("/etc/services", ""),
            ("/etc/fonts", ""),
            ("/etc/ssl/certs", "/etc/pki/tls/certs"),
            ("/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf"),
            ("/etc/pki/ca-trust/extracted", ""),
            ("/etc/pki/tls/certs", ""),
            ("/etc/pki/tls/cert.pem", bundle),
            ("/etc/pki/tls/openssl.cnf", ""),
            ("/etc/crypto-policies", ""),
        )),
        "ca_bundle": fact("/etc/pki/tls/certs/ca-bundle.crt", "file", real=bundle, owner=0),
        "resolv_conf": RESOLVED,
    }  # fmt: skip
    return base(**{**facts, **changes})


def arch(**changes: Any) -> Host:
    """Arch: every root leads to /usr/bin or /usr/lib, and the bundle is a link within /etc."""
    bundle = "/etc/ca-certificates/extracted/tls-ca-bundle.pem"
    facts: dict[str, Any] = {
        "roots": (("/bin", "usr/bin"), ("/lib", "usr/lib"), ("/lib64", "usr/lib"), ("/sbin", "usr/bin")),
        "opt": True,
        "etc": _etc((
            ("/etc/ld.so.cache", ""),
            ("/etc/localtime", "/usr/share/zoneinfo/Europe/Paris"),
            ("/etc/os-release", "/usr/lib/os-release"),
            ("/etc/protocols", ""),
            ("/etc/services", ""),
            ("/etc/fonts", ""),
            ("/etc/ssl/certs", ""),
            ("/etc/ssl/openssl.cnf", ""),
            ("/etc/ssl/cert.pem", bundle),
            ("/etc/ca-certificates/extracted", ""),
        )),
        "ca_bundle": fact("/etc/ssl/certs/ca-certificates.crt", "file", real=bundle, owner=0),
        "resolv_conf": b"# Generated by NetworkManager\nnameserver 192.168.1.1\n",
    }  # fmt: skip
    return base(**{**facts, **changes})


def nixos(**changes: Any) -> Host:
    """NixOS: no /usr, everything in the store, /etc made of links into it."""
    store = "/nix/store/"
    bundle = f"{store}w7v3nss-cacert-3.101/etc/ssl/certs/ca-bundle.crt"
    bash = f"{store}b4bash-interactive-5.2/bin/bash"
    env = f"{store}c1coreutils-9.5/bin/coreutils"
    facts: dict[str, Any] = {
        "usr": False,
        "store": "/nix/store",
        "nix": Nix(
            Location(),
            f"{store}n0nix-2.31.5/bin/nix",
            Daemon("2.31.5", "2.31.5", "no", "true"),
            nixpkgs=f"path:{store}p9source",
            directory="/run/user/1000/claudebox-relay-1-abcd",
        ),
        "store_path": (f"{store}c1coreutils-9.5/bin", f"{store}b4bash-interactive-5.2/bin", f"{store}g2git-2.45/bin"),
        "store_links": (("/bin/sh", bash), ("/bin/bash", bash), ("/usr/bin/env", env),
                        ("/lib64/ld-linux-x86-64.so.2", f"{store}h2glibc-2.40/lib/ld-linux-x86-64.so.2")),
        "bwrap": Bubblewrap(f"{store}d8bubblewrap-0.11.0/bin/bwrap"),
        "etc": _etc((
            ("/etc/localtime", f"{store}t5tzdata-2024a/share/zoneinfo/Europe/Zurich"),
            ("/etc/os-release", f"{store}o6etc-os-release"),
            ("/etc/protocols", f"{store}i9iana-etc/etc/protocols"),
            ("/etc/services", f"{store}i9iana-etc/etc/services"),
            ("/etc/fonts", ""),
            ("/etc/terminfo", f"{store}e3system-path/share/terminfo"),
            ("/etc/ssl/certs", ""),
        )),
        "ca_bundle": fact("/etc/ssl/certs/ca-certificates.crt", "file", real=bundle, owner=0),
        "resolv_conf": b"# Generated by resolvconf\nsearch lan\nnameserver 192.168.1.1\noptions edns0\n",
        "client": Client(f"{HOME}/.nix-profile/bin/claude", f"{store}k7claude-code-2.1.325/bin/claude"),
    }  # fmt: skip
    return base(**{**facts, **changes})


def debian_with_nix(**changes: Any) -> Host:
    """Debian with Nix beside it, whose daemon trusts Alice: a relay stands between."""
    nix = "/nix/store/n1nix-2.26.3"
    facts: dict[str, Any] = {
        "store": "/nix/store",
        "nix": Nix(
            Location(),
            f"{nix}/bin/nix",
            Daemon("2.26.3", "2.26.3", "yes", "false"),
            path=(f"{nix}/bin",),
            nixpkgs="nixpkgs",
            directory="/run/user/1000/claudebox-relay-1-abcd",
        ),
    }
    return debian(**{**facts, **changes})


def unmerged(**changes: Any) -> Host:
    """An older machine: directories of their own beside /usr, aarch64, no Landlock, no bash."""
    facts: dict[str, Any] = {
        "machine": "aarch64",
        "memory": 512 << 20,
        "roots": (("/bin", ""), ("/lib", ""), ("/sbin", "")),
        "opt": False,
        "bwrap": Bubblewrap("/usr/bin/bwrap"),
        "landlock": 0,
        "bash": False,
        "etc": _etc((*_DEBIAN_ETC[:2], ("/etc/localtime", ""), ("/etc/ssl/certs", ""))),
        "ca_bundle": fact("/etc/ssl/certs/ca-certificates.crt", "file", owner=0),
        "resolv_conf": b"nameserver 10.0.0.1\n",
        "masked": (*tables_paths.MASKED[:2], ("/usr/local/etc/npmrc", "npm token")),
    }
    return base(**{**facts, **changes})


ALL: dict[str, Callable[..., Host]] = {
    "debian": debian, "ubuntu": ubuntu, "fedora": fedora, "arch": arch, "nixos": nixos,
    "debian-with-nix": debian_with_nix, "unmerged": unmerged,
}  # fmt: skip
