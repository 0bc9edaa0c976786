//! The webhook that receives events, like that of kube-apiserver's flags `--audit-webhook-*`.
//!
//! The webhook gets lists of events (`audit.k8s.io/v1`, kind `EventList`) in JSON with POST. A
//! request that fails is repeated as by the API server: five attempts, with delays that increase
//! from [`WebhookParams::initial_backoff`] by half, and without their random part, because a
//! cluster has only a few senders. An event can therefore arrive twice. A list that the webhook
//! refuses is not repeated; [`crate::auditor`] divides it.
//!
//! The differences from the API server: one request at a time is sent, so that a webhook that fails
//! does not use up memory; and the webhook must have TLS and a certificate that is verified
//! ([`kubeconfig`]).

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, InvalidHeaderValue};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use pinniped_http_client::https::{Connections, HttpsClient, HttpsClientParams, Redirects, SendError};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_pki::tls::{ALPN_HTTP, CipherRestriction, Profile, TlsError, client_config_with_certificate};
use pinniped_secret::Token;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use url::Url;

use self::kubeconfig::{Credential, KubeconfigFileError, Target};
use crate::bounded_file;
use crate::queue::BatchParams;

pub mod kubeconfig;

/// Deadline of one attempt, as in the API server.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Number of attempts, as in the API server.
const ATTEMPTS: u32 = 5;
/// The factor between two delays, as in the API server.
const BACKOFF_FACTOR: f64 = 1.5;
/// Number of batches in a second, and of those that may be sent at once after a pause, as in the
/// API server.
const BATCHES_PER_SECOND: u32 = 10;
const BATCH_BURST: u32 = 15;
/// Maximum size of a response in bytes. A webhook may return the events.
const MAX_RESPONSE: usize = 2 << 20;

const LIST_START: &[u8] = br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#;
const LIST_END: &[u8] = b"]}";

/// The webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookParams {
    /// The kubeconfig, which is read once.
    pub kubeconfig: PathBuf,
    /// Whether requests wait for their events.
    pub mode: WebhookMode,
    /// The buffer and the batches. With [`WebhookMode::Blocking`], a batch does not wait.
    pub batch: BatchParams,
    /// Delay before the second attempt.
    pub initial_backoff: Duration,
}

/// The treatment of requests while their events are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookMode {
    /// A request does not wait for its events.
    Batch,
    /// A request waits until each of its events is delivered or lost, for a limited time
    /// ([`BLOCKING_LIMIT`](crate::auditor::BLOCKING_LIMIT)).
    Blocking,
}

/// The environment of the requests to a webhook.
#[derive(Clone, Debug)]
pub struct ClientParams {
    /// The proxies between this program and the webhook.
    pub proxies: ProxyEnvironment,
    /// The TLS 1.2 cipher suites that are allowed.
    pub ciphers: CipherRestriction,
    /// The user agent.
    pub user_agent: HeaderValue,
}

/// The reasons why a webhook cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigFileError),
    /// The TLS settings cannot be used.
    #[error("could not create the TLS configuration for the audit webhook")]
    Tls(#[from] TlsError),
}

/// The reason why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeliveryError {
    /// There is no complete response.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The webhook did not accept the events.
    #[error("the audit webhook responded with {line}")]
    Refused {
        status: StatusCode,
        /// The status and its reason.
        line: String,
    },
    /// There is no token.
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl DeliveryError {
    /// Returns whether the webhook refuses these events, so that it is useless to repeat them.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: StatusCode::BAD_REQUEST
                    | StatusCode::PAYLOAD_TOO_LARGE
                    | StatusCode::UNPROCESSABLE_ENTITY,
                ..
            }
        )
    }
}

/// The token cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// The file cannot be read.
    #[error("could not read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The token is empty.
    #[error("the token of the audit webhook is empty: write one to token or tokenFile of its kubeconfig")]
    Empty,
    /// The token is not the value of a header field.
    #[error("the token of the audit webhook has characters that a header cannot contain: correct it")]
    Invalid(#[source] InvalidHeaderValue),
}

/// A client of the webhook.
#[derive(Debug)]
pub(crate) struct Webhook {
    https: HttpsClient,
    url: Url,
    credential: Credential,
    initial_backoff: Duration,
    throttle: Option<Throttle>,
}

/// Limits the rate of batches.
#[derive(Debug, Default)]
struct Throttle {
    /// The time at which the next batch would be sent if all of them had the same distance.
    next: Option<Instant>,
}

