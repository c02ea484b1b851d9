function __vrambudget_words
    set -l words (commandline -opc) (commandline -ct)
    set -l found (vrambudget completion --words $words[2..] 2>/dev/null)
    if test (count $found) -gt 0
        string join \n $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c vrambudget -f -a '(__vrambudget_words)'
