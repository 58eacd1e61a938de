"""Absolute paths that a package build writes down here; empty in a checkout, where they are looked up."""

from __future__ import annotations

TOOLS: dict[str, str] = {}  # "bwrap" -> "/nix/store/...-bubblewrap/bin/bwrap"
STORE_PATH: tuple[str, ...] = ()  # directories of PATH inside, where the system is a store
LOADER: tuple[str, str] | None = None  # where programs expect the dynamic loader, and where it is
NIXPKGS: str = ""  # the package set that belongs to this build: "path:/nix/store/...-source"
NIX_INDEX_DATABASE: str = ""  # a directory with `files` in it, by which comma finds programs
LIBRARIES: tuple[str, ...] = ()  # directories of the libraries that the broker imports
