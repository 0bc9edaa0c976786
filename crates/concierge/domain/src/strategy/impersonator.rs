//! Decides the steps that bring the impersonation proxy to the state that the `CredentialIssuer`
//! specifies.
//!
//! [`decide`] takes one observation and returns steps in the order in which to apply them, and the
//! status that holds if all steps succeed. [`conclude`] decides the final status from the results
//! of the steps. The first step that fails ends the pass, and its error becomes the status; nothing
//! is rolled back. Every replica applies the steps that change what it serves; only the leader
//! applies the steps that write to the API server. Once all steps are applied, the next pass has
//! only [`Step::Log`] steps.
//!
//! Follows upstream's `impersonatorconfig` controller, with these differences: a generated
//! certificate is deleted only after the external one is loaded; names are not determined for a
//! proxy that is not wanted; a Secret of the Concierge that the spec names as external is refused
//! and never deleted; and an external certificate is checked for whether it works for clients.

use std::time::Duration;

use jiff::Timestamp;
use pinniped_concierge_api::config::CredentialIssuerSpec;
use pinniped_delegation::grants::SecretReference;
use pinniped_go_compat::base64;

use super::certificate_names::{NameInfo, certificate_names};
use super::certificate_validation::{self, Expected, ValidationReport};
use super::external_certificate;
use super::service::{self, ServiceType};
use super::spec::{ExternalTls, Mode, ProxyConfig, ServiceKind};
use crate::credential_issuer::{MissingCredentialIssuer, strategies};
use crate::renewal;

mod conclusion;
mod delegated;
mod error;
mod health;
mod observed;
mod plan;

pub use conclusion::{
    AppliedSteps, Conclusion, EntryRefusal, PassError, StepFailure, StepFailureKind, conclude,
    conclude_refusal,
};
pub use delegated::{Delegated, Permission, external_reference};
pub use error::{BundleError, EXTERNAL_FAILED, ExternalError, ProxyError, SIGNER_FAILED};
pub use health::Health;
pub use observed::{
    CaSecret, ExternalSecret, Loaded, Nodes, ObjectId, Observed, ProxyState, ServingContent, ServingSecret,
    Settings,
};
pub use plan::{Bundle, LogEvent, Plan, ProxyStatus, Removal, Step};

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
    let validation = if has_tls { not_checked(NOT_LOADED) } else { ValidationReport::Nothing };
    let mut pass =
        Pass { observed, now, steps: Vec::new(), should_run: None, recheck_after: None, validation };
    let status = match &observed.credential_issuer {
        Some(spec) => pass.run(spec.as_ref()).unwrap_or_else(ProxyStatus::Failed),
        None => ProxyStatus::NoCredentialIssuer(MissingCredentialIssuer {
            group: observed.settings.credential_issuer_group.clone(),
            name: observed.settings.credential_issuer.clone(),
        }),
    };
    if delegated::must_refuse(observed, &pass.steps) {
        // This step is the first one so that no other step can fail before it, and it replaces the
        // steps that clear the certificate.
        pass.steps.retain(|step| *step != Step::ClearServing);
        pass.steps.insert(0, Step::RefuseServing);
    }
    Plan {
        steps: pass.steps,
        status,
        should_run: pass.should_run,
        recheck_after: pass.recheck_after,
        validation: pass.validation,
    }
}

struct Pass<'a> {
    observed: &'a Observed,
    now: Timestamp,
    steps: Vec<Step>,
    should_run: Option<bool>,
    recheck_after: Option<Duration>,
    validation: ValidationReport,
}

