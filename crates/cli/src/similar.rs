//! Names that the user may have meant: those of commands, flags and topics.

/// The maximum number of letters that differ, as in cobra.
const MAX_DISTANCE: usize = 2;

/// Returns the names that begin with `word` or are about the same, regardless of case: the rule of
/// cobra for commands.
pub(crate) fn similar<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let word = word.to_lowercase();
    let is_similar = |name: &&str| {
        let name = name.to_lowercase();
        name.starts_with(&word) || strsim::levenshtein(&word, &name) <= MAX_DISTANCE
    };
    names.into_iter().filter(is_similar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_begin_alike_or_differ_in_two_letters() {
        let names = ["kubeconfig", "KeyServed", "whoami"];
        for (word, expected) in [
            ("kube", &["kubeconfig"][..]),
            ("keyserve", &["KeyServed"]),
            ("whaomi", &["whoami"]),
            ("K", &["kubeconfig", "KeyServed"]),
            ("config", &[]),
        ] {
            assert_eq!(similar(word, names), expected, "{word}");
        }
    }
}
