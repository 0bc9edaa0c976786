//! `pinniped doctor`: reports the problems of a Concierge installation, with remedies.
//!
//! ```text
//! observed_client what a program does with the kubeconfig: plugin, connection, login, user
//! debug_state     the state of each pod, if it is requested
//! read, probe     the installation, with the user's permissions and as any client  -> Observed
//! client, strategies, certificate, surroundings, logins
//!                 checks without IO                                                -> Finding
//! report          finds the root causes, prints
//! ```
//!
//! The exit status is 0 without problems, 1 with problems, and 2 if the checks could not be made.
//! Warnings, and resources that the user may not read, are reported and do not count as problems.

mod certificate;
mod client;
mod debug_state;
mod finding;
#[cfg(test)]
mod fixtures;
mod logins;
mod observed;
mod observed_client;
mod probe;
mod read;
mod report;
mod strategies;
mod surroundings;

use std::time::Duration;

use jiff::Timestamp;
use kube::config::Kubeconfig;
use pinniped_error::chain;
use pinniped_go_compat::duration::GoDuration;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_kube_types::suffix::{GroupSuffix, SuffixError};
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use self::debug_state::PodState;
use self::finding::{Check, Finding};
use self::logins::{logins_of, only_token_logins};
use self::observed::{KubeconfigEntry, Observed, Unreadable};
use self::observed_client::{ObservedClient, Observer};
use self::read::{IssuerError, Reader};
use self::report::{Relations, Report};
use super::output_format::{OutputFormat, UnknownFormat};
use super::whoami::{self, ConnectError};
use super::{StartError, block_on, within};
use crate::environment::Environment;
use crate::flags::Parsed;
use crate::flags::tree::DEFAULT_SUFFIX;
use crate::kubeconfig::{self, LoadError, NoKubeconfig};
use crate::printer::Printer;
use crate::{OutputError, write};

/// The timeout of each step, as the help of the flag states.
const LIMIT: Duration = Duration::from_secs(60);
/// The maximum timeout of each request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The time limits. What one step does not find out in time is reported, and the next step runs.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// The limit of each step that may take long: the login, and all reads together; zero for none.
    step: GoDuration,
}

impl Limits {
    /// Returns the limit of each request.
    fn request(self) -> Duration {
        if self.step.is_zero() { REQUEST_LIMIT } else { REQUEST_LIMIT.min(self.step.to_std()) }
    }

    /// Returns the end of a step that starts now; `None` for no limit.
    fn deadline(self) -> Option<Instant> {
        (!self.step.is_zero()).then(|| Instant::now() + self.step.to_std())
    }

    /// Returns the reason why there is no result of a login.
    fn no_login(self) -> String {
        format!("the plugin did not finish within {}", self.step)
    }
}

/// The message of an API server that does not accept a credential.
const UNAUTHORIZED: &str = "Unauthorized";

/// The installation could not be checked, or has problems.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The API group suffix is invalid.
    #[error("invalid API group suffix")]
    Suffix(#[from] SuffixError),
    /// The context of the kubeconfig cannot be used.
    #[error("could not configure Kubernetes client")]
    Connect(#[source] ConnectError),
    /// There is no kubeconfig.
    #[error(transparent)]
    NoKubeconfig(#[from] NoKubeconfig),
    /// A kubeconfig cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The CredentialIssuer to check is not known.
    #[error("could not read the CredentialIssuer")]
    CredentialIssuer(#[from] IssuerError),
    /// The kubeconfig for the checks of the installation cannot be used.
    #[error("could not check the installation")]
    NotChecked,
    /// The format is unknown.
    #[error(transparent)]
    Format(#[from] UnknownFormat),
    /// The report cannot be encoded.
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The installation has a problem.
    #[error("found 1 problem")]
    Problem,
    /// The installation has problems.
    #[error("found {0} problems")]
    Problems(usize),
}

impl From<ConnectError> for DoctorError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::NoKubeconfig(error) => Self::NoKubeconfig(error),
            error => Self::Connect(error),
        }
    }
}

impl DoctorError {
    /// Returns the exit code: 1 for problems of the installation, 2 if it could not be checked.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Problem | Self::Problems(_) => 1,
            _ => 2,
        }
    }
}

