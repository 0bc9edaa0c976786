//! What a pod is given to reach its API server: two environment variables and the mounted service-account volume.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use pinniped_pki::CaBundle;
use pinniped_secret::{Token, TokenSource};
use zeroize::Zeroizing;

/// Where the kubelet mounts the service account.
pub const SERVICE_ACCOUNT_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How long a token that was read is used before the file is looked at again. The kubelet renews the file well
/// before the token in it ends.
const REREAD_AFTER: Duration = Duration::from_secs(60);

/// Address, trust and identity for calls to the API server.
#[derive(Clone)]
pub struct InCluster {
    /// `https://host:port`.
    pub server: http::Uri,
    /// The cluster's CA.
    pub ca: CaBundle,
    /// The pod's own token, re-read from its file.
    pub token: Arc<dyn TokenSource>,
}

/// Why the surroundings are not those of a pod.
#[derive(Debug, thiserror::Error)]
pub enum InClusterError {
    /// Not started by a kubelet, or with `enableServiceLinks` and the like turned off.
    #[error(
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    )]
    Environment,
    /// The variables do not make an address.
    #[error("could not parse host URL from in-cluster config: {0}")]
    Address(#[source] http::uri::InvalidUri),
    /// A file of the service-account volume cannot be read.
    #[error("open {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// `ca.crt` holds no certificate.
    #[error("could not parse CA bundle in {}: {problem}", path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
}

/// Reads the surroundings. `environment` is `std::env::var_os`, or a test's.
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

/// A token in a file that is replaced now and then.
struct FileToken {
    path: PathBuf,
    opened: Instant,
    /// Seconds since `opened` at which the file was last looked at.
    looked: AtomicU64,
    current: ArcSwapOption<Token>,
}

impl FileToken {
    fn open(path: PathBuf) -> std::io::Result<Self> {
        let token = read(&path)?;
        Ok(Self {
            path,
            opened: Instant::now(),
            looked: AtomicU64::new(0),
            current: ArcSwapOption::from_pointee(token),
        })
    }
}

fn read(path: &Path) -> std::io::Result<Token> {
    let text = Zeroizing::new(std::fs::read_to_string(path)?);
    match text.trim() {
        // A file that is just being written; as a token it would make every request anonymous.
        "" => Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the file is empty")),
        token => Ok(Token::new(token)),
    }
}

impl TokenSource for FileToken {
    fn token(&self) -> Option<Arc<Token>> {
        let now = self.opened.elapsed().as_secs();
        let looked = self.looked.load(Ordering::Relaxed);
        let due = now.saturating_sub(looked) >= REREAD_AFTER.as_secs();
        // One of the callers looks; the file is on a memory file system and a few hundred bytes long.
        if due && self.looked.compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            match read(&self.path) {
                Ok(token) => self.current.store(Some(Arc::new(token))),
                Err(error) => tracing::warn!(
                    path = %self.path.display(), %error,
                    "could not read the service account token again, going on with the one before"
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
    fn address_trust_and_token_are_read() {
        let volume = volume();
        let surroundings = load(environment("10.96.0.1"), volume.path()).unwrap();
        assert_eq!(surroundings.server.to_string(), "https://10.96.0.1:443/");
        assert_eq!(surroundings.ca.distinct_count(), 1);
        assert_eq!(surroundings.token.token().unwrap().expose(), "the-token");
    }

    #[test]
    fn an_empty_file_is_no_token() {
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
    fn outside_of_a_pod_the_missing_part_is_named() {
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
