//! How this cluster authenticates clients of aggregated API servers: the ConfigMap
//! `kube-system/extension-apiserver-authentication`.

use std::sync::Arc;

use pinniped_pki::CaBundle;
use tokio_util::sync::CancellationToken;

/// The front proxy's trust and header names.
#[derive(Clone, Debug, Default)]
pub struct RequestHeaderConfig {
    /// CA of the front proxy's client certificate.
    pub ca: CaBundle,
    /// Accepted common names; empty accepts any.
    pub allowed_names: Vec<String>,
    /// Headers that carry the user name.
    pub username_headers: Vec<String>,
    /// Headers that carry the UID.
    pub uid_headers: Vec<String>,
    /// Headers that carry groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers that carry extra values.
    pub extra_prefixes: Vec<String>,
}

/// The ConfigMap, parsed.
#[derive(Clone, Debug, Default)]
pub struct ClusterAuthConfig {
    /// CA of client certificates.
    pub client_ca: Option<CaBundle>,
    /// Front proxy, where one is configured.
    pub request_header: Option<RequestHeaderConfig>,
}

/// The ConfigMap could not be read at start.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The first read failed.
    #[error("could not read ConfigMap kube-system/extension-apiserver-authentication")]
    Read(#[source] Box<kube::Error>),
}

/// Follows the ConfigMap. Cheap to clone.
#[derive(Clone)]
pub struct ClusterAuthConfigWatch {}

impl ClusterAuthConfigWatch {
    /// First read.
    pub async fn load(_client: kube::Client) -> Result<Self, LoadError> {
        todo!()
    }

    /// A source that never changes, for tests and for servers without a cluster.
    pub fn fixed(_config: ClusterAuthConfig) -> Self {
        todo!()
    }

    /// Follows the ConfigMap until cancelled.
    pub async fn run(&self, _cancel: CancellationToken) {
        todo!()
    }

    /// The last good content.
    pub fn current(&self) -> Arc<ClusterAuthConfig> {
        todo!()
    }

    /// Grows with every change of content.
    pub fn generation(&self) -> u64 {
        todo!()
    }
}
