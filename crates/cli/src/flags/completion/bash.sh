# Completion of pinniped for bash. The program itself returns the candidates.

_pinniped() {
    local rest=$COMP_LINE words=() word candidate i
    # Readline splits words at the characters of COMP_WORDBREAKS, such as `=` and `:`.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $i -eq 0 || $rest == [[:space:]]* ]]; then
            words+=("$word")
        else
            words[${#words[@]} - 1]+=$word
        fi
        rest=${rest#"${rest%%[![:space:]]*}"}
        rest=${rest#"$word"}
    done

    local current=${words[${#words[@]} - 1]} directive= candidates=()
    while IFS= read -r candidate; do
        if [[ $candidate == :* ]]; then
            directive=${candidate#:}
        else
            candidates+=("$candidate")
        fi
    done < <("${words[0]/#\~/$HOME}" __completeNoDesc "${words[@]:1}" 2>/dev/null)

    # Readline replaces only the part after the last of its separators.
    local separators=${COMP_WORDBREAKS//[^=:]/} before=
    if [[ -n $separators && $current == *["$separators"]* ]]; then
        before=${current%"${current##*["$separators"]}"}
    fi
    COMPREPLY=()
    if [[ $directive == 0 ]]; then
        # compopt does not exist in the bash of macOS.
        compopt -o filenames 2>/dev/null
        while IFS= read -r candidate; do
            COMPREPLY+=("$candidate")
        done < <(compgen -f -- "${current#--*=}")
        return
    fi
    for candidate in ${candidates[@]+"${candidates[@]}"}; do
        COMPREPLY+=("$(printf '%q' "${candidate#"$before"}")")
    done
}

complete -F _pinniped pinniped
