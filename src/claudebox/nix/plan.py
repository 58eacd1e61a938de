"""Policy + facts → what of Nix is inside: store, daemon, configuration, packages, dev shell, and what is said of it."""

from __future__ import annotations

import os

from claudebox import build_paths
from claudebox.base.errors import ClaudeboxError
from claudebox.nix.records import number
from claudebox.plan import mounts as plan_mounts
from claudebox.plan.records import Additions, Mount, NixAccess, NixRelay, Variable
from claudebox.settings import parsers
from claudebox.tables import environment as tables_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.records import Host
    from claudebox.nix.records import Nix
    from claudebox.settings.records import Policy


_SOCKET_DIRECTORY = "/nix/var/nix/daemon-socket"
_REGISTRY_FILE = "/run/claudebox/nix-registry.json"
_PICKER_FILE = f"{tables_environment.CLIENT_DIRECTORY}/comma-pick"
# Comma asks on the terminal, by this program, which of several packages is meant, and gives up in silence without one.
# It passes the names on standard input, the likeliest first; all of them must be read.
_PICKER = b"""\
#!/bin/sh
IFS= read -r first || exit 1
while IFS= read -r _; do :; done
printf '%s\\n' "$first"
"""
_CACHE = "nix-cache"  # of the instance: the host trusts what is in its own cache


def provide(policy: Policy, host: Host, nix: Nix) -> Additions:
    decision = decide_access(policy, nix)
    relay = _relay(host, nix) if decision.kind == "relay" else None
    shell = _plan_shell(policy, nix, decision) if policy.devshell else None
    known = nix.packages.path if nix.packages is not None and nix.packages.fresh else None
    fetched = nix.packages is not None and known is None
    if fetched and not nix.program:
        raise ClaudeboxError(f"`{policy.packages[0].origin}`: packages need the program `nix`, which was not found")
    names = ", ".join(request.name for request in policy.packages)
    return Additions(
        mounts=(*_mounts(policy, host, nix, decision), *((shell,) if shell else ())),
        variables=tuple(_variables(policy, nix, decision)),
        kept=(_CACHE,) if decision.kind != "off" and _own_cache(policy, host) else (),
        warnings=decision.warnings + ((f"packages are resolved at the start: {names}",) if fetched else ()),
        path=(*(known or ()), *nix.path),
        packages=fetched,
        advice=tuple(_advice(policy, decision)),
        nix=decision,
        relay=relay,
        prefix=("/bin/bash", "--noprofile", "--norc", shell.dest) if shell else (),
    )


def _mounts(policy: Policy, host: Host, nix: Nix, decision: NixAccess) -> Iterator[Mount]:
    for dest in ("/nix", "/nix/var", "/nix/var/nix"):
        yield Mount(dest, "dir", "skeleton of Nix")
    if decision.kind == "off":
        return
    if decision.kind == "relay":
        yield Mount(_SOCKET_DIRECTORY, "ro-bind", "a relay to the Nix daemon, for this session alone", nix.directory)
    else:  # the directory, because a restarted daemon makes a new socket
        source = os.path.dirname(nix.location.socket)
        yield Mount(_SOCKET_DIRECTORY, "ro-bind", "the socket of the Nix daemon", source)
    if _has_registry(policy, nix):
        text = parsers.registry(nix.nixpkgs).encode()
        yield Mount(_REGISTRY_FILE, "file", "what `nixpkgs` means", content=text, mode=0o644)
    yield Mount(_PICKER_FILE, "file", "answers comma without a terminal", content=_PICKER, mode=0o755)
    cache = f"{host.home}/.cache/nix"
    if _own_cache(policy, host):
        source = f"{host.instance.directory}/{_CACHE}"
        yield Mount(cache, "bind", "Nix's cache, private to this project", source, role="state")


def _own_cache(policy: Policy, host: Host) -> bool:
    """Return whether Nix's cache needs a mount of its own, because ~/.cache is not kept."""
    return plan_mounts.caches_inside(policy, host) != f"{host.home}/.cache"


def _has_registry(policy: Policy, nix: Nix) -> bool:
    """Return whether a registry of our own takes the place of the global one, which is a download."""
    return parsers.portable(nix.nixpkgs) or policy.tier.isolated


