//! Decides whether this pod's proxy has the specified state, for the readiness of the pod.

use super::plan::ProxyStatus;

/// The health of this pod's proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// At least one pass has completed.
    pub observed: bool,
    /// The proxy should run in this process.
    pub wanted: bool,
    /// The proxy runs.
    pub running: bool,
    /// The names of the proxy are known, so it should have a certificate.
    pub expects_certificate: bool,
    /// The proxy has a certificate.
    pub has_certificate: bool,
}

impl Health {
    /// Returns the health after a pass. `should_run` is `None` if the spec is not valid: then a
    /// running proxy continues to run.
    pub fn after_pass(
        should_run: Option<bool>,
        status: &ProxyStatus,
        running: bool,
        has_certificate: bool,
    ) -> Self {
        Self {
            observed: true,
            wanted: should_run.unwrap_or(running),
            running,
            expects_certificate: matches!(status, ProxyStatus::Listening { .. }),
            has_certificate,
        }
    }

    /// Returns whether nothing is missing. A proxy that waits for the address of its Service counts
    /// as ready.
    pub fn is_ready(&self) -> bool {
        self.observed && (!self.wanted || self.running && (!self.expects_certificate || self.has_certificate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::impersonator::Bundle;

    #[test]
    fn a_pod_is_ready_if_its_proxy_has_the_wanted_state() {
        let pending = Health { observed: true, wanted: true, running: true, ..Health::default() };
        let serving = Health { expects_certificate: true, has_certificate: true, ..pending };
        for (case, health, wanted) in [
            ("before the first pass", Health::default(), false),
            ("switched off", Health { observed: true, ..Health::default() }, true),
            ("not running", Health { running: false, ..serving }, false),
            ("waiting for an address", pending, true),
            ("serving", serving, true),
            ("without its certificate", Health { has_certificate: false, ..serving }, false),
        ] {
            assert_eq!(health.is_ready(), wanted, "{case}");
        }
    }

    #[test]
    fn a_certificate_is_expected_when_the_names_are_known() {
        let listening =
            ProxyStatus::Listening { endpoint: "https://x".to_owned(), bundle: Bundle::Generated };
        for (should_run, status, running, has_certificate, ready) in [
            (Some(true), &listening, true, false, false),
            (Some(true), &listening, true, true, true),
            (Some(true), &ProxyStatus::Pending, true, false, true),
            (Some(false), &ProxyStatus::Disabled(""), false, false, true),
            (None, &ProxyStatus::Pending, true, false, true),
            (None, &ProxyStatus::Pending, false, false, true),
        ] {
            let health = Health::after_pass(should_run, status, running, has_certificate);
            assert_eq!(health.is_ready(), ready, "{health:?}");
        }
    }
}