impl Pass<'_> {
    fn run(&mut self, spec: Option<&CredentialIssuerSpec>) -> Result<ProxyStatus, ProxyError> {
        let config = ProxyConfig::parse(spec)?;
        let wanted = self.should_run(config.mode)?;
        self.should_run = Some(wanted);
        self.proxy(wanted)?;
        self.service(
            ServiceType::LoadBalancer,
            wanted && config.service == ServiceKind::LoadBalancer,
            &config,
        )?;
        self.service(ServiceType::ClusterIp, wanted && config.service == ServiceKind::ClusterIp, &config)?;
        if !wanted {
            self.clear(&config);
            return Ok(ProxyStatus::Disabled(match config.mode {
                Mode::Disabled => strategies::DISABLED,
                Mode::Auto | Mode::Enabled => strategies::AUTO_DISABLED,
            }));
        }
        let observed = self.observed;
        let names =
            certificate_names(&config, observed.load_balancer.as_deref(), observed.cluster_ip.as_deref())?;
        if names == NameInfo::Pending && config.service == ServiceKind::LoadBalancer {
            self.log(LogEvent::WaitingForIngress);
        }
        let bundle = match &config.tls {
            Some(tls) => self.external(tls, &config, &names)?,
            None => self.generated(&names)?,
        };
        self.signer()?;
        Ok(match names {
            NameInfo::Pending => ProxyStatus::Pending,
            NameInfo::Ready(names) => ProxyStatus::Listening { endpoint: names.endpoint, bundle },
        })
    }

    fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    fn log(&mut self, event: LogEvent) {
        self.steps.push(Step::Log(event));
    }

    fn should_run(&mut self, mode: Mode) -> Result<bool, ProxyError> {
        match (mode, &self.observed.nodes) {
            (Mode::Enabled, _) => Ok(true),
            (Mode::Disabled, _) => Ok(false),
            (Mode::Auto, Nodes::ControlPlane) => {
                self.log(LogEvent::ControlPlaneNodes(true));
                Ok(false)
            }
            (Mode::Auto, Nodes::WorkersOnly) => {
                self.log(LogEvent::ControlPlaneNodes(false));
                Ok(true)
            }
            (Mode::Auto, Nodes::Failed(error)) => Err(ProxyError::Nodes(error.clone())),
            (Mode::Auto, Nodes::Unknown) => Err(ProxyError::NodesNotListed),
        }
    }

    fn proxy(&mut self, wanted: bool) -> Result<(), ProxyError> {
        match (&self.observed.proxy, wanted) {
            (ProxyState::Running, true) | (ProxyState::Stopped, false) => {}
            (ProxyState::Stopped, true) => self.step(Step::StartProxy),
            (ProxyState::Running, false) => self.step(Step::StopProxy),
            (ProxyState::Terminated(error), true) => {
                // Reported once: the next pass starts a new proxy.
                self.step(Step::DropProxy);
                return Err(ProxyError::ProxyTerminated(error.clone()));
            }
            (ProxyState::Terminated(_), false) => self.step(Step::DropProxy),
        }
        Ok(())
    }

    fn service(&mut self, kind: ServiceType, wanted: bool, config: &ProxyConfig) -> Result<(), ProxyError> {
        let settings = &self.observed.settings;
        let (name, existing) = match kind {
            ServiceType::LoadBalancer => (&settings.load_balancer_service, &self.observed.load_balancer),
            ServiceType::ClusterIp => (&settings.cluster_ip_service, &self.observed.cluster_ip),
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
        let names_managed_secret = config
            .tls
            .as_ref()
            .is_some_and(|tls| external_certificate::is_managed(&tls.secret_name, &self.observed.settings));
        if config.tls.is_some() {
            self.validation = not_checked("the impersonation proxy does not run");
        }
        if let (ServingSecret::Present(id, _), false) = (&self.observed.serving, names_managed_secret) {
            self.step(Step::DeleteServing(id.clone(), Removal::NotWanted));
        }
        if self.observed.loaded.serving.is_some() {
            self.step(Step::ClearServing);
        }
        if self.observed.loaded.signer.is_some() {
            self.step(Step::ClearSigner);
        }
    }

    fn generated(&mut self, names: &NameInfo) -> Result<Bundle, ProxyError> {
        match &self.observed.ca {
            CaSecret::Missing => self.step(Step::CreateCa),
            CaSecret::Usable => {}
            CaSecret::Broken(cause) => {
                let secret = self.observed.settings.ca_secret.clone();
                return Err(ProxyError::UnusableCa { secret, cause: cause.clone() });
            }
        }
        let removal = match &self.observed.serving {
            ServingSecret::Missing => None,
            ServingSecret::Present(id, content) => match self.reason_to_replace(content, names) {
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
    fn reason_to_replace(&mut self, content: &ServingContent, names: &NameInfo) -> Option<Removal> {
        match content {
            ServingContent::NotPem => Some(Removal::NotPem),
            ServingContent::NotX509(error) => Some(Removal::NotX509(error.clone())),
            ServingContent::BadKey(error) => Some(Removal::BadKey(error.clone())),
            ServingContent::Untrusted(_) => Some(Removal::Untrusted),
            // A new CA is about to replace this one.
            ServingContent::Leaf { .. } if self.observed.ca == CaSecret::Missing => Some(Removal::Untrusted),
            ServingContent::Leaf { not_after, .. } if *not_after < self.now => Some(Removal::Untrusted),
            ServingContent::Leaf { ips, dns_names, not_before, not_after } => {
                let NameInfo::Ready(names) = names else { return Some(Removal::NamesPending) };
                self.log(LogEvent::CheckedNames {
                    desired: names.clone(),
                    actual_ips: ips.clone(),
                    actual_hostnames: dns_names.clone(),
                });
                if !names.match_certificate(ips, dns_names) {
                    return Some(Removal::NamesDiffer);
                }
                let renew_before = renewal::generated_renew_before(*not_before, *not_after);
                if renewal::due(*not_before, *not_after, renew_before, self.now) {
                    return Some(Removal::Due);
                }
                self.recheck_after = Some(renewal::due_in(*not_before, *not_after, renew_before, self.now));
                None
            }
        }
    }

    fn external(
        &mut self,
        tls: &ExternalTls,
        config: &ProxyConfig,
        names: &NameInfo,
    ) -> Result<Bundle, ProxyError> {
        let settings = &self.observed.settings;
        let name = tls.secret_name.clone();
        if name.is_empty() {
            return Err(ProxyError::NoSecretName);
        }
        if external_certificate::is_managed(&name, settings) {
            return Err(ProxyError::ManagedSecret);
        }
        if let Some(obstacle) = self.observed.delegated.as_ref().and_then(Delegated::obstacle) {
            return Err(ProxyError::External(obstacle));
        }
        self.log(LogEvent::UsingExternal { secret_name: name.clone() });
        let Some(secret) = &self.observed.external else {
            let secret = SecretReference::parse(&name, &settings.namespace).name;
            self.log(LogEvent::ExternalNotFound { secret_name: name });
            return Err(ProxyError::External(ExternalError::NotFound(secret)));
        };
        self.log(LogEvent::ExternalFound { secret_name: name.clone() });
        let load = self.observed.loaded.serving.as_ref() != Some(&secret.id);
        let loadable = secret.certificate.as_ref().is_some_and(|certificate| certificate.loadable);
        // A certificate that cannot be loaded is not held back: the failing step reports the error
        // with the text that users know.
        let held_back = load && loadable && tls.validation == certificate_validation::Mode::Enforce;
        if load && !held_back {
            self.step(Step::LoadExternal);
        }
        let mut bundle = Vec::new();
        if !secret.ca_crt.is_empty() {
            self.log(LogEvent::ExternalCaCrt { secret_name: name, ca_crt: secret.ca_crt.clone() });
            if !external_certificate::has_pem_block(&secret.ca_crt) {
                self.log(LogEvent::ExternalCaCrtNotPem);
                return Err(ProxyError::External(ExternalError::CaCrtNotPem));
            }
            bundle.clone_from(&secret.ca_crt);
        }
        if !tls.certificate_authority_data.is_empty() {
            bundle = base64::decode(tls.certificate_authority_data.as_bytes())
                .map_err(|error| ProxyError::Bundle(error.into()))?;
            if !external_certificate::has_pem_block(&bundle) {
                return Err(ProxyError::Bundle(BundleError::NotPem));
            }
            self.log(LogEvent::AdvertisesConfigured { pem: bundle.clone() });
        }
        self.validation = self.check(tls, secret, config, names);
        if tls.validation == certificate_validation::Mode::Enforce {
            if let (ValidationReport::Checked { findings, .. }, true) = (&self.validation, loadable)
                && !findings.problems.is_empty()
            {
                let error = ProxyError::Validation(findings.problems.clone());
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
        if tls.validation == certificate_validation::Mode::Off {
            return not_checked("spec.impersonationProxy.tls.validation is Off");
        }
        let Some(names) = names.ready() else {
            return not_checked("the address for clients is not known yet");
        };
        // A weak key is reported even if it cannot be loaded.
        let certificate = secret
            .certificate
            .as_ref()
            .filter(|certificate| certificate.loadable || !certificate.weaknesses.is_empty());
        let Some(certificate) = certificate else { return not_checked(NOT_LOADED) };
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
        let findings = certificate_validation::check(certificate, &expected, self.now);
        self.recheck_after = [self.recheck_after, findings.changes_after].into_iter().flatten().min();
        ValidationReport::Checked { secret_name: tls.secret_name.clone(), findings }
    }

    fn signer(&mut self) -> Result<(), ProxyError> {
        match &self.observed.signer {
            None => Err(ProxyError::NoSigner { secret: self.observed.settings.signer_secret.clone() }),
            Some(id) if self.observed.loaded.signer.as_ref() == Some(id) => Ok(()),
            Some(_) => {
                self.step(Step::LoadSigner);
                Ok(())
            }
        }
    }
}

/// Reason why nothing was checked, if the strategy's entry has the error.
const NOT_LOADED: &str = "the certificate could not be loaded, see status.strategies";

fn not_checked(why: &str) -> ValidationReport {
    ValidationReport::NotChecked(why.to_owned())
}

#[cfg(test)]
mod tests;
