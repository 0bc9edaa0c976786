//! Detects whether the API server supports constrained impersonation (KEP-5284: on by default since
//! 1.36, behind a feature gate before).
//!
//! No API field reports this. An API server with support names, when it refuses an impersonation,
//! the first verb that it checked: `impersonate-on:user-info:get`. The account of the Concierge may
//! impersonate no user, so its request is refused.

use std::time::Duration;

use http::Request;
use tokio::time::Instant;

use pinniped_concierge_domain::service_account_tokens::objects::IMPERSONATE_ON;

/// Time for which a result is cached.
const CACHE_TIME: Duration = Duration::from_secs(600);

/// Name of a user that does not exist.
const PROBE: &str = "pinniped-constrained-impersonation-probe";

/// The cached result and its time.
#[derive(Default)]
pub(super) struct ConstrainedImpersonation {
    known: Option<(bool, Instant)>,
}

impl ConstrainedImpersonation {
    /// Returns whether the API server supports it, from the cache while it is fresh. After an error
    /// the last result counts, initially no support, because plain roles work everywhere.
    pub(super) async fn is_supported(&mut self, client: &kube::Client) -> bool {
        if let Some((result, since)) = self.known
            && since.elapsed() < CACHE_TIME
        {
            return result;
        }
        let request = Request::get("/version").header("Impersonate-User", PROBE).body(Vec::new());
        let Ok(request) = request else { return false };
        let result = match client.request_text(request).await {
            Err(kube::Error::Api(status)) if status.code == 403 => status.message.contains(IMPERSONATE_ON),
            Ok(_) => {
                tracing::info!(
                    "could not detect constrained impersonation, because the Concierge's service account may impersonate users"
                );
                false
            }
            Err(error) => {
                tracing::info!(%error, "could not detect constrained impersonation");
                return self.known.is_some_and(|(result, _)| result);
            }
        };
        self.known = Some((result, Instant::now()));
        result
    }
}
