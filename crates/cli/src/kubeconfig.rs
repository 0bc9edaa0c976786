//! Loads, merges and resolves kubeconfigs like kubectl ([`load`], [`resolve`]), and creates them
//! ([`generated`]). [`merge`] merges generated entries into an existing file, and [`identity`]
//! writes the identity that a user entry impersonates into one.

pub mod generated;
pub mod identity;
pub mod merge;
pub(crate) mod replace;

use std::io;
use std::path::Path;

use kube::config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError};

use pinniped_go_compat::base64::{self as gobase64, CorruptInput};
use pinniped_go_compat::io::GoIoError;
use pinniped_go_compat::json::quote;
use pinniped_pki::Certificate;

use crate::environment::Environment;
use crate::{bounded_file, platform};

/// A kubeconfig could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file does not exist.
    #[error("stat {path}")]
    Stat {
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// The file cannot be read.
    #[error("open {path}")]
    Open {
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// The file is not a kubeconfig. The error has no source, because the further lines of the
    /// parser's text may contain credentials.
    #[error("error loading config file {}: {problem}", quote(.path))]
    Parse {
        /// The file.
        path: String,
        /// The first line of the parser's text.
        problem: String,
    },
    /// The files of a list cannot be merged.
    #[error(transparent)]
    Merge(KubeconfigError),
}

/// The CA certificates of a cluster entry could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ClusterCaError {
    /// The data is not base64.
    #[error("invalid certificate-authority-data for {cluster}")]
    Data {
        /// The name of the cluster entry.
        cluster: String,
        /// The error of the decoder.
        #[source]
        source: CorruptInput,
    },
    /// The file cannot be read.
    #[error("unable to read certificate-authority {path} for {cluster} due to open {path}")]
    File {
        /// The name of the cluster entry.
        cluster: String,
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
}

/// The problems of a user's client certificate, with the text of client-go.
#[derive(Debug, thiserror::Error)]
#[error("invalid configuration: {}", listed(.0))]
pub struct UserCertificateError(Vec<UserCertificateProblem>);

/// A problem of a user's client certificate.
#[derive(Debug, thiserror::Error)]
pub enum UserCertificateProblem {
    /// The certificate is given twice.
    #[error("client-cert-data and client-cert are both specified for {0}. client-cert-data will override.")]
    TwoCertificates(String),
    /// The key is given twice.
    #[error("client-key-data and client-key are both specified for {0}; client-key-data will override")]
    TwoKeys(String),
    /// The key is missing.
    #[error(
        "client-key-data or client-key must be specified for {0} to use the clientCert authentication method."
    )]
    NoKey(String),
    /// A file cannot be read.
    #[error("unable to read {what} {path} for {user} due to open {path}: {source}")]
    File {
        /// `client-cert` or `client-key`.
        what: &'static str,
        /// The name of the user.
        user: String,
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
}

