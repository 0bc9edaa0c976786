//! `pinniped get kubeconfig`: converts an administrator's kubeconfig to one for logins.
//!
//! ```text
//! options      the command line options; discovery sets the missing ones
//! discovery    CredentialIssuer, strategies, authenticators             (Kubernetes API)
//! jwt          the issuer configuration of a JWTAuthenticator           (Kubernetes API)
//! supervisor   whether the issuer is a Supervisor, and which of its
//!              identity providers to use                                (HTTPS API of the issuer)
//! scopes       the scopes that the issuer has
//! plugin       the arguments of the exec plugin
//! validate     a request to the cluster with the new endpoint and CA
//! merge        the merge of the result into an existing kubeconfig
//! ```

pub(super) mod discovery;
mod jwt;
mod merge;
pub(crate) mod options;
mod plugin;
mod scopes;
mod supervisor;
mod validate;

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use kube::config::Kubeconfig;
use serde_json::json;
use tokio::time::Instant;

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_go_compat::io::GoIoError;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_kube_types::suffix::{GroupSuffix, SuffixError};
use pinniped_pki::CaBundle;

use self::discovery::DiscoveryError;
use self::jwt::IssuerCaError;
use self::merge::MergeCommandError;
use self::options::{MergeOptionsError, Options};
use self::plugin::PluginError;
use self::supervisor::SupervisorError;
use self::validate::ValidateError;
use super::{StartError, block_on};
use crate::admin::{Admin, AdminError};
use crate::environment::Environment;
use crate::flags::parse::ParseResult;
use crate::flags::tree::ROOT;
use crate::flags::{ConciergeMode, Delivery, Parsed, parse};
use crate::kubeconfig::generated::{self, Entries};
use crate::kubeconfig::{self, ClusterCaError, LoadError, NoKubeconfig, ResolveError};
use crate::login::session::{LoginError, Session, SessionError};
use crate::printer::Printer;
use crate::{OutputError, write};

