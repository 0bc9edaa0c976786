//! Requests a client certificate from the cluster's signer.
//!
//! ```text
//! create   a CertificateSigningRequest with a new key and a random name
//! approve  the subresource approval; repeated on the current object after a conflict
//! wait     reads the object until it has a certificate or a refusal, with growing pauses
//! verify   key, subject and lifetime of the certificate
//! delete   in any case; the leader deletes requests that are left
//! ```
//!
//! Reading one object is cheaper for the API server than a watch for each login, and signers
//! respond within milliseconds.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use pinniped_concierge_domain::strategy::certificate_signing_requests::request::{
    self, LivesTooLong, Maker, Progress, Refusal, SIGNED_WITHIN, SIGNER,
};
use pinniped_concierge_domain::strategy::certificate_signing_requests::subject::{self, Ineligible};
use pinniped_pki::random::{RandomError, serial_number};
use pinniped_pki::{ClientCertificateRequest, ClientSubject, IssueError, IssuedPair, SignedCertificateError};

use pinniped_controller::client::{error_text, is_forbidden};

/// The pauses between two reads of a request.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of attempts of an approval that conflicts with other changes.
const MAX_APPROVALS: u32 = 4;

/// Time for the deletion of a request, for which a login waits.
const DELETED_WITHIN: Duration = Duration::from_secs(5);

/// The file with the permissions for requests.
const MANIFEST: &str = "install-pinniped-concierge-resources.yaml";

/// Reasons why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// No certificate is requested for this user.
    #[error(transparent)]
    Ineligible(#[from] Ineligible),
    /// The request could not be built.
    #[error(transparent)]
    Request(#[from] IssueError),
    /// There is no random name.
    #[error(transparent)]
    Name(#[from] RandomError),
    /// The API server refused an action, or could not be reached.
    #[error("could not {doing} a CertificateSigningRequest: {problem}{}", hint(*.forbidden))]
    Api {
        /// The action that failed.
        doing: &'static str,
        /// The message of the API server, without the random name.
        problem: String,
        /// Whether a permission is missing.
        forbidden: bool,
    },
    /// The request was denied, or the signer failed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another client deleted the request.
    #[error("the CertificateSigningRequest was deleted before it was signed")]
    Deleted,
    /// The signer did not sign in time. Clusters may have no such signer.
    #[error(
        "the signer {SIGNER} did not sign a CertificateSigningRequest within {} seconds",
        SIGNED_WITHIN.as_secs()
    )]
    NotSigned,
    /// The certificate is not the requested one.
    #[error("the signer {SIGNER} returned an unusable certificate: {0}")]
    Certificate(#[from] SignedCertificateError),
    /// The certificate lives too long.
    #[error(transparent)]
    LivesTooLong(#[from] LivesTooLong),
}

fn hint(forbidden: bool) -> String {
    if forbidden { format!(": apply {MANIFEST}") } else { String::new() }
}

/// Requests certificates for the logins of an installation. Cheap to clone.
#[derive(Clone)]
pub struct SigningClient {
    requests: Api<CertificateSigningRequest>,
    maker: Maker,
}

impl std::fmt::Debug for SigningClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningClient").field("maker", &self.maker).finish_non_exhaustive()
    }
}

impl SigningClient {
    /// Returns a client that creates its requests with the permissions of `client`.
    pub fn new(client: kube::Client, maker: Maker) -> Self {
        Self { requests: Api::all(client), maker }
    }

    pub(super) fn requests(&self) -> &Api<CertificateSigningRequest> {
        &self.requests
    }

    pub(super) fn maker(&self) -> &Maker {
        &self.maker
    }

    /// Returns a certificate with a new key for this user, which expires about `lifetime` from now;
    /// the API has a minimum of ten minutes. No request is left, unless the future is dropped or
    /// the deletion fails.
    ///
    /// # Errors
    ///
    /// Returns [`SigningError`]. No request is created for an ineligible user.
    pub async fn sign(
        &self,
        subject: &ClientSubject,
        lifetime: Duration,
    ) -> Result<IssuedPair, SigningError> {
        subject::check(&subject.username, &subject.groups)?;
        let lifetime = request::lifetime(lifetime);
        let requested = ClientCertificateRequest::generate(subject)?;
        let name = request::object_name(u128::from_be_bytes(serial_number()?));
        let object = self.maker.request(&name, requested.pem(), lifetime);
        let signed = tokio::time::timeout(SIGNED_WITHIN, self.signed(&name, object)).await;
        // Also after an error: the response to the creation may have been lost.
        self.delete(&name).await;
        let pair = requested.accept(&signed.unwrap_or(Err(SigningError::NotSigned))?)?;
        request::check_lifetime(pair.validity.not_after, lifetime, Timestamp::now())?;
        Ok(pair)
    }

    /// Creates and approves a request, and returns its certificate.
    async fn signed(&self, name: &str, object: CertificateSigningRequest) -> Result<Vec<u8>, SigningError> {
        let created = self.requests.create(&PostParams::default(), &object).await;
        self.approve(name, created.map_err(failed("create", name))?).await?;
        let mut pause = FIRST_PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            match request::progress(&self.get(name).await?) {
                Progress::Waiting => {}
                Progress::Signed(certificate) => return Ok(certificate),
                Progress::Refused(refusal) => return Err(refusal.into()),
            }
        }
    }

    async fn approve(&self, name: &str, created: CertificateSigningRequest) -> Result<(), SigningError> {
        let mut approved = request::approved(created);
        for _ in 1..MAX_APPROVALS {
            match self.write_approval(name, &approved).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                written => return written.map_err(failed("approve", name)),
            }
            let current = self.get(name).await?;
            if let Progress::Refused(refusal) = request::progress(&current) {
                return Err(refusal.into());
            }
            approved = request::approved(current);
        }
        self.write_approval(name, &approved).await.map_err(failed("approve", name))
    }

    async fn write_approval(
        &self,
        name: &str,
        approved: &CertificateSigningRequest,
    ) -> Result<(), kube::Error> {
        self.requests.replace_subresource("approval", name, &PostParams::default(), approved).await.map(drop)
    }

    async fn get(&self, name: &str) -> Result<CertificateSigningRequest, SigningError> {
        self.requests.get_opt(name).await.map_err(failed("get", name))?.ok_or(SigningError::Deleted)
    }

    /// Deletes a request. A failure concerns no user: the leader deletes what is left.
    async fn delete(&self, name: &str) {
        let params = DeleteParams::default();
        let deleted = tokio::time::timeout(DELETED_WITHIN, self.requests.delete(name, &params)).await;
        match deleted {
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
            Ok(Err(error)) => {
                tracing::info!(name, error = %error_text(&error), "could not delete a CertificateSigningRequest");
            }
            Err(_) => tracing::info!(name, "could not delete a CertificateSigningRequest in time"),
        }
    }
}

/// Returns the error of an action. The random name is removed from the text, because the message of
/// a status must not change with every probe.
fn failed(doing: &'static str, name: &str) -> impl FnOnce(kube::Error) -> SigningError {
    move |error| SigningError::Api {
        doing,
        problem: error_text(&error).replace(name, "pinniped-login-…"),
        forbidden: is_forbidden(&error),
    }
}

#[cfg(test)]
mod tests;
