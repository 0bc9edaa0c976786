//! Metrics of the keys of ready JWTAuthenticators, read from the registry when they are scraped.
//!
//! The label is the name of the object, so the number of time series is the number of objects.

use pinniped_concierge_authentication::registry::Registry;
use pinniped_metrics::definitions::concierge::{KEYS_AGE, KEYS_FETCH_FAILED};
use pinniped_metrics::{Metrics, Samples};
use pinniped_oidc::KeySetStatus;

/// Registers the metrics of the authenticators in a registry.
pub fn register(metrics: &Metrics, registry: &Registry) {
    let authenticators = registry.clone();
    metrics.collect(&KEYS_AGE, move |samples| {
        each(&authenticators, samples, |status| status.age.unwrap_or_default().as_secs());
    });
    let authenticators = registry.clone();
    metrics.collect(&KEYS_FETCH_FAILED, move |samples| {
        each(&authenticators, samples, |status| u64::from(status.failure.is_some()));
    });
}

fn each(registry: &Registry, samples: &mut Samples, value: impl Fn(&KeySetStatus) -> u64) {
    for (key, authenticator) in registry.entries() {
        if let Some(keys) = authenticator.signing_keys() {
            samples.push([&key.name], value(&keys.status()));
        }
    }
}
