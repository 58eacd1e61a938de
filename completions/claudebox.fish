# fish completion for claudebox, which knows the words itself
function __fish_claudebox
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] help complete -- $words[2..] 2>/dev/null)
        if string match -qr '^\t' -- $line
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c claudebox -f -a "(__fish_claudebox)"
