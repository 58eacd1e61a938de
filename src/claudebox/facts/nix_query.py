"""Asks Nix itself: version, trust, and whether builders have a sandbox. Off the usual path: answers are remembered."""

from __future__ import annotations

import grp
import json
import os
import pwd
import subprocess
from typing import TYPE_CHECKING, Any

from claudebox.config.nix_references import pinned
from claudebox.facts.nix_daemon import registry, system_only
from claudebox.facts.nix_model import Daemon
from claudebox.files import parse_object, read_small

if TYPE_CHECKING:
    from collections.abc import Mapping

    from claudebox.facts.nix_model import Location, Trust

_PATIENCE = 20
_FEATURES = ("--extra-experimental-features", "nix-command")


def ask(location: Location, program: str, environ: Mapping[str, str]) -> Daemon:
    """Return what the daemon and its configuration say."""
    nix = _Program(program, system_only(location, environ))
    client = nix.say("--version").rpartition(" ")[2].strip()
    if not client:
        return Daemon(problem=f"`{program}` does not run: {nix.complaint}")
    told = nix.document("store", "info") or nix.document("store", "ping")
    told = told or _lines(nix.say("store", "ping", all_of_it=True))
    if not told:
        return Daemon(client=client, problem=f"it does not answer: {nix.complaint}")
    settings = nix.document("config", "show") or nix.document("show-config")
    return Daemon(
        version=str(told.get("version", "")),
        client=client,
        trusted=_trusted(told.get("trusted"), _value(settings, "trusted-users")),
        sandbox=_word(_value(settings, "sandbox")),
        nixpkgs=_nixpkgs(read_small(registry(environ), limit=1 << 20, follow=True)),
    )


class _Program:
    """The program `nix`, and what it complained about last."""

    def __init__(self, path: str, environ: dict[str, str]) -> None:
        self._path = path
        self._environ = environ
        self.complaint = ""

    def say(self, *words: str, all_of_it: bool = False) -> str:
        """Return what it prints, or nothing if it fails; some versions tell answers as messages."""
        features = () if words == ("--version",) else _FEATURES
        try:
            answer = subprocess.run(
                [self._path, *features, *words], cwd="/", env=self._environ, capture_output=True, timeout=_PATIENCE,
                check=False, stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            self.complaint = str(error)
            return ""
        lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
        self.complaint = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "")
        said = answer.stdout + answer.stderr if all_of_it else answer.stdout
        return said if answer.returncode == 0 else ""

    def document(self, *words: str) -> dict[str, Any]:
        """Return the JSON that it prints, or nothing."""
        return parse_object(self.say(*words, "--json"))


def _lines(text: str) -> dict[str, Any]:
    """Read what old versions print for people: `Version: 2.8.0`."""
    rows = (line.partition(": ") for line in text.splitlines())
    found: dict[str, Any] = {name.lower(): value for name, colon, value in rows if colon}
    if "trusted" in found:
        found["trusted"] = found["trusted"] == "1"
    return found


def _value(settings: dict[str, Any], name: str) -> Any:
    row = settings.get(name)
    return row.get("value") if isinstance(row, dict) else None


def _word(value: Any) -> str:
    word = str(value).lower()
    return word if word in ("true", "false", "relaxed") else "unknown"


def _nixpkgs(content: bytes | None) -> str:
    """Return what the machine's registry pins `nixpkgs` to; what can change in the meantime is no pin."""
    try:
        rows = json.loads(content or b"{}")["flakes"]
        target = next(row["to"] for row in rows if row["from"] == {"type": "indirect", "id": "nixpkgs"})
        found = {
            "path": lambda: f"path:{target['path']}",
            "github": lambda: f"github:{target['owner']}/{target['repo']}/{target['rev']}",
        }[target["type"]]()
    except (ValueError, KeyError, TypeError, StopIteration):
        return ""
    return found if pinned(found) else ""


def _trusted(told: Any, configured: Any) -> Trust:
    """Take the daemon's word; an old one says nothing, and its configuration does."""
    if told is not None:
        return "no" if told in (0, False) else "yes"
    if not isinstance(configured, list):
        return "unknown"
    return "yes" if any(_names_us(str(name)) for name in configured) else "no"


def _names_us(name: str) -> bool:
    if name in ("*", str(os.getuid())) or os.getuid() == 0:
        return True
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:
        return True  # somebody without a name: nothing can be said about them
    if not name.startswith("@"):
        return name == account.pw_name
    groups = set(os.getgroups()) | set(os.getgrouplist(account.pw_name, account.pw_gid))
    try:
        group = grp.getgrnam(name[1:])
    except KeyError:
        return False
    return group.gr_gid in groups or account.pw_name in group.gr_mem
