//! The plan of a pass: the steps to apply, in order, and the status that holds afterwards.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use super::error::ProxyError;
use super::observed::ObjectId;
use crate::credential_issuer::MissingCredentialIssuer;
use crate::strategy::certificate_names::CertificateNames;
use crate::strategy::certificate_validation::ValidationReport;
use crate::strategy::service::ServiceType;

/// The reason for deleting the generated serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The proxy is not wanted.
    NotWanted,
    /// An external certificate replaces it.
    Replaced,
    /// It is not PEM.
    NotPem,
    /// It is not a certificate.
    NotX509(String),
    /// It has no matching key.
    BadKey(String),
    /// It does not verify with the CA, or has expired.
    Untrusted,
    /// The Service has lost its address.
    NamesPending,
    /// It has other names than the wanted ones.
    NamesDiffer,
    /// It has reached the age at which it is renewed.
    Due,
}

impl Removal {
    /// Returns the prefix of the error if the deletion fails, with upstream's text.
    pub fn failure_prefix(&self, secret: &str) -> String {
        match self {
            Self::NotPem => {
                "found missing or not PEM-encoded data in TLS Secret, but got error while deleting it: "
                    .into()
            }
            Self::NotX509(_) => {
                "PEM data represented an invalid cert, but got error while deleting it: ".into()
            }
            Self::BadKey(_) => "cert had an invalid private key, but got error while deleting it: ".into(),
            Self::Replaced => format!("unable to remove generated TLS secret with name {secret}: "),
            Self::NotWanted | Self::Untrusted | Self::NamesPending | Self::NamesDiffer | Self::Due => {
                String::new()
            }
        }
    }
}

impl std::fmt::Display for Removal {
    /// Formats the reason for an Event. Errors of the content are not part of it, because the
    /// content may be a key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotWanted => "the impersonation proxy is not wanted",
            Self::Replaced => "an external certificate replaces it",
            Self::NotPem => "it was not PEM",
            Self::NotX509(_) => "it was not a certificate",
            Self::BadKey(_) => "it had no matching key",
            Self::Untrusted => "it did not verify with the CA, or had expired",
            Self::NamesPending => "the address for clients is not known",
            Self::NamesDiffer => "the names or addresses for clients have changed",
            Self::Due => "it was due for renewal",
        })
    }
}

/// An event to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// The result of checking the nodes for a control plane.
    ControlPlaneNodes(bool),
    /// The load balancer has no address yet.
    WaitingForIngress,
    /// The names of the existing certificate were compared.
    CheckedNames {
        /// The wanted names.
        desired: CertificateNames,
        /// IP addresses of the certificate.
        actual_ips: Vec<IpAddr>,
        /// DNS names of the certificate.
        actual_hostnames: Vec<String>,
    },
    /// An external Secret is configured.
    UsingExternal {
        /// Name of the Secret as in the spec.
        secret_name: String,
    },
    /// The external Secret does not exist.
    ExternalNotFound {
        /// Name of the Secret as in the spec.
        secret_name: String,
    },
    /// The external Secret exists.
    ExternalFound {
        /// Name of the Secret as in the spec.
        secret_name: String,
    },
    /// The external Secret has a `ca.crt`.
    ExternalCaCrt {
        /// Name of the Secret as in the spec.
        secret_name: String,
        /// The content of `ca.crt`.
        ca_crt: Vec<u8>,
    },
    /// The `ca.crt` of the external Secret is not PEM.
    ExternalCaCrtNotPem,
    /// The bundle of the spec is advertised.
    AdvertisesConfigured {
        /// The bundle, decoded.
        pem: Vec<u8>,
    },
}