def _variables(policy: Policy, nix: Nix, decision: NixAccess) -> Iterator[Variable]:
    # Without NIX_REMOTE, Nix would take the directories above for a local store, and fail without a clear reason.
    name = os.path.basename(nix.location.socket) if decision.kind == "daemon" else "socket"
    remote = "daemon" if name == "socket" else f"unix://{_SOCKET_DIRECTORY}/{name}"
    yield Variable("NIX_REMOTE", remote, "claudebox", "Nix builds by its daemon")
    lines = ["experimental-features = nix-command flakes"]
    if _has_registry(policy, nix) and decision.kind != "off":
        lines.append(f"flake-registry = {_REGISTRY_FILE}")
    if not policy.tier.routed:
        # With nothing but loopback, Nix would tell the daemon not to download, and build everything from source.
        lines.append("substitute = true")
    reason = "the sandbox's own configuration of Nix; the host's has tokens in it"
    yield Variable("NIX_CONFIG", "\n".join(lines), "claudebox", reason)
    if decision.kind == "off":
        return
    tree = parsers.directory(nix.nixpkgs)
    if tree.startswith("/nix/store/"):
        yield Variable("NIX_PATH", f"nixpkgs={tree}", "claudebox", "what <nixpkgs> means")
    yield Variable("COMMA_PICKER", _PICKER_FILE, "claudebox", "comma cannot ask without a terminal")
    if build_paths.NIX_INDEX_DATABASE:
        yield Variable(
            "NIX_INDEX_DATABASE", build_paths.NIX_INDEX_DATABASE, "claudebox", "where comma looks programs up"
        )


def _relay(host: Host, nix: Nix) -> NixRelay:
    if not nix.program:
        raise ClaudeboxError("the program `nix` was not found")
    where = nix.location
    needed = (where.store, os.path.dirname(where.socket))
    return NixRelay(nix.directory, nix.program, where.remote, host.bwrap.path, host.home, needed)


def _advice(policy: Policy, decision: NixAccess) -> Iterator[str]:
    if policy.packages:
        yield f"Packages of nixpkgs that are on PATH: {', '.join(request.name for request in policy.packages)}."
    if decision.kind == "off":
        yield (
            "Nix cannot build or download inside: its daemon is out of reach on purpose. If a task needs a program, "
            f"say which (`claudebox --package NAME`). The reason: {decision.why}."
        )
        return
    yield (
        "Nix works inside, without asking: `nix shell nixpkgs#NAME -c COMMAND` for a program that is missing (or "
        "`, COMMAND` where comma is installed), `nix build`, `nix develop`. What it adds to /nix/store is there at "
        "once and stays on the machine."
    )
    if decision.kind == "relay":
        yield "The daemon takes you for an ordinary user: options that only trusted users may set are ignored."


# Whether the sandbox may talk to the Nix daemon, and how (NIXSEC-01).
#
# The daemon runs as root for whoever connects: fixed-output builds have the host's network (G03), a trusted user is
# root (G01), builds without a sandbox read the host's files (G02). So `auto` gives the socket away only where none of
# this adds anything; everything else must be asked for.


_PLAINLY = 'to allow it, set `nix = "{}"` in ~/.claudebox/config.toml, or use `--set nix={}`'
_OWN_NETWORK = (
    "in tier `{}` it would bring the host's network back: fixed-output builds have it, whatever the sandbox has"
)
# The first release of each line in which the known holes of the daemon are closed (G04).
_SOUND = {28: 6, 29: 3, 30: 4, 31: 4, 32: 7, 33: 4, 34: 7}


def decide_access(policy: Policy, nix: Nix) -> NixAccess:
    asked = policy.nix
    if asked == "off":
        return NixAccess("off", "you chose it", explicit=True)
    problem = nix.location.problem or ("" if nix.program else "the program `nix` was not found")
    if asked != "auto":
        if problem:
            remedy = nix.location.remedy or "install Nix with its daemon"
            raise ClaudeboxError(f"`{policy.nix_origin}`: the Nix daemon cannot be used: {problem}", hint=remedy)
        return _follow_setting(policy, nix)
    if problem:
        return NixAccess("off", problem, nix.location.remedy)
    if not policy.tier.shared:
        kind = "daemon" if nix.daemon.trusted == "no" else "relay"
        return NixAccess("off", _OWN_NETWORK.format(policy.network), _PLAINLY.format(kind, kind))
    return _decide_automatically(nix)


def _follow_setting(policy: Policy, nix: Nix) -> NixAccess:
    kind = policy.nix
    if kind == "relay" and not nix.daemon.relay:
        raise ClaudeboxError(
            f"`{policy.nix_origin}`: {_no_relay(nix)}", hint="install Nix 2.18 or newer; `--set nix=off` does without"
        )
    warnings = [*_known_holes(nix)]
    if not policy.tier.shared:
        warnings.append(f"Nix: {_OWN_NETWORK.format(policy.network)}")
    if kind == "daemon" and nix.daemon.trusted != "no":
        whether = "trusts you" if nix.daemon.trusted == "yes" else "may trust you"
        warnings.append(f"Nix: the daemon {whether}, so whoever is inside can become root on this machine")
    if nix.daemon.sandbox != "true" and not (kind == "relay" and nix.daemon.trusted == "yes"):
        warnings.append(f"Nix: builders may see files of this machine: `sandbox` of the daemon is {nix.daemon.sandbox}")
    why = f"you chose it with {policy.nix_origin}"
    return NixAccess(kind, why, warnings=tuple(warnings), explicit=True)  # type: ignore[arg-type]


