//! The findings of `pinniped doctor`.

use serde::Serialize;

/// The checks, in the order in which they run: the client, the installation, the login, and the
/// user that the cluster authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Check {
    /// The variables and settings that select a proxy.
    ProxyEnvironment,
    /// The credential plugin of the kubeconfig.
    Plugin,
    /// The keyring with the refresh tokens of the plugin.
    Keyring,
    /// The address of the server's name.
    Name,
    /// The connection to the server.
    Connection,
    /// The issuer at which the credential plugin logs in.
    Issuer,
    /// The certificate of the server.
    Certificate,
    /// The clock of this machine.
    Clock,
    /// The objects of the Concierge as a whole.
    Installation,
    /// The pods of the Concierge.
    Pods,
    /// The versions of the programs.
    Versions,
    /// The API for logins.
    Api,
    /// The authenticator that the kubeconfig uses.
    Authenticator,
    /// The webhook of that authenticator.
    Webhook,
    /// The other authenticators.
    OtherAuthenticators,
    /// The Secret with the certificate of the impersonation proxy.
    Secret,
    /// The strategies and conditions of the CredentialIssuer.
    Strategies,
    /// Whether any strategy works.
    AnyStrategy,
    /// The Services of the impersonation proxy.
    Services,
    /// The advertised endpoint of the impersonation proxy.
    Endpoint,
    /// The clusters of kubeconfigs, compared with what the proxy advertises.
    Kubeconfig,
    /// The impersonation fields of kubeconfig users.
    Impersonation,
    /// The login with the kubeconfig.
    Login,
    /// The user that the cluster authenticates.
    WhoAmI,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The check passed.
    Fine(String),
    /// The check failed.
    Problem {
        /// The problem.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// The check found nothing that prevents logins, but an administrator may want to change it.
    Warning {
        /// The observation.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// The check could not be made.
    Unseen {
        /// The subject of the check.
        what: String,
        /// The reason.
        why: String,
    },
}

impl Finding {
    pub(super) fn problem(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Problem { what: what.into(), remedy: remedy.into() }
    }

    pub(super) fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Warning { what: what.into(), remedy: remedy.into() }
    }

    pub(super) fn unseen(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Unseen { what: what.into(), why: why.into() }
    }
}

/// The finding of a check.
pub(super) type Checked = (Check, Finding);

/// Returns the findings as those of one check.
pub(super) fn of(check: Check, findings: Vec<Finding>) -> Vec<Checked> {
    findings.into_iter().map(|finding| (check, finding)).collect()
}

impl From<Checked> for Finding {
    fn from((_, finding): Checked) -> Self {
        finding
    }
}
