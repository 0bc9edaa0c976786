//! Flags of a program, read as the Go package `pflag` reads them when it is told to skip what it does not know.
//!
//! kube-controller-manager itself is such a program, so a value is found here exactly when it has an effect there. The
//! one difference is unavoidable: who does not know a flag does not know whether it takes a value, and so an unknown
//! `--flag word` takes the word along.

/// The value of the first of `names` that is set, among `arguments`; of a repeated flag the last value counts. An empty
/// value is none.
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
            // Errors end the reading: `---x`, `--=x`, and the request for help.
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
    /// `-x=value`, or flags of Go's own test tool.
    WithValue,
    Alone,
}

/// Letters after a single dash, none of which is known.
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

/// A word after an unknown flag is taken for its value.
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
            // The second name counts only where the first has no value.
            (&["--client-cert=b"], Some("b")),
            (&["--client-cert=b", "--cert=a"], Some("a")),
            (&["--client-cert=b", "--cert="], Some("b")),
            // An unknown flag takes a word along, but no flag.
            (&["--unknown=x", "word", "--cert=a"], Some("a")),
            (&["--unknown", "word", "--cert=a"], Some("a")),
            (&["--unknown", "--cert=a"], Some("a")),
            (&["-v", "2", "--cert=a"], Some("a")),
            (&["-v=2", "word", "--cert=a"], Some("a")),
            (&["-vx", "2", "--cert=a"], Some("a")),
            (&["-vx=2", "word", "--cert=a"], Some("a")),
            (&["-", "--cert=a"], Some("a")),
            (&["", "--cert=a"], Some("a")),
            // What ends the reading.
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
