"""Packages of nixpkgs that were resolved before: what they depend on, and whether all of them are still there."""

from __future__ import annotations

import os
import time

from claudebox import syscalls
from claudebox.config import nix_references
from claudebox.facts.nix_model import Packages
from claudebox.files import read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import Policy
    from claudebox.facts.nix_model import Nix

_LIFE = 24 * 3600  # seconds for which a package set that can change is taken for the same
_FORMAT = "1"


def recall(policy: Policy, nix: Nix, state: str) -> Packages:
    """Return what is known of the packages that the policy asks for; nothing is built."""
    key = _key(nix, tuple(request.name for request in policy.packages))
    record = f"{state}/nix/{key}/paths"
    content = read_small(record)
    if content is None:
        return Packages(key)
    directories = tuple(os.fsdecode(content).split("\n")[:-1])
    if not all(os.path.isdir(f"{nix.location.root}{path}") for path in directories):
        return Packages(key)
    fresh = nix_references.pinned(nix.nixpkgs) or 0 <= time.time() - os.stat(record).st_mtime < _LIFE
    return Packages(key, directories, fresh)


def _key(nix: Nix, names: tuple[str, ...]) -> str:
    """Return what the packages depend on."""
    words: list[object] = [_FORMAT, os.uname().machine, nix.location.store, nix.nixpkgs, names]
    directory = nix_references.directory(nix.nixpkgs)
    if directory and not nix_references.pinned(nix.nixpkgs):  # a checkout of the user: what shows that it changed
        for name in (".", "flake.nix", "flake.lock", "default.nix", ".git/HEAD", ".git/index"):
            try:
                status = os.stat(f"{directory}/{name}")
                words.append((name, status.st_ino, status.st_mtime_ns))
            except OSError:
                continue
    return syscalls.sha256(repr(words).encode("utf-8", "surrogateescape"))[:32]
