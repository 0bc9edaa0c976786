//! What was looked at: objects of the cluster, the endpoint, the kubeconfig. No judgement.

use k8s_openapi::api::core::v1::{Secret, Service};
use pinniped_concierge_api::config::{
    CredentialIssuer, CredentialIssuerStrategy, ImpersonationProxySpec, StrategyType,
};
use pinniped_delegation::api::TlsCertificateDelegation;
use pinniped_delegation::grants::SecretReference;
use pinniped_pki::tls::Shown;

use super::logins::LoginEntry;

/// Everything that could be seen of one installation.
#[derive(Clone)]
pub(super) struct Observed {
    /// The `CredentialIssuer`.
    pub(super) issuer: CredentialIssuer,
    /// `credentialissuer.config.concierge.SUFFIX/NAME`, as kubectl takes it.
    pub(super) issuer_argument: String,
    /// Where the Concierge runs.
    pub(super) namespace: Look<String>,
    /// Why the aggregated API does not answer; empty when it does.
    pub(super) api_trouble: Look<String>,
    /// The authenticators that are not ready, by kind and name, and how many there are.
    pub(super) authenticators: Look<Authenticators>,
    /// The Services that the Concierge made.
    pub(super) services: Look<Vec<ServiceLook>>,
    /// The Secret that the spec names.
    pub(super) secret: Option<SecretLook>,
    /// What answers at the endpoint that is advertised.
    pub(super) endpoint: Option<EndpointLook>,
    /// Clusters of the kubeconfigs that were given.
    pub(super) entries: Vec<KubeconfigEntry>,
    /// Users of the kubeconfig to be checked who log in with a service account's token.
    pub(super) logins: Vec<LoginEntry>,
}

/// What asking for something came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look<T> {
    /// This is it.
    Found(T),
    /// There is none.
    Missing,
    /// It may not be seen; the API server's words.
    Hidden(String),
    /// It could not be asked for.
    Failed(String),
}

impl<T> Look<T> {
    pub(super) fn found(&self) -> Option<&T> {
        match self {
            Self::Found(found) => Some(found),
            Self::Missing | Self::Hidden(_) | Self::Failed(_) => None,
        }
    }

    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Look<U> {
        match self {
            Self::Found(found) => Look::Found(change(found)),
            Self::Missing => Look::Missing,
            Self::Hidden(why) => Look::Hidden(why),
            Self::Failed(why) => Look::Failed(why),
        }
    }
}

/// Who may judge tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Authenticators {
    /// How many there are.
    pub(super) count: usize,
    /// Those that are not ready: `kind/name`, and why.
    pub(super) unready: Vec<(String, String)>,
}

/// A Service, and whether a pod stands behind it.
#[derive(Clone)]
pub(super) struct ServiceLook {
    pub(super) service: Service,
    /// How many of its endpoints are ready.
    pub(super) ready: Look<usize>,
}

/// The Secret that the spec names.
#[derive(Clone)]
pub(super) struct SecretLook {
    pub(super) reference: SecretReference,
    pub(super) secret: Look<Secret>,
    /// Delegations in its namespace, when that is not the Concierge's.
    pub(super) delegations: Option<Look<Vec<TlsCertificateDelegation>>>,
}

/// What answers at the advertised endpoint.
#[derive(Clone, Debug)]
pub(super) enum EndpointLook {
    /// The URL makes no sense.
    Malformed(String),
    /// No connection.
    Unreachable(String),
    /// A connection, but no certificate.
    NoCertificate(String),
    /// A certificate.
    Shown {
        shown: Shown,
        /// Why the system's roots do not vouch for it; asked only when no bundle is advertised.
        system: Option<String>,
    },
}

/// One cluster of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KubeconfigEntry {
    /// The kubeconfig, as it is called in messages.
    pub(super) file: String,
    /// It was given to be checked as one that leads to the proxy.
    pub(super) checked: bool,
    /// The cluster's name.
    pub(super) cluster: String,
    /// Its URL.
    pub(super) server: String,
    /// Its CA certificates, PEM; or why they cannot be read.
    pub(super) ca: Result<Vec<u8>, String>,
}

impl Observed {
    /// `spec.impersonationProxy`.
    pub(super) fn proxy(&self) -> Option<&ImpersonationProxySpec> {
        self.issuer.spec.as_ref()?.impersonation_proxy.as_ref()
    }

    /// The strategies of the status.
    pub(super) fn strategies(&self) -> &[CredentialIssuerStrategy] {
        self.issuer.status.as_ref().map_or(&[], |status| &status.strategies)
    }

    /// The proxy's strategy.
    pub(super) fn proxy_strategy(&self) -> Option<&CredentialIssuerStrategy> {
        self.strategies().iter().find(|strategy| strategy.type_ == StrategyType::ImpersonationProxy)
    }

    /// The namespace for commands that are suggested.
    pub(super) fn namespace_or_default(&self) -> &str {
        self.namespace.found().map_or(DEFAULT_NAMESPACE, String::as_str)
    }
}

/// Where the Concierge runs unless it is known better.
pub(super) const DEFAULT_NAMESPACE: &str = "pinniped-concierge";
