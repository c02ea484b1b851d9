_vrambudget() {
    local IFS=$'\n'
    COMPREPLY=($(vrambudget completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -o nosort -F _vrambudget vrambudget
