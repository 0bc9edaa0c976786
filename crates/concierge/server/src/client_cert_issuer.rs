//! The issuers of client certificates for logins.
//!
//! There may be several issuers: the cluster's own signing key if it is available, the cluster's
//! signer while that strategy is in use ([`certificate_signing_requests`]), and the impersonation
//! proxy's signer otherwise. They are tried in order until one succeeds ([`issue`]).

pub mod certificate_signing_requests;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use pinniped_concierge_controllers::certificate_signing_requests::SigningError;
use pinniped_pki::{CertificateStore, ClientSubject, IssueError, IssuedPair, LoadError, PairError, Validity};

/// The reasons why an issuer failed.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    /// It currently has no usable CA.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its CA could not sign the certificate.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// The cluster's signer issued no certificate.
    #[error(transparent)]
    Signing(#[from] SigningError),
    /// The task that requests the certificate ended, because the program is stopping.
    #[error("the request for a certificate was interrupted: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
    /// Too many requests to the cluster's signer are open. A retry succeeds later.
    #[error("too many CertificateSigningRequests are open")]
    Busy,
    /// The strategy of the issuer is not in use. Not an error of the login.
    #[error("not in use")]
    NotInUse,
}

/// No issuer issued a certificate. The text has every refusal with the name of its issuer.
#[derive(Debug, thiserror::Error)]
#[error("{}", listed(.0))]
pub struct IssuersError(Vec<IssuerRefusal>);

impl IssuersError {
    /// Returns whether a retry of the login succeeds later: an issuer is busy.
    pub fn is_busy(&self) -> bool {
        self.0.iter().any(|refusal| matches!(refusal.source, IssuerError::Busy))
    }
}

/// The refusal of one issuer.
#[derive(Debug, thiserror::Error)]
#[error("{issuer} failed to issue client cert: {source}")]
pub struct IssuerRefusal {
    issuer: String,
    source: IssuerError,
}

fn listed(refusals: &[IssuerRefusal]) -> String {
    let texts: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [] => "failed to issue cert".to_owned(),
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// A source of client certificates.
pub trait ClientCertIssuer: Send + Sync {
    /// Returns the name for errors and logs.
    fn name(&self) -> &str;

    /// Issues a client certificate that expires `lifetime` after `now`.
    fn issue<'a>(
        &'a self,
        subject: &'a ClientSubject,
        lifetime: Duration,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<IssuedPair, IssuerError>>;
}

/// Issues with the current CA of a certificate store.
#[derive(Clone, Debug)]
pub struct CertificateStoreIssuer {
    store: CertificateStore,
}

impl CertificateStoreIssuer {
    /// Creates an issuer with the name of the certificate store.
    pub fn new(store: CertificateStore) -> Self {
        Self { store }
    }

    fn issue_now(
        &self,
        subject: &ClientSubject,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<IssuedPair, IssuerError> {
        let Some(pair) = self.store.current() else {
            // The message of a Go server for an empty pair.
            return Err(LoadError::Pair(PairError::NoCertificatePem).into());
        };
        Ok(pair.authority()?.issue_client(subject, &Validity::starting(now, lifetime))?)
    }
}

impl ClientCertIssuer for CertificateStoreIssuer {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn issue<'a>(
        &'a self,
        subject: &'a ClientSubject,
        lifetime: Duration,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<IssuedPair, IssuerError>> {
        Box::pin(async move { self.issue_now(subject, lifetime, now) })
    }
}

/// Tries the issuers in order and returns the first certificate, with the name of its issuer. A
/// busy issuer ends the attempt: with a certificate of the next one, the client could not use the
/// server that it logs in to.
///
/// # Errors
/// The errors of all issuers that are in use.
pub async fn issue<'a>(
    issuers: &'a [Arc<dyn ClientCertIssuer>],
    subject: &ClientSubject,
    lifetime: Duration,
    now: Timestamp,
) -> Result<(IssuedPair, &'a str), IssuersError> {
    let mut refusals = Vec::new();
    for issuer in issuers {
        match issuer.issue(subject, lifetime, now).await {
            Ok(pair) => return Ok((pair, issuer.name())),
            Err(IssuerError::NotInUse) => {}
            Err(source) => {
                let is_busy = matches!(source, IssuerError::Busy);
                refusals.push(IssuerRefusal { issuer: issuer.name().to_owned(), source });
                if is_busy {
                    break;
                }
            }
        }
    }
    Err(IssuersError(refusals))
}

/// An issuer without a certificate, for tests: each call returns this error.
#[cfg(test)]
pub(crate) struct FailingIssuer(pub(crate) fn() -> IssuerError);

#[cfg(test)]
impl ClientCertIssuer for FailingIssuer {
    fn name(&self) -> &str {
        "signer"
    }

    fn issue<'a>(
        &'a self,
        _subject: &'a ClientSubject,
        _lifetime: Duration,
        _now: Timestamp,
    ) -> BoxFuture<'a, Result<IssuedPair, IssuerError>> {
        Box::pin(async { Err(self.0()) })
    }
}

