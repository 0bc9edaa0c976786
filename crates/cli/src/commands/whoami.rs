//! `pinniped whoami`: prints the user that the cluster authenticates for the kubeconfig.

use http::{Request, header};
use jiff::Timestamp;
use kube::config::Kubeconfig;

use pinniped_concierge_api::identity::WhoAmIRequest;
use pinniped_go_compat::{json as gojson, json::quote};
use pinniped_http_client::tcp_dialer::TcpDialer;

use super::output_format::{OutputFormat, UnknownFormat};
use super::{StartError, block_on, within};
use crate::admin::{Admin, AdminError, RequestError, Subject};
use crate::environment::Environment;
use crate::flags::Parsed;
use crate::flags::tree::DEFAULT_SUFFIX;
use crate::kubeconfig::{self, LoadError, NoKubeconfig, ResolveError};
use crate::printer::Printer;
use crate::{OutputError, write};

/// The name of a cluster that the kubeconfig does not name.
const UNKNOWN: &str = "???";

/// The user was not printed.
#[derive(Debug, thiserror::Error)]
pub enum WhoAmIError {
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The context of the kubeconfig cannot be used.
    #[error("could not configure Kubernetes client")]
    Connect(#[source] ConnectError),
    /// There is no kubeconfig.
    #[error(transparent)]
    NoKubeconfig(#[from] NoKubeconfig),
    /// The request is invalid.
    #[error("could not complete WhoAmIRequest")]
    Request(#[from] http::Error),
    /// The time of `--timeout` has elapsed.
    #[error("could not complete WhoAmIRequest: context deadline exceeded")]
    Timeout,
    /// The request failed.
    #[error("could not complete WhoAmIRequest")]
    Response(#[from] RequestError),
    /// The cluster does not serve the API.
    #[error("could not complete WhoAmIRequest (is the Pinniped WhoAmI API running and healthy?)")]
    NotServed(#[source] RequestError),
    /// The format is unknown.
    #[error(transparent)]
    Format(#[from] UnknownFormat),
    /// The response cannot be encoded.
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl From<ConnectError> for WhoAmIError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::NoKubeconfig(error) => Self::NoKubeconfig(error),
            error => Self::Connect(error),
        }
    }
}

/// The context of the kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is neither a kubeconfig nor a pod.
    #[error(transparent)]
    NoKubeconfig(#[from] NoKubeconfig),
    /// A kubeconfig cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kubeconfig has no current context, or the pod has no service account.
    #[error(
        "invalid configuration: no configuration has been provided, \
         try setting KUBERNETES_MASTER environment variable"
    )]
    NoConfiguration,
    /// The context does not exist.
    #[error("context {} does not exist", quote(.0))]
    Context(String),
    /// The cluster of the context does not exist.
    #[error("invalid configuration: cluster {} was not found", quote(.0))]
    Cluster(String),
    /// The user of the context does not exist.
    #[error("invalid configuration: user {} was not found", quote(.0))]
    User(String),
    /// An entry of the context is invalid.
    #[error(transparent)]
    Client(#[from] AdminError),
}

impl From<ResolveError> for ConnectError {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Context(name) if name.is_empty() => Self::NoConfiguration,
            ResolveError::Context(name) => Self::Context(name),
            ResolveError::Cluster(name) => Self::Cluster(name),
            ResolveError::User(name) => Self::User(name),
        }
    }
}

/// The destination of the request.
pub(super) struct Cluster {
    name: String,
    url: String,
}

/// Prints the user.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), WhoAmIError> {
    let suffix = parsed.string_or("api-group-suffix", DEFAULT_SUFFIX);
    let (response, cluster, expires) = block_on(send_request(parsed, environment, &suffix))?;
    let (format, is_wide) = match parsed.string_or("output", "text").as_str() {
        "wide" => (OutputFormat::Text, true),
        other => (OutputFormat::parse(other)?, printer.output_is_for_people()),
    };
    let output = format.output(&response, || text(&response, &cluster, is_wide.then_some(expires)))?;
    let output = match format {
        // As upstream's.
        OutputFormat::Json => output.trim_end(),
        OutputFormat::Text | OutputFormat::Yaml => &output,
    };
    Ok(write(printer, output.as_bytes())?)
}

