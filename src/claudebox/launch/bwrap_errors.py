"""bwrap's last words → what is wrong with this machine and how to put it right.

Used when a launch fails, and by `--check` before one does.
"""

from __future__ import annotations

import os

from claudebox.errors import ClaudeboxError
from claudebox.files import read_small
from claudebox.tables.bwrap import LEAST

_LIMIT = 8192
APPARMOR_PROFILE = """\
abi <abi/4.0>,
include <tunables/global>
profile bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
  include if exists <local/bwrap>
}"""
_APPARMOR = (
    "Ubuntu lets only named programs make user namespaces; name bwrap by writing this to "
    "`/etc/apparmor.d/bwrap`:\n\n"
    f"{APPARMOR_PROFILE}\n\n"
    "and then `sudo apparmor_parser -r /etc/apparmor.d/bwrap`; "
    "or for every program: `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
)


def last_words(messages: int) -> str:
    """Return what was written to a pipe by the time its other end is closed."""
    text = b""
    while len(text) < _LIMIT:
        piece = os.read(messages, _LIMIT)
        if not piece:
            break
        text += piece
    return os.fsdecode(text)


def explain(words: str) -> ClaudeboxError:
    """Return the error for what bwrap wrote before it gave up."""
    said = words.strip().removeprefix("bwrap: ") or "it said nothing"
    lower = said.lower()
    if "uid map" in lower or "new namespace" in lower or "namespaces" in lower or "unshare user" in lower:
        return ClaudeboxError(f"the user namespace could not be made: {said}", hint=namespace_remedy())
    if "unknown option" in lower:
        return ClaudeboxError(f"bwrap is too old: {said}", hint=f"install bubblewrap {LEAST} or newer")
    if "mount proc" in lower or ("proc" in lower and "mount" in lower):
        return ClaudeboxError(
            f"/proc of the sandbox could not be mounted: {said}",
            hint="a container that hides parts of /proc forbids it: start that container with an unmasked /proc "
            "(`--security-opt systempaths=unconfined`), or run claudebox outside of it",
        )
    if "seccomp" in lower:
        return ClaudeboxError(f"the seccomp filter could not be installed: {said}", hint="use a kernel with seccomp")
    if "landlock" in lower:
        return ClaudeboxError(f"Landlock could not be put in force: {said}", hint="run `claudebox --check`")
    return ClaudeboxError(f"bwrap could not set up the sandbox: {said}", hint="run `claudebox --check`")


def namespace_remedy() -> str:
    """Return what to do on this machine so that an ordinary user can make a user namespace."""
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == b"1":
        return _APPARMOR
    if _setting("kernel/unprivileged_userns_clone") == b"0":
        return "`sudo sysctl -w kernel.unprivileged_userns_clone=1`; to keep it, write the line to /etc/sysctl.d"
    if _setting("user/max_user_namespaces") == b"0":
        return "`sudo sysctl -w user.max_user_namespaces=15000`; to keep it, write the line to /etc/sysctl.d"
    return (
        "something forbids user namespaces here: a container's seccomp profile (docker: "
        "`--security-opt seccomp=unconfined`), or a hardened kernel"
    )


def _setting(name: str) -> bytes:
    return (read_small(f"/proc/sys/{name}") or b"").strip()
