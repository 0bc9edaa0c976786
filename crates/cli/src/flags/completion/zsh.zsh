#compdef pinniped
# Completion of pinniped for zsh. The program itself returns the candidates.

_pinniped() {
    local -a lines described
    local line candidate directive
    lines=("${(@f)$("${(Q)words[1]/#\~/$HOME}" COMMAND "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    directive=${lines[-1]#:}
    lines[-1]=()
    for line in "${lines[@]}"; do
        candidate=${line%%$'\t'*}
        candidate=${candidate//\\/\\\\}
        if [[ $line == *$'\t'* ]]; then
            described+=("${candidate//:/\\:}:${line#*$'\t'}")
        else
            described+=("${candidate//:/\\:}")
        fi
    done
    if [[ $directive == 0 ]]; then
        [[ $PREFIX == --*=* ]] && compset -P '*='
        _files
    elif (( ${#described} )); then
        _describe 'candidates' described
    fi
}

# A file of fpath is the function itself; a file that is sourced defines it.
if [[ ${funcstack[1]} == _pinniped ]]; then
    _pinniped "$@"
else
    compdef _pinniped pinniped
fi
