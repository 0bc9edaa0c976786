//! The in-cluster configuration of a pod: two environment variables and the mounted service account
//! volume.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use pinniped_pki::CaBundle;
use pinniped_secret::{Token, TokenSource};
use zeroize::Zeroizing;

/// The directory in which the kubelet mounts the service account.
pub const SERVICE_ACCOUNT_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How long a token is used before its file is read again. The kubelet renews the file well before
/// the token expires.
const REREAD_AFTER: Duration = Duration::from_secs(60);

/// Address, CA and token for calls to the API server.
#[derive(Clone)]
pub struct InCluster {
    /// `https://host:port`.
    pub server: http::Uri,
    /// The CA of the cluster.
    pub ca: CaBundle,
    /// The token of the pod, re-read from its file.
    pub token: Arc<dyn TokenSource>,
}

/// The reasons why the in-cluster configuration cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum InClusterError {
    /// The variables are not set: the process was not started by a kubelet.
    #[error(
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    )]
    Environment,
    /// The variables do not form a valid address.
    #[error("could not parse host URL from in-cluster config: {0}")]
    Address(#[source] http::uri::InvalidUri),
    /// A file of the service account volume cannot be read.
    #[error("open {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// `ca.crt` contains no certificate.
    #[error("could not parse CA bundle in {}: {problem}", path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
}

/// Loads the in-cluster configuration. `environment` is `std::env::var_os`, except in tests.
pub fn load(
    environment: impl Fn(&str) -> Option<std::ffi::OsString>,
    directory: &Path,
) -> Result<InCluster, InClusterError> {
    let variable = |name: &str| {
        environment(name)
            .and_then(|value| value.into_string().ok())
            .filter(|value| !value.is_empty())
            .ok_or(InClusterError::Environment)
    };
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let port = variable("KUBERNETES_SERVICE_PORT")?;
    let server = format!("https://{}:{port}", bracketed(&host)).parse().map_err(InClusterError::Address)?;

    let ca_path = directory.join("ca.crt");
    let ca_pem =
        std::fs::read(&ca_path).map_err(|source| InClusterError::File { path: ca_path.clone(), source })?;
    let ca = CaBundle::from_pem(&ca_pem)
        .map_err(|error| InClusterError::Ca { path: ca_path.clone(), problem: error.to_string() })?;

    let token_path = directory.join("token");
    let token = FileToken::open(token_path.clone())
        .map_err(|source| InClusterError::File { path: token_path, source })?;
    Ok(InCluster { server, ca, token: Arc::new(token) })
}

fn bracketed(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => format!("[{host}]"),
        _ => host.to_owned(),
    }
}

/// A token from a file whose content is replaced regularly.
struct FileToken {
    path: PathBuf,
    opened: Instant,
    /// Seconds between `opened` and the last read of the file.
    last_read: AtomicU64,
    current: ArcSwapOption<Token>,
}

impl FileToken {
    fn open(path: PathBuf) -> std::io::Result<Self> {
        let token = read(&path)?;
        Ok(Self {
            path,
            opened: Instant::now(),
            last_read: AtomicU64::new(0),
            current: ArcSwapOption::from_pointee(token),
        })
    }
}

fn read(path: &Path) -> std::io::Result<Token> {
    let text = Zeroizing::new(std::fs::read_to_string(path)?);
    match text.trim() {
        // The file is being written. An empty token would make every request anonymous.
        "" => Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the file is empty")),
        token => Ok(Token::new(token)),
    }
}

impl TokenSource for FileToken {
    fn token(&self) -> Option<Arc<Token>> {
        let now = self.opened.elapsed().as_secs();
        let last_read = self.last_read.load(Ordering::Relaxed);
        let due = now.saturating_sub(last_read) >= REREAD_AFTER.as_secs();
        // Only one of the callers reads. The file is on an in-memory file system and a few hundred
        // bytes long.
        if due
            && self.last_read.compare_exchange(last_read, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            match read(&self.path) {
                Ok(token) => self.current.store(Some(Arc::new(token))),
                Err(error) => tracing::warn!(
                    path = %self.path.display(), %error,
                    "could not reload the service account token, using the previous one"
                ),
            }
        }
        self.current.load_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let validity = pinniped_pki::Validity::starting(now, Duration::from_secs(3600));
        let ca = pinniped_pki::CertificateAuthority::generate("test", &validity).unwrap();
        std::fs::write(directory.path().join("ca.crt"), ca.certificate_pem()).unwrap();
        std::fs::write(directory.path().join("token"), "the-token\n").unwrap();
        directory
    }

    fn environment(host: &'static str) -> impl Fn(&str) -> Option<std::ffi::OsString> {
        move |name| match name {
            "KUBERNETES_SERVICE_HOST" => Some(host.into()),
            "KUBERNETES_SERVICE_PORT" => Some("443".into()),
            _ => None,
        }
    }

    #[test]
    fn load_reads_address_ca_and_token() {
        let volume = volume();
        let surroundings = load(environment("10.96.0.1"), volume.path()).unwrap();
        assert_eq!(surroundings.server.to_string(), "https://10.96.0.1:443/");
        assert_eq!(surroundings.ca.distinct_count(), 1);
        assert_eq!(surroundings.token.token().unwrap().expose(), "the-token");
    }

    #[test]
    fn an_empty_token_file_is_an_error() {
        let volume = volume();
        std::fs::write(volume.path().join("token"), "\n").unwrap();
        let error = load(environment("10.96.0.1"), volume.path()).err().unwrap();
        assert!(error.to_string().contains("token: the file is empty"), "{error}");
    }

    #[test]
    fn an_ipv6_address_gets_its_brackets() {
        let volume = volume();
        let surroundings = load(environment("fd00::1"), volume.path()).unwrap();
        assert_eq!(surroundings.server.host(), Some("[fd00::1]"));
    }

    #[test]
    fn load_names_the_missing_part_outside_of_a_pod() {
        let volume = volume();
        let error = |result: Result<InCluster, InClusterError>| result.err().unwrap().to_string();
        assert!(error(load(|_| None, volume.path())).contains("KUBERNETES_SERVICE_HOST"));
        std::fs::remove_file(volume.path().join("token")).unwrap();
        let text = error(load(environment("10.96.0.1"), volume.path()));
        assert!(text.contains("token: No such file"), "{text}");
        std::fs::write(volume.path().join("ca.crt"), "garbage").unwrap();
        std::fs::write(volume.path().join("token"), "t").unwrap();
        assert!(error(load(environment("10.96.0.1"), volume.path())).contains("CA bundle"));
    }
}
