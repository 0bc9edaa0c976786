//! The table of explanations: what the strategies, conditions, reasons and error texts mean, and
//! their remedies.
//!
//! `pinniped explain` prints it. `pinniped doctor` and the remedies after errors take their texts
//! from it. To add one, add a row to [`status`], [`strategy_messages`], [`concierge_messages`] or
//! [`client_errors`]. A test compares the table with the types and reasons that the Concierge
//! writes.

pub mod client_errors;
pub mod concierge_messages;
pub mod status;
pub mod strategy_messages;

/// The kind of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A strategy of the CredentialIssuer.
    Strategy,
    /// The reason of a strategy.
    StrategyReason,
    /// A condition of the CredentialIssuer or of an authenticator.
    Condition,
    /// The reason of a condition.
    ConditionReason,
    /// The message of a strategy.
    StrategyMessage,
    /// The message of a condition.
    ConditionMessage,
    /// A message of the Concierge's log.
    LogMessage,
    /// An error of this program.
    Error,
}

impl Kind {
    /// All kinds, in the order of the list.
    pub const ALL: [Self; 8] = [
        Self::Strategy,
        Self::StrategyReason,
        Self::Condition,
        Self::ConditionReason,
        Self::StrategyMessage,
        Self::ConditionMessage,
        Self::LogMessage,
        Self::Error,
    ];

    /// Returns the title of the topics.
    pub fn title(self) -> &'static str {
        match self {
            Self::Strategy => "Strategies of the CredentialIssuer",
            Self::StrategyReason => "Reasons of strategies",
            Self::Condition => "Conditions of the CredentialIssuer and of authenticators",
            Self::ConditionReason => "Reasons of conditions",
            Self::StrategyMessage => "Messages of strategies",
            Self::ConditionMessage => "Messages of conditions",
            Self::LogMessage => "Messages of the Concierge's log",
            Self::Error => "Errors of this program",
        }
    }

    /// Returns the description of one topic.
    pub fn description(self) -> &'static str {
        match self {
            Self::Strategy => "strategy of the CredentialIssuer",
            Self::StrategyReason => "reason of a strategy",
            Self::Condition => "condition",
            Self::ConditionReason => "reason of a condition",
            Self::StrategyMessage => "message of a strategy",
            Self::ConditionMessage => "message of a condition",
            Self::LogMessage => "message of the Concierge's log",
            Self::Error => "error of this program",
        }
    }
}

/// An explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The name, as in the status, or a short name for a text.
    pub topic: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The meaning; its first sentence is the summary.
    pub meaning: &'static str,
    /// The remedy; empty if there is nothing to do.
    pub remedy: &'static str,
    /// Parts of the texts that the topic explains.
    pub texts: &'static [&'static str],
}

impl Explanation {
    /// Returns the first sentence.
    pub fn summary(&self) -> &'static str {
        self.meaning.split_inclusive(". ").next().unwrap_or_default().trim_end()
    }
}

/// Returns all explanations.
pub fn all() -> impl Iterator<Item = &'static Explanation> {
    TABLES.into_iter().flatten()
}

/// The tables, in the order in which texts are searched.
const TABLES: [&[Explanation]; 5] = [
    status::ALL,
    strategy_messages::ALL,
    concierge_messages::ALL,
    client_errors::OF_LOGINS,
    client_errors::OTHERS,
];

/// Returns the first of these explanations that has a text which is part of `message`.
pub fn of_message(table: &'static [Explanation], message: &str) -> Option<&'static Explanation> {
    table.iter().find(|row| row.texts.iter().any(|text| message.contains(text)))
}

/// Returns the explanation of a topic, regardless of case.
pub fn of_topic(name: &str) -> Option<&'static Explanation> {
    all().find(|row| row.topic.eq_ignore_ascii_case(name))
}

/// Returns the explanation of a topic, or of a text that contains one of its texts.
pub fn find(words: &str) -> Option<&'static Explanation> {
    of_topic(words).or_else(|| all().find(|row| row.texts.iter().any(|text| words.contains(text))))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn topics_are_unique_and_have_sentences() {
        let mut topics = HashSet::new();
        for row in all() {
            assert!(topics.insert(row.topic.to_lowercase()), "{row:?}");
            assert!(row.meaning.ends_with('.') && !row.meaning.contains("  "), "{row:?}");
            assert!(!row.remedy.ends_with('.') && !row.remedy.contains("  "), "{row:?}");
            assert!(row.summary().len() <= 120, "{row:?}");
            let has_texts = [Kind::StrategyMessage, Kind::ConditionMessage, Kind::LogMessage, Kind::Error];
            assert!(!has_texts.contains(&row.kind) || !row.texts.is_empty(), "{row:?}");
        }
    }

    #[test]
    fn a_topic_is_found_by_its_name_or_by_a_text() {
        for (words, topic) in [
            ("ServingCertificateValid", Some("ServingCertificateValid")),
            ("servingcertificatevalid", Some("ServingCertificateValid")),
            (
                "Error: could not complete Concierge credential exchange: login failed: authentication failed",
                Some("authentication-failed"),
            ),
            ("certificate delegation not permitted: x", Some("certificate-delegation")),
            (
                "failed to list CredentialIssuer objects for autodiscovery: the server could not find the requested \
                 resource (get credentialissuers.config.concierge.pinniped.dev)",
                Some("no-concierge"),
            ),
            (
                "failed to list CredentialIssuer objects for autodiscovery: credentialissuers is forbidden",
                None,
            ),
            ("getting credentials: exec: executable pinniped not found", Some("plugin-not-found")),
            ("dial tcp: lookup nowhere.test: no such host", Some("no-such-host")),
            ("dial tcp 127.0.0.1:1: connect: connection refused", Some("connection-refused")),
            ("proxyconnect tcp: dial tcp 127.0.0.1:1: connect: connection refused", Some("proxy-connection")),
            (
                "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time",
                Some("certificate-expired"),
            ),
            ("x509: certificate is valid for a.test, not b.test", Some("certificate-for-another-name")),
            ("the keyring is locked", Some("keyring-locked")),
            (
                "identity recorded in /home/a/.kube/config; please re-run the command",
                Some("identity-recorded"),
            ),
            ("no kubeconfig found: set KUBECONFIG or pass --kubeconfig", Some("no-kubeconfig")),
            (
                "there are several CredentialIssuers: choose one of a, b with --concierge-credential-issuer",
                Some("several-credential-issuers"),
            ),
            ("multiple authenticators were found, so the", Some("several-authenticators")),
            ("ServingCertificate", None),
            ("", None),
        ] {
            assert_eq!(find(words).map(|row| row.topic), topic, "{words}");
        }
    }

    #[test]
    fn each_text_finds_its_own_topic() {
        for table in TABLES {
            for row in table {
                for text in row.texts {
                    assert_eq!(of_message(table, text).map(|row| row.topic), Some(row.topic), "{text}");
                }
            }
        }
    }
}
