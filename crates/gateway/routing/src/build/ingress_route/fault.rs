//! The errors of an `IngressRoute`. The texts are those of Contour; the status of the object has
//! the first one.

use pinniped_go_compat::json::quote;

use super::{DEEPEST_DELEGATION, MOST_STEPS};
use crate::{Name, build::secrets::SecretFault};

/// The reason why an object, or a part of it, is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("Spec cannot be read: {0}")]
    Unreadable(String),
    #[error("field \"{0}\" is not supported")]
    UnsupportedField(String),
    #[error("root IngressRoute cannot be defined in this namespace")]
    RootNamespace,
    #[error("Spec.VirtualHost.Fqdn must be specified")]
    NoHost,
    #[error("Spec.VirtualHost.Fqdn {} cannot use wildcards", quote(.0))]
    WildcardHost(String),
    /// The text names the object that owns the host.
    #[error("{0}")]
    HostOfAnotherNamespace(String),
    #[error("fqdn {} is used in multiple IngressRoutes: {objects}", quote(.host))]
    HostOfSeveralObjects { host: String, objects: String },
    #[error("Spec.VirtualHost.TLS Secret {} certificate delegation not permitted", quote(.0))]
    CertificateNotDelegated(String),
    #[error("Spec.VirtualHost.TLS Secret {} is invalid: {source}", quote(.secret))]
    Certificate { secret: String, source: SecretFault },
    #[error("Spec.Virtualhost.TLS the minimum protocol version is greater than the maximum protocol version")]
    TlsVersions,
    #[error("root ingressroute cannot delegate to another root ingressroute")]
    DelegationToRoot,
    #[error("{what} creates a delegation cycle: {path}")]
    DelegationCycle { what: &'static str, path: String },
    #[error("{what} delegates to {name} inside more than {DEEPEST_DELEGATION} others")]
    DelegationTooDeep { what: &'static str, name: Name },
    #[error("delegations come to more than {MOST_STEPS} routes")]
    TooManyRoutes,
    #[error("route {}: cannot specify services and delegate in the same route", quote(.prefix))]
    ServicesAndDelegate { prefix: String },
    #[error("the path prefix {} does not match the parent's path prefix {}", quote(.prefix), quote(.parent))]
    OtherPrefix { prefix: String, parent: String },
    #[error(
        "route {}: service {}: port must be in the range 1-65535",
        quote(.prefix),
        quote(.service)
    )]
    ServicePort { prefix: String, service: String },
    #[error("Service [{name}:{port}] is invalid or missing")]
    Service { name: String, port: i64 },
    #[error("tcpproxy: cannot specify services and delegate in the same tcpproxy")]
    TcpServicesAndDelegate,
    #[error("tcpproxy: service {namespace}/{name}/{port}: not found")]
    TcpService { namespace: String, name: String, port: i64 },
    #[error("Service [{name}:{port}] TLS upstream validation policy error: {source}")]
    UpstreamValidation { name: String, port: i64, source: ValidationFault },
    #[error("tls.envoy-client-certificate Secret {} is invalid: {source}", quote(.secret))]
    ClientCertificate { secret: String, source: SecretFault },
}

/// The reason why the certificate of a backend cannot be verified.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValidationFault {
    #[error("certificate delegation not permitted")]
    NotDelegated,
    #[error(transparent)]
    Secret(SecretFault),
    #[error("missing subject alternative name")]
    NoName,
}
