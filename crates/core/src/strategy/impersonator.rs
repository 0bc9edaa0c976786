//! What has to happen so that the impersonation proxy is as the `CredentialIssuer` wants it.
//!
//! [`decide`] looks at one snapshot and answers with steps in the order in which they are to be taken, and a verdict
//! for the status that holds if all of them succeed. The first step that fails ends the pass and its error becomes the
//! verdict; nothing is rolled back. Steps that swap what this process serves come in every replica; steps that write
//! to the API server are the leader's. The same world seen twice needs nothing but [`Step::Log`].
//!
//! Follows upstream's `impersonatorconfig` controller, with these differences: a generated certificate is deleted only
//! after the external one is loaded; names are not worked out for a proxy that is not wanted; a Secret of ours that the
//! spec names as external is refused, and never deleted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use pinniped_api::config::CredentialIssuerSpec;
use pinniped_api::gojson::quote;
use serde_json::Value;

use super::certificate_names::{CertificateNames, NameInfo, certificate_names};
use super::service::{self, Balancing};
use super::spec::{ExternalTls, Mode, ProxyConfig, ServiceKind};
use super::{external, status};

/// What stays the same for the life of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The namespace of all objects named here.
    pub namespace: String,
    /// Put on every object; the one called `app` also selects the Concierge's pods.
    pub labels: BTreeMap<String, String>,
    /// The port the proxy listens on.
    pub port: u16,
    /// The `CredentialIssuer`.
    pub credential_issuer: String,
    /// Group of the `CredentialIssuer`, for messages.
    pub credential_issuer_group: String,
    /// The Service of type `LoadBalancer`.
    pub load_balancer_service: String,
    /// The Service of type `ClusterIP`.
    pub cluster_ip_service: String,
    /// The Secret of the generated serving certificate.
    pub tls_secret: String,
    /// The Secret of its CA.
    pub ca_secret: String,
    /// The Secret of the CA that signs client certificates.
    pub signer_secret: String,
}

/// A certain state of a certain object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Its UID.
    pub uid: String,
    /// Its resource version.
    pub resource_version: String,
}

/// What the nodes say about the kind of cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Not asked for; enough unless the mode is `auto`.
    Unknown,
    /// A node carries a label of the control plane.
    ControlPlane,
    /// There are only workers.
    WorkersOnly,
    /// They could not be listed, or there are none.
    Failed(String),
}

/// This process's proxy server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyState {
    /// Not running.
    Stopped,
    /// Running.
    Running,
    /// It ended without being asked to, with or without an error.
    Ended(Option<String>),
}

/// The Secret of the generated CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaSecret {
    /// There is none.
    Missing,
    /// It does not hold a CA; why, in Go's words.
    Broken(String),
    /// It holds a CA.
    Usable,
}

/// The Secret of the generated serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingSecret {
    /// There is none.
    Missing,
    /// There is one.
    Present(ObjectId, Finding),
}

/// What is in the Secret of the generated serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// No PEM block.
    NotPem,
    /// A PEM block that is no certificate.
    NotX509(String),
    /// No key, or one of another certificate.
    BadKey(String),
    /// A certificate that does not verify with the CA that was observed.
    Untrusted(String),
    /// A usable certificate.
    Leaf {
        /// Its addresses, in order.
        ips: Vec<IpAddr>,
        /// Its DNS names, in order.
        dns_names: Vec<String>,
        /// The end of its life.
        not_after: Timestamp,
    },
}

/// The Secret that the spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalSecret {
    /// Its state.
    pub id: ObjectId,
    /// Its `ca.crt`; empty when missing.
    pub ca_crt: Vec<u8>,
}

/// What this process has taken from Secrets into memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The Secret of the serving certificate.
    pub serving: Option<ObjectId>,
    /// The Secret of the signer.
    pub signer: Option<ObjectId>,
}

/// One snapshot of the world.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Names and such.
    pub settings: Arc<Settings>,
    /// The `CredentialIssuer`: `None` when it does not exist, else its spec.
    pub credential_issuer: Option<Option<CredentialIssuerSpec>>,
    /// The nodes, see [`needs_nodes`].
    pub nodes: Nodes,
    /// This process's proxy.
    pub proxy: ProxyState,
    /// The Service of type `LoadBalancer`.
    pub load_balancer: Option<Arc<Service>>,
    /// The Service of type `ClusterIP`.
    pub cluster_ip: Option<Arc<Service>>,
    /// The generated CA.
    pub ca: CaSecret,
    /// The generated serving certificate.
    pub serving: ServingSecret,
    /// The Secret named by the spec, see [`external_secret`].
    pub external: Option<ExternalSecret>,
    /// The signer's Secret.
    pub signer: Option<ObjectId>,
    /// What is in memory.
    pub loaded: Loaded,
}

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
}

