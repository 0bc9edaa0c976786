//! `pinniped get kubeconfig`: converts an administrator's kubeconfig to one for logins.
//!
//! ```text
//! options      the command line options; discovery sets the missing ones
//! discovery    CredentialIssuer, strategies, authenticators             (Kubernetes API)
//! jwt          the issuer configuration of a JWTAuthenticator           (Kubernetes API)
//! supervisor   whether the issuer is a Supervisor, and which of its
//!              identity providers to use                                (HTTPS API of the issuer)
//! plugin       the arguments of the exec plugin
//! validate     a request to the cluster with the new endpoint and CA
//! ```

mod discovery;
mod jwt;
mod options;
mod plugin;
mod supervisor;
mod validate;

use std::fs::File;
use std::io::Write as _;

use serde_json::json;
use tokio::time::Instant;

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_pki::CaBundle;

use self::options::Options;
use super::block_on;
use crate::admin::Admin;
use crate::dial::Dialer;
use crate::environment::Environment;
use crate::flags::parse::Outcome;
use crate::flags::tree::ROOT;
use crate::flags::value::go_io;
use crate::flags::{ConciergeMode, Delivery, Parsed, parse};
use crate::kubeconfig::{self, generated};
use crate::login::session::Session;
use crate::printer::Printer;
use crate::write;

/// Writes a kubeconfig.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), String> {
    let options = Options::new(parsed);
    let output = match options.output.as_str() {
        "" => None,
        path => Some(
            File::create(path)
                .map_err(|err| format!("could not open output file: open {path}: {}", go_io(&err)))?,
        ),
    };
    let limit = options.timeout.to_std();
    let text = block_on(async {
        let deadline = Instant::now() + limit;
        let work = Box::pin(generate(options, environment, printer, deadline));
        tokio::time::timeout_at(deadline, work)
            .await
            .unwrap_or_else(|_| Err("context deadline exceeded".into()))
    })?;
    match output {
        Some(mut file) => {
            file.write_all(text.as_bytes()).map_err(|err| format!("could not write output: {}", go_io(&err)))
        }
        None => write(printer, text.as_bytes()),
    }
}

async fn generate(
    mut options: Options,
    environment: &Environment,
    printer: Printer,
    deadline: Instant,
) -> Result<String, String> {
    let suffix = GroupSuffix::parse(&options.concierge.api_group_suffix)
        .map_err(|err| format!("invalid API group suffix: {err}"))?;
    let config = kubeconfig::load(options.kubeconfig.as_deref(), environment)
        .map_err(|why| format!("could not load --kubeconfig: {why}"))?;
    let source = kubeconfig::resolve(&config, &options.kubeconfig_context)
        .map_err(|err| format!("could not load --kubeconfig/--kubeconfig-context: {err}"))?;
    let unusable = |why: String| format!("could not configure Kubernetes client: {why}");
    let source_ca = kubeconfig::certificate_authority(&source.cluster_name, &source.cluster)
        .map_err(|why| unusable(format!("invalid configuration: {why}")))?;
    let source_server = source.cluster.server.clone().unwrap_or_default();
    let dialer = Dialer::new(environment);

    let (server, ca) = if options.no_concierge {
        (source_server, source_ca)
    } else {
        let admin = Admin::new(config, &source.context, dialer.clone()).await.map_err(unusable)?;
        let found = discovery::discover(&admin, &suffix, &options, printer).await?;
        discovery::fill_in(&mut options, &found.frontend, &source_server, &source_ca, printer)?;
        jwt::fill_in(&mut options, &found.authenticator, &admin, &suffix, printer).await?;
        (options.concierge.endpoint.clone(), options.concierge.ca_bundle.clone())
    };
    if !options.oidc.issuer.is_empty() {
        supervisor::fill_in(&mut options, dialer.clone(), printer).await?;
    }
    let plugin = plugin::plugin(&options, environment)?;

    // If the source disabled verification, the result must not disable it for the proxy, which the
    // system roots trust.
    let keep_insecure = !(ca.is_empty() && options.concierge.mode == ConciergeMode::ImpersonationProxy);
    let cluster = generated::cluster_entry(&source.cluster, &server, &ca, keep_insecure);
    if !options.skip_validation {
        let verified = cluster.insecure_skip_tls_verify.is_none();
        validate::validate(&server, &ca, verified, dialer, printer, deadline).await?;
    }
    let impersonate = identity(&options, &plugin.args, environment, printer).await?;
    generated::document(&source, &cluster, &plugin, impersonate.as_ref(), &options.generated_name_suffix)
        .map_err(|err| format!("could not write output: {err}"))
}

/// Returns the user to impersonate, if the kubeconfig contains it and the token is known: the
/// kubeconfig then works immediately. In other cases the first use of the kubeconfig determines the
/// user.
async fn identity(
    options: &Options,
    args: &[String],
    environment: &Environment,
    printer: Printer,
) -> Result<Option<ImpersonatedUser>, String> {
    let in_kubeconfig = matches!(options.concierge.delivery, Delivery::Auto | Delivery::Kubeconfig);
    let by_token = !options.no_concierge && options.concierge.mode == ConciergeMode::ServiceAccountToken;
    if !in_kubeconfig || !by_token || options.static_token.is_empty() {
        return Ok(None);
    }
    // This login must not use the user's cache.
    let args = [args, &["--credential-cache=".to_owned()]].concat();
    let Outcome::Run(login) = parse(&ROOT, &args) else { return Ok(None) };
    let session = Session::from_flags(&login, &args, environment, printer)?;
    let login = session.exchange().await.map_err(|why| {
        format!(
            "could not log in with --static-token to find out whom the kubeconfig shall impersonate: {why}"
        )
    })?;
    if let Some(user) = &login.impersonate {
        printer.info("discovered identity to impersonate", &[("username", json!(user.username))]);
    }
    Ok(login.impersonate)
}

/// Returns the number of distinct certificates in `pem`.
fn count_roots(pem: &[u8]) -> usize {
    CaBundle::from_pem(pem).map_or(0, |bundle| bundle.distinct_count())
}
