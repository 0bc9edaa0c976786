//! Metrics of logins.

use std::time::Instant;

use pinniped_concierge_api::names::{
    ISSUER_CERTIFICATE_SIGNING_REQUEST, STORE_IMPERSONATION_SIGNER, STORE_KUBE_SIGNER,
};
use pinniped_concierge_authentication::registry::{AuthenticateError, AuthenticatorKey};
use pinniped_concierge_metrics::{AUTHENTICATOR_KINDS, LOGIN_DURATION, LOGINS};
use pinniped_metrics::{ByName, CounterTable, HistogramTable, Metrics};

/// The metrics of all logins of a process. Clones share them.
#[derive(Clone, Debug)]
pub struct LoginMetrics {
    logins: ByName<CounterTable<3>>,
    duration: ByName<HistogramTable<1>>,
}

impl Default for LoginMetrics {
    fn default() -> Self {
        Self { logins: ByName::new(&LOGINS), duration: ByName::new(&LOGIN_DURATION) }
    }
}

/// The result of a login. The order is that of
/// [`LOGIN_RESULTS`](pinniped_concierge_metrics::LOGIN_RESULTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoginResult {
    Issued,
    Rejected,
    AuthenticatorFailed,
    NoAuthenticator,
    IssuerFailed,
    Overloaded,
    Abandoned,
}

impl LoginResult {
    /// Returns the result of a login whose authenticator returned this error.
    pub(super) fn of_error(error: &AuthenticateError) -> Self {
        match error {
            AuthenticateError::InvalidToken(_) => Self::Rejected,
            AuthenticateError::Overloaded(_) => Self::Overloaded,
            AuthenticateError::Failed(_) => Self::AuthenticatorFailed,
        }
    }
}

/// The strategy of a credential. The order is that of
/// [`STRATEGIES`](pinniped_concierge_metrics::STRATEGIES).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    KubeClusterSigningCertificate,
    KubeCertificateSigningRequest,
    ImpersonationProxy,
    ServiceAccountToken,
    None,
}

impl Strategy {
    /// Returns the strategy whose issuer has this name.
    pub(super) fn of_issuer(name: &str) -> Self {
        match name {
            STORE_KUBE_SIGNER => Self::KubeClusterSigningCertificate,
            ISSUER_CERTIFICATE_SIGNING_REQUEST => Self::KubeCertificateSigningRequest,
            STORE_IMPERSONATION_SIGNER => Self::ImpersonationProxy,
            _ => Self::None,
        }
    }
}

impl LoginMetrics {
    /// Registers the metrics.
    pub fn register(&self, metrics: &Metrics) {
        metrics.add(&self.logins);
        metrics.add(&self.duration);
    }

    /// Begins a login with this authenticator; `None` if it does not exist, or is not ready. The
    /// login is recorded when it is dropped.
    pub(super) fn begin(&self, authenticator: Option<&AuthenticatorKey>) -> Login {
        let kind = match authenticator.map(|key| key.kind.as_str()) {
            Some("WebhookAuthenticator") => 0,
            Some("JWTAuthenticator") => 1,
            _ => AUTHENTICATOR_KINDS.len() - 1,
        };
        // A client can request any name, so only those of authenticators that are ready are values.
        let name = authenticator.map_or("", |key| key.name.as_str());
        Login {
            logins: self.logins.of(name),
            duration: self.duration.of(name),
            kind,
            began: Instant::now(),
            result: (LoginResult::Abandoned, Strategy::None),
        }
    }
}

/// A login, which is abandoned unless it has another result.
pub(super) struct Login {
    logins: CounterTable<3>,
    duration: HistogramTable<1>,
    kind: usize,
    began: Instant,
    pub(super) result: (LoginResult, Strategy),
}

impl Drop for Login {
    fn drop(&mut self) {
        let (result, strategy) = self.result;
        self.logins.add([self.kind, strategy as usize, result as usize], 1);
        self.duration.observe([self.kind], self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use pinniped_concierge_metrics::{LOGIN_RESULTS, STRATEGIES};

    use super::*;

    #[test]
    fn strategies_and_results_have_the_order_of_their_labels() {
        for (name, strategy) in [
            (STORE_KUBE_SIGNER, "KubeClusterSigningCertificate"),
            (ISSUER_CERTIFICATE_SIGNING_REQUEST, "KubeCertificateSigningRequest"),
            (STORE_IMPERSONATION_SIGNER, "ImpersonationProxy"),
            ("", "none"),
        ] {
            assert_eq!(STRATEGIES[Strategy::of_issuer(name) as usize].0, strategy);
        }
        assert_eq!(STRATEGIES[Strategy::ServiceAccountToken as usize].0, "ServiceAccountToken");
        for (result, label) in [
            (LoginResult::Issued, "issued"),
            (LoginResult::Rejected, "rejected"),
            (LoginResult::AuthenticatorFailed, "authenticator_failed"),
            (LoginResult::NoAuthenticator, "no_authenticator"),
            (LoginResult::IssuerFailed, "issuer_failed"),
            (LoginResult::Overloaded, "overloaded"),
            (LoginResult::Abandoned, "abandoned"),
        ] {
            assert_eq!(LOGIN_RESULTS[result as usize].0, label);
        }
    }
}