impl Removal {
    /// What comes before the error when the deletion fails, as upstream words it.
    pub fn failure_prefix(&self, secret: &str) -> String {
        match self {
            Self::NotPem => "found missing or not PEM-encoded data in TLS Secret, but got error while deleting it: ".into(),
            Self::NotX509(_) => "PEM data represented an invalid cert, but got error while deleting it: ".into(),
            Self::BadKey(_) => "cert had an invalid private key, but got error while deleting it: ".into(),
            Self::Replaced => format!("unable to remove generated TLS secret with name {secret}: "),
            Self::NotWanted | Self::Untrusted | Self::NamesPending | Self::NamesDiffer => String::new(),
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
            Self::CreateServing(CertificateNames { hostname: Some(name), .. }) => write!(f, "create TLS for {name}"),
            Self::CreateServing(CertificateNames { ips, .. }) => write!(f, "create TLS for {ips:?}"),
            Self::LoadServing => f.write_str("load TLS"),
            Self::LoadExternal => f.write_str("load external TLS"),
            Self::ClearServing => f.write_str("clear TLS"),
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

/// Whether the nodes have to be listed for this spec: only mode `auto` asks.
pub fn needs_nodes(spec: Option<&CredentialIssuerSpec>) -> bool {
    ProxyConfig::parse(spec).is_ok_and(|config| config.mode == Mode::Auto)
}

/// The Secret in the own namespace that this spec names, if any.
pub fn external_secret<'a>(spec: Option<&'a CredentialIssuerSpec>, namespace: &str) -> Option<&'a str> {
    let tls = spec?.impersonation_proxy.as_ref()?.tls.as_ref()?;
    tls.secret_name.as_deref().map(|name| external::local_name(name, namespace)).filter(|name| !name.is_empty())
}

/// Decides.
pub fn decide(observed: &Observed, now: Timestamp) -> Plan {
    let mut pass = Pass { observed, now, steps: Vec::new(), wanted: None, recheck_after: None };
    let verdict = match &observed.credential_issuer {
        Some(spec) => pass.run(spec.as_ref()).unwrap_or_else(Verdict::Failed),
        None => Verdict::NoCredentialIssuer(format!(
            "could not get CredentialIssuer to update: credentialissuer.{} {} not found",
            observed.settings.credential_issuer_group,
            quote(&observed.settings.credential_issuer),
        )),
    };
    Plan { steps: pass.steps, verdict, wanted: pass.wanted, recheck_after: pass.recheck_after }
}

struct Pass<'a> {
    observed: &'a Observed,
    now: Timestamp,
    steps: Vec<Step>,
    wanted: Option<bool>,
    recheck_after: Option<Duration>,
}