/// Reads the installation, checks it, and prints the findings.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), DoctorError> {
    let format = OutputFormat::parse(&parsed.string_or("output", "text"))?;
    let observed = block_on(async {
        let limits = Limits { step: parsed.duration("timeout").unwrap_or(LIMIT.into()) };
        Box::pin(observe(parsed, environment, limits)).await
    })?;
    let report = decide(&observed, Timestamp::now());
    match format {
        OutputFormat::Text => {
            printer
                .styled_product(&report.text(printer.output_is_for_people()))
                .map_err(|error| OutputError(error.into()))?;
        }
        format => write(printer, format.output(&report, String::new)?.as_bytes())?,
    }
    match report.problems() {
        0 if matches!(observed.installation, Installation::Unreachable(_)) => Err(DoctorError::NotChecked),
        0 => Ok(()),
        1 => Err(DoctorError::Problem),
        count => Err(DoctorError::Problems(count)),
    }
}

/// Everything that the command observed.
struct Observations {
    /// The client with the kubeconfig under test; `None` in a pod without a kubeconfig.
    client: Option<ObservedClient>,
    installation: Installation,
    /// The state of each pod, if the user requests it.
    states: Option<Vec<PodState>>,
}

/// The observed installation.
enum Installation {
    /// It was read.
    Read(Box<Observed>),
    /// There is none, or it is not complete.
    Missing(IssuerError),
    /// The cluster does not accept the user's credential.
    Refused(String),
    /// The kubeconfig for its checks cannot be used.
    Unreachable(String),
}

/// Decides the report.
fn decide(observations: &Observations, now: Timestamp) -> Report {
    let mut findings = Vec::new();
    let mut relations = Relations::default();
    let client = observations.client.as_ref();
    if let Some(client) = client {
        relations.login_failed = client.login_failed();
        findings.extend(client::check(client, pinniped_version::VERSION, now));
    }
    match &observations.installation {
        Installation::Read(observed) => {
            if let Some(client) = client {
                relations.through_proxy = surroundings::leads_to_proxy(observed, &client.server);
            }
            relations.pods_explain = strategies::pods_explain(observed);
            let used = client.and_then(|client| client.plugin.as_ref()?.authenticator.as_ref());
            findings.extend(strategies::check_pods(observed));
            findings.extend(strategies::check(observed, used));
            findings.extend(finding::of(Check::Secret, certificate::check_secret(observed)));
            findings.extend(finding::of(Check::Services, surroundings::check_services(observed)));
            findings.extend(finding::of(Check::Endpoint, certificate::check_endpoint(observed, now)));
            findings.extend(finding::of(Check::Kubeconfig, surroundings::check_kubeconfigs(observed)));
            findings.extend(finding::of(Check::Impersonation, logins::check(observed)));
        }
        Installation::Missing(error) => {
            let finding = Finding::problem(error.to_string(), error.remedy());
            findings.push((Check::Installation, finding));
        }
        Installation::Refused(why) => {
            findings.push((Check::Installation, Finding::unseen("the Concierge's objects", why.clone())));
        }
        Installation::Unreachable(why) => {
            findings.push((Check::Installation, Finding::unseen("the Concierge's objects", why.clone())));
        }
    }
    Report::new(&findings, relations).with_states(observations.states.clone())
}