fn listed(problems: &[UserCertificateProblem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

/// The address of a cluster is invalid, with the text of client-go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    /// There is none.
    #[error("invalid configuration: no server found for cluster {}", quote(.0))]
    Missing(String),
    /// It is not an HTTP address.
    #[error("host must be a URL or a host:port pair: {}", quote(.0))]
    Invalid(String),
}

/// Loads the file of `--kubeconfig`, or without the flag the files that `KUBECONFIG` lists, or
/// `~/.kube/config`.
///
/// A single path must exist; the null device is an empty kubeconfig. Missing files in the list of
/// `KUBECONFIG` are skipped, and the first file that sets a value takes precedence. Without any
/// file the result is empty.
///
/// # Errors
///
/// Returns an error for a missing file (`stat X: no such file or directory`), or one that cannot be
/// read or parsed.
pub fn load(flag: Option<&str>, environment: &Environment) -> Result<Kubeconfig, LoadError> {
    if let Some(path) = flag.filter(|path| !path.is_empty()) {
        return read(path);
    }
    let paths = paths(environment);
    if let (Some(_), [only]) = (&environment.kubeconfig, paths.as_slice()) {
        return read(only);
    }
    let mut merged = Kubeconfig::default();
    for path in paths.iter().filter(|path| Path::new(path).exists()) {
        merged = merged.merge(read(path)?).map_err(LoadError::Merge)?;
    }
    Ok(merged)
}

/// Returns the files that apply without `--kubeconfig`: those that `KUBECONFIG` lists, or
/// `~/.kube/config`.
pub fn paths(environment: &Environment) -> Vec<String> {
    if let Some(list) = &environment.kubeconfig {
        return std::env::split_paths(list)
            .map(|path| path.to_string_lossy().into_owned())
            .filter(|path| !path.is_empty())
            .collect();
    }
    let home = environment.home.as_ref();
    home.map(|home| home.join(".kube").join("config").to_string_lossy().into_owned()).into_iter().collect()
}

/// Returns the file that a command without `--kubeconfig` changes: as for kubectl, the first file
/// of `KUBECONFIG` that exists, or its first file, or `~/.kube/config`.
pub fn file_to_change(environment: &Environment) -> Option<String> {
    let paths = paths(environment);
    let existing = paths.iter().find(|path| Path::new(path).exists());
    existing.or(paths.first()).cloned()
}

/// There is no kubeconfig file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kubeconfig found: set KUBECONFIG or pass --kubeconfig")]
pub struct NoKubeconfig;

/// Checks that [`load`] has a file to read.
///
/// # Errors
///
/// Returns an error if there is none.
pub fn check_exists(flag: Option<&str>, environment: &Environment) -> Result<(), NoKubeconfig> {
    let given = flag.is_some_and(|path| !path.is_empty());
    if given || paths(environment).iter().any(|path| Path::new(path).exists()) {
        Ok(())
    } else {
        Err(NoKubeconfig)
    }
}

/// Loads the files of [`load`], and checks that there is one.
///
/// # Errors
///
/// Returns the error of [`load`] or of [`check_exists`].
pub fn load_existing<E: From<LoadError> + From<NoKubeconfig>>(
    flag: Option<&str>,
    environment: &Environment,
) -> Result<Kubeconfig, E> {
    let config = load(flag, environment)?;
    check_exists(flag, environment)?;
    Ok(config)
}

fn read(path: &str) -> Result<Kubeconfig, LoadError> {
    let metadata = std::fs::metadata(path)
        .map_err(|error| LoadError::Stat { path: path.to_owned(), source: error.into() })?;
    if platform::is_null_device(&metadata) {
        return Ok(Kubeconfig::default());
    }
    let cannot_open = |error: io::Error| LoadError::Open { path: path.to_owned(), source: error.into() };
    let file = Path::new(path);
    // A shell may pass the output of a command as a pipe.
    let config = match platform::is_pipe(&metadata) {
        true => Kubeconfig::from_yaml(&bounded_file::read_pipe(file).map_err(cannot_open)?),
        false => {
            bounded_file::check(file).map_err(cannot_open)?;
            Kubeconfig::read_from(file)
        }
    };
    let mut config = config.map_err(|err| {
        let path = path.to_owned();
        let text = match err {
            KubeconfigError::ReadConfig(error, _) => return LoadError::Open { path, source: error.into() },
            KubeconfigError::Parse(err) => err.to_string(),
            other => other.to_string(),
        };
        // The parser quotes the source of an error on further lines. Only the first line is used,
        // because the source may contain credentials.
        LoadError::Parse { path, problem: text.lines().next().unwrap_or_default().to_owned() }
    })?;
    // An empty name counts as not set: another file of the list may set it.
    config.current_context = config.current_context.filter(|name| !name.is_empty());
    Ok(config)
}

/// A resolved context.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The name of the context.
    pub context: String,
    /// The name of its user.
    pub user: String,
    /// The name of its cluster.
    pub cluster_name: String,
    /// Its cluster.
    pub cluster: Cluster,
}

/// A missing entry that a context refers to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The context itself.
    #[error("no such context {}", quote(.0))]
    Context(String),
    /// The cluster of the context.
    #[error("no such cluster {}", quote(.0))]
    Cluster(String),
    /// The user of the context.
    #[error("no such user {}", quote(.0))]
    User(String),
}

/// Resolves `context`, or the current context if it is empty.
///
/// # Errors
///
/// Returns the first missing entry.
pub fn resolve(config: &Kubeconfig, context: &str) -> Result<Resolved, ResolveError> {
    let name =
        if context.is_empty() { config.current_context.as_deref().unwrap_or_default() } else { context };
    let found = config
        .contexts
        .iter()
        .find(|named| named.name == name)
        .and_then(|named| named.context.as_ref())
        .ok_or_else(|| ResolveError::Context(name.to_owned()))?;
    let cluster = config
        .clusters
        .iter()
        .find(|named| named.name == found.cluster)
        .and_then(|named| named.cluster.as_ref())
        .ok_or_else(|| ResolveError::Cluster(found.cluster.clone()))?;
    let user = found.user.clone().unwrap_or_default();
    if !config.auth_infos.iter().any(|named| named.name == user) {
        return Err(ResolveError::User(user));
    }
    Ok(Resolved {
        context: name.to_owned(),
        user,
        cluster_name: found.cluster.clone(),
        cluster: cluster.clone(),
    })
}

