//! Sends a request to the cluster through the discovered endpoint and CA, to ensure that the
//! kubeconfig reaches a server.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use url::Url;

use pinniped_error::chain;
use pinniped_go_compat::duration::GoDuration;
use pinniped_http_client::https::{HttpsClient, SendError};
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{Profile, Roots, TlsError};

use crate::https;
use crate::printer::Printer;

/// The timeout of an attempt.
const TRY_LIMIT: Duration = Duration::from_secs(10);
/// The interval between attempts.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// The kubeconfig cannot be validated.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// The cluster entry has no CA.
    #[error("invalid kubeconfig (no certificateAuthorityData)")]
    NoCa,
    /// The roots cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address is not a URL.
    #[error("could not form request to validate cluster connection")]
    Url(#[from] url::ParseError),
}

/// The cluster does not respond.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("Get \"{0}\": context deadline exceeded")]
    Timeout(Url),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("unexpected status code {0}")]
    Status(u16),
}

/// Waits until the cluster returns a response other than a server error. An empty CA selects the
/// system roots.
pub(super) async fn validate(
    server: &str,
    ca: &[u8],
    verified: bool,
    dialer: TcpDialer,
    printer: Printer,
    deadline: Instant,
) -> Result<(), ValidateError> {
    let roots = if ca.is_empty() {
        // An entry without verification has no CA to validate with.
        if !verified {
            return Err(ValidateError::NoCa);
        }
        Roots::System
    } else {
        Roots::Bundle(CaBundle::from_pem(ca).map_err(|_| ValidateError::NoCa)?)
    };
    let client = https::client(dialer, Profile::Default, roots)?;
    let url = Url::parse(server)?;

    if try_connect(&client, &url).await.is_ok() {
        printer.info("validated connection to the cluster", &[]);
        return Ok(());
    }
    printer.info(
        "could not immediately connect to the cluster but it may be initializing, will retry until timeout",
        &[],
    );
    let mut attempts = 1;
    let mut ticker = tokio::time::interval_at(Instant::now() + TRY_EVERY, TRY_EVERY);
    loop {
        ticker.tick().await;
        attempts += 1;
        match try_connect(&client, &url).await {
            Ok(()) => {
                printer.info("validated connection to the cluster", &[("attempts", json!(attempts))]);
                return Ok(());
            }
            Err(error) => printer.info(
                "could not connect to cluster, retrying...",
                &[
                    ("error", json!(chain(&error).to_string())),
                    ("attempts", json!(attempts)),
                    ("remaining", json!(remaining(deadline))),
                ],
            ),
        }
    }
}

async fn try_connect(client: &HttpsClient, url: &Url) -> Result<(), AttemptError> {
    let response = tokio::time::timeout(TRY_LIMIT, client.get(url))
        .await
        .map_err(|_| AttemptError::Timeout(url.clone()))??;
    match response.status.as_u16() {
        code @ 500.. => Err(AttemptError::Status(code)),
        _ => Ok(()),
    }
}

/// Returns the remaining time, rounded to seconds.
pub(super) fn remaining(deadline: Instant) -> String {
    let left = deadline.saturating_duration_since(Instant::now());
    let seconds = left.as_secs() + u64::from(left.subsec_millis() >= 500);
    GoDuration::from(Duration::from_secs(seconds)).to_string()
}
