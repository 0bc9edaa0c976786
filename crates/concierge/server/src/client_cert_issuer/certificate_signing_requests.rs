//! Issues certificates that the cluster's own signer signs, one request for each login.

use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use pinniped_concierge_api::names::ISSUER_CERTIFICATE_SIGNING_REQUEST;
use pinniped_concierge_controllers::certificate_signing_requests::{SigningClient, SigningSwitch};
use pinniped_fair_semaphore::{FairSemaphore, Permit};
use pinniped_kube_metrics::permits;
use pinniped_metrics::Metrics;
use pinniped_pki::{ClientSubject, IssuedPair};

use super::{ClientCertIssuer, IssuerError};

/// Maximum number of requests of this replica that are open at the same time. Shared between users:
/// one user gets twelve of them.
const OPEN_REQUESTS: usize = 16;

/// Maximum number of logins that wait until another login's request is closed.
const WAITING_LOGINS: usize = 64;

/// Maximum time for which a login waits. Together with the time for signing, it is below the 60
/// seconds that the API server gives a request to the aggregated API.
const WAITS_WITHIN: Duration = Duration::from_secs(10);

/// Issues with the cluster's signer while that strategy is in use.
#[derive(Clone, Debug)]
pub struct CertificateSigningRequestIssuer {
    signing: SigningClient,
    switch: SigningSwitch,
    open: FairSemaphore,
}

impl CertificateSigningRequestIssuer {
    /// Creates an issuer without open requests.
    pub fn new(signing: SigningClient, switch: SigningSwitch) -> Self {
        Self { signing, switch, open: FairSemaphore::new(OPEN_REQUESTS, WAITING_LOGINS) }
    }

    /// Registers the metrics of the permits.
    pub fn register_metrics(&self, metrics: &Metrics) {
        permits::register(metrics, permits::CERTIFICATE_SIGNING_REQUESTS, &self.open);
    }

    async fn permit(&self, username: &str) -> Result<Permit, IssuerError> {
        let waiting = self.open.enqueue(&[username]).ok_or(IssuerError::Busy)?;
        tokio::time::timeout(WAITS_WITHIN, waiting).await.map_err(|_| IssuerError::Busy)
    }
}

impl ClientCertIssuer for CertificateSigningRequestIssuer {
    fn name(&self) -> &str {
        ISSUER_CERTIFICATE_SIGNING_REQUEST
    }

    fn issue<'a>(
        &'a self,
        subject: &'a ClientSubject,
        lifetime: Duration,
        _now: Timestamp,
    ) -> BoxFuture<'a, Result<IssuedPair, IssuerError>> {
        Box::pin(async move {
            if !self.switch.is_on() {
                return Err(IssuerError::NotInUse);
            }
            let permit = self.permit(&subject.username).await?;
            let (signing, subject) = (self.signing.clone(), subject.clone());
            // A task of its own: a client that disconnects drops its login, but the request in the
            // cluster stays open until it is deleted, and holds the permit for as long.
            let signed = tokio::spawn(async move {
                let _permit = permit;
                signing.sign(&subject, lifetime).await
            });
            Ok(signed.await??)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use pinniped_concierge_domain::strategy::certificate_signing_requests::request::Maker;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    /// Returns an issuer whose signer never signs, and the number of its open requests.
    fn silent() -> (CertificateSigningRequestIssuer, Arc<AtomicUsize>) {
        let open = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&open);
        let service = tower::service_fn(move |request: Request<Body>| {
            let open = Arc::clone(&counted);
            async move {
                let (head, body) = request.into_parts();
                match head.method.as_str() {
                    "POST" => open.fetch_add(1, Ordering::SeqCst),
                    "DELETE" => open.fetch_sub(1, Ordering::SeqCst),
                    _ => 0,
                };
                let sent = body.collect_bytes().await.unwrap_or_default();
                let object = json!({"metadata": {"name": "x"}, "spec": {"request": "", "signerName": "s"}});
                let body = if sent.is_empty() { object.to_string().into() } else { sent };
                let response = Response::builder().status(200).body(Body::from(body));
                Ok::<_, std::io::Error>(response.expect("a response"))
            }
        });
        let maker = Maker { namespace: "ns".to_owned(), labels: [].into() };
        let signing = SigningClient::new(kube::Client::new(service, "ns"), maker);
        let switch = SigningSwitch::default();
        switch.set(true);
        (CertificateSigningRequestIssuer::new(signing, switch), open)
    }

    async fn log_in(issuer: &CertificateSigningRequestIssuer, username: &str) -> IssuerError {
        let subject = ClientSubject { username: username.to_owned(), ..ClientSubject::default() };
        issuer
            .issue(&subject, Duration::from_secs(300), Timestamp::now())
            .await
            .expect_err("the signer does not respond")
    }

    #[tokio::test(start_paused = true)]
    async fn an_issuer_that_is_not_in_use_sends_no_request() {
        let (issuer, open) = silent();
        issuer.switch.set(false);
        assert!(matches!(log_in(&issuer, "u").await, IssuerError::NotInUse));
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn open_requests_are_bounded_and_excess_logins_are_told_to_retry() {
        let (issuer, open) = silent();
        let began = Instant::now();
        let flood = async {
            let logins = (0..60).map(|_| log_in(&issuer, "greedy"));
            futures::future::join_all(logins).await
        };
        let another = async {
            // After the flood has begun.
            tokio::time::sleep(Duration::from_millis(10)).await;
            let greedy = open.load(Ordering::SeqCst);
            let login = log_in(&issuer, "another");
            let observed = async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                open.load(Ordering::SeqCst)
            };
            (greedy, futures::future::join(login, observed).await)
        };
        let (greedy, (open_by_greedy, (another, with_another))) = futures::future::join(flood, another).await;
        assert_eq!(open_by_greedy, 12);
        assert_eq!(with_another, 13, "another user does not wait");
        assert!(matches!(another, IssuerError::Signing(_)), "{another}");
        let busy = greedy.iter().filter(|error| matches!(error, IssuerError::Busy)).count();
        assert_eq!(greedy.len() - busy, 12, "the others gave up before a request was closed");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert_eq!(open.load(Ordering::SeqCst), 0, "no request is left");
    }

    #[tokio::test(start_paused = true)]
    async fn logins_whose_clients_disconnect_keep_their_permits_and_delete_their_requests() {
        let (issuer, open) = silent();
        for _ in 0..40 {
            let login = log_in(&issuer, "greedy");
            tokio::time::timeout(Duration::from_millis(10), login).await.expect_err("the client disconnects");
        }
        assert_eq!(open.load(Ordering::SeqCst), 12);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(open.load(Ordering::SeqCst), 0, "no request is left");
    }
}
