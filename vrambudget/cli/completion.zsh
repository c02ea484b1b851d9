_vrambudget() {
    local -a found
    found=(${(f)"$(vrambudget completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#found} )); then compadd -U -a found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _vrambudget vrambudget
