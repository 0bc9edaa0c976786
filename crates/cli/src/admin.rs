//! A Kubernetes client for a kubeconfig context, with all authentication methods that kube
//! supports, and the texts of its errors.
//!
//! kube's own client does not support proxies in this build and would select them itself, so this
//! module combines kube's layers with our [`Dialer`].

use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt as _;
use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig, NamedAuthInfo};
use secrecy::ExposeSecret;
use tower::ServiceBuilder;

use pinniped_concierge_api::login::ImpersonatedUser;

use crate::dial::Dialer;
use crate::https::{describe, tls_cause, tls_text};
use crate::login::impersonation_headers;
use crate::version;
use crate::{exec_plugin, kubeconfig};

/// A client and the address of its server.
#[derive(Clone)]
pub struct Admin {
    /// The client.
    pub client: kube::Client,
    server: String,
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
    /// Returns an error text if an entry of the context is invalid.
    pub async fn new(mut config: Kubeconfig, context: &str, dialer: Dialer) -> Result<Self, String> {
        let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
        let mut proxy = None;
        if let Some((name, cluster)) = cluster_of(&mut config, context) {
            let secure = cluster.certificate_authority.is_some()
                || cluster.certificate_authority_data.is_some()
                || cluster.insecure_skip_tls_verify == Some(true);
            let server = cluster.server.as_deref().unwrap_or_default();
            cluster.server = Some(kubeconfig::server_url(name, server, secure)?);
            proxy = cluster.proxy_url.clone();
        }
        let mut impersonated = None;
        if let Some(user) = user_of(&config, context) {
            let nobody = AuthInfo::default();
            let entry = user.auth_info.as_ref().unwrap_or(&nobody);
            kubeconfig::check_certificate(&user.name, entry)?;
            impersonated = kubeconfig::identity::read_user(&user.name, entry)
                .map_err(|why| format!("invalid configuration: {why}"))?;
        }
        let mut config = kube::Config::from_custom_kubeconfig(config, &options)
            .await
            .map_err(|err| format!("invalid configuration: {}", describe(&err)))?;
        let told = exec_plugin::resolve(&mut config.auth_info)
            .map_err(|why| format!("getting credentials: {why}"))?;
        check_header(&config.auth_info)?;
        impersonate(&mut config, impersonated.as_ref(), told)?;
        Self::from_config(config, dialer.with_proxy(proxy.as_deref()))
    }

    /// Creates the client of the pod in which this program runs.
    ///
    /// # Errors
    ///
    /// Returns an error text if a file or variable of the pod is missing.
    pub fn in_cluster(dialer: Dialer) -> Result<Self, String> {
        let config = kube::Config::incluster().map_err(|err| describe(&err))?;
        Self::from_config(config, dialer)
    }

    fn from_config(mut config: kube::Config, dialer: Dialer) -> Result<Self, String> {
        pinniped_pki::install_crypto_provider();
        config.proxy_url = None;
        // Go treats an empty name as not set.
        config.tls_server_name = config.tls_server_name.filter(|name| !name.is_empty());
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let text = |err: kube::Error| match err {
            kube::Error::Auth(err) => format!("getting credentials: {}", describe(&err)),
            other => describe(&other),
        };
        if let Ok(agent) = http::HeaderValue::from_str(&version::user_agent()) {
            config.headers.push((http::header::USER_AGENT, agent));
        }
        let connector = config.rustls_https_connector_with_connector(dialer).map_err(text)?;
        let http = legacy::Client::builder(TokioExecutor::new()).build::<_, kube::client::Body>(connector);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer().map_err(text)?)
            .map_err(tower::BoxError::from)
            .layer(config.extra_headers_layer().map_err(text)?)
            .service(http);
        Ok(Self { client: kube::Client::new(service, config.default_namespace), server })
    }

    /// Returns the text for a failed request.
    pub fn error_text(&self, err: &kube::Error, subject: Subject<'_>) -> String {
        match err {
            kube::Error::Api(status) => api_text(status, subject),
            kube::Error::Auth(err) => {
                format!("{}getting credentials: {}", self.url_prefix(subject), describe(err))
            }
            kube::Error::Service(err) => {
                format!("{}{}", self.url_prefix(subject), transport_text(err.as_ref()))
            }
            kube::Error::HyperError(err) => format!("{}{}", self.url_prefix(subject), transport_text(err)),
            other => describe(other),
        }
    }

    fn url_prefix(&self, subject: Subject<'_>) -> String {
        let method = if subject.verb == "create" { "Post" } else { "Get" };
        format!("{method} \"{}{}\": ", self.server, subject.path)
    }
}

/// Sets the impersonation headers of every request. The kubeconfig takes precedence over its
/// plugin, as flags of kubectl take precedence over both. Written here because kube refuses names
/// that are not ASCII.
fn impersonate(
    config: &mut kube::Config,
    user: Option<&ImpersonatedUser>,
    told: Vec<(http::HeaderName, http::HeaderValue)>,
) -> Result<(), String> {
    let entry = &mut config.auth_info;
    entry.impersonate = None;
    entry.impersonate_uid = None;
    entry.impersonate_groups = None;
    entry.impersonate_user_extra = None;
    let Some(user) = user else {
        config.headers.extend(told);
        return Ok(());
    };
    let headers = impersonation_headers(user).map_err(|err| format!("invalid configuration: {err}"))?;
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
fn check_header(user: &AuthInfo) -> Result<(), String> {
    let token = user.token.iter().map(ExposeSecret::expose_secret);
    let provider = user.auth_provider.iter().flat_map(|provider| {
        ["id-token", "access-token"]
            .into_iter()
            .filter_map(|key| provider.config.get(key).map(String::as_str))
    });
    if token.chain(provider).any(|text| http::HeaderValue::from_bytes(text.as_bytes()).is_err()) {
        return Err("net/http: invalid header field value for \"Authorization\"".into());
    }
    Ok(())
}

/// Returns the text of the innermost error that describes the connection.
fn transport_text(err: &(dyn std::error::Error + 'static)) -> String {
    let mut current = Some(err);
    while let Some(err) = current {
        if let Some(dial) = err.downcast_ref::<crate::dial::DialError>() {
            return dial.to_string();
        }
        if let Some(io) = err.downcast_ref::<std::io::Error>()
            && tls_cause(io).is_some()
        {
            return tls_text(io);
        }
        current = err.source();
    }
    describe(err)
}

fn api_text(status: &kube::core::Status, subject: Subject<'_>) -> String {
    // kube's marker for responses that are not a Kubernetes Status.
    if status.reason != "Failed to parse error data" {
        return status.message.clone();
    }
    generic_answer(status.code, &status.message, subject)
}

/// Returns the text of client-go for a response that is not a `Status`.
pub fn generic_answer(code: u16, body: &str, subject: Subject<'_>) -> String {
    let internal = || format!("an error on the server ({body:?}) has prevented the request from succeeding");
    let message = match code {
        409 if subject.verb == "create" => "the server reported a conflict".to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => body.to_owned(),
        406 => body.to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        415 => body.to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        500.. => internal(),
        code => format!("the server responded with the status code {code} but did not return more information"),
    };
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
            assert_eq!(generic_answer(code, body, list), text);
        }
    }
}
