//! Who sends this request: the chain of an aggregated API server.

use std::sync::Arc;

use http::HeaderMap;
use jiff::Timestamp;
use pinniped_core::identity::User;
use pinniped_pki::{CaBundle, CertificateHolder};
use rustls::DistinguishedName;
use rustls::pki_types::CertificateDer;

pub use crate::bearer::{Bearer, bearer_token};
use crate::cluster::TokenReviewer;
use crate::cluster_auth_config::ClusterAuthConfigWatch;

/// A client CA besides the cluster's own, such as the impersonation proxy's signer.
pub trait ClientCaSource: Send + Sync {
    /// Changes whenever [`current`](Self::current) would.
    fn generation(&self) -> u64;
    /// The CA certificates, if any are known.
    fn current(&self) -> Option<CaBundle>;
}

/// What a [`RequestAuthenticator`] works with.
pub struct RequestAuthenticatorParams {
    /// The cluster's client CA and front proxy.
    pub cluster: ClusterAuthConfigWatch,
    /// One more client CA.
    pub extra_client_ca: Option<Arc<dyn ClientCaSource>>,
    /// Judges bearer tokens.
    pub reviewer: TokenReviewer,
}

/// How a user was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Identity headers of a trusted front proxy.
    FrontProxy,
    /// TLS client certificate.
    ClientCertificate,
    /// `Authorization: Bearer`.
    BearerToken,
    /// Token in a WebSocket subprotocol.
    WebSocketToken,
}

/// The chain's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody, with group `system:authenticated` added.
    User {
        /// Who.
        user: Arc<User>,
        /// Recognised how.
        method: Method,
    },
    /// No method had an opinion.
    Anonymous,
    /// Some method failed and none succeeded: answer 401. The reason is for logs, never for the client.
    Rejected {
        /// All errors, joined.
        reason: String,
    },
}

/// Authenticates requests. Cheap to clone.
#[derive(Clone)]
pub struct RequestAuthenticator {}

impl RequestAuthenticator {
    /// Builds the chain.
    pub fn new(_params: RequestAuthenticatorParams) -> Self {
        todo!()
    }

    /// Walks the chain; on success removes credentials and front-proxy headers from the request.
    pub async fn authenticate(
        &self,
        _headers: &mut HeaderMap,
        _peer: &[CertificateDer<'static>],
        _now: Timestamp,
    ) -> Outcome {
        todo!()
    }

    /// Subjects of all CAs whose client certificates are accepted now: hints for the TLS handshake.
    pub fn client_ca_hints(&self) -> Vec<DistinguishedName> {
        todo!()
    }
}

impl ClientCaSource for CertificateHolder {
    fn generation(&self) -> u64 {
        *self.subscribe().borrow()
    }

    fn current(&self) -> Option<CaBundle> {
        todo!()
    }
}