#[cfg(test)]
mod tests {
    use pinniped_pki::CertificateAuthority;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().expect("a time")
    }

    fn issuer(name: &str, with_ca: bool) -> Arc<dyn ClientCertIssuer> {
        let store = CertificateStore::signer(name);
        if with_ca {
            let validity = Validity::starting(now(), Duration::from_secs(3600));
            let ca = CertificateAuthority::generate(name, &validity).expect("a CA");
            let key = ca.private_key_pem();
            store.set(ca.certificate_pem().as_bytes(), key.as_bytes()).expect("a signing pair");
        }
        Arc::new(CertificateStoreIssuer::new(store))
    }

    #[tokio::test]
    async fn an_issuer_that_is_not_in_use_is_not_mentioned_and_a_busy_one_is_the_last() {
        let off = || Arc::new(FailingIssuer(|| IssuerError::NotInUse)) as Arc<dyn ClientCertIssuer>;
        let busy = || Arc::new(FailingIssuer(|| IssuerError::Busy)) as Arc<dyn ClientCertIssuer>;
        let error = issue_with(&[off(), issuer("a", false)]).await.expect_err("empty");
        assert!(
            error.to_string().starts_with("a failed to issue client cert: ") && !error.is_busy(),
            "{error}"
        );
        assert_eq!(issue_with(&[off()]).await.expect_err("no issuer").to_string(), "failed to issue cert");
        issue_with(&[off(), issuer("a", true)]).await.expect("a certificate");
        issue_with(&[issuer("a", true), busy()]).await.expect("a certificate");
        let error = issue_with(&[busy(), issuer("a", true)]).await.expect_err("busy");
        assert!(error.is_busy(), "{error}");
        assert_eq!(
            error.to_string(),
            "signer failed to issue client cert: too many CertificateSigningRequests are open"
        );
    }

    async fn issue_with(issuers: &[Arc<dyn ClientCertIssuer>]) -> Result<(IssuedPair, &str), IssuersError> {
        let subject = ClientSubject { username: "u".to_owned(), ..ClientSubject::default() };
        issue(issuers, &subject, Duration::from_secs(300), now()).await
    }

    #[tokio::test]
    async fn the_first_available_issuer_issues() {
        let issuers = [issuer("first", false), issuer("second", true)];
        let (pair, name) = issue_with(&issuers).await.expect("a certificate");
        assert_eq!(name, "second");
        let leaf =
            pinniped_pki::Certificate::parse_pem(pair.certificate_pem.as_bytes()).expect("a certificate");
        assert_eq!(leaf.subject_cn, "u");
        assert_eq!(pair.validity.not_after.to_string(), "2026-01-02T03:09:05Z");
    }

    #[tokio::test]
    async fn every_error_names_its_issuer() {
        assert_eq!(issue_with(&[]).await.expect_err("no issuer").to_string(), "failed to issue cert");
        let empty = "could not load CA: tls: failed to find any PEM data in certificate input";
        assert_eq!(
            issue_with(&[issuer("a", false)]).await.expect_err("empty").to_string(),
            format!("a failed to issue client cert: {empty}"),
        );
        assert_eq!(
            issue_with(&[issuer("a", false), issuer("b", false)]).await.expect_err("empty").to_string(),
            format!("[a failed to issue client cert: {empty}, b failed to issue client cert: {empty}]"),
        );
    }
}
