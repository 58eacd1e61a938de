# bash completion for claudebox; generated from the table of settings
_claudebox() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} index
  COMPREPLY=()
  for ((index = 1; index < COMP_CWORD; index++)); do
    [[ ${COMP_WORDS[index]} == -- ]] && { mapfile -t COMPREPLY < <(compgen -f -- "$word"); return; }
  done
  case $before in
    --env) mapfile -t COMPREPLY < <(compgen -e -- "$word"); return ;;
    --mount-ro) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --mount-rw) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --inherit) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --claude-home) mapfile -t COMPREPLY < <(compgen -W "own shared" -- "$word"); return ;;
    --network) mapfile -t COMPREPLY < <(compgen -W "full inet none" -- "$word"); return ;;
    --allow-host-port) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --publish) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --uplink) mapfile -t COMPREPLY < <(compgen -W "auto pasta slirp4netns" -- "$word"); return ;;
    --allow) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --project-secrets) mapfile -t COMPREPLY < <(compgen -W "warn mask allow" -- "$word"); return ;;
  esac
  [[ $word == -* ]] && mapfile -t COMPREPLY < <(compgen -W "-y --yes --exec --shell --dry-run --explain --check --verify --json --instances --demo -h --help --version --env --mount-ro --mount-rw --unsafe-mounts --inherit --claude-home --network --allow-host-port --publish --uplink --allow --project-secrets --allow-userns" -- "$word")
}
complete -o bashdefault -o default -F _claudebox claudebox
