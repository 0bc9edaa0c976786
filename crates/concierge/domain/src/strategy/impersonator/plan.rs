//! What is to be done, in order, and what the status says when it is done.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use super::world::ObjectId;
use crate::strategy::certificate_names::CertificateNames;
use crate::strategy::service::Balancing;
use crate::strategy::validation::Told;

/// Why the generated serving certificate is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The proxy is not wanted.
    NotWanted,
    /// An external certificate has taken over.
    Replaced,
    /// It is not PEM.
    NotPem,
    /// It is no certificate.
    NotX509(String),
    /// It has no matching key.
    BadKey(String),
    /// It does not verify with the CA, or has expired.
    Untrusted,
    /// The Service has lost its address.
    NamesPending,
    /// It is for other names.
    NamesDiffer,
    /// Most of its life is over.
    Due,
}

impl Removal {
    /// What comes before the error when the deletion fails, as upstream words it.
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

/// Something worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// What the nodes said.
    ControlPlaneNodes(bool),
    /// The load balancer has no address yet.
    WaitingForIngress,
    /// The names of the certificate that exists were compared.
    CheckedNames {
        /// What is wanted.
        desired: CertificateNames,
        /// The certificate's addresses.
        actual_ips: Vec<IpAddr>,
        /// The certificate's DNS names.
        actual_hostnames: Vec<String>,
    },
    /// An external Secret is configured.
    UsingExternal {
        /// As written in the spec.
        secret_name: String,
    },
    /// It does not exist.
    ExternalNotFound {
        /// As written in the spec.
        secret_name: String,
    },
    /// It exists.
    ExternalFound {
        /// As written in the spec.
        secret_name: String,
    },
    /// It has a `ca.crt`.
    ExternalCaCrt {
        /// As written in the spec.
        secret_name: String,
        /// The bytes.
        ca_crt: Vec<u8>,
    },
    /// Its `ca.crt` is no PEM.
    ExternalCaCrtNotPem,
    /// The bundle of the spec is advertised.
    AdvertisesConfigured {
        /// The bundle, decoded.
        pem: Vec<u8>,
    },
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Say something, if it has not just been said.
    Log(Note),
    /// Start this process's proxy.
    StartProxy,
    /// Stop it, in the background.
    StopProxy,
    /// It has ended by itself: let go of it.
    ForgetProxy,
    /// Create a Service.
    CreateService(Balancing, Box<Service>),
    /// Patch a Service (JSON merge patch).
    UpdateService(Balancing, Value),
    /// Delete a Service, exactly this state of it.
    DeleteService(Balancing, ObjectId),
    /// Make a CA and its Secret.
    CreateCa,
    /// Delete the Secret of the generated serving certificate, exactly this state of it.
    DeleteServing(ObjectId, Removal),
    /// Issue a serving certificate with the generated CA, make its Secret, and serve it.
    CreateServing(CertificateNames),
    /// Serve the certificate of the generated Secret.
    LoadServing,
    /// Serve the certificate of the Secret that the spec names.
    LoadExternal,
    /// Serve no certificate.
    ClearServing,
    /// Serve no certificate although the proxy runs: what was served may not be used any more.
    RefuseServing,
    /// Sign, and verify, with the CA of the signer's Secret.
    LoadSigner,
    /// Sign with nothing.
    ClearSigner,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Log(_) => f.write_str("log"),
            Self::StartProxy => f.write_str("start proxy"),
            Self::StopProxy => f.write_str("stop proxy"),
            Self::ForgetProxy => f.write_str("forget proxy"),
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

/// The bundle that clients are told to verify with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bundle {
    /// The generated CA: the one observed, or the one that [`Step::CreateCa`] has just made.
    Generated,
    /// This PEM, which may be empty.
    Pem(Vec<u8>),
}

/// What the status will say if all steps succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The `CredentialIssuer` does not exist: nobody to tell.
    NoCredentialIssuer(String),
    /// Switched off, with the message.
    Disabled(&'static str),
    /// Waiting for an address.
    Pending,
    /// Serving.
    Listening {
        /// `https://…`
        endpoint: String,
        /// What clients verify with.
        bundle: Bundle,
    },
    /// Something is wrong; the text is Go's or ours and goes into the status.
    Failed(String),
}

/// Steps, then a verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// To be done in this order.
    pub steps: Vec<Step>,
    /// For the status.
    pub verdict: Verdict,
    /// Whether this process's proxy should be running.
    pub wanted: Option<bool>,
    /// Look again after this long, if nothing happens before.
    pub recheck_after: Option<Duration>,
    /// What there is to say about an external certificate.
    pub told: Told,
}

impl Plan {
    /// The steps that do something, one after another, for the log and for tests.
    pub fn summary(&self) -> Vec<String> {
        self.steps.iter().filter(|step| !matches!(step, Step::Log(_))).map(ToString::to_string).collect()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.steps.iter().all(|step| matches!(step, Step::Log(_)))
    }
}
