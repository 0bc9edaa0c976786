//! The observed state: objects of the cluster, the endpoint, and the kubeconfig. Contains no
//! checks.

use k8s_openapi::api::core::v1::{Secret, Service};
use pinniped_concierge_api::config::{
    CredentialIssuer, CredentialIssuerStrategy, ImpersonationProxySpec, StrategyType,
};
use pinniped_delegation::api::TlsCertificateDelegation;
use pinniped_delegation::grants::SecretReference;
use pinniped_pki::tls::PresentedTls;

use super::logins::LoginEntry;

/// The observed state of an installation.
#[derive(Clone)]
pub(super) struct Observed {
    /// The `CredentialIssuer`.
    pub(super) issuer: CredentialIssuer,
    /// The reason why the user may not read the `CredentialIssuer`, which is then empty.
    pub(super) hidden: Option<String>,
    /// The argument for kubectl: `credentialissuer.config.concierge.SUFFIX/NAME`.
    pub(super) issuer_argument: String,
    /// The namespace of the Concierge.
    pub(super) namespace: ReadResult<String>,
    /// The reason why the aggregated API is unavailable; empty if it is available.
    pub(super) api_trouble: ReadResult<String>,
    /// The pods of the Concierge.
    pub(super) pods: ReadResult<Vec<ObservedPod>>,
    /// The authenticators, and those that are not ready.
    pub(super) authenticators: ReadResult<Authenticators>,
    /// The Services that the Concierge created.
    pub(super) services: ReadResult<Vec<ObservedService>>,
    /// The Secret that the spec names.
    pub(super) secret: Option<ObservedSecret>,
    /// The result of the probe of the advertised endpoint.
    pub(super) endpoint: Option<EndpointProbe>,
    /// Clusters of the kubeconfigs.
    pub(super) entries: Vec<KubeconfigEntry>,
    /// Users of the checked kubeconfig that log in with a service account token.
    pub(super) logins: Vec<LoginEntry>,
}

/// The result of reading something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadResult<T> {
    /// The value.
    Found(T),
    /// It does not exist.
    Missing,
    /// The user may not read it; contains the text of the API server.
    Hidden(String),
    /// The request failed.
    Failed(String),
}

impl<T> ReadResult<T> {
    pub(super) fn found(&self) -> Option<&T> {
        match self {
            Self::Found(found) => Some(found),
            Self::Missing | Self::Hidden(_) | Self::Failed(_) => None,
        }
    }

    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> ReadResult<U> {
        match self {
            Self::Found(found) => ReadResult::Found(change(found)),
            Self::Missing => ReadResult::Missing,
            Self::Hidden(why) => ReadResult::Hidden(why),
            Self::Failed(why) => ReadResult::Failed(why),
        }
    }
}

/// The authenticators, which validate tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Authenticators {
    /// All authenticators: `kind/name`.
    pub(super) names: Vec<String>,
    /// Those that are not ready.
    pub(super) unready: Vec<UnreadyAuthenticator>,
    /// Those whose webhook is a Service in the cluster that no pod serves, or whose Service could
    /// not be read. The Concierge verifies the webhook from time to time only, so they may be ready
    /// nevertheless.
    pub(super) unserved: Vec<UnservedAuthenticator>,
}

/// An authenticator whose webhook is a Service that no pod serves, or that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnservedAuthenticator {
    /// `kind/name`.
    pub(super) name: String,
    /// The namespace of the Service.
    pub(super) namespace: String,
    /// The name of the Service.
    pub(super) service: String,
    /// The state of the Service, as far as it is known.
    pub(super) state: ServiceState,
}

/// The state of a Service that does not serve, or that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ServiceState {
    /// It has no ready endpoint.
    #[default]
    NoEndpoint,
    /// It does not exist.
    Missing,
    /// It could not be read, for this reason.
    Unread(String),
}

/// An authenticator that is not ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnreadyAuthenticator {
    /// `kind/name`.
    pub(super) name: String,
    /// The messages of the conditions that are false.
    pub(super) why: String,
    /// The reason of the first of them; empty if there is none.
    pub(super) reason: String,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedPod {
    pub(super) name: String,
    /// Whether all containers are ready.
    pub(super) ready: bool,
    /// The reason why a container waits, or why no node runs the pod.
    pub(super) waiting: Option<String>,
    /// The number of restarts.
    pub(super) restarts: i32,
    /// The images of the containers.
    pub(super) images: Vec<String>,
}

/// A Service and its endpoints.
#[derive(Clone)]
pub(super) struct ObservedService {
    pub(super) service: Service,
    /// The number of ready endpoints.
    pub(super) ready: ReadResult<usize>,
}

/// The Secret that the spec names.
#[derive(Clone)]
pub(super) struct ObservedSecret {
    pub(super) reference: SecretReference,
    pub(super) secret: ReadResult<Secret>,
    /// The delegations in its namespace, if that differs from the Concierge's.
    pub(super) delegations: Option<ReadResult<Vec<TlsCertificateDelegation>>>,
}

/// The result of the probe of the advertised endpoint.
#[derive(Clone, Debug)]
pub(super) enum EndpointProbe {
    /// The URL is invalid.
    Malformed(String),
    /// No connection.
    Unreachable(String),
    /// A connection, but no certificate.
    NoCertificate(String),
    /// A certificate.
    Connected {
        shown: PresentedTls,
        /// The reason why the system roots do not trust it; only checked if no bundle is
        /// advertised.
        system: Option<String>,
    },
}

/// A cluster entry of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KubeconfigEntry {
    /// The kubeconfig, as messages name it.
    pub(super) file: String,
    /// Whether the user requested the check of this kubeconfig as one for the proxy.
    pub(super) checked: bool,
    /// The name of the cluster.
    pub(super) cluster: String,
    /// The URL of the cluster.
    pub(super) server: String,
    /// The CA certificates in PEM form.
    pub(super) ca: Result<Vec<u8>, Unreadable>,
}

/// A part of a kubeconfig cannot be read. The text is the reason in a finding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unreadable(pub(super) String);

impl Observed {
    /// Returns `spec.impersonationProxy`.
    pub(super) fn proxy(&self) -> Option<&ImpersonationProxySpec> {
        self.issuer.spec.as_ref()?.impersonation_proxy.as_ref()
    }

    /// Returns the strategies of the status.
    pub(super) fn strategies(&self) -> &[CredentialIssuerStrategy] {
        self.issuer.status.as_ref().map_or(&[], |status| &status.strategies)
    }

    /// Returns the strategy of the proxy.
    pub(super) fn proxy_strategy(&self) -> Option<&CredentialIssuerStrategy> {
        self.strategies().iter().find(|strategy| strategy.type_ == StrategyType::ImpersonationProxy)
    }

    /// Returns the namespace for suggested commands.
    pub(super) fn namespace_or_default(&self) -> &str {
        self.namespace.found().map_or(DEFAULT_NAMESPACE, String::as_str)
    }
}

/// The default namespace of the Concierge.
pub(super) const DEFAULT_NAMESPACE: &str = "pinniped-concierge";
