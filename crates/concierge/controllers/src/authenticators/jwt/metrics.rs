//! Metrics of the keys of ready JWTAuthenticators, read from the registry when they are scraped.
//!
//! The label is the name of the object, so the number of time series is the number of objects.

use pinniped_concierge_authentication::registry::Registry;
use pinniped_concierge_metrics::{KEYS_AGE, KEYS_FETCH_FAILED};
use pinniped_metrics::Metrics;

/// Registers the metrics of the authenticators in a registry.
pub fn register(metrics: &Metrics, registry: &Registry) {
    let registry = registry.clone();
    metrics.collect(move |samples| {
        for (key, authenticator) in registry.entries() {
            let Some(keys) = authenticator.signing_keys() else { continue };
            let status = keys.status();
            samples.push(&KEYS_AGE, [&key.name], status.age.unwrap_or_default().as_secs());
            samples.push(&KEYS_FETCH_FAILED, [&key.name], u64::from(status.failure.is_some()));
        }
    });
}