impl Pass<'_> {
    fn run(&mut self, spec: Option<&CredentialIssuerSpec>) -> Result<Verdict, String> {
        let config = ProxyConfig::parse(spec).map_err(|error| error.to_string())?;
        let wanted = self.wanted(config.mode)?;
        self.wanted = Some(wanted);
        self.proxy(wanted)?;
        self.service(Balancing::LoadBalancer, wanted && config.service == ServiceKind::LoadBalancer, &config);
        self.service(Balancing::ClusterIp, wanted && config.service == ServiceKind::ClusterIp, &config);
        if !wanted {
            self.clear(&config);
            return Ok(Verdict::Disabled(match config.mode {
                Mode::Disabled => status::DISABLED,
                Mode::Auto | Mode::Enabled => status::AUTO_DISABLED,
            }));
        }
        let observed = self.observed;
        let names =
            certificate_names(&config, observed.load_balancer.as_deref(), observed.cluster_ip.as_deref())?;
        if names == NameInfo::Pending && config.service == ServiceKind::LoadBalancer {
            self.log(Note::WaitingForIngress);
        }
        let bundle = match &config.tls {
            Some(tls) => self.external(tls)?,
            None => self.generated(&names)?,
        };
        self.signer()?;
        Ok(match names {
            NameInfo::Pending => Verdict::Pending,
            NameInfo::Ready(names) => Verdict::Listening { endpoint: names.endpoint, bundle },
        })
    }

    fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    fn log(&mut self, note: Note) {
        self.steps.push(Step::Log(note));
    }

    fn wanted(&mut self, mode: Mode) -> Result<bool, String> {
        match (mode, &self.observed.nodes) {
            (Mode::Enabled, _) => Ok(true),
            (Mode::Disabled, _) => Ok(false),
            (Mode::Auto, Nodes::ControlPlane) => {
                self.log(Note::ControlPlaneNodes(true));
                Ok(false)
            }
            (Mode::Auto, Nodes::WorkersOnly) => {
                self.log(Note::ControlPlaneNodes(false));
                Ok(true)
            }
            (Mode::Auto, Nodes::Failed(error)) => Err(error.clone()),
            (Mode::Auto, Nodes::Unknown) => Err("the nodes have not been listed yet".to_owned()),
        }
    }

    fn proxy(&mut self, wanted: bool) -> Result<(), String> {
        match (&self.observed.proxy, wanted) {
            (ProxyState::Running, true) | (ProxyState::Stopped, false) => {}
            (ProxyState::Stopped, true) => self.step(Step::StartProxy),
            (ProxyState::Running, false) => self.step(Step::StopProxy),
            (ProxyState::Ended(error), true) => {
                // Told once; the pass that follows starts a new one.
                self.step(Step::ForgetProxy);
                return Err(error.clone().unwrap_or_else(|| "unexpected shutdown of proxy server".to_owned()));
            }
            (ProxyState::Ended(_), false) => self.step(Step::ForgetProxy),
        }
        Ok(())
    }

    fn service(&mut self, kind: Balancing, wanted: bool, config: &ProxyConfig) {
        let settings = &self.observed.settings;
        let (name, existing) = match kind {
            Balancing::LoadBalancer => (&settings.load_balancer_service, &self.observed.load_balancer),
            Balancing::ClusterIp => (&settings.cluster_ip_service, &self.observed.cluster_ip),
        };
        if !wanted {
            if let Some(existing) = existing {
                let id = ObjectId {
                    uid: existing.metadata.uid.clone().unwrap_or_default(),
                    resource_version: existing.metadata.resource_version.clone().unwrap_or_default(),
                };
                self.step(Step::DeleteService(kind, id));
            }
            return;
        }
        let desired =
            service::desired(kind, name, &settings.namespace, &settings.labels, settings.port, config);
        match existing {
            None => self.step(Step::CreateService(kind, Box::new(desired))),
            Some(existing) => {
                if let Some(patch) = service::patch(existing, &desired) {
                    self.step(Step::UpdateService(kind, patch));
                }
            }
        }
    }

    /// The proxy is not wanted: nothing generated is left but the CA, which is in users' kubeconfigs.
    fn clear(&mut self, config: &ProxyConfig) {
        let spares = config.tls.as_ref().is_some_and(|tls| external::is_own(&tls.secret_name, &self.observed.settings));
        if let (ServingSecret::Present(id, _), false) = (&self.observed.serving, spares) {
            self.step(Step::DeleteServing(id.clone(), Removal::NotWanted));
        }
        if self.observed.loaded.serving.is_some() {
            self.step(Step::ClearServing);
        }
        if self.observed.loaded.signer.is_some() {
            self.step(Step::ClearSigner);
        }
    }

    fn generated(&mut self, names: &NameInfo) -> Result<Bundle, String> {
        match &self.observed.ca {
            CaSecret::Missing => self.step(Step::CreateCa),
            CaSecret::Usable => {}
            CaSecret::Broken(error) => {
                let secret = quote(&self.observed.settings.ca_secret);
                return Err(format!("{error}: delete secret {secret} to have a new CA made"));
            }
        }
        let removal = match &self.observed.serving {
            ServingSecret::Missing => None,
            ServingSecret::Present(id, finding) => match self.judge(finding, names) {
                Some(removal) => Some((id, removal)),
                None => {
                    if self.observed.loaded.serving.as_ref() != Some(id) {
                        self.step(Step::LoadServing);
                    }
                    return Ok(Bundle::Generated);
                }
            },
        };
        if let Some((id, removal)) = removal {
            self.step(Step::DeleteServing(id.clone(), removal));
        }
        if let NameInfo::Ready(names) = names {
            self.step(Step::CreateServing(names.clone()));
        }
        Ok(Bundle::Generated)
    }

    /// Why the certificate that exists cannot be used, if so.
    fn judge(&mut self, finding: &Finding, names: &NameInfo) -> Option<Removal> {
        match finding {
            Finding::NotPem => Some(Removal::NotPem),
            Finding::NotX509(error) => Some(Removal::NotX509(error.clone())),
            Finding::BadKey(error) => Some(Removal::BadKey(error.clone())),
            Finding::Untrusted(_) => Some(Removal::Untrusted),
            // The CA is about to be replaced by a new one.
            Finding::Leaf { .. } if self.observed.ca == CaSecret::Missing => Some(Removal::Untrusted),
            Finding::Leaf { not_after, .. } if *not_after < self.now => Some(Removal::Untrusted),
            Finding::Leaf { ips, dns_names, not_after } => {
                let NameInfo::Ready(names) = names else { return Some(Removal::NamesPending) };
                self.log(Note::CheckedNames {
                    desired: names.clone(),
                    actual_ips: ips.clone(),
                    actual_hostnames: dns_names.clone(),
                });
                if !names.match_certificate(ips, dns_names) {
                    return Some(Removal::NamesDiffer);
                }
                self.recheck_after = Duration::try_from(not_after.duration_since(self.now)).ok();
                None
            }
        }
    }

    fn external(&mut self, tls: &ExternalTls) -> Result<Bundle, String> {
        let settings = &self.observed.settings;
        let name = tls.secret_name.clone();
        if name.is_empty() {
            return Err("must provide impersonationSpec.TLS.secretName if impersonationSpec.TLS is provided".to_owned());
        }
        if external::is_own(&name, settings) {
            return Err("impersonationSpec.TLS.secretName must not be the name of the Secret managed by this controller"
                .to_owned());
        }
        self.log(Note::UsingExternal { secret_name: name.clone() });
        let Some(secret) = &self.observed.external else {
            let local = quote(external::local_name(&name, &settings.namespace));
            self.log(Note::ExternalNotFound { secret_name: name });
            return Err(format!("{EXTERNAL_FAILED}: secret {local} not found"));
        };
        self.log(Note::ExternalFound { secret_name: name.clone() });
        if self.observed.loaded.serving.as_ref() != Some(&secret.id) {
            self.step(Step::LoadExternal);
        }
        let mut bundle = Vec::new();
        if !secret.ca_crt.is_empty() {
            self.log(Note::ExternalCaCrt { secret_name: name, ca_crt: secret.ca_crt.clone() });
            if !external::has_pem_block(&secret.ca_crt) {
                self.log(Note::ExternalCaCrtNotPem);
                return Err(format!(
                    "{EXTERNAL_FAILED}: unable to read provided ca.crt: {}",
                    external::NOT_A_CERTIFICATE
                ));
            }
            bundle.clone_from(&secret.ca_crt);
        }
        if !tls.certificate_authority_data.is_empty() {
            let failed = |error: &dyn std::fmt::Display| {
                format!("could not decode impersonationSpec.TLS.certificateAuthorityData: {error}")
            };
            bundle = external::decode_base64(&tls.certificate_authority_data)
                .map_err(|at| failed(&format_args!("illegal base64 data at input byte {at}")))?;
            if !external::has_pem_block(&bundle) {
                return Err(failed(&external::NOT_A_CERTIFICATE));
            }
            self.log(Note::AdvertisesConfigured { pem: bundle.clone() });
        }
        // Last, when the external certificate is known to be usable.
        if let ServingSecret::Present(id, _) = &self.observed.serving {
            self.step(Step::DeleteServing(id.clone(), Removal::Replaced));
        }
        Ok(Bundle::Pem(bundle))
    }

    fn signer(&mut self) -> Result<(), String> {
        match &self.observed.signer {
            None => {
                let secret = quote(&self.observed.settings.signer_secret);
                Err(format!("{SIGNER_MISSING}: secret {secret} not found"))
            }
            Some(id) if self.observed.loaded.signer.as_ref() == Some(id) => Ok(()),
            Some(_) => {
                self.step(Step::LoadSigner);
                Ok(())
            }
        }
    }
}

/// Begins every error about the Secret that the spec names.
pub const EXTERNAL_FAILED: &str =
    "could not load the externally provided TLS secret for the impersonation proxy";

/// Begins the error about a signer's Secret that does not exist.
const SIGNER_MISSING: &str = "could not load the impersonator's credential signing secret";

/// Begins the error about a signer's Secret with bad content.
pub const SIGNER_FAILED: &str = "could not set the impersonator's credential signing secret";

#[cfg(test)]
mod tests;