async fn observe(
    parsed: &Parsed,
    environment: &Environment,
    limits: Limits,
) -> Result<Observations, DoctorError> {
    let written = parsed.string_or("concierge-api-group-suffix", DEFAULT_SUFFIX);
    let suffix = GroupSuffix::parse(&written)?;
    let used = kubeconfig::load(parsed.given("kubeconfig"), environment)?;
    let checked = match parsed.given("check-kubeconfig").filter(|path| !path.is_empty()) {
        Some(path) => Some((path, kubeconfig::load(Some(path), environment)?)),
        None => None,
    };
    let mut entries = entries_of(&used, "in use", false);
    let mut logins = Vec::new();
    if let Some((path, config)) = &checked {
        entries.extend(entries_of(config, path, true));
        logins = logins_of(config, path);
    }

    // Without a kubeconfig, the client is that of the pod. Otherwise the kubeconfig under test is
    // the one in use, or the one that the user named.
    let context = parsed.string("kubeconfig-context");
    let observer = Observer { suffix: &written, environment, limits };
    let in_use = async || {
        let connected = within(limits.step, whoami::connect(parsed, environment)).await;
        connected.map(|connected| connected.map(|(admin, _)| admin))
    };
    let (client, admin) = match checked {
        Some((path, config)) => {
            let resolved = kubeconfig::resolve(&config, "").map_err(ConnectError::from)?;
            let (client, _) = observer.observe(config, &resolved, path).await;
            (Some(client), in_use().await)
        }
        None if whoami::is_empty(&used) && context.is_empty() => (None, in_use().await),
        None => {
            let resolved = kubeconfig::resolve(&used, &context).map_err(ConnectError::from)?;
            let (client, admin) = observer.observe(used, &resolved, "in use").await;
            let Some(admin) = admin else {
                let why = "the kubeconfig in use results in no client; an administrator can check the \
                           installation with --check-kubeconfig FILE, where FILE is this kubeconfig"
                    .to_owned();
                return Ok(Observations {
                    client: Some(client),
                    installation: Installation::Unreachable(why),
                    states: None,
                });
            };
            (Some(client), Ok(Ok(admin)))
        }
    };
    let admin = match admin {
        Ok(Ok(admin)) => admin,
        Err(Elapsed { .. }) => {
            let why = format!("the kubeconfig in use: {}", limits.no_login());
            return Ok(Observations { client, installation: Installation::Unreachable(why), states: None });
        }
        // The kubeconfig under test was checked nevertheless.
        Ok(Err(error)) if client.is_some() => {
            let why = format!("the kubeconfig in use: {}", chain(&error));
            return Ok(Observations { client, installation: Installation::Unreachable(why), states: None });
        }
        Ok(Err(error)) => return Err(error.into()),
    };
    let dialer = TcpDialer::new(environment);
    let reader = Reader { admin: &admin, suffix: &suffix, dialer, limits, deadline: limits.deadline() };
    let issuer = match reader.credential_issuer(&parsed.string("concierge-credential-issuer")).await {
        Ok(issuer) => Ok(Ok(issuer)),
        Err(IssuerError::Hidden(why)) if why == UNAUTHORIZED => Err(Installation::Refused(why)),
        // The user may have other permissions.
        Err(IssuerError::Hidden(why)) => Ok(Err(why)),
        Err(IssuerError::Request(why)) => Err(Installation::Unreachable(why)),
        Err(error @ IssuerError::Several(_)) => return Err(error.into()),
        Err(error) => Err(Installation::Missing(error)),
    };
    let installation = match issuer {
        Ok(issuer) => {
            let observed = Observed { logins, ..reader.observe(issuer, entries).await };
            Installation::Read(Box::new(observed))
        }
        Err(installation) => installation,
    };
    let states = match &installation {
        Installation::Read(observed) if parsed.bool("debug-state") => {
            let pods = observed.pods.found().map_or(&[][..], Vec::as_slice);
            let names: Vec<String> = pods.iter().map(|pod| pod.name.clone()).collect();
            Some(reader.debug_state(&names).await)
        }
        _ => None,
    };
    Ok(Observations { client, installation, states })
}

fn entries_of(config: &Kubeconfig, file: &str, checked: bool) -> Vec<KubeconfigEntry> {
    let clusters = config.clusters.iter().filter_map(|named| Some((&named.name, named.cluster.as_ref()?)));
    clusters
        .map(|(name, cluster)| KubeconfigEntry {
            file: file.to_owned(),
            checked: checked && !only_token_logins(config, name),
            cluster: name.clone(),
            server: cluster.server.clone().unwrap_or_default(),
            ca: kubeconfig::certificate_authority(name, cluster)
                .map_err(|error| Unreadable(chain(&error).to_string())),
        })
        .collect()
}
