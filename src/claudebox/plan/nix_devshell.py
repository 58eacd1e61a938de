"""The project's own dev shell: evaluated inside, by the same sandbox, just before the program starts.

Evaluation runs code of the project (and builds, and its `shellHook`), so the host never does it. The script form of
`nix print-dev-env` is used rather than JSON: bash is inside in any case, and a program that reads JSON may not be.
"""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.plan.model import Mount
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import Policy
    from claudebox.facts.nix_model import Nix
    from claudebox.plan.model import NixAccess

SCRIPT = "/run/claudebox/devshell"
# Nix takes any `.git` for a repository, also the empty one that stands where none has been made yet.
_WORDS = {"flake.nix": "$(test -f .git -o -e .git/HEAD && echo . || echo path:.)", "shell.nix": "-f ./shell.nix"}
# Kept as they were: what the sandbox itself rests on. Dropped: what means something in a build only.
_TEXT = """\
#!/bin/bash
# Enters the dev shell of the project, and becomes the program.
if ! command -v nix >/dev/null; then
  echo 'claudebox: --devshell: there is no `nix` on PATH inside' >&2
  exit 125
fi
if ! _claudebox_script=$(nix print-dev-env {words}); then
  echo 'claudebox: --devshell: the dev shell of this project could not be made; see above' >&2
  exit 125
fi
_claudebox_path=$PATH
declare -A _claudebox_kept=()
for _claudebox_name in $(compgen -e); do
  case $_claudebox_name in
    XDG_DATA_DIRS) ;;
    ANTHROPIC_* | CLAUDE* | COMMA_* | EDITOR | HOME | LANG | LC_ALL | LOGNAME | NIX_* | PWD | SHELL | SSL_CERT_FILE | \\
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
