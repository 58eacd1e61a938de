"""Ubuntu's restriction of user namespaces: which AppArmor profile lets this bwrap make one, and how to enforce it.

Ubuntu 25.04 and newer have a profile for /usr/bin/bwrap; the package apparmor-profiles of 24.04 brings it along, not in
force. Two profiles for one program conflict, so ours is for machines that have neither, and for other places of bwrap.
"""

from __future__ import annotations

import os

from claudebox.files import read_small
from claudebox.values import Value

DIRECTORY = "/etc/apparmor.d"
OWN = f"{DIRECTORY}/claudebox-bwrap"
SHIPPED = f"{DIRECTORY}/bwrap-userns-restrict"
_DISABLED = f"{DIRECTORY}/disable/bwrap-userns-restrict"
_EXTRA = "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict"
_ABOUT = "/usr/bin/bwrap"  # what the profiles of Ubuntu are about
_SWITCH = "kernel.apparmor_restrict_unprivileged_userns"
_PROFILE = """\
abi <abi/4.0>,
include <tunables/global>
profile claudebox-bwrap "{bwrap}" flags=(unconfined) {{
  userns,
}}
"""
_QUOTED = frozenset('"\\*?[]{}^@\n')  # what would mean something else than itself in a profile


class Remedy(Value):
    """The profile to put in force, and the commands that do it, each as its words."""

    path: str
    text: str  # to be written there first, or nothing
    commands: tuple[tuple[str, ...], ...]


def is_restricted() -> bool:
    """Return whether AppArmor lets only named programs have a user namespace that counts."""
    return (read_small(f"/proc/sys/{_SWITCH.replace('.', '/')}") or b"").strip() == b"1"


def find_remedy(bwrap: str) -> Remedy | None:
    """Return what lets this bwrap make user namespaces; nothing if no profile can name it."""
    if bwrap == _ABOUT and os.path.isfile(SHIPPED):
        enable = (("rm", _DISABLED),) if os.path.lexists(_DISABLED) else ()
        return Remedy(SHIPPED, "", (*enable, ("apparmor_parser", "-r", SHIPPED)))
    if bwrap == _ABOUT and os.path.isfile(_EXTRA):
        return Remedy(SHIPPED, "", (("cp", _EXTRA, SHIPPED), ("apparmor_parser", "-r", SHIPPED)))
    if _QUOTED & set(bwrap):
        return None
    return Remedy(OWN, _PROFILE.format(bwrap=bwrap), (("apparmor_parser", "-r", OWN),))


def describe_remedy(bwrap: str) -> str:
    """Return it for people."""
    remedy = find_remedy(bwrap)
    switch = (
        f"for every program: `sudo sysctl -w {_SWITCH}=0`, and to keep it: "
        f"`echo {_SWITCH}=0 | sudo tee /etc/sysctl.d/60-claudebox.conf`"
    )
    if remedy is None:
        return f"install bubblewrap at {_ABOUT}; or {switch}"
    commands = " && ".join(f"sudo {' '.join(words)}" for words in remedy.commands)
    if not remedy.text:
        return f"put Ubuntu's own profile for bwrap in force: `{commands}`"
    return (
        f"Ubuntu lets only named programs make user namespaces; name bwrap by writing this to `{remedy.path}` "
        f"(`scripts/apparmor` in a checkout does it):\n\n{remedy.text}\nand then `{commands}`; or {switch}"
    )
