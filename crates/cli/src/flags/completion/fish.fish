# Completion of pinniped for fish. The program itself returns the candidates.

function __pinniped_candidates
    set --local words (commandline --tokenize --cut-at-cursor --current-process)
    set --local current (commandline --current-token --cut-at-cursor)
    set --local program $words[1]
    set --erase words[1]
    set --local lines ($program COMMAND $words "$current" 2>/dev/null)
    set --local directive $lines[-1]
    set --erase lines[-1]
    if test "$directive" != :0
        for line in $lines
            echo $line
        end
        return
    end
    set --local flag (string match --regex -- '^--[^=]*=' $current)
    for path in (__fish_complete_path (string replace -- "$flag" '' "$current"))
        echo "$flag$path"
    end
end

complete --command pinniped --erase
complete --command pinniped --no-files --arguments '(__pinniped_candidates)'
