//! `pinniped doctor`: reports the problems of a Concierge installation, with remedies.
//!
//! ```text
//! read, probe    the observable state, with the user's permissions and as any client  -> Observed
//! strategies, certificate, surroundings, logins    checks without IO                 -> Findings
//! finding        one line each
//! ```
//!
//! The exit status is 0 without problems, otherwise 1. Resources that the user may not read are
//! reported and do not count as problems.

mod certificate;
mod finding;
#[cfg(test)]
mod fixtures;
mod logins;
mod observed;
mod probe;
mod read;
mod strategies;
mod surroundings;

use std::time::Duration;

use jiff::Timestamp;
use kube::config::Kubeconfig;
use pinniped_error::chain;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_kube_types::suffix::{GroupSuffix, SuffixError};

use self::finding::Finding;
use self::logins::{logins_of, only_token_logins};
use self::observed::{KubeconfigEntry, Observed, Unreadable};
use self::read::{IssuerError, Reader};
use super::whoami::{self, ConnectError};
use super::{StartError, block_on};
use crate::environment::Environment;
use crate::flags::tree::DEFAULT_SUFFIX;
use crate::flags::{Parsed, Value};
use crate::kubeconfig::{self, LoadError, NoKubeconfig};
use crate::printer::Printer;
use crate::{OutputError, write};

/// The timeout of the whole command, as the help of the flag states.
const LIMIT: Duration = Duration::from_secs(60);

/// The installation could not be checked, or has problems.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The time of `--timeout` has elapsed.
    #[error("context deadline exceeded")]
    Timeout,
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
    /// There is no CredentialIssuer to check.
    #[error("could not read the CredentialIssuer")]
    CredentialIssuer(#[from] IssuerError),
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
            _ => 1,
        }
    }
}

/// Reads the installation, checks it, and prints the findings.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), DoctorError> {
    let observed = block_on(async {
        let work = Box::pin(observe(parsed, environment));
        let limit = match parsed.value("timeout") {
            Some(Value::Duration(limit)) => limit.to_std(),
            _ => LIMIT,
        };
        if limit.is_zero() {
            return work.await;
        }
        let in_time = tokio::time::timeout(limit, work).await;
        in_time.unwrap_or(Err(DoctorError::Timeout))
    })?;
    let findings = check(&observed, Timestamp::now());
    write(printer, finding::render(&findings).as_bytes())?;
    match finding::problems(&findings) {
        0 => Ok(()),
        1 => Err(DoctorError::Problem),
        count => Err(DoctorError::Problems(count)),
    }
}

fn check(observed: &Observed, now: Timestamp) -> Vec<Finding> {
    [
        strategies::check(observed),
        certificate::check_secret(observed),
        surroundings::check_services(observed),
        certificate::check_endpoint(observed, now),
        surroundings::check_kubeconfigs(observed),
        logins::check(observed),
    ]
    .concat()
}

async fn observe(parsed: &Parsed, environment: &Environment) -> Result<Observed, DoctorError> {
    let suffix = GroupSuffix::parse(&parsed.string_or("concierge-api-group-suffix", DEFAULT_SUFFIX))?;
    let (admin, _) = whoami::connect(parsed, environment).await?;
    let used = kubeconfig::load(parsed.given("kubeconfig"), environment)?;
    let mut entries = entries_of(&used, "in use", false);
    let mut logins = Vec::new();
    if let Some(path) = parsed.given("check-kubeconfig").filter(|path| !path.is_empty()) {
        let checked = kubeconfig::load(Some(path), environment)?;
        entries.extend(entries_of(&checked, path, true));
        logins = logins_of(&checked, path);
    }
    let reader = Reader { admin: &admin, suffix: &suffix, dialer: TcpDialer::new(environment) };
    let issuer = reader.credential_issuer(&parsed.string("concierge-credential-issuer")).await?;
    Ok(Observed { logins, ..reader.observe(issuer, entries).await })
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