impl Throttle {
    /// Waits until a batch may be sent.
    async fn wait(&mut self) {
        let distance = Duration::from_secs(1) / BATCHES_PER_SECOND;
        let now = Instant::now();
        let next = self.next.unwrap_or(now).max(now);
        sleep_until(next.checked_sub(distance * (BATCH_BURST - 1)).unwrap_or(now)).await;
        self.next = Some(next + distance);
    }
}

impl Webhook {
    /// Reads the kubeconfig. Does not connect yet.
    pub(crate) fn open(params: &WebhookParams, client: ClientParams) -> Result<Self, WebhookError> {
        let Target { url, roots, certificate, credential, proxy } = kubeconfig::load(&params.kubeconfig)?;
        let ClientParams { proxies, ciphers, user_agent } = client;
        let tls = client_config_with_certificate(
            Profile::Default,
            &ciphers,
            roots,
            certificate.as_ref(),
            ALPN_HTTP,
        )?;
        let https = HttpsClient::new(HttpsClientParams {
            dialer: TcpDialer::new(proxies).with_proxy(proxy.as_deref()),
            tls,
            user_agent,
            max_body: MAX_RESPONSE,
            timeout: Some(TIMEOUT),
            redirects: Redirects::Return,
            connections: Connections::Keep,
        });
        // Requests that wait limit the rate themselves.
        let throttle = (params.mode == WebhookMode::Batch).then(Throttle::default);
        Ok(Self { https, url, credential, initial_backoff: params.initial_backoff, throttle })
    }

    /// Sends a list of events until the webhook accepts or refuses it, or the attempts are used up.
    /// After `stop` is cancelled, no delay follows, and one attempt remains.
    pub(crate) async fn deliver(
        &mut self,
        list: Bytes,
        stop: &CancellationToken,
    ) -> Result<(), DeliveryError> {
        if let Some(throttle) = &mut self.throttle {
            stop.run_until_cancelled(throttle.wait()).await;
        }
        let mut pause = self.initial_backoff;
        let mut attempt = 1;
        loop {
            let is_last = stop.is_cancelled() || attempt == ATTEMPTS;
            match self.send(list.clone()).await {
                Err(error) if !is_last && !error.is_refusal() => {
                    let error = &error as &dyn std::error::Error;
                    tracing::debug!(error, attempt, "audit webhook does not accept events yet");
                }
                result => return result,
            }
            stop.run_until_cancelled(sleep(pause)).await;
            pause = pause.mul_f64(BACKOFF_FACTOR);
            attempt += 1;
        }
    }

    async fn send(&self, list: Bytes) -> Result<(), DeliveryError> {
        let mut headers: Vec<(HeaderName, HeaderValue)> = vec![
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (ACCEPT, HeaderValue::from_static("application/json, */*")),
        ];
        if let Some(authorization) = authorization(&self.credential)? {
            headers.push((AUTHORIZATION, authorization));
        }
        let response = self.https.send(&Method::POST, &self.url, &headers, list).await?;
        match response.status.is_success() {
            true => Ok(()),
            false => Err(DeliveryError::Refused { status: response.status, line: response.status_line() }),
        }
    }
}

/// Returns the header field of a credential.
fn authorization(credential: &Credential) -> Result<Option<HeaderValue>, TokenError> {
    let read;
    let token = match credential {
        Credential::None => return Ok(None),
        Credential::Token(token) => token,
        Credential::TokenFile(path) => {
            // A projected volume is in memory, so that the read does not block.
            let text =
                bounded_file::read(path).map_err(|source| TokenError::Read { path: path.clone(), source })?;
            read = Token::new(text.trim());
            &read
        }
    };
    if token.expose().is_empty() {
        return Err(TokenError::Empty);
    }
    let mut value =
        HeaderValue::try_from(format!("Bearer {}", token.expose())).map_err(TokenError::Invalid)?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Returns a list of events, which have [`crate::event::Format::Item`].
pub(crate) fn event_list(items: &[u8]) -> Bytes {
    let items = items.strip_suffix(b",").unwrap_or(items);
    let mut list = Vec::with_capacity(LIST_START.len() + items.len() + LIST_END.len());
    list.extend_from_slice(LIST_START);
    list.extend_from_slice(items);
    list.extend_from_slice(LIST_END);
    list.into()
}

#[cfg(test)]
mod tests;
