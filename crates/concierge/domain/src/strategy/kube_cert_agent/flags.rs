//! Parses flags as the Go package `pflag` does when it ignores unknown flags.
//!
//! kube-controller-manager uses the same package, so a value is found here if and only if it has an
//! effect there. There is one unavoidable difference: this module cannot determine whether an
//! unknown flag takes a value, so an unknown `--flag word` consumes the word.

/// Returns the value in `arguments` of the first of `names` that is set. The last value of a
/// repeated flag counts. An empty value counts as not set.
pub fn value(arguments: &[&str], names: &[&str]) -> Option<String> {
    let mut values: Vec<Option<&str>> = vec![None; names.len()];
    let mut rest = arguments;
    while let Some((&argument, after)) = rest.split_first() {
        rest = after;
        if argument == "--" {
            break;
        }
        if let Some(long) = argument.strip_prefix("--") {
            let (name, given) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            // Errors end the parsing, as in pflag: `---x`, `--=x`, and the help flag.
            if name.is_empty() || name.starts_with('-') {
                break;
            }
            let known = names.iter().position(|wanted| *wanted == name);
            match (known, given) {
                (Some(index), Some(value)) => values[index] = Some(value),
                (Some(index), None) => {
                    let Some((value, after)) = rest.split_first() else { break };
                    values[index] = Some(value);
                    rest = after;
                }
                (None, _) if name == "help" => break,
                (None, Some(_)) => {}
                (None, None) => rest = skip_value(rest),
            }
        } else if argument.len() > 1 && argument.starts_with('-') {
            match short(&argument[1..]) {
                Short::Help => break,
                Short::WithValue => {}
                Short::Alone => rest = skip_value(rest),
            }
        }
    }
    values.into_iter().flatten().find(|value| !value.is_empty()).map(ToOwned::to_owned)
}

enum Short {
    Help,
    /// `-x=value`, or flags of Go's test tool.
    WithValue,
    Alone,
}

/// Classifies the letters after a single dash, none of which is a known flag.
fn short(letters: &str) -> Short {
    if letters.starts_with("test.") {
        return Short::WithValue;
    }
    let mut left = letters;
    while let Some(letter) = left.chars().next() {
        if letter == 'h' {
            return Short::Help;
        }
        if left.len() > 2 && left.as_bytes().get(1) == Some(&b'=') {
            return Short::WithValue;
        }
        left = &left[letter.len_utf8()..];
    }
    Short::Alone
}

/// Skips the word after an unknown flag, which is taken as its value.
fn skip_value<'a, 'b>(rest: &'a [&'b str]) -> &'a [&'b str] {
    match rest.split_first() {
        Some((next, after)) if !next.starts_with('-') => after,
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_pflag_reads_them() {
        let cases: [(&[&str], Option<&str>); 28] = [
            (&[], None),
            (&["program", "--cert=a"], Some("a")),
            (&["program", "--cert", "a"], Some("a")),
            (&["--cert=a", "--cert=b"], Some("b")),
            (&["--cert=a", "--cert="], None),
            (&["--cert="], None),
            (&["--cert"], None),
            (&["--cert=a=b"], Some("a=b")),
            (&["--cert", "--other"], Some("--other")),
            (&["--cert", "--"], Some("--")),
            // The second name counts only if the first one has no value.
            (&["--client-cert=b"], Some("b")),
            (&["--client-cert=b", "--cert=a"], Some("a")),
            (&["--client-cert=b", "--cert="], Some("b")),
            // An unknown flag consumes a word but not a flag.
            (&["--unknown=x", "word", "--cert=a"], Some("a")),
            (&["--unknown", "word", "--cert=a"], Some("a")),
            (&["--unknown", "--cert=a"], Some("a")),
            (&["-v", "2", "--cert=a"], Some("a")),
            (&["-v=2", "word", "--cert=a"], Some("a")),
            (&["-vx", "2", "--cert=a"], Some("a")),
            (&["-vx=2", "word", "--cert=a"], Some("a")),
            (&["-", "--cert=a"], Some("a")),
            (&["", "--cert=a"], Some("a")),
            // Arguments that end the parsing.
            (&["--", "--cert=a"], None),
            (&["--cert=a", "--", "--cert=b"], Some("a")),
            (&["--cert=a", "---cert=b", "--cert=c"], Some("a")),
            (&["--help", "--cert=a"], None),
            (&["-h", "--cert=a"], None),
            (&["--Cert=a", "--cert-file=a", "cert=a", "-cert=a"], None),
        ];
        for (arguments, wanted) in cases {
            assert_eq!(value(arguments, &["cert", "client-cert"]).as_deref(), wanted, "{arguments:?}");
        }
    }
}