async fn send_request(
    parsed: &Parsed,
    environment: &Environment,
    suffix: &str,
) -> Result<(WhoAmIRequest, Cluster, Option<Timestamp>), WhoAmIError> {
    let (admin, cluster) = connect(parsed, environment).await?;
    let limit = parsed.duration("timeout").unwrap_or_default();
    let response = within(limit, request(&admin, suffix)).await.unwrap_or(Err(WhoAmIError::Timeout))?;
    Ok((response, cluster, admin.expires))
}

/// Returns the user that the cluster authenticates for `admin`.
///
/// # Errors
///
/// Returns an error if the cluster does not respond with a user.
pub(super) async fn request(admin: &Admin, suffix: &str) -> Result<WhoAmIRequest, WhoAmIError> {
    let group = format!("identity.concierge.{suffix}");
    let api_version = format!("{group}/{}", WhoAmIRequest::VERSION);
    let path = format!("/apis/{api_version}/{}", WhoAmIRequest::PLURAL);
    let question = WhoAmIRequest {
        kind: WhoAmIRequest::KIND.to_owned(),
        api_version: api_version.clone(),
        ..WhoAmIRequest::default()
    };
    let request = Request::post(&path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .body(gojson::to_string(&question).into_bytes())?;
    let response = admin.client.request::<WhoAmIRequest>(request).await;
    let mut response = response.map_err(|err| {
        let resource = format!("{}.{group}", WhoAmIRequest::PLURAL);
        let subject = Subject { verb: "create", resource: &resource, name: "", path: &path };
        let error = admin.request_error(&err, subject);
        match err {
            kube::Error::Api(status) if status.code == 404 => WhoAmIError::NotServed(error),
            _ => WhoAmIError::Response(error),
        }
    })?;
    response.kind = question.kind;
    response.api_version = api_version;
    Ok(response)
}

pub(super) async fn connect(
    parsed: &Parsed,
    environment: &Environment,
) -> Result<(Admin, Cluster), ConnectError> {
    let config = kubeconfig::load(parsed.given("kubeconfig"), environment)?;
    let dialer = TcpDialer::new(environment);
    let context = parsed.string("kubeconfig-context");
    if is_empty(&config) && context.is_empty() {
        if environment.non_empty("KUBERNETES_SERVICE_HOST").is_none() {
            kubeconfig::check_exists(parsed.given("kubeconfig"), environment)?;
            return Err(ConnectError::NoConfiguration);
        }
        let unknown = Cluster { name: UNKNOWN.into(), url: UNKNOWN.into() };
        let admin = Admin::in_cluster(dialer).map_err(|_| ConnectError::NoConfiguration)?;
        return Ok((admin, unknown));
    }
    if is_empty(&config) {
        kubeconfig::check_exists(parsed.given("kubeconfig"), environment)?;
    }
    let resolved = kubeconfig::resolve(&config, &context)?;
    let cluster = Cluster {
        name: resolved.cluster_name.clone(),
        url: resolved.cluster.server.clone().unwrap_or_default(),
    };
    Ok((Admin::new(config, &resolved.context, dialer).await?, cluster))
}

pub(super) fn is_empty(config: &Kubeconfig) -> bool {
    config.contexts.is_empty() && config.clusters.is_empty() && config.auth_infos.is_empty()
}

/// Returns the text of upstream, which scripts parse. With `more`, the lines that upstream does not
/// have follow; it contains the expiration of the credential, if that is known.
fn text(response: &WhoAmIRequest, cluster: &Cluster, more: Option<Option<Timestamp>>) -> String {
    let info = &response.status.kubernetes_user_info;
    let user = &info.user;
    let mut text = format!(
        "Current cluster info:\n\nName: {}\nURL: {}\n\nCurrent user info:\n\nUsername: {}\nGroups: {}\n",
        cluster.name,
        cluster.url,
        user.username,
        user.groups.join(", ")
    );
    let Some(expires) = more else { return text };
    if !user.uid.is_empty() {
        text.push_str(&format!("UID: {}\n", user.uid));
    }
    for (key, values) in &user.extra {
        text.push_str(&format!("Extra {key}: {}\n", values.join(", ")));
    }
    if !info.audiences.is_empty() {
        text.push_str(&format!("Audiences: {}\n", info.audiences.join(", ")));
    }
    if let Some(expires) = expires {
        text.push_str(&format!("Credential expires: {expires:.0}\n"));
    }
    text
}