/// One step to apply.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Log an event, unless the same event was the last one of its kind.
    Log(LogEvent),
    /// Start the proxy of this process.
    StartProxy,
    /// Stop the proxy in the background.
    StopProxy,
    /// Drop the handle of a proxy that terminated unexpectedly.
    DropProxy,
    /// Create a Service.
    CreateService(ServiceType, Box<Service>),
    /// Patch a Service (JSON merge patch).
    UpdateService(ServiceType, Value),
    /// Delete a Service in exactly this state.
    DeleteService(ServiceType, ObjectId),
    /// Create a CA and its Secret.
    CreateCa,
    /// Delete the Secret of the generated serving certificate in exactly this state.
    DeleteServing(ObjectId, Removal),
    /// Issue a serving certificate with the generated CA, create its Secret, and serve it.
    CreateServing(CertificateNames),
    /// Serve the certificate of the generated Secret.
    LoadServing,
    /// Serve the certificate of the Secret that the spec names.
    LoadExternal,
    /// Stop serving a certificate.
    ClearServing,
    /// Refuse handshakes although the proxy runs, because the loaded certificate may not be used
    /// any longer.
    RefuseServing,
    /// Sign and verify with the CA of the signer's Secret.
    LoadSigner,
    /// Stop signing.
    ClearSigner,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Log(_) => f.write_str("log"),
            Self::StartProxy => f.write_str("start proxy"),
            Self::StopProxy => f.write_str("stop proxy"),
            Self::DropProxy => f.write_str("drop proxy"),
            Self::CreateService(kind, _) => write!(f, "create {} Service", kind.as_str()),
            Self::UpdateService(kind, _) => write!(f, "update {} Service", kind.as_str()),
            Self::DeleteService(kind, _) => write!(f, "delete {} Service", kind.as_str()),
            Self::CreateCa => f.write_str("create CA"),
            Self::DeleteServing(..) => f.write_str("delete TLS"),
            Self::CreateServing(CertificateNames { hostname: Some(name), .. }) => {
                write!(f, "create TLS for {name}")
            }
            Self::CreateServing(CertificateNames { ips, .. }) => write!(f, "create TLS for {ips:?}"),
            Self::LoadServing => f.write_str("load TLS"),
            Self::LoadExternal => f.write_str("load external TLS"),
            Self::ClearServing => f.write_str("clear TLS"),
            Self::RefuseServing => f.write_str("refuse TLS"),
            Self::LoadSigner => f.write_str("load signer"),
            Self::ClearSigner => f.write_str("clear signer"),
        }
    }
}

/// The bundle that clients verify with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bundle {
    /// The generated CA: the observed one, or the one that [`Step::CreateCa`] created.
    Generated,
    /// This PEM, which may be empty.
    Pem(Vec<u8>),
}

/// The status if all steps succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyStatus {
    /// The `CredentialIssuer` does not exist, so there is no status to write.
    NoCredentialIssuer(MissingCredentialIssuer),
    /// The proxy is disabled; the text is the message.
    Disabled(&'static str),
    /// The proxy waits for an address.
    Pending,
    /// The proxy serves requests.
    Listening {
        /// `https://…`
        endpoint: String,
        /// The bundle that clients verify with.
        bundle: Bundle,
    },
    /// An error occurred; its text becomes the message of the status.
    Failed(ProxyError),
}

/// The steps of a pass and the resulting status.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The steps, in the order in which to apply them.
    pub steps: Vec<Step>,
    /// The status if all steps succeed; [`conclude`](super::conclude) decides the final one.
    pub status: ProxyStatus,
    /// Whether the proxy of this process should run; `None` if that could not be decided.
    pub should_run: Option<bool>,
    /// Time after which to run the next pass if no event occurs before.
    pub recheck_after: Option<Duration>,
    /// The result of checking an external certificate.
    pub validation: ValidationReport,
}

impl Plan {
    /// Returns the steps that have an effect as text, for the log and for tests.
    pub fn summary(&self) -> Vec<String> {
        self.steps.iter().filter(|step| !matches!(step, Step::Log(_))).map(ToString::to_string).collect()
    }

    /// Returns whether no step has an effect.
    pub fn is_idle(&self) -> bool {
        self.steps.iter().all(|step| matches!(step, Step::Log(_)))
    }
}
