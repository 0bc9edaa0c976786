//! Decides the conditions of a `JWTAuthenticator` in two steps, before and after the network
//! requests.

use pinniped_concierge_api::authentication::{JwtAuthenticator, JwtAuthenticatorSpec};
use pinniped_concierge_domain::authenticator_status::AuthenticatorConditions;
use pinniped_concierge_domain::jwt_authenticator::conditions::{KeysFreshness, Progress};
use pinniped_concierge_domain::jwt_authenticator::{fingerprint, issuer_url};
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_kube_types::condition::{self, DesiredCondition};
use pinniped_pki::tls::Roots;

use crate::authenticators::plan::{Entry, Plan};
use crate::authenticators::tls_source::{self, CaObjects};

/// All inputs of the decision.
pub(super) struct Observed<'a, O> {
    pub(super) spec: &'a JwtAuthenticatorSpec,
    pub(super) ca_objects: &'a O,
    /// The registry's entry.
    pub(super) ready: Option<Ready>,
}

/// An authenticator in the registry.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    /// Identifies the inputs from which it was built.
    pub(super) fingerprint: String,
    /// Whether its provider still serves the keys.
    pub(super) keys: KeysFreshness,
}

/// The result of the checks without network requests.
#[derive(Debug)]
pub(super) struct Inspection {
    conditions: Vec<DesiredCondition>,
    pub(super) next: Next,
}

/// The action that the rest of the decision requires.
#[derive(Debug)]
pub(super) enum Next {
    /// None: the authenticator cannot be used.
    Invalid,
    /// None: the registry has an authenticator with the same inputs.
    Unchanged(KeysFreshness),
    /// Query the provider and build the authenticator.
    Validate { roots: Roots, fingerprint: String },
}

/// The result of the validation: the authenticator, or the step that failed; `None` if
/// [`Next`] required none.
pub(super) type Validation<A> = Option<Result<A, Progress>>;

/// Runs the checks without network requests, which are cheap enough for every pass.
pub(super) fn inspect(observed: Observed<'_, impl CaObjects>) -> Inspection {
    let Observed { spec, ca_objects, ready } = observed;
    let (tls, trusted) = tls_source::resolve(spec.tls.as_ref(), ca_objects);
    let issuer = issuer_url::condition(&spec.issuer);
    let next = match trusted {
        Some(trusted) if issuer.status == condition::TRUE => {
            let fingerprint = fingerprint::of(spec, &trusted.fingerprint);
            match ready {
                Some(ready) if ready.fingerprint == fingerprint => Next::Unchanged(ready.keys),
                _ => Next::Validate { roots: trusted.roots, fingerprint },
            }
        }
        _ => Next::Invalid,
    };
    Inspection { conditions: vec![tls, issuer], next }
}

/// Combines the results into a plan.
pub(super) fn conclude<A>(inspection: Inspection, validation: Validation<A>) -> Plan<A, StatusText> {
    let Inspection { mut conditions, next } = inspection;
    let (progress, entry) = match (next, validation) {
        (Next::Unchanged(keys), _) => (Progress::Complete(keys), Entry::Keep),
        (Next::Validate { fingerprint, .. }, Some(Ok(authenticator))) => {
            (Progress::Complete(KeysFreshness::Fresh), Entry::Insert { authenticator, fingerprint })
        }
        (Next::Validate { .. }, Some(Err(progress))) => (progress, Entry::Remove),
        (Next::Invalid | Next::Validate { .. }, _) => (Progress::NotBegun, Entry::Remove),
    };
    conditions.extend(progress.conditions());
    Plan {
        conditions: AuthenticatorConditions::summarize(conditions, JwtAuthenticator::KIND),
        entry,
        error: progress.retried_failure().map(StatusText::from),
    }
}

#[cfg(test)]
mod tests;
