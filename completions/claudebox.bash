# bash completion for claudebox; generated from the table of settings
_claudebox() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} index
  COMPREPLY=()
  for ((index = 1; index < COMP_CWORD; index++)); do
    [[ ${COMP_WORDS[index]} == -- ]] && { mapfile -t COMPREPLY < <(compgen -f -- "$word"); return; }
  done
  case $before in
    --time-limit) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --memory) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --profile) mapfile -t COMPREPLY < <(compgen -W "$(claudebox profiles 2>/dev/null | sed s/\ .*//)" -- "$word"); return ;;
    --set) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --env) mapfile -t COMPREPLY < <(compgen -e -- "$word"); return ;;
    --env-file) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --mount-ro) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --mount-rw) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --toolchain) mapfile -t COMPREPLY < <(compgen -W "auto none rust node python go java ruby deno bun nvm pyenv rbenv uv conda pnpm mise asdf sdkman ghcup" -- "$word"); return ;;
    --package) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --network) mapfile -t COMPREPLY < <(compgen -W "full inet allow none" -- "$word"); return ;;
    --allow-domain) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --publish) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --budget) compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=(); return ;;
    --allow) mapfile -t COMPREPLY < <(compgen -W "git-config .claude .mcp.json .vscode .idea .devcontainer .devcontainer.json .claudebox.toml .aider.conf.yml .codex .agents .github/hooks .gemini .opencode opencode.json opencode.jsonc .qwen .cursor/mcp.json" -- "$word"); return ;;
  esac
  [[ $word == -* ]] && mapfile -t COMPREPLY < <(compgen -W "-y --yes --quiet --exec --shell --detach --time-limit --memory --dry-run --explain --check --verify --json --help --version --profile --set --env --env-file --mount-ro --mount-rw --toolchain --package --network --allow-domain --publish --budget --allow" -- "$word")
}
complete -o bashdefault -o default -F _claudebox claudebox
