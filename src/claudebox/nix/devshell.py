"""The project's own dev shell: evaluated inside, by the same sandbox, just before the program starts.

Evaluation runs code of the project (and builds, and its `shellHook`), so the host never does it. The script form of
`nix print-dev-env` is used rather than JSON: bash is inside in any case, and a program that reads JSON may not be.
"""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.model import Mount
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.model import NixAccess, Policy
    from claudebox.nix.facts import Nix

SCRIPT = "/run/claudebox/devshell"
_WORDS = {"flake.nix": ".", "shell.nix": "-f ./shell.nix"}
# Variables of a build that mean something else outside of one, and those that the sandbox itself rests on.
_TEXT = """\
#!/bin/bash
# Enters the dev shell of the project, and becomes the program.
_claudebox_enter() {{
  local script name saved=() drop
  command -v nix >/dev/null || {{ echo 'claudebox: --devshell: there is no `nix` on PATH inside' >&2; exit 125; }}
  script=$(nix print-dev-env {words}) || {{
    echo 'claudebox: --devshell: the dev shell of this project could not be made; see above' >&2; exit 125
  }}
  for name in $(compgen -e); do
    case $name in
      PATH | XDG_DATA_DIRS | SHLVL | _) ;;
      HOME | USER | LOGNAME | SHELL | TERM | COLORTERM | NO_COLOR | LANG | LC_ALL | EDITOR | TMPDIR | PWD | OLDPWD | \\
      CLAUDEBOX* | CLAUDE_* | ANTHROPIC_* | NIX_* | SSL_CERT_FILE | XDG_* | COMMA_PICKER | *_proxy | *_PROXY)
        saved+=("$name=${{!name}}") ;;
    esac
  done
  local path=$PATH
  set +eu
  eval "$script"
  set +eu
  for drop in TMP TEMP TEMPDIR TMPDIR NIX_BUILD_TOP NIX_BUILD_CORES NIX_STORE NIX_ENFORCE_PURITY NIX_LOG_FD IN_NIX_SHELL_SAVED \\
    HOME SHELL TERM OLDPWD out outputs builder name system stdenv shellHook buildPhase phases patches configureFlags \\
    SOURCE_DATE_EPOCH_SAVED __structuredAttrs; do
    unset "$drop"
  done
  for name in "${{saved[@]}}"; do export "$name"; done
  PATH=:$PATH:
  PATH=${{PATH//:\\/path-not-set:/:}}
  PATH=${{PATH#:}} PATH=${{PATH%:}}
  case :$PATH: in *":$path:"*) ;; *) PATH=$PATH:$path ;; esac
  export PATH IN_NIX_SHELL=impure
}}
_claudebox_enter
exec -- "$@"
"""


class Shell(Value):
    """What a dev shell adds to a plan."""

    mounts: tuple[Mount, ...]
    prefix: tuple[str, ...]  # in front of the command


def plan(policy: Policy, nix: Nix, access: NixAccess) -> Shell:
    """Return the script that enters the shell, or say why there is none."""
    if access.kind == "off":
        raise ClaudeboxError(
            f"`{policy.devshell}`: a dev shell is made inside, and needs Nix there, which is off: {access.why}",
            hint=access.remedy,
        )
    if not nix.shell:
        raise ClaudeboxError(
            f"`{policy.devshell}`: this project has no dev shell", hint="it would be in `flake.nix` or `shell.nix`"
        )
    text = _TEXT.format(words=_WORDS[nix.shell])
    mount = Mount(SCRIPT, "file", f"enters the dev shell of {nix.shell}", content=text.encode(), mode=0o755)
    return Shell((mount,), ("/bin/bash", "--noprofile", "--norc", SCRIPT))