def _decide_automatically(nix: Nix) -> NixAccess:
    """Decide in mode `auto`, in the tier that has the host's network anyway."""
    daemon = nix.daemon
    holes = tuple(_known_holes(nix))
    if daemon.trusted == "no":
        if daemon.sandbox != "true":
            return NixAccess(
                "off",
                f"its builders may see files of this machine: {daemon.problem or f'`sandbox` is {daemon.sandbox}'}",
                "set `sandbox = true` in /etc/nix/nix.conf and restart the daemon",
            )
        return NixAccess("daemon", "it does not trust you, and its builders have a sandbox", warnings=holes)
    unknown = f"whether it trusts you is not known: {daemon.problem or 'it is too old to tell'}"
    why = "it trusts you, so whoever is inside could become root" if daemon.trusted == "yes" else unknown
    if daemon.relay:
        if daemon.trusted == "yes" or daemon.sandbox == "true":
            return NixAccess("relay", why, warnings=holes)
        return NixAccess("off", why, "restart the daemon, or see `claudebox --check`")
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
    """Return the decision for the audit."""
    words = {"daemon": "the daemon, directly", "relay": "the daemon, through a relay that is never trusted",
             "off": "the store, without the daemon"}  # fmt: skip
    remedy = f"; {access.remedy}" if access.remedy else ""
    return f"{words[access.kind]}: {access.why}{remedy}"


# The project's dev shell: evaluated inside, by the same sandbox, just before the program starts.
#
# Evaluation runs code of the project (and builds, and its `shellHook`), so the host never does it. The script form of
# `nix print-dev-env` is used rather than JSON: bash is inside in any case, and a program that reads JSON may not be.


_SHELL_SCRIPT = "/run/claudebox/devshell"
# Nix takes any `.git` for a repository, even the empty one that stands where there is none yet.
_FLAKE_ARGUMENTS = {
    "flake.nix": "$(test -f .git -o -e .git/HEAD && echo . || echo path:.)",
    "shell.nix": "-f ./shell.nix",
}
# Variables that the sandbox relies on are kept; those that mean something in a build only are dropped.
_TEXT = """\
#!/bin/bash
# Enters the dev shell of the project, and becomes the program.
if ! command -v nix >/dev/null; then
  echo 'claudebox: devshell: there is no `nix` on PATH inside' >&2
  exit 125
fi
if ! _claudebox_script=$(nix print-dev-env {words}); then
  echo 'claudebox: devshell: the dev shell of this project could not be made; see above' >&2
  exit 125
fi
_claudebox_path=$PATH
declare -A _claudebox_kept=()
for _claudebox_name in $(compgen -e); do
  case $_claudebox_name in
    XDG_DATA_DIRS) ;;
    {kept} | COMMA_* | EDITOR | HOME | LANG | LC_ALL | LOGNAME | NIX_* | PWD | SHELL | SSL_CERT_FILE | \\
    TERM | COLORTERM | NO_COLOR | TMPDIR | USER | XDG_* | *_proxy | *_PROXY)
      _claudebox_kept[$_claudebox_name]=${{!_claudebox_name}} ;;
  esac
done
eval "$_claudebox_script"
set +eu
rmdir "$NIX_BUILD_TOP" 2>/dev/null
unset NIX_BUILD_TOP NIX_BUILD_CORES NIX_ENFORCE_PURITY NIX_LOG_FD NIX_STORE TMP TMPDIR TEMP TEMPDIR OLDPWD \\
  builder name out outputs shellHook system dontAddDisableDepTrack
for _claudebox_name in "${{!_claudebox_kept[@]}}"; do
  export "$_claudebox_name=${{_claudebox_kept[$_claudebox_name]}}"
done
PATH=:$PATH:
PATH=${{PATH//:\\/path-not-set:/:}}
PATH=${{PATH#:}}
PATH=${{PATH%:}}
case :$PATH: in
  *":$_claudebox_path:"*) ;;
  *) PATH=$PATH:$_claudebox_path ;;
esac
export PATH
exec -- "$@"
"""


def _plan_shell(policy: Policy, nix: Nix, access: NixAccess) -> Mount:
    """Return the script that enters the dev shell, or raise if there can be none."""
    if access.kind == "off":
        raise ClaudeboxError(
            f"`{policy.devshell}`: a dev shell is made inside, and needs Nix there, which is off: {access.why}",
            hint=access.remedy,
        )
    if not nix.shell:
        raise ClaudeboxError(
            f"`{policy.devshell}`: this project has no dev shell", hint="it would be in `flake.nix` or `shell.nix`"
        )
    agent = policy.agent
    names = {*agent.brokered, *agent.keys, *(name for name, *_ in (*agent.env, *agent.extras.env_of_root)), "CLAUDEBOX"}
    kept = " | ".join(sorted({f"{name[: name.find('_', 1) + 1] or name}*" for name in names}))
    text = _TEXT.format(words=_FLAKE_ARGUMENTS[nix.shell], kept=kept)
    reason = f"enters the dev shell of {nix.shell}"
    return Mount(_SHELL_SCRIPT, "file", reason, content=text.encode(), mode=0o755)
