//! A Kubernetes client for a kubeconfig context, with all authentication methods that kube
//! supports, and the texts of its errors.
//!
//! kube's own client does not support proxies in this build and would select them itself, so this
//! module combines kube's layers with our [`TcpDialer`].

use std::path::Path;
use std::sync::Arc;

use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use kube::client::ConfigExt as _;
use kube::config::{
    AuthInfo, Cluster, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo,
};
use rustls::pki_types::{CertificateDer, ServerName};
use secrecy::ExposeSecret;
use tower::ServiceBuilder;

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_error::{causes, chain};
use pinniped_go_compat::base64 as gobase64;
use pinniped_go_compat::io::GoIoError;
use pinniped_go_compat::json::quote;
use pinniped_go_compat::network as go_network;
use pinniped_http_client::dial::ConnectError;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_kube_types::status::generic_message;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{Roots, TlsError, server_verifier};

use crate::exec_plugin::{ExecPluginError, PluginResult, PluginRun};
use crate::kubeconfig::identity::NoUsername;
use crate::kubeconfig::{ClusterCaError, ServerUrlError, UserCertificateError};
use crate::login::{HeaderError, impersonation_headers};
use crate::version;
use crate::{bounded_file, exec_plugin, kubeconfig};

/// A client could not be created.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address of the cluster is invalid.
    #[error(transparent)]
    Server(#[from] ServerUrlError),
    /// The CA certificates of the cluster cannot be read.
    #[error("invalid configuration")]
    Ca(#[from] ClusterCaError),
    /// The client certificate of the user is invalid.
    #[error(transparent)]
    Certificate(#[from] UserCertificateError),
    /// The token file of the user cannot be read.
    #[error("failed to read token file {}: open {path}", quote(.path))]
    TokenFile {
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// The impersonation fields of the user are invalid.
    #[error("invalid configuration")]
    Impersonation(#[from] NoUsername),
    /// The user to impersonate does not fit into headers.
    #[error("invalid configuration")]
    Headers(#[from] HeaderError),
    /// kube refuses an entry.
    #[error("invalid configuration")]
    Kubeconfig(#[from] KubeconfigError),
    /// A file or variable of the pod is missing.
    #[error(transparent)]
    InCluster(#[from] InClusterError),
    /// The plugin of the user returned no credential.
    #[error("getting credentials")]
    Plugin(#[from] ExecPluginError),
    /// The token cannot be sent.
    #[error("net/http: invalid header field value for \"Authorization\"")]
    Token,
    /// The credential of the user cannot be used.
    #[error("getting credentials")]
    Credential(#[source] kube::client::AuthError),
    /// The CA certificates of the cluster, or the name of its server, cannot be used.
    #[error("invalid configuration")]
    Tls(#[from] TlsError),
    /// kube refuses another setting.
    #[error(transparent)]
    Client(Box<kube::Error>),
}

impl From<kube::Error> for AdminError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Auth(error) => Self::Credential(error),
            other => Self::Client(Box::new(other)),
        }
    }
}

/// A failed request, with the text of client-go, which users and scripts see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct RequestError {
    text: String,
    is_not_found: bool,
}

impl RequestError {
    /// Returns whether the server has no such object or resource (404).
    pub fn is_not_found(&self) -> bool {
        self.is_not_found
    }
}

/// A client and the address of its server.
#[derive(Clone)]
pub struct Admin {
    /// The client.
    pub client: kube::Client,
    /// The end of the validity of the user's credential, if it is known: that of the plugin's
    /// response, or of the client certificate.
    pub expires: Option<Timestamp>,
    server: String,
    /// The credential, for clients of servers in pods.
    config: Arc<kube::Config>,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The request that an error text refers to.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The verb: `get`, `list`, `create`.
    pub verb: &'a str,
    /// The resource, such as `credentialissuers.config.concierge.pinniped.dev`.
    pub resource: &'a str,
    /// The name of the object, or empty.
    pub name: &'a str,
    /// The path of the request.
    pub path: &'a str,
}

impl Admin {
    /// Creates the client. Runs the exec plugin of the context's user, if it has one.
    ///
    /// # Errors
    ///
    /// Returns an error if an entry of the context is invalid.
    pub async fn new(config: Kubeconfig, context: &str, dialer: TcpDialer) -> Result<Self, AdminError> {
        Self::with_plugin(config, context, dialer, PluginRun::Interactive).await
    }

    /// Creates the client as [`Admin::new`]; `run` determines how the plugin runs.
    ///
    /// # Errors
    ///
    /// Returns an error if an entry of the context is invalid.
    pub(crate) async fn with_plugin(
        mut config: Kubeconfig,
        context: &str,
        dialer: TcpDialer,
        run: PluginRun<'_>,
    ) -> Result<Self, AdminError> {
        let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
        let mut proxy = None;
        if let Some((name, cluster)) = cluster_of(&mut config, context) {
            let secure = cluster.certificate_authority.is_some()
                || cluster.certificate_authority_data.is_some()
                || cluster.insecure_skip_tls_verify == Some(true);
            let server = cluster.server.as_deref().unwrap_or_default();
            cluster.server = Some(kubeconfig::server_url(name, server, secure)?);
            proxy = cluster.proxy_url.clone();
            if let Some(path) = cluster.certificate_authority.take() {
                // kube would read all of the file.
                let file = Cluster { certificate_authority: Some(path), ..cluster.clone() };
                let pem = kubeconfig::certificate_authority(name, &file)?;
                cluster.certificate_authority_data = (!pem.is_empty()).then(|| gobase64::encode(&pem));
            }
        }
        let mut impersonated = None;
        if let Some(user) = user_of(&config, context) {
            let no_credentials = AuthInfo::default();
            let entry = user.auth_info.as_ref().unwrap_or(&no_credentials);
            kubeconfig::check_certificate(&user.name, entry)?;
            if let Some(path) = entry.token_file.as_deref().filter(|path| !path.is_empty()) {
                // kube would read all of the file.
                bounded_file::check(Path::new(path))
                    .map_err(|error| AdminError::TokenFile { path: path.to_owned(), source: error.into() })?;
            }
            impersonated = kubeconfig::identity::read_user(&user.name, entry)?;
        }
        let mut config = kube::Config::from_custom_kubeconfig(config, &options).await?;
        let PluginResult { headers: plugin_headers, expires } =
            exec_plugin::resolve(&mut config.auth_info, run).await?;
        let certificate = || Some(kubeconfig::client_certificate(&config.auth_info)?.not_after);
        let expires = expires.or_else(certificate);
        check_header(&config.auth_info)?;
        impersonate(&mut config, impersonated.as_ref(), plugin_headers)?;
        Ok(Self { expires, ..Self::from_config(config, dialer.with_proxy(proxy.as_deref()))? })
    }

    /// Creates a client for a context that sends requests without a credential.
    ///
    /// # Errors
    ///
    /// Returns an error if the cluster entry of the context is invalid.
    pub(crate) async fn anonymous(
        mut config: Kubeconfig,
        context: &str,
        dialer: TcpDialer,
    ) -> Result<Self, AdminError> {
        for user in &mut config.auth_infos {
            user.auth_info = Some(AuthInfo::default());
        }
        Self::new(config, context, dialer).await
    }

    /// Creates the client of the pod in which this program runs.
    ///
    /// # Errors
    ///
    /// Returns an error if a file or variable of the pod is missing.
    pub fn in_cluster(dialer: TcpDialer) -> Result<Self, AdminError> {
        Self::from_config(kube::Config::incluster()?, dialer)
    }

    fn from_config(mut config: kube::Config, dialer: TcpDialer) -> Result<Self, AdminError> {
        pinniped_pki::install_crypto_provider();
        config.proxy_url = None;
        // Go treats an empty name as not set.
        config.tls_server_name = config.tls_server_name.filter(|name| !name.is_empty());
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let own_config = Arc::new(config.clone());
        config.headers.push((http::header::USER_AGENT, version::user_agent()));
        let connector = connector(&config, dialer)?;
        let http = legacy::Client::builder(TokioExecutor::new()).build::<_, kube::client::Body>(connector);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .map_err(tower::BoxError::from)
            .layer(config.extra_headers_layer()?)
            .service(http);
        Ok(Self {
            client: kube::Client::new(service, config.default_namespace),
            expires: None,
            server,
            config: own_config,
        })
    }

    /// Returns the configuration of a client of another server, with the credential of this one.
    /// The certificate of the server must verify with one of `roots`, which are DER.
    pub(crate) fn config_of(&self, server: http::Uri, roots: Vec<Vec<u8>>) -> kube::Config {
        let mut config = (*self.config).clone();
        config.cluster_url = server;
        config.root_cert = Some(roots);
        // In a pod, this file would take precedence.
        config.root_cert_file = None;
        config.accept_invalid_certs = false;
        config.tls_server_name = None;
        config
    }

    /// Returns the error of a failed request.
    pub fn request_error(&self, err: &kube::Error, subject: Subject<'_>) -> RequestError {
        let is_not_found = matches!(err, kube::Error::Api(status) if status.code == 404);
        let text = match err {
            kube::Error::Api(status) => api_text(status, subject),
            kube::Error::Auth(err) => {
                format!("{}getting credentials: {}", self.url_prefix(subject), chain(err))
            }
            kube::Error::Service(err) => {
                format!("{}{}", self.url_prefix(subject), self.transport_text(err.as_ref()))
            }
            kube::Error::HyperError(err) => {
                format!("{}{}", self.url_prefix(subject), self.transport_text(err))
            }
            other => chain(other).to_string(),
        };
        RequestError { text, is_not_found }
    }

    /// Returns the text of the error in the chain that describes the connection.
    fn transport_text(&self, err: &(dyn std::error::Error + 'static)) -> String {
        let host = self.server.parse::<http::Uri>().ok();
        let host = host.as_ref().and_then(http::Uri::host).unwrap_or_default();
        causes(err)
            .find_map(|cause| match cause.downcast_ref::<ConnectError>() {
                Some(dial) => Some(dial.to_string()),
                None => cause.downcast_ref().map(|error| go_network::tls(error, host)),
            })
            .unwrap_or_else(|| chain(err).to_string())
    }

    fn url_prefix(&self, subject: Subject<'_>) -> String {
        let method = if subject.verb == "create" { "Post" } else { "Get" };
        format!("{method} \"{}{}\": ", self.server, subject.path)
    }
}

/// Returns the connector of kube with the verifier of the other clients of this program. As in Go,
/// a server certificate that is itself in the CA bundle is accepted, also if it is a CA
/// certificate.
fn connector(config: &kube::Config, dialer: TcpDialer) -> Result<HttpsConnector<TcpDialer>, AdminError> {
    let mut tls = config.rustls_client_config()?;
    // With a file, which a pod has, kube reads the bundle again when it is replaced.
    if let Some(roots) = &config.root_cert
        && config.root_cert_file.is_none()
        && !config.accept_invalid_certs
    {
        let roots = roots.iter().map(|der| CertificateDer::from(der.clone())).collect();
        let verifier = server_verifier(Roots::Bundle(CaBundle::from_ders(roots)))?;
        tls.dangerous().set_certificate_verifier(verifier);
    }
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone()).map_err(|_| TlsError::Name(name.clone()))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_http1().wrap_connector(dialer))
}

/// Sets the impersonation headers of every request. The kubeconfig takes precedence over its
/// plugin, as flags of kubectl take precedence over both. Written here because kube refuses names
/// that are not ASCII.
fn impersonate(
    config: &mut kube::Config,
    user: Option<&ImpersonatedUser>,
    plugin_headers: Vec<(http::HeaderName, http::HeaderValue)>,
) -> Result<(), HeaderError> {
    let entry = &mut config.auth_info;
    entry.impersonate = None;
    entry.impersonate_uid = None;
    entry.impersonate_groups = None;
    entry.impersonate_user_extra = None;
    let Some(user) = user else {
        config.headers.extend(plugin_headers);
        return Ok(());
    };
    let headers = impersonation_headers(user)?;
    let own = headers.iter().map(|(name, value)| (name.clone(), value.clone()));
    config.headers.extend(own);
    Ok(())
}

/// Returns the cluster that `context` refers to, and its name.
fn cluster_of<'a>(config: &'a mut Kubeconfig, context: &str) -> Option<(&'a str, &'a mut Cluster)> {
    let context = config.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    let named = config.clusters.iter_mut().find(|named| named.name == context.cluster)?;
    Some((named.name.as_str(), named.cluster.as_mut()?))
}

/// Returns the user that `context` refers to.
fn user_of<'a>(config: &'a Kubeconfig, context: &str) -> Option<&'a NamedAuthInfo> {
    let context = config.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    config.auth_infos.iter().find(|named| Some(&named.name) == context.user.as_ref())
}

/// Refuses tokens that are not valid header values; the layer that creates the header would panic.
fn check_header(user: &AuthInfo) -> Result<(), AdminError> {
    let token = user.token.iter().map(ExposeSecret::expose_secret);
    let provider = user.auth_provider.iter().flat_map(|provider| {
        ["id-token", "access-token"]
            .into_iter()
            .filter_map(|key| provider.config.get(key).map(String::as_str))
    });
    if token.chain(provider).any(|text| http::HeaderValue::from_bytes(text.as_bytes()).is_err()) {
        return Err(AdminError::Token);
    }
    Ok(())
}

fn api_text(status: &kube::core::Status, subject: Subject<'_>) -> String {
    // kube's marker for responses that are not a Kubernetes Status.
    if status.reason != "Failed to parse error data" {
        return status.message.clone();
    }
    generic_response(status.code, &status.message, subject)
}

/// Returns the text of client-go for a response that is not a `Status`.
pub fn generic_response(code: u16, body: &str, subject: Subject<'_>) -> String {
    let message = generic_message(code, body);
    let verb = if subject.verb == "create" { "post" } else { "get" };
    if subject.name.is_empty() {
        format!("{message} ({verb} {})", subject.resource)
    } else {
        format!("{message} ({verb} {} {})", subject.resource, subject.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_without_a_status_have_the_texts_of_client_go() {
        let list = Subject {
            verb: "list",
            resource: "credentialissuers.config.concierge.pinniped.dev",
            name: "",
            path: "/apis",
        };
        for (code, body, text) in [
            (
                404,
                "404 page not found",
                "the server could not find the requested resource (get credentialissuers.config.concierge.pinniped.dev)",
            ),
            (
                503,
                "",
                "the server is currently unable to handle the request (get credentialissuers.config.concierge.pinniped.dev)",
            ),
            (
                502,
                "oops",
                "an error on the server (\"oops\") has prevented the request from succeeding (get credentialissuers.config.concierge.pinniped.dev)",
            ),
        ] {
            assert_eq!(generic_response(code, body, list), text);
        }
    }
}
