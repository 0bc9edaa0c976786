//! Decides the steps that bring the impersonation proxy to the state that the `CredentialIssuer`
//! specifies.
//!
//! [`decide`] takes one observation and returns steps in the order in which to apply them, and a
//! decision for the status that holds if all steps succeed. The first step that fails ends the
//! pass, and its error becomes the status; nothing is rolled back. Every replica applies the steps
//! that change what it serves; only the leader applies the steps that write to the API server. Once
//! all steps are applied, the next pass has only [`Step::Log`] steps.
//!
//! Follows upstream's `impersonatorconfig` controller, with these differences: a generated
//! certificate is deleted only after the external one is loaded; names are not determined for a
//! proxy that is not wanted; a Secret of the Concierge that the spec names as external is refused
//! and never deleted; and an external certificate is checked for whether it works for clients.

use std::time::Duration;

use jiff::Timestamp;
use pinniped_concierge_api::config::CredentialIssuerSpec;
use pinniped_go_compat::json::quote;

use super::certificate_names::{NameInfo, certificate_names};
use super::service::{self, Balancing};
use super::spec::{ExternalTls, Mode, ProxyConfig, ServiceKind};
use super::validation::{self, Expected, ValidationReport};
use super::{external, status};
use crate::renewal;
use pinniped_delegation::grants::SecretReference;

mod delegated;
mod plan;
mod world;

pub use delegated::{Delegated, Permission, external_reference};
pub use plan::{Bundle, Note, Plan, Removal, Step, Verdict};
pub use world::{
    CaSecret, ExternalSecret, Finding, Loaded, Nodes, ObjectId, Observed, ProxyState, ServingSecret, Settings,
};

/// Returns whether the nodes must be listed for this spec: only mode `auto` depends on them.
pub fn needs_nodes(spec: Option<&CredentialIssuerSpec>) -> bool {
    ProxyConfig::parse(spec).is_ok_and(|config| config.mode == Mode::Auto)
}

/// Decides the steps and the status for one observation.
pub fn decide(observed: &Observed, now: Timestamp) -> Plan {
    let has_tls = observed.credential_issuer.as_ref().is_some_and(|spec| {
        let proxy = spec.as_ref().and_then(|spec| spec.impersonation_proxy.as_ref());
        proxy.is_some_and(|proxy| proxy.tls.is_some())
    });
    let told = if has_tls { not_checked(NOT_LOADED) } else { ValidationReport::Nothing };
    let mut pass = Pass { observed, now, steps: Vec::new(), wanted: None, recheck_after: None, told };
    let verdict = match &observed.credential_issuer {
        Some(spec) => pass.run(spec.as_ref()).unwrap_or_else(Verdict::Failed),
        None => Verdict::NoCredentialIssuer(format!(
            "could not get CredentialIssuer to update: credentialissuer.{} {} not found",
            observed.settings.credential_issuer_group,
            quote(&observed.settings.credential_issuer),
        )),
    };
    if delegated::must_refuse(observed, &pass.steps) {
        // This step is the first one so that no other step can fail before it, and it replaces the
        // steps that clear the certificate.
        pass.steps.retain(|step| *step != Step::ClearServing);
        pass.steps.insert(0, Step::RefuseServing);
    }
    Plan {
        steps: pass.steps,
        verdict,
        wanted: pass.wanted,
        recheck_after: pass.recheck_after,
        told: pass.told,
    }
}

struct Pass<'a> {
    observed: &'a Observed,
    now: Timestamp,
    steps: Vec<Step>,
    wanted: Option<bool>,
    recheck_after: Option<Duration>,
    told: ValidationReport,
}