/// No kubeconfig was written.
#[derive(Debug, thiserror::Error)]
pub enum GetKubeconfigError {
    /// The flags contradict each other.
    #[error(transparent)]
    MergeOptions(#[from] MergeOptionsError),
    /// The result was not merged.
    #[error(transparent)]
    Merge(#[from] MergeCommandError),
    /// The output file cannot be created.
    #[error("could not open output file: open {path}")]
    Create {
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// The output file cannot be written.
    #[error("could not write output")]
    Write(#[source] GoIoError),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The kubeconfig cannot be encoded.
    #[error("could not write output")]
    Encode(#[source] serde_json::Error),
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The time of `--timeout` has elapsed.
    #[error("context deadline exceeded")]
    Timeout,
    /// The API group suffix is invalid.
    #[error("invalid API group suffix")]
    Suffix(#[from] SuffixError),
    /// The source kubeconfig cannot be loaded.
    #[error("could not load --kubeconfig")]
    Load(#[from] LoadError),
    /// There is no source kubeconfig.
    #[error(transparent)]
    NoKubeconfig(#[from] NoKubeconfig),
    /// The context of the source kubeconfig is incomplete.
    #[error("could not load --kubeconfig/--kubeconfig-context")]
    Context(#[from] ResolveError),
    /// The CA of the source cluster cannot be read.
    #[error("could not configure Kubernetes client: invalid configuration")]
    SourceCa(#[from] ClusterCaError),
    /// The source context cannot be used.
    #[error("could not configure Kubernetes client")]
    Client(#[from] AdminError),
    /// The Concierge was not discovered.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The CA of the issuer was not discovered.
    #[error(transparent)]
    IssuerCa(#[from] IssuerCaError),
    /// The issuer was not discovered.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The login command cannot be written.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The result does not reach the cluster.
    #[error(transparent)]
    Validate(#[from] ValidateError),
    /// The login command is invalid.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The login for the user to impersonate failed.
    #[error("could not log in with --static-token to determine the user that the kubeconfig impersonates")]
    Login(#[from] LoginError),
}

/// Writes a kubeconfig.
pub(crate) fn run(
    parsed: &Parsed,
    environment: &Environment,
    printer: Printer,
) -> Result<(), GetKubeconfigError> {
    let options = Options::new(parsed)?;
    if let Some(settings) = options.merge.clone() {
        return merge::run(options, &settings, environment, printer);
    }
    let output =
        match options.output.as_str() {
            "" => None,
            path => Some(File::create(path).map_err(|error| GetKubeconfigError::Create {
                path: path.to_owned(),
                source: error.into(),
            })?),
        };
    let limit = options.timeout.to_std();
    let source = Source::load(&options, environment)?;
    let entries = generate(options, source, limit, environment, printer)?;
    let text = entries.document();
    match output {
        Some(mut file) => {
            file.write_all(text.as_bytes()).map_err(|error| GetKubeconfigError::Write(error.into()))
        }
        None => Ok(write(printer, text.as_bytes())?),
    }
}

/// The source kubeconfig, which is loaded once: it may be a pipe.
#[derive(Clone)]
struct Source {
    suffix: GroupSuffix,
    config: Kubeconfig,
}

impl Source {
    fn load(options: &Options, environment: &Environment) -> Result<Self, GetKubeconfigError> {
        // As for upstream, a wrong suffix is reported before the kubeconfig.
        let suffix = GroupSuffix::parse(&options.concierge.api_group_suffix)?;
        let path = options.kubeconfig.as_deref();
        let config = kubeconfig::load_existing::<GetKubeconfigError>(path, environment)?;
        Ok(Self { suffix, config })
    }
}

/// Generates the entries of one context.
fn generate(
    options: Options,
    source: Source,
    limit: Duration,
    environment: &Environment,
    printer: Printer,
) -> Result<Entries, GetKubeconfigError> {
    block_on(async {
        let deadline = Instant::now() + limit;
        let work = Box::pin(generate_until(options, source, environment, printer, deadline));
        tokio::time::timeout_at(deadline, work).await.unwrap_or(Err(GetKubeconfigError::Timeout))
    })
}

async fn generate_until(
    mut options: Options,
    Source { suffix, config }: Source,
    environment: &Environment,
    printer: Printer,
    deadline: Instant,
) -> Result<Entries, GetKubeconfigError> {
    let source = kubeconfig::resolve(&config, &options.kubeconfig_context)?;
    let source_ca = kubeconfig::certificate_authority(&source.cluster_name, &source.cluster)?;
    let source_server = source.cluster.server.clone().unwrap_or_default();
    let dialer = TcpDialer::new(environment);

    let (server, ca) = if options.no_concierge {
        (source_server, source_ca)
    } else {
        let admin = Admin::new(config, &source.context, dialer.clone()).await?;
        let found = discovery::discover(&admin, &suffix, &options, printer).await?;
        discovery::fill_in(&mut options, &found.frontend, &source_server, &source_ca, printer)?;
        jwt::fill_in(&mut options, &found.authenticator, &admin, &suffix, printer).await?;
        (options.concierge.endpoint.clone(), options.concierge.ca_bundle.clone())
    };
    // The token of a workload needs no login at the issuer, which may not be reachable from here.
    if !options.oidc.issuer.is_empty() && options.workload_token.source.is_none() {
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
    Entries::new(&source, &cluster, &plugin, impersonate.as_ref(), &options.generated_name_suffix)
        .map_err(GetKubeconfigError::Encode)
}

/// Returns the user to impersonate, if the kubeconfig contains it and the token is known: the
/// kubeconfig then works immediately. In other cases the first use of the kubeconfig determines the
/// user.
async fn identity(
    options: &Options,
    args: &[String],
    environment: &Environment,
    printer: Printer,
) -> Result<Option<ImpersonatedUser>, GetKubeconfigError> {
    let in_kubeconfig = matches!(options.concierge.delivery, Delivery::Auto | Delivery::Kubeconfig);
    let by_token = !options.no_concierge && options.concierge.mode == ConciergeMode::ServiceAccountToken;
    if !in_kubeconfig || !by_token || options.static_token.is_empty() {
        return Ok(None);
    }
    // This login must not use the user's cache.
    let args = [args, &["--credential-cache=".to_owned()]].concat();
    let ParseResult::Run(login) = parse(&ROOT, &args) else { return Ok(None) };
    let session = Session::from_flags(&login, &args, environment, printer)?;
    let login = session.exchange().await?;
    if let Some(user) = &login.impersonate {
        printer.info("discovered identity to impersonate", &[("username", json!(user.username))]);
    }
    Ok(login.impersonate)
}

/// Returns the number of distinct certificates in `pem`.
fn count_roots(pem: &[u8]) -> usize {
    CaBundle::from_pem(pem).map_or(0, |bundle| bundle.distinct_count())
}
