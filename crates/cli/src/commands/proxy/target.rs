//! The API server behind the proxy, from the cluster entry of a kubeconfig.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use kube::config::Cluster;
use pinniped_go_compat::json::quote;
use pinniped_http_client::dial::{ConnectError, Stream};
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_http_client::upstream::{Dial, UpstreamParams};
use pinniped_pki::tls::Roots;
use pinniped_pki::{BundleError, CaBundle};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::kubeconfig::{self, ClusterCaError, ServerUrlError};

/// A cluster entry that is no destination.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The certificate of the server would not be verified.
    #[error(
        "cluster {} has insecure-skip-tls-verify: your token would be sent to any server that responds; remove it, and give \
         the certificate authority",
        quote(.0)
    )]
    Insecure(String),
    /// The address is invalid.
    #[error(transparent)]
    Server(#[from] ServerUrlError),
    /// The address is not https.
    #[error("cluster {} has server {}, which is no https address", quote(.cluster), quote(.server))]
    NotHttps {
        /// The name of the entry.
        cluster: String,
        /// The address.
        server: String,
    },
    /// The CA cannot be read.
    #[error(transparent)]
    Ca(#[from] ClusterCaError),
    /// The CA has no certificate.
    #[error("cluster {} has a bad certificate authority", quote(.cluster))]
    Bundle {
        /// The name of the entry.
        cluster: String,
        /// The error of the parser.
        #[source]
        source: BundleError,
    },
    /// The name in the certificate is invalid.
    #[error("cluster {} has tls-server-name {}, which is no name", quote(.cluster), quote(.server_name))]
    ServerName {
        /// The name of the entry.
        cluster: String,
        /// The name in the certificate.
        server_name: String,
    },
}

/// The destination of requests.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) params: UpstreamParams,
    /// The prefix of every path; empty, or a path without a trailing slash.
    pub(super) base: String,
}

impl Target {
    /// Creates the target for the cluster entry `name`.
    ///
    /// # Errors
    /// Returns an error for an entry that is invalid or would expose the token.
    pub(super) fn of(name: &str, cluster: &Cluster, dialer: TcpDialer) -> Result<Self, TargetError> {
        if cluster.insecure_skip_tls_verify == Some(true) {
            return Err(TargetError::Insecure(name.to_owned()));
        }
        let server = cluster.server.as_deref().unwrap_or_default();
        let url = kubeconfig::server_url(name, server, true)?;
        let unusable = || TargetError::NotHttps { cluster: name.to_owned(), server: server.to_owned() };
        let url: Uri = url.parse().map_err(|_| unusable())?;
        let authority =
            url.authority().filter(|_| url.scheme() == Some(&Scheme::HTTPS)).ok_or_else(unusable)?;
        let server = Uri::builder()
            .scheme(Scheme::HTTPS)
            .authority(authority.clone())
            .path_and_query("/")
            .build()
            .map_err(|_| unusable())?;
        let pem = kubeconfig::certificate_authority(name, cluster)?;
        let roots = if pem.is_empty() {
            Roots::System
        } else {
            let bundle = CaBundle::from_pem(&pem)
                .map_err(|source| TargetError::Bundle { cluster: name.to_owned(), source })?;
            Roots::Bundle(bundle)
        };
        let server_name = match cluster.tls_server_name.as_deref().filter(|name| !name.is_empty()) {
            None => None,
            Some(wanted) => Some(ServerName::try_from(wanted.to_owned()).map_err(|_| {
                TargetError::ServerName { cluster: name.to_owned(), server_name: wanted.to_owned() }
            })?),
        };
        let dialer = dialer.with_proxy(cluster.proxy_url.as_deref());
        Ok(Self {
            params: UpstreamParams {
                roots,
                server_name,
                dial: Some(Arc::new(ClusterConnector(dialer))),
                ..UpstreamParams::new(server, CaBundle::from_ders(Vec::new()))
            },
            base: url.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// Connects directly, or through the HTTP proxy of the environment or the kubeconfig.
#[derive(Debug)]
struct ClusterConnector(TcpDialer);

impl Dial for ClusterConnector {
    fn dial<'a>(
        &'a self,
        host: &'a str,
        port: u16,
        tls: Option<&'a Arc<ClientConfig>>,
    ) -> BoxFuture<'a, Result<Stream, ConnectError>> {
        Box::pin(self.0.dial_with_tls(host, port, tls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(yaml: &str) -> Result<Target, TargetError> {
        let cluster: Cluster = serde_saphyr::from_str(yaml).unwrap();
        Target::of("c", &cluster, TcpDialer::default())
    }

    #[test]
    fn the_address_may_have_a_path_and_a_different_server_name() {
        let of = target("{server: 'https://h:6443/k8s/c-1/', tls-server-name: other}").unwrap();
        assert_eq!(
            (of.params.server.to_string().as_str(), of.base.as_str()),
            ("https://h:6443/", "/k8s/c-1")
        );
        assert_eq!(of.params.server_name, Some(ServerName::try_from("other").unwrap()));
        let of = target("{server: 'h:6443'}").unwrap();
        assert_eq!((of.params.server.to_string().as_str(), of.base.as_str()), ("https://h:6443/", ""));
        assert_eq!(of.params.roots, Roots::System);
    }

    #[test]
    fn entries_that_would_expose_the_token_are_refused() {
        for (yaml, part) in [
            ("{server: 'https://h', insecure-skip-tls-verify: true}", "insecure-skip-tls-verify"),
            ("{server: 'http://h'}", "no https address"),
            ("{server: ''}", "no server found"),
            ("{server: 'https://h', certificate-authority-data: 'eA=='}", "bad certificate authority"),
            ("{server: 'https://h', tls-server-name: 'not a name'}", "is no name"),
        ] {
            let error = target(yaml).unwrap_err().to_string();
            assert!(error.contains(part), "{yaml}: {error}");
        }
    }
}
