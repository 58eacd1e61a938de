# bash completion for claudebox; generated from the table of settings
_claudebox() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} index
  COMPREPLY=()
  for ((index = 1; index < COMP_CWORD; index++)); do
    [[ ${COMP_WORDS[index]} == -- ]] && { mapfile -t COMPREPLY < <(compgen -f -- "$word"); return; }
  done
  case $before in
    --confirm) mapfile -t COMPREPLY < <(compgen -W "always new never" -- "$word"); return ;;
    --time-limit) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --pids) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --scratch-size) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --memory) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --cpus) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --receipt) mapfile -t COMPREPLY < <(compgen -W "auto always never" -- "$word"); return ;;
    --profile) mapfile -t COMPREPLY < <(compgen -W "$(claudebox profiles 2>/dev/null | sed s/\ .*//)" -- "$word"); return ;;
    --env) mapfile -t COMPREPLY < <(compgen -e -- "$word"); return ;;
    --set-env) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --mount-ro) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --mount-rw) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --path) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --toolchain) mapfile -t COMPREPLY < <(compgen -W "rust node python go java ruby deno bun nvm pyenv rbenv uv conda pnpm mise asdf sdkman ghcup" -- "$word"); return ;;
    --package) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --nixpkgs) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --caches) mapfile -t COMPREPLY < <(compgen -W "shared own off" -- "$word"); return ;;
    --cache-size) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --scratch) mapfile -t COMPREPLY < <(compgen -W "auto memory disk" -- "$word"); return ;;
    --device) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --inherit) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --claude-home) mapfile -t COMPREPLY < <(compgen -W "own shared" -- "$word"); return ;;
    --project) mapfile -t COMPREPLY < <(compgen -W "directory repository" -- "$word"); return ;;
    --network) mapfile -t COMPREPLY < <(compgen -W "full inet allow none" -- "$word"); return ;;
    --allow-domain) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --allow-address) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --allow-host-port) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --publish) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --uplink) mapfile -t COMPREPLY < <(compgen -W "auto pasta slirp4netns" -- "$word"); return ;;
    --budget) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --tokens) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --nix) mapfile -t COMPREPLY < <(compgen -W "auto daemon relay off" -- "$word"); return ;;
    --auth) mapfile -t COMPREPLY < <(compgen -W "passthrough broker" -- "$word"); return ;;
    --allow) mapfile -t COMPREPLY < <(compgen -W "git-config .claude .mcp.json .vscode .idea .devcontainer .devcontainer.json .claudebox.toml" -- "$word"); return ;;
    --project-secrets) mapfile -t COMPREPLY < <(compgen -W "allow warn mask" -- "$word"); return ;;
    --submounts) mapfile -t COMPREPLY < <(compgen -W "show mask" -- "$word"); return ;;
    --git-import) mapfile -t COMPREPLY < <(compgen -W "auto ask manual" -- "$word"); return ;;
    --undo-keep) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --undo-size) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --undo-exclude) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --secret-variables) mapfile -t COMPREPLY < <(compgen -W "show refuse" -- "$word"); return ;;
    --terminal) mapfile -t COMPREPLY < <(compgen -W "plain filtered" -- "$word"); return ;;
  esac
  [[ $word == -* ]] && mapfile -t COMPREPLY < <(compgen -W "-y --yes --confirm --quiet --exec --shell --detach --time-limit --pids --scratch-size --memory --cpus --dry-run --explain --check --verify --receipt --json --help --version --profile --env --set-env --mount-ro --mount-rw --unsafe-mounts --path --toolchain --package --packages-optional --nixpkgs --devshell --caches --cache-size --scratch --gpu --device --browser --inherit --claude-home --project --network --allow-domain --allow-address --allow-host-port --publish --uplink --budget --tokens --nix --auth --allow --project-secrets --submounts --git-import --undo-keep --undo-size --undo-exclude --allow-userns --secret-variables --terminal" -- "$word")
}
complete -o bashdefault -o default -F _claudebox claudebox
