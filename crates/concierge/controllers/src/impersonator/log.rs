//! The log lines of the decisions, with upstream's messages and keys, for which users search.

use std::collections::HashMap;
use std::mem::Discriminant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pinniped_concierge_domain::strategy::impersonator::{LogEvent, Removal};
use pinniped_logging::value as log_value;
use serde_json::json;

use super::ImpersonatorController;

/// The `logger` key of this controller's lines.
pub(super) const LOGGER: &str = "impersonator-config-controller";

/// The last logged event of each kind: an event is logged only if it differs from the last one.
#[derive(Default)]
pub(super) struct LoggedEvents(HashMap<Discriminant<LogEvent>, LogEvent>);

impl LoggedEvents {
    fn is_new(&mut self, event: &LogEvent) -> bool {
        self.0.insert(std::mem::discriminant(event), event.clone()).as_ref() != Some(event)
    }
}

impl ImpersonatorController {
    /// Returns `{"name": …, "namespace": …}` of an object in the Concierge's namespace.
    pub(super) fn reference(&self, name: &str) -> String {
        log_value::json(&json!({"name": name, "namespace": self.settings.namespace}))
    }

    pub(super) fn log_event(&mut self, event: &LogEvent) {
        if !self.logged.is_new(event) {
            return;
        }
        let load_balancer = self.reference(&self.settings.load_balancer_service);
        let tls = self.reference(&self.settings.tls_secret);
        match event {
            // Logged where the nodes are listed.
            LogEvent::ControlPlaneNodes(_) => {}
            LogEvent::WaitingForIngress => tracing::info!(
                logger = LOGGER,
                service = load_balancer,
                "load balancer for impersonation proxy does not have an ingress yet, so skipping tls cert generation while we wait"
            ),
            LogEvent::CheckedNames { desired, actual_ips, actual_hostnames } => tracing::info!(
                logger = LOGGER,
                desiredIPs = log_value::json(&json!(desired.ips)),
                desiredHostname = desired.hostname.as_deref().unwrap_or_default(),
                actualIPs = log_value::json(&json!(actual_ips)),
                actualHostnames = log_value::json(&json!(actual_hostnames)),
                secret = tls,
                "checking TLS certificate names"
            ),
            LogEvent::UsingExternal { secret_name } => tracing::info!(
                logger = LOGGER,
                secretName = secret_name.as_str(),
                "configuring the impersonation proxy to use an externally provided TLS secret"
            ),
            LogEvent::ExternalNotFound { secret_name } => tracing::info!(
                logger = LOGGER,
                secretName = secret_name.as_str(),
                "could not find externally provided TLS secret for the impersonation proxy"
            ),
            LogEvent::ExternalFound { secret_name } => tracing::info!(
                logger = LOGGER,
                secretName = secret_name.as_str(),
                "found externally provided TLS secret for the impersonation proxy"
            ),
            LogEvent::ExternalCaCrt { secret_name, ca_crt } => tracing::info!(
                secretName = secret_name.as_str(),
                caCertPEM = STANDARD.encode(ca_crt),
                "found a ca.crt field in the externally provided TLS secret for the impersonation proxy"
            ),
            LogEvent::ExternalCaCrtNotPem => tracing::warn!(
                "error loading cert from externally provided TLS secret for the impersonation proxy: data is not a certificate"
            ),
            LogEvent::AdvertisesConfigured { pem } => tracing::info!(
                logger = LOGGER,
                CertificateAuthorityData = STANDARD.encode(pem),
                "the impersonation proxy will advertise its CA Bundle from impersonationSpec.TLS.CertificateAuthorityData"
            ),
        }
    }

    /// Logs why a generated certificate is deleted. Its content is not logged, because the Secret
    /// may contain a key in its place.
    pub(super) fn log_removal(&self, removal: &Removal) {
        let secret = self.reference(&self.settings.tls_secret);
        match removal {
            Removal::NotPem => {
                tracing::info!(
                    logger = LOGGER,
                    secret,
                    "found missing or not PEM-encoded data in TLS Secret"
                );
            }
            Removal::NotX509(error) => tracing::error!(
                logger = LOGGER,
                secret,
                error = error.as_str(),
                "found missing or not PEM-encoded data in TLS Secret"
            ),
            Removal::BadKey(error) => tracing::error!(
                logger = LOGGER,
                secret,
                error = error.as_str(),
                "found invalid private key PEM data in TLS Secret"
            ),
            Removal::NotWanted
            | Removal::Replaced
            | Removal::Untrusted
            | Removal::NamesPending
            | Removal::NamesDiffer
            | Removal::Due => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_logged_only_if_it_changes() {
        let mut logged = LoggedEvents::default();
        let found = |name: &str| LogEvent::ExternalFound { secret_name: name.to_owned() };
        assert!(logged.is_new(&found("a")));
        assert!(!logged.is_new(&found("a")));
        assert!(logged.is_new(&LogEvent::WaitingForIngress));
        assert!(logged.is_new(&found("b")));
        assert!(logged.is_new(&found("a")));
    }
}
