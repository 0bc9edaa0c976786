//! The groups of flags in the help.

/// A group of flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Group {
    /// Flags of the command itself.
    Command,
    /// The cluster and its kubeconfig.
    Kubeconfig,
    /// The Concierge and its authenticator.
    Concierge,
    /// The login at an OIDC issuer.
    Oidc,
    /// A token without a login.
    Token,
    /// Flags of every command.
    Global,
}

impl Group {
    /// All groups, in the order of the help.
    pub(in super::super) const ALL: [Self; 6] =
        [Self::Command, Self::Kubeconfig, Self::Concierge, Self::Oidc, Self::Token, Self::Global];

    /// Returns the title.
    pub(in super::super) fn title(self) -> &'static str {
        match self {
            Self::Command => "Flags",
            Self::Kubeconfig => "Kubeconfig Flags",
            Self::Concierge => "Concierge Flags",
            Self::Oidc => "OIDC Flags",
            Self::Token => "Token Flags",
            Self::Global => "Global Flags",
        }
    }

    /// Returns the group of a flag.
    pub(in super::super) fn of(flag: &str) -> Self {
        let starts_with = |prefixes: &[&str]| prefixes.iter().any(|prefix| flag.starts_with(prefix));
        match flag {
            "color" => Self::Global,
            "api-group-suffix"
            | "enable-concierge"
            | "no-concierge"
            | "expected-identity"
            | "impersonation-delivery" => Self::Concierge,
            "issuer"
            | "flow"
            | "scopes"
            | "listen-port"
            | "request-audience"
            | "session-cache"
            | "refresh-token-store" => Self::Oidc,
            "audience" | "from" => Self::Token,
            "all-contexts"
            | "context"
            | "generated-name-suffix"
            | "install-hint"
            | "merge"
            | "overwrite"
            | "pinniped-cli-path"
            | "portable"
            | "set-current-context" => Self::Kubeconfig,
            _ if starts_with(&["kubeconfig", "check-kubeconfig"]) => Self::Kubeconfig,
            _ if starts_with(&["concierge-"]) => Self::Concierge,
            _ if starts_with(&["oidc-", "upstream-", "client-", "ca-bundle", "skip-browser"]) => Self::Oidc,
            _ if starts_with(&["token", "static-token", "workload-token"]) => Self::Token,
            _ => Self::Command,
        }
    }
}
