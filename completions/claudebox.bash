# bash completion for claudebox, which knows the words itself
_claudebox() {
  # The shell cuts words at `=` and `:`; what is before the last of these stays on the line.
  local -a words=()
  local index piece last='' line
  for ((index = 1; index <= COMP_CWORD; index++)); do
    piece=${COMP_WORDS[index]}
    if [[ ${#words[@]} -gt 0 && ($piece == [=:] || $last == [=:]) ]]; then
      words[${#words[@]} - 1]+=$piece
    else
      words+=("$piece")
    fi
    last=$piece
  done
  local current=${words[${#words[@]} - 1]} kept=
  [[ $current == *[=:]* && $COMP_WORDBREAKS == *=* ]] && kept=${current%"${current##*[=:]}"}
  COMPREPLY=()
  compopt +o default 2>/dev/null
  while IFS= read -r line; do
    line=${line%%$'\t'*}
    if [[ -z $line ]]; then
      compopt -o default 2>/dev/null
    else
      [[ $line == *= ]] && compopt -o nospace 2>/dev/null
      COMPREPLY+=("${line#"$kept"}")
    fi
  done < <("${COMP_WORDS[0]}" help complete -- "${words[@]}" 2>/dev/null)
}
complete -o default -F _claudebox claudebox