impl Pass<'_> {
    fn run(&mut self, spec: Option<&CredentialIssuerSpec>) -> Result<Verdict, String> {
        let config = ProxyConfig::parse(spec).map_err(|error| error.to_string())?;
        let wanted = self.wanted(config.mode)?;
        self.wanted = Some(wanted);
        self.proxy(wanted)?;
        self.service(
            Balancing::LoadBalancer,
            wanted && config.service == ServiceKind::LoadBalancer,
            &config,
        )?;
        self.service(Balancing::ClusterIp, wanted && config.service == ServiceKind::ClusterIp, &config)?;
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
            Some(tls) => self.external(tls, &config, &names)?,
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
                // Reported once: the next pass starts a new proxy.
                self.step(Step::ForgetProxy);
                return Err(error
                    .clone()
                    .unwrap_or_else(|| "unexpected shutdown of proxy server".to_owned()));
            }
            (ProxyState::Ended(_), false) => self.step(Step::ForgetProxy),
        }
        Ok(())
    }

    fn service(&mut self, kind: Balancing, wanted: bool, config: &ProxyConfig) -> Result<(), String> {
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
            return Ok(());
        }
        let desired =
            service::desired(kind, name, &settings.namespace, &settings.labels, settings.port, config);
        match existing {
            None => self.step(Step::CreateService(kind, Box::new(desired))),
            Some(existing) => {
                if let Some(patch) = service::patch(existing, &desired)? {
                    self.step(Step::UpdateService(kind, patch));
                }
            }
        }
        Ok(())
    }

    /// Removes what a proxy needs that is not wanted. Of the generated objects only the CA is kept,
    /// because users' kubeconfigs contain it.
    fn clear(&mut self, config: &ProxyConfig) {
        let spares = config
            .tls
            .as_ref()
            .is_some_and(|tls| external::is_own(&tls.secret_name, &self.observed.settings));
        if config.tls.is_some() {
            self.told = not_checked("the impersonation proxy does not run");
        }
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
            ServingSecret::Present(id, finding) => match self.reason_to_replace(finding, names) {
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

    /// Returns the reason to replace the existing certificate, if there is one.
    fn reason_to_replace(&mut self, finding: &Finding, names: &NameInfo) -> Option<Removal> {
        match finding {
            Finding::NotPem => Some(Removal::NotPem),
            Finding::NotX509(error) => Some(Removal::NotX509(error.clone())),
            Finding::BadKey(error) => Some(Removal::BadKey(error.clone())),
            Finding::Untrusted(_) => Some(Removal::Untrusted),
            // A new CA is about to replace this one.
            Finding::Leaf { .. } if self.observed.ca == CaSecret::Missing => Some(Removal::Untrusted),
            Finding::Leaf { not_after, .. } if *not_after < self.now => Some(Removal::Untrusted),
            Finding::Leaf { ips, dns_names, not_before, not_after } => {
                let NameInfo::Ready(names) = names else { return Some(Removal::NamesPending) };
                self.log(Note::CheckedNames {
                    desired: names.clone(),
                    actual_ips: ips.clone(),
                    actual_hostnames: dns_names.clone(),
                });
                if !names.match_certificate(ips, dns_names) {
                    return Some(Removal::NamesDiffer);
                }
                let life = Duration::try_from(not_after.duration_since(*not_before)).unwrap_or_default();
                let used = life.mul_f64(RENEWAL_FRACTION);
                if renewal::due(*not_before, *not_after, used, self.now) {
                    return Some(Removal::Due);
                }
                self.recheck_after = Some(renewal::due_in(*not_before, *not_after, used, self.now));
                None
            }
        }
    }

    fn external(
        &mut self,
        tls: &ExternalTls,
        config: &ProxyConfig,
        names: &NameInfo,
    ) -> Result<Bundle, String> {
        let settings = &self.observed.settings;
        let name = tls.secret_name.clone();
        if name.is_empty() {
            return Err("must provide impersonationSpec.TLS.secretName if impersonationSpec.TLS is provided"
                .to_owned());
        }
        if external::is_own(&name, settings) {
            return Err("impersonationSpec.TLS.secretName must not be the name of the Secret managed by this controller"
                .to_owned());
        }
        if let Some(obstacle) = self.observed.delegated.as_ref().and_then(Delegated::obstacle) {
            return Err(obstacle);
        }
        self.log(Note::UsingExternal { secret_name: name.clone() });
        let Some(secret) = &self.observed.external else {
            let secret = quote(&SecretReference::parse(&name, &settings.namespace).name);
            self.log(Note::ExternalNotFound { secret_name: name });
            return Err(format!("{EXTERNAL_FAILED}: secret {secret} not found"));
        };
        self.log(Note::ExternalFound { secret_name: name.clone() });
        let load = self.observed.loaded.serving.as_ref() != Some(&secret.id);
        let loadable = secret.facts.as_ref().is_some_and(|facts| facts.loadable);
        // A certificate that cannot be loaded is not held back: the failing step reports the error
        // with the text that users know.
        let held_back = load && loadable && tls.validation == validation::Mode::Enforce;
        if load && !held_back {
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
        self.told = self.check(tls, secret, config, names);
        if tls.validation == validation::Mode::Enforce {
            if let (ValidationReport::Checked { findings, .. }, true) = (&self.told, loadable)
                && !findings.problems.is_empty()
            {
                let error = format!("{}: {}", validation::FAILED, findings.problems.join("; "));
                self.refuse_other_certificates();
                return Err(error);
            }
            // Without names no check took place, and no client can connect yet.
            if names.ready().is_none() {
                self.refuse_other_certificates();
                return Ok(Bundle::Pem(bundle));
            }
            if held_back {
                self.step(Step::LoadExternal);
            }
        }
        // This step comes last, when the external certificate is known to be usable.
        if let ServingSecret::Present(id, _) = &self.observed.serving {
            self.step(Step::DeleteServing(id.clone(), Removal::Replaced));
        }
        Ok(Bundle::Pem(bundle))
    }

    /// Refuses to serve if the external certificate is held back and a certificate other than the
    /// delegated one is loaded. A held-back certificate otherwise leaves the previous one loaded.
    fn refuse_other_certificates(&mut self) {
        let Some(delegated) = &self.observed.delegated else { return };
        let loaded = &self.observed.loaded;
        if loaded.serving.is_some() && loaded.delegated.as_ref() != Some(&delegated.secret) {
            self.step(Step::RefuseServing);
        }
    }

    /// Checks whether the certificate works for clients.
    fn check(
        &mut self,
        tls: &ExternalTls,
        secret: &ExternalSecret,
        config: &ProxyConfig,
        names: &NameInfo,
    ) -> ValidationReport {
        if tls.validation == validation::Mode::Off {
            return not_checked("spec.impersonationProxy.tls.validation is Off");
        }
        let Some(names) = names.ready() else { return not_checked("it is not known yet where clients come") };
        // A weak key is reported even if it cannot be loaded.
        let facts = secret.facts.as_ref().filter(|facts| facts.loadable || !facts.weaknesses.is_empty());
        let Some(facts) = facts else { return not_checked(NOT_LOADED) };
        let reference = SecretReference::parse(&tls.secret_name, &self.observed.settings.namespace);
        let secret_name = if reference.namespace == self.observed.settings.namespace {
            reference.name
        } else {
            reference.to_string()
        };
        let uses_load_balancer_address =
            config.endpoint.is_none() && config.service == ServiceKind::LoadBalancer;
        let expected = Expected {
            secret: &secret_name,
            names,
            load_balancer_ip: config
                .load_balancer_ip
                .as_ref()
                .filter(|_| uses_load_balancer_address)
                .and_then(|ip| ip.parse().ok()),
        };
        let findings = validation::check(facts, &expected, self.now);
        self.recheck_after = [self.recheck_after, findings.changes_after].into_iter().flatten().min();
        ValidationReport::Checked { secret_name: tls.secret_name.clone(), findings }
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

/// Fraction of its lifetime after which a generated certificate is replaced. Relevant only for
/// short lifetimes: the default is a hundred years.
const RENEWAL_FRACTION: f64 = 2.0 / 3.0;

/// Reason why nothing was checked, if the strategy's entry has the error.
const NOT_LOADED: &str = "the certificate could not be loaded, see status.strategies";

fn not_checked(why: &str) -> ValidationReport {
    ValidationReport::NotChecked(why.to_owned())
}

/// Prefix of all errors about the Secret that the spec names.
pub const EXTERNAL_FAILED: &str =
    "could not load the externally provided TLS secret for the impersonation proxy";

/// Prefix of the error about a signer's Secret that does not exist.
const SIGNER_MISSING: &str = "could not load the impersonator's credential signing secret";

/// Prefix of the error about a signer's Secret with invalid content.
pub const SIGNER_FAILED: &str = "could not set the impersonator's credential signing secret";

#[cfg(test)]
mod tests;
