"""Policy + facts → whether the sandbox may talk to the Nix daemon, and how (NIXSEC-01).

The daemon is root's, and works for whoever connects: builds whose result is known before run with the host's network
(G03), a trusted user's wishes run as root (G01), builders without a sandbox read the host's files (G02). So `auto`
hands the socket out only where none of this adds anything; everything else has to be said by the user.
"""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.facts.nix_model import number
from claudebox.plan.model import NixAccess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy
    from claudebox.facts.nix_model import Nix

_PLAINLY = 'if that is what you want, say `nix = "{}"` in ~/.claudebox/config.toml, or `--nix {}`'
_OWN_NETWORK = (
    "in tier `{}` it would bring the host's network back: builds whose result is known before run with it, whatever "
    "the sandbox has"
)
# The first release of each line in which the known holes of the daemon are closed (G04).
_SOUND = {28: 6, 29: 3, 30: 4, 31: 4, 32: 7, 33: 4, 34: 7}


def decide_access(policy: Policy, nix: Nix) -> NixAccess:
    """Return what the sandbox gets, with the reason."""
    asked = policy.nix
    if asked == "off":
        return NixAccess("off", "you said so", explicit=True)
    problem = nix.location.problem or ("" if nix.program else "the program `nix` was not found")
    if asked != "auto":
        if problem:
            remedy = nix.location.remedy or "install Nix with its daemon"
            raise ClaudeboxError(f"`{policy.nix_origin}`: the Nix daemon cannot be used: {problem}", hint=remedy)
        return _as_told(policy, nix)
    if problem:
        return NixAccess("off", problem, nix.location.remedy)
    if not policy.tier.shared:
        kind = "daemon" if nix.daemon.trusted == "no" else "relay"
        return NixAccess("off", _OWN_NETWORK.format(policy.network), _PLAINLY.format(kind, kind))
    return _judged(nix)


def _as_told(policy: Policy, nix: Nix) -> NixAccess:
    kind = policy.nix
    if kind == "relay" and not nix.daemon.relay:
        raise ClaudeboxError(
            f"`{policy.nix_origin}`: {_no_relay(nix)}", hint="install Nix 2.18 or newer; `--nix off` does without"
        )
    warnings = [*_known_holes(nix)]
    if not policy.tier.shared:
        warnings.append(f"Nix: {_OWN_NETWORK.format(policy.network)}")
    if kind == "daemon" and nix.daemon.trusted != "no":
        whether = "trusts you" if nix.daemon.trusted == "yes" else "may trust you"
        warnings.append(f"Nix: the daemon {whether}, so whoever is inside can become root on this machine")
    if nix.daemon.sandbox != "true" and not (kind == "relay" and nix.daemon.trusted == "yes"):
        warnings.append(f"Nix: builders may see files of this machine: `sandbox` of the daemon is {nix.daemon.sandbox}")
    why = f"you said so with {policy.nix_origin}"
    return NixAccess(kind, why, warnings=tuple(warnings), explicit=True)  # type: ignore[arg-type]


def _judged(nix: Nix) -> NixAccess:
    """Decide for somebody who left it to us, in the tier in which the network is the host's anyway."""
    daemon = nix.daemon
    holes = tuple(_known_holes(nix))
    if daemon.trusted == "no":
        if daemon.sandbox != "true":
            return NixAccess(
                "off",
                f"its builders may see files of this machine: `sandbox` is {daemon.sandbox}",
                "set `sandbox = true` in /etc/nix/nix.conf and start the daemon anew",
            )
        return NixAccess("daemon", "it does not trust you, and its builders have a sandbox", warnings=holes)
    unknown = f"whether it trusts you is not known: {daemon.problem or 'it is too old to tell'}"
    why = "it trusts you, and would do as root what anybody inside says" if daemon.trusted == "yes" else unknown
    if daemon.relay:
        if daemon.trusted == "yes" or daemon.sandbox == "true":
            return NixAccess("relay", why, warnings=holes)
        return NixAccess("off", why, "start the daemon anew, or see `claudebox --check`")
    remedy = f"{_no_relay(nix)}: install Nix 2.18 or newer, or take yourself out of `trusted-users` in nix.conf"
    return NixAccess("off", why, remedy)


def _no_relay(nix: Nix) -> str:
    version = nix.daemon.client or "of an unknown version"
    return f"Nix {version} cannot stand in front of the daemon (`nix daemon --force-untrusted`)"


def _known_holes(nix: Nix) -> Iterator[str]:
    version = number(nix.daemon.version)
    if len(version) < 3 or version[0] != 2:
        return
    if version[1] < min(_SOUND) or version[2] < _SOUND.get(version[1], 0):
        yield f"Nix: the daemon {nix.daemon.version} has known holes (CVE-2026-39860 and others); update it"


def described(access: NixAccess) -> str:
    """Return the decision as a user should see it."""
    words = {"daemon": "the daemon, directly", "relay": "the daemon, through a relay that is never trusted",
             "off": "the store, and not the daemon"}  # fmt: skip
    remedy = f"; {access.remedy}" if access.remedy else ""
    return f"{words[access.kind]}: {access.why}{remedy}"
