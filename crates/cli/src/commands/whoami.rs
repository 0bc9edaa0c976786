//! `pinniped whoami`: prints the user that the cluster authenticates for the kubeconfig.

use http::{Request, header};
use kube::config::Kubeconfig;

use pinniped_concierge_api::identity::WhoAmIRequest;
use pinniped_go_compat::yaml as goyaml;
use pinniped_go_compat::{json as gojson, json::quote};

use super::block_on;
use crate::admin::{Admin, Subject};
use crate::dial::Dialer;
use crate::environment::Environment;
use crate::flags::tree::DEFAULT_SUFFIX;
use crate::flags::{Parsed, Value};
use crate::kubeconfig::{self, ResolveError};
use crate::printer::Printer;
use crate::write;

/// The name of a cluster that the kubeconfig does not name.
const UNKNOWN: &str = "???";

/// The destination of the request.
pub(super) struct Cluster {
    name: String,
    url: String,
}

/// Prints the user.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), String> {
    let suffix = parsed.string_or("api-group-suffix", DEFAULT_SUFFIX);
    let (answer, cluster) = block_on(ask(parsed, environment, &suffix))?;
    let text = match parsed.string_or("output", "text").as_str() {
        "text" => text(&answer, &cluster),
        "json" => gojson::to_string_pretty(&answer),
        "yaml" => goyaml::to_string(&serde_json::to_value(&answer).map_err(|err| err.to_string())?),
        other => return Err(format!("could not write output: unknown output format: {}", quote(other))),
    };
    write(printer, text.as_bytes())
}

async fn ask(
    parsed: &Parsed,
    environment: &Environment,
    suffix: &str,
) -> Result<(WhoAmIRequest, Cluster), String> {
    let (admin, cluster) = connect(parsed, environment)
        .await
        .map_err(|why| format!("could not configure Kubernetes client: {why}"))?;
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
        .body(gojson::to_string(&question).into_bytes())
        .map_err(|err| format!("could not complete WhoAmIRequest: {err}"))?;
    let call = admin.client.request::<WhoAmIRequest>(request);
    let answer = match parsed.value("timeout") {
        Some(Value::Duration(limit)) if !limit.is_zero() => tokio::time::timeout(limit.to_std(), call)
            .await
            .map_err(|_| "could not complete WhoAmIRequest: context deadline exceeded".to_owned())?,
        _ => call.await,
    };
    let mut answer = answer.map_err(|err| {
        let resource = format!("{}.{group}", WhoAmIRequest::PLURAL);
        let subject = Subject { verb: "create", resource: &resource, name: "", path: &path };
        let hint = match &err {
            kube::Error::Api(status) if status.code == 404 => {
                " (is the Pinniped WhoAmI API running and healthy?)"
            }
            _ => "",
        };
        format!("could not complete WhoAmIRequest{hint}: {}", admin.error_text(&err, subject))
    })?;
    answer.kind = question.kind;
    answer.api_version = api_version;
    Ok((answer, cluster))
}

pub(super) async fn connect(parsed: &Parsed, environment: &Environment) -> Result<(Admin, Cluster), String> {
    const NOTHING: &str = "invalid configuration: no configuration has been provided, \
                           try setting KUBERNETES_MASTER environment variable";
    let config = kubeconfig::load(parsed.given("kubeconfig"), environment)?;
    let dialer = Dialer::new(environment);
    let context = parsed.string("kubeconfig-context");
    if is_empty(&config) && context.is_empty() {
        if environment.non_empty("KUBERNETES_SERVICE_HOST").is_none() {
            return Err(NOTHING.into());
        }
        let unknown = Cluster { name: UNKNOWN.into(), url: UNKNOWN.into() };
        return Ok((Admin::in_cluster(dialer).map_err(|_| NOTHING)?, unknown));
    }
    let resolved = kubeconfig::resolve(&config, &context).map_err(|err| match err {
        ResolveError::Context(name) if name.is_empty() => NOTHING.into(),
        ResolveError::Context(name) => format!("context {} does not exist", quote(&name)),
        ResolveError::Cluster(name) => {
            format!("invalid configuration: cluster {} was not found", quote(&name))
        }
        ResolveError::User(name) => format!("invalid configuration: user {} was not found", quote(&name)),
    })?;
    let cluster = Cluster {
        name: resolved.cluster_name.clone(),
        url: resolved.cluster.server.clone().unwrap_or_default(),
    };
    Ok((Admin::new(config, &resolved.context, dialer).await?, cluster))
}

fn is_empty(config: &Kubeconfig) -> bool {
    config.contexts.is_empty() && config.clusters.is_empty() && config.auth_infos.is_empty()
}

fn text(answer: &WhoAmIRequest, cluster: &Cluster) -> String {
    let user = &answer.status.kubernetes_user_info.user;
    format!(
        "Current cluster info:\n\nName: {}\nURL: {}\n\nCurrent user info:\n\nUsername: {}\nGroups: {}\n",
        cluster.name,
        cluster.url,
        user.username,
        user.groups.join(", ")
    )
}
