//! Has the API server constrained impersonation (KEP-5284: on by default since 1.36, behind a feature gate before)?
//!
//! There is no field to read that from. An API server that has it names, in its refusal of an impersonation that it does
//! not allow, the first verb that it asked for: `impersonate-on:user-info:get`. The Concierge's own account may impersonate
//! nobody, so it is refused.

use std::time::Duration;

use http::Request;
use tokio::time::Instant;

use pinniped_concierge_domain::service_account_tokens::objects::IMPERSONATE_ON;

/// How long an answer holds.
const HOLDS: Duration = Duration::from_secs(600);

/// A user that nobody is.
const PROBE: &str = "pinniped-constrained-impersonation-probe";

/// The answer, and since when it is known.
#[derive(Default)]
pub(super) struct Constrained {
    known: Option<(bool, Instant)>,
}

impl Constrained {
    /// Asks, unless it is known. Where that does not work, it is taken not to be there: roles in the old form work
    /// everywhere.
    pub(super) async fn is_there(&mut self, client: &kube::Client) -> bool {
        if let Some((answer, since)) = self.known
            && since.elapsed() < HOLDS
        {
            return answer;
        }
        let request = Request::get("/version").header("Impersonate-User", PROBE).body(Vec::new());
        let Ok(request) = request else { return false };
        let answer = match client.request_text(request).await {
            Err(kube::Error::Api(status)) if status.code == 403 => status.message.contains(IMPERSONATE_ON),
            Ok(_) => {
                tracing::info!(
                    "the Concierge's service account may impersonate, so it cannot find out whether the API server has constrained impersonation"
                );
                false
            }
            Err(error) => {
                tracing::info!(%error, "could not find out whether the API server has constrained impersonation");
                return self.known.is_some_and(|(answer, _)| answer);
            }
        };
        self.known = Some((answer, Instant::now()));
        answer
    }
}