/// Returns the CA certificates of a cluster entry as PEM, from its data or its file; empty if it
/// has none.
///
/// # Errors
///
/// Returns an error for a file that cannot be read, or for data that is not base64.
pub fn certificate_authority(name: &str, cluster: &Cluster) -> Result<Vec<u8>, ClusterCaError> {
    if let Some(data) = cluster.certificate_authority_data.as_deref().filter(|data| !data.is_empty()) {
        return gobase64::decode(data.as_bytes())
            .map_err(|source| ClusterCaError::Data { cluster: name.to_owned(), source });
    }
    match cluster.certificate_authority.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => bounded_file::read(Path::new(path)).map_err(|error| ClusterCaError::File {
            cluster: name.to_owned(),
            path: path.to_owned(),
            source: error.into(),
        }),
        None => Ok(Vec::new()),
    }
}

/// Returns the client certificate of a user, from its data or its file, if there is one that can be
/// read.
pub(crate) fn client_certificate(user: &AuthInfo) -> Option<Certificate> {
    let pem = match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => gobase64::decode(data.as_bytes()).ok()?,
        (None, path) => bounded_file::read(Path::new(path.as_deref()?)).ok()?,
    };
    Certificate::parse_pem(&pem).ok()
}

/// Checks that the client certificate of a user, if there is one, exists together with its key.
///
/// # Errors
///
/// Returns all problems, with the texts of client-go.
pub(crate) fn check_certificate(name: &str, user: &AuthInfo) -> Result<(), UserCertificateError> {
    let set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let (certificate, key) = (set(&user.client_certificate), set(&user.client_key));
    let (certificate_data, key_data) = (set(&user.client_certificate_data), user.client_key_data.is_some());
    if !certificate && !certificate_data {
        return Ok(());
    }
    let mut problems = Vec::new();
    if certificate && certificate_data {
        problems.push(UserCertificateProblem::TwoCertificates(name.to_owned()));
    }
    if key && key_data {
        problems.push(UserCertificateProblem::TwoKeys(name.to_owned()));
    }
    if !key && !key_data {
        problems.push(UserCertificateProblem::NoKey(name.to_owned()));
    }
    for (what, path) in [("client-cert", &user.client_certificate), ("client-key", &user.client_key)] {
        if let Some(path) = path.as_deref().filter(|path| !path.is_empty())
            && let Err(error) = readable(Path::new(path))
        {
            problems.push(UserCertificateProblem::File {
                what,
                user: name.to_owned(),
                path: path.to_owned(),
                source: error.into(),
            });
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(UserCertificateError(problems)) }
}

/// Checks that a file can be read, without blocking on a pipe.
fn readable(path: &Path) -> io::Result<()> {
    bounded_file::check(path)?;
    std::fs::File::open(path).map(drop)
}

/// Returns the address of a cluster as a URL; the scheme may be missing, as in client-go.
///
/// # Errors
///
/// Returns an error for an invalid address, with the text of client-go.
pub(crate) fn server_url(cluster: &str, server: &str, secure: bool) -> Result<String, ServerUrlError> {
    if server.is_empty() {
        return Err(ServerUrlError::Missing(cluster.to_owned()));
    }
    let wrong = || ServerUrlError::Invalid(server.to_owned());
    let text = match server.split_once("://") {
        Some(_) => server.to_owned(),
        None if server.starts_with('/') => return Err(wrong()),
        None => format!("{}://{server}", if secure { "https" } else { "http" }),
    };
    let url = url::Url::parse(&text).map_err(|_| wrong())?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(wrong());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use pinniped_error::chain;

    use super::*;

    const FIRST: &str = "
current-context: ''
contexts:
- {name: a, context: {cluster: c, user: u}}
- {name: lost-cluster, context: {cluster: nowhere, user: u}}
- {name: lost-user, context: {cluster: c, user: nobody}}
clusters:
- {name: c, cluster: {server: 'https://first'}}
users:
- {name: u, user: {token: t}}
";
    const SECOND: &str = "
current-context: b
contexts:
- {name: b, context: {cluster: c, user: u}}
clusters:
- {name: c, cluster: {server: 'https://second'}}
";

    fn environment(kubeconfig: &str) -> Environment {
        Environment::new(Vec::new(), HashMap::from([("KUBECONFIG".to_owned(), kubeconfig.to_owned())]))
    }

    #[test]
    fn a_list_is_merged_and_the_first_file_takes_precedence() {
        let dir = tempfile::tempdir().unwrap();
        let first = dir.path().join("first");
        let second = dir.path().join("second");
        std::fs::write(&first, FIRST).unwrap();
        std::fs::write(&second, SECOND).unwrap();
        let list = std::env::join_paths([&first, &dir.path().join("missing"), &second]).unwrap();
        let config = load(None, &environment(list.to_str().unwrap())).unwrap();
        let resolved = resolve(&config, "").unwrap();
        assert_eq!(resolved.context, "b");
        assert_eq!(resolved.cluster.server.as_deref(), Some("https://first"));

        // The flag takes one path, not a list.
        let list = list.to_str().unwrap();
        assert_eq!(
            chain(&load(Some(list), &environment("")).unwrap_err()).to_string(),
            format!("stat {list}: no such file or directory")
        );
    }

    #[test]
    fn the_first_existing_file_of_a_list_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let list = std::env::join_paths([path("a"), path("b"), path("c")]).unwrap();
        let environment = environment(list.to_str().unwrap());
        assert_eq!(file_to_change(&environment), Some(path("a")));
        for name in ["c", "b"] {
            std::fs::write(path(name), "").unwrap();
            assert_eq!(file_to_change(&environment), Some(path(name)));
        }
        let home = Environment { home: Some("/h".into()), ..Environment::default() };
        assert_eq!(file_to_change(&home).as_deref(), Some("/h/.kube/config"));
        assert_eq!(file_to_change(&Environment::default()), None);
    }

    #[test]
    fn missing_entries_are_reported() {
        let config = Kubeconfig::from_yaml(FIRST).unwrap();
        assert!(resolve(&config, "a").is_ok());
        for (context, error) in [
            ("x", "no such context \"x\""),
            ("", "no such context \"\""),
            ("lost-cluster", "no such cluster \"nowhere\""),
            ("lost-user", "no such user \"nobody\""),
        ] {
            assert_eq!(resolve(&config, context).unwrap_err().to_string(), error);
        }
        assert_eq!(resolve(&Kubeconfig::default(), "").unwrap_err().to_string(), "no such context \"\"");
        assert_eq!(
            chain(&load(None, &environment("/no/such/file")).unwrap_err()).to_string(),
            "stat /no/such/file: no such file or directory"
        );
    }

    #[test]
    fn an_invalid_file_is_reported_without_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broken");
        std::fs::write(&path, "users:\n- name: [\n  token: hush\n").unwrap();
        let error = load(Some(path.to_str().unwrap()), &environment("")).unwrap_err();
        assert!(!format!("{error:?}").contains("hush"), "{error:?}");
        let error = chain(&error).to_string();
        assert!(error.starts_with(&format!("error loading config file \"{}\": ", path.display())), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }

    #[test]
    fn a_ca_comes_from_data_or_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        std::fs::write(&path, "pem").unwrap();
        let file = Cluster {
            certificate_authority: Some(path.to_string_lossy().into_owned()),
            ..Cluster::default()
        };
        let read = |cluster: &Cluster| {
            certificate_authority("c", cluster).map_err(|error| chain(&error).to_string())
        };
        assert_eq!(read(&file), Ok(b"pem".to_vec()));
        let both = Cluster { certificate_authority_data: Some("ZGF0YQ==".into()), ..file };
        assert_eq!(read(&both), Ok(b"data".to_vec()));
        let missing = Cluster { certificate_authority: Some("/nope".into()), ..Cluster::default() };
        assert_eq!(
            read(&missing),
            Err("unable to read certificate-authority /nope for c due to open /nope: no such file or directory".into())
        );
        assert_eq!(read(&Cluster::default()), Ok(Vec::new()));
    }

    #[test]
    fn an_address_without_a_scheme_is_valid_and_an_invalid_one_is_refused() {
        for (server, secure, url) in [
            ("https://h:6443/base", false, Ok("https://h:6443/base".to_owned())),
            ("127.0.0.1:1", true, Ok("https://127.0.0.1:1".to_owned())),
            ("h", false, Ok("http://h".to_owned())),
            ("", true, Err("invalid configuration: no server found for cluster \"c\"".to_owned())),
            ("/x", true, Err("host must be a URL or a host:port pair: \"/x\"".to_owned())),
            (
                "https://h:99999",
                true,
                Err("host must be a URL or a host:port pair: \"https://h:99999\"".to_owned()),
            ),
            ("ftp://h", true, Err("host must be a URL or a host:port pair: \"ftp://h\"".to_owned())),
            ("::::", true, Err("host must be a URL or a host:port pair: \"::::\"".to_owned())),
        ] {
            assert_eq!(server_url("c", server, secure).map_err(|error| error.to_string()), url, "{server}");
        }
    }
}
