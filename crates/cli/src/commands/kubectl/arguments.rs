//! The arguments of kubectl, as far as they select the kubeconfig, context, cluster and user.

use kube::config::Kubeconfig;

/// Flags of kubectl that take a value in the next argument and may precede the command.
const VALUED: [&str; 23] = [
    "--as",
    "--as-group",
    "--as-uid",
    "--as-user-extra",
    "--cache-dir",
    "--certificate-authority",
    "--client-certificate",
    "--client-key",
    "--cluster",
    "--context",
    "--kubeconfig",
    "--kuberc",
    "--namespace",
    "--password",
    "--profile",
    "--profile-output",
    "--request-timeout",
    "--server",
    "--tls-server-name",
    "--token",
    "--user",
    "--username",
    "--v",
];
/// Short flags that take a value.
const VALUED_LETTERS: [&str; 3] = ["-n", "-s", "-v"];

/// The arguments.
pub(super) struct Arguments<'a> {
    words: &'a [String],
}

impl<'a> Arguments<'a> {
    pub(super) fn new(words: &'a [String]) -> Self {
        Self { words }
    }

    /// Returns the value of a flag of kubectl, and the index of the argument that contains it; the
    /// last occurrence counts.
    fn value(&self, flag: &str) -> Option<(usize, &'a str)> {
        let mut found = None;
        let mut words = self.words.iter().enumerate();
        while let Some((at, word)) = words.next() {
            if word == "--" {
                break;
            }
            match word.strip_prefix(flag) {
                Some("") => found = words.next().map(|(at, word)| (at, word.as_str())),
                Some(rest) => found = rest.strip_prefix('=').map(|value| (at, value)).or(found),
                None => {}
            }
        }
        found
    }

    /// Returns the value of `--kubeconfig`.
    pub(super) fn kubeconfig(&self) -> Option<&'a str> {
        self.value("--kubeconfig").map(|(_, path)| path).filter(|path| !path.is_empty())
    }

    /// Returns the arguments with another kubeconfig, if they contain one.
    pub(super) fn with_kubeconfig(&self, path: &str) -> Vec<String> {
        let mut words = self.words.to_vec();
        if let Some((at, value)) = self.value("--kubeconfig") {
            // The value is the argument itself, or its end after an equals sign.
            let start = words[at].len() - value.len();
            words[at].replace_range(start.., path);
        }
        words
    }

    /// Returns the command: the first argument that is not a flag.
    pub(super) fn command(&self) -> Option<&'a str> {
        let mut words = self.words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if VALUED.contains(&word) || VALUED_LETTERS.contains(&word) {
                words.next();
            } else if !word.starts_with('-') {
                return Some(word);
            }
        }
        None
    }

    /// Returns the names of the user and the cluster that kubectl uses; `None` if the kubeconfig
    /// does not contain them.
    pub(super) fn select(&self, config: &Kubeconfig) -> Option<(String, String)> {
        let flag = |flag| self.value(flag).map(|(_, name)| name).filter(|name| !name.is_empty());
        let context = flag("--context").or(config.current_context.as_deref()).unwrap_or_default();
        let named = config.contexts.iter().find(|named| named.name == context);
        let context = named.and_then(|named| named.context.as_ref());
        let user = flag("--user").or(context.and_then(|context| context.user.as_deref()));
        let cluster = flag("--cluster").or(context.map(|context| context.cluster.as_str()));
        Some((user?.to_owned(), cluster?.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_command_is_the_first_argument_that_is_not_a_flag() {
        for (line, command) in [
            ("get pods", Some("get")),
            ("-n kube-system --context c get", Some("get")),
            ("--namespace=x config view", Some("config")),
            ("--warnings-as-errors config", Some("config")),
            ("--help", None),
            ("", None),
        ] {
            assert_eq!(Arguments::new(&words(line)).command(), command, "{line}");
        }
    }

    #[test]
    fn another_kubeconfig_replaces_the_given_one() {
        for (line, kubeconfig, changed) in [
            ("get pods", None, "get pods"),
            ("--kubeconfig a get", Some("a"), "--kubeconfig X get"),
            ("get --kubeconfig=a/b", Some("a/b"), "get --kubeconfig=X"),
            ("--kubeconfig= get", None, "--kubeconfig=X get"),
            ("--kubeconfig a --kubeconfig=b", Some("b"), "--kubeconfig a --kubeconfig=X"),
            ("exec p -- c --kubeconfig a", None, "exec p -- c --kubeconfig a"),
            ("--kubeconfigs=a get --kubeconfig", None, "--kubeconfigs=a get --kubeconfig"),
        ] {
            let all = words(line);
            let arguments = Arguments::new(&all);
            assert_eq!(arguments.kubeconfig(), kubeconfig, "{line}");
            assert_eq!(arguments.with_kubeconfig("X"), words(changed), "{line}");
        }
    }

    #[test]
    fn flags_take_precedence_over_the_context() {
        let config = Kubeconfig::from_yaml(
            "
current-context: a
contexts:
- {name: a, context: {cluster: ca, user: ua}}
- {name: b, context: {cluster: cb, user: ub}}
",
        )
        .unwrap();
        for (line, expected) in [
            ("", Some(("ua", "ca"))),
            ("--context b", Some(("ub", "cb"))),
            ("--context=b --user u", Some(("u", "cb"))),
            ("--cluster=c", Some(("ua", "c"))),
            ("--context nowhere", None),
            ("--context nowhere --user u --cluster c", Some(("u", "c"))),
        ] {
            let expected = expected.map(|(user, cluster)| (user.to_owned(), cluster.to_owned()));
            assert_eq!(Arguments::new(&words(line)).select(&config), expected, "{line}");
        }
        assert_eq!(Arguments::new(&[]).select(&Kubeconfig::default()), None);
    }
}
