//! The kubeconfig of the webhook, like the one of kube-apiserver's flag
//! `--audit-webhook-config-file`: the cluster of the current context is the webhook, and its user
//! is this program.
//!
//! Fields that this program cannot apply are errors, because without them it would send events to
//! another server, or with another identity, than the file says. Files are read once, except that
//! of `tokenFile`.

use std::fmt;
use std::path::{Path, PathBuf};

use kube::config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError};
use pinniped_error::chain;
use pinniped_go_compat::base64;
use pinniped_http_client::proxy::Proxy;
use pinniped_pki::tls::Roots;
use pinniped_pki::{CaBundle, CertificatePair};
use pinniped_secret::Token;
use secrecy::ExposeSecret as _;
use url::Url;

use crate::bounded_file;

/// The timeout that client-go requests from the server.
const TIMEOUT_QUERY: &str = "timeout=30s";

/// The reasons why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigFileError {
    /// The file cannot be read.
    #[error("could not read the kubeconfig of the audit webhook {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A field cannot be used. The text has no value of the file that may be secret.
    #[error("the kubeconfig of the audit webhook {} is invalid: {field}: {problem}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// The problem, and its remedy.
        problem: String,
    },
}

/// The bearer token of the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    None,
    Token(Token),
    /// The file is read again for each request, because the tokens of service accounts expire.
    TokenFile(PathBuf),
}

/// The content of a kubeconfig.
pub(crate) struct Target {
    pub(crate) url: Url,
    pub(crate) roots: Roots,
    pub(crate) certificate: Option<CertificatePair>,
    pub(crate) credential: Credential,
    /// The proxy, in place of that of the environment.
    pub(crate) proxy: Option<String>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address of the proxy may contain a password.
        f.debug_struct("Target").field("url", &self.url.as_str()).finish_non_exhaustive()
    }
}

/// A field and its problem.
struct Invalid(String, String);

fn invalid(field: impl fmt::Display, problem: impl fmt::Display) -> Invalid {
    Invalid(field.to_string(), problem.to_string())
}

/// Reads a kubeconfig, and the files that it names.
pub(super) fn load(path: &Path) -> Result<Target, KubeconfigFileError> {
    let text = bounded_file::read(path)
        .map_err(|source| KubeconfigFileError::Read { path: path.to_owned(), source })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    target(&text, folder).map_err(|Invalid(field, problem)| KubeconfigFileError::Field {
        path: path.to_owned(),
        field,
        problem,
    })
}

fn target(text: &str, folder: &Path) -> Result<Target, Invalid> {
    let config = Kubeconfig::from_yaml(text).map_err(|error| {
        let text = match error {
            KubeconfigError::Parse(error) => error.to_string(),
            error => error.to_string(),
        };
        // The parser quotes the source on further lines, which may contain credentials.
        invalid("the file", format_args!("is not a kubeconfig: {}", text.lines().next().unwrap_or_default()))
    })?;
    let name = config.current_context.as_deref().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| invalid("current-context", "is required: use the name of a context"))?;
    let context = config.contexts.iter().find(|named| named.name == name);
    let context = context.and_then(|named| named.context.as_ref()).ok_or_else(|| {
        invalid(
            "current-context",
            format_args!("contexts has no entry {name:?}: add it, or correct the name"),
        )
    })?;
    if let Some(key) = context.other.keys().next() {
        let field = format_args!("contexts[{name}].context.{key}");
        return Err(invalid(field, "is not a field of a kubeconfig: correct or remove it"));
    }
    let cluster = config.clusters.iter().find(|named| named.name == context.cluster);
    let cluster = cluster.and_then(|named| named.cluster.as_ref()).ok_or_else(|| {
        let missing = format!("clusters has no entry {:?}: add it, or correct the name", context.cluster);
        invalid(format_args!("contexts[{name}].cluster"), missing)
    })?;
    let user = match context.user.as_deref().filter(|user| !user.is_empty()) {
        None => None,
        Some(user) => {
            let found = config.auth_infos.iter().find(|named| named.name == user);
            let found = found.and_then(|named| named.auth_info.as_ref()).ok_or_else(|| {
                let missing = format!("users has no entry {user:?}: add it, or correct the name");
                invalid(format_args!("contexts[{name}].user"), missing)
            })?;
            Some((format!("users[{user}].user"), found))
        }
    };
    let cluster_field = format!("clusters[{}].cluster", context.cluster);
    let (url, roots, proxy) = server(&cluster_field, cluster, folder)?;
    let (certificate, credential) = match user {
        None => (None, Credential::None),
        Some((field, user)) => {
            supported(&field, user)?;
            (certificate(&field, user, folder)?, credential(&field, user, folder)?)
        }
    };
    Ok(Target { url, roots, certificate, credential, proxy })
}

fn server(field: &str, cluster: &Cluster, folder: &Path) -> Result<(Url, Roots, Option<String>), Invalid> {
    let name = |key: &str| format!("{field}.{key}");
    if let Some(key) = cluster.other.keys().next() {
        return Err(invalid(name(key), "is not a field of a kubeconfig: correct or remove it"));
    }
    if cluster.insecure_skip_tls_verify == Some(true) {
        return Err(invalid(
            name("insecure-skip-tls-verify"),
            "events would be sent to any server: remove it, and set certificate-authority-data",
        ));
    }
    if set(cluster.tls_server_name.as_ref()).is_some() {
        return Err(invalid(
            name("tls-server-name"),
            "is not supported: use a host in server that the certificate of the webhook contains",
        ));
    }
    const FORM: &str = "must be a URL of the form https://HOST[:PORT][/PATH]";
    let server = set(cluster.server.as_ref()).unwrap_or_default();
    let mut url =
        Url::parse(server).map_err(|error| invalid(name("server"), format_args!("{FORM}: {error}")))?;
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if url.scheme() != "https" || !url.has_host() || !is_plain {
        // The text may contain a password.
        return Err(invalid(name("server"), FORM));
    }
    url.set_query(Some(TIMEOUT_QUERY));
    let authorities = content(
        &name("certificate-authority"),
        set(cluster.certificate_authority_data.as_ref()),
        set(cluster.certificate_authority.as_ref()),
        folder,
    )?;
    let roots = match authorities {
        None => Roots::System,
        Some((field, pem)) => Roots::Bundle(CaBundle::from_pem(&pem).map_err(|error| invalid(field, error))?),
    };
    let proxy = set(cluster.proxy_url.as_ref()).map(str::to_owned);
    if let Some(proxy) = &proxy {
        Proxy::parse(proxy).map_err(|error| invalid(name("proxy-url"), chain(&error)))?;
    }
    Ok((url, roots, proxy))
}

/// Checks that the user has no credential that cannot be sent.
fn supported(field: &str, user: &AuthInfo) -> Result<(), Invalid> {
    let is_set = |value: &Option<String>| set(value.as_ref()).is_some();
    let unsupported = [
        ("username", is_set(&user.username)),
        ("password", user.password.is_some()),
        ("exec", user.exec.is_some()),
        ("auth-provider", user.auth_provider.is_some()),
        ("as", is_set(&user.impersonate)),
        ("as-uid", is_set(&user.impersonate_uid)),
        ("as-groups", user.impersonate_groups.is_some()),
        ("as-user-extra", user.impersonate_user_extra.is_some()),
    ];
    if let Some((key, _)) = unsupported.into_iter().find(|(_, is_set)| *is_set) {
        return Err(invalid(
            format_args!("{field}.{key}"),
            "is not supported: use client-certificate and client-key, token, or tokenFile",
        ));
    }
    match user.other.keys().next() {
        None => Ok(()),
        Some(key) => Err(invalid(
            format_args!("{field}.{key}"),
            "is not a field of a kubeconfig: correct or remove it",
        )),
    }
}

fn certificate(field: &str, user: &AuthInfo, folder: &Path) -> Result<Option<CertificatePair>, Invalid> {
    let certificate = content(
        &format!("{field}.client-certificate"),
        set(user.client_certificate_data.as_ref()),
        set(user.client_certificate.as_ref()),
        folder,
    )?;
    let key = content(
        &format!("{field}.client-key"),
        user.client_key_data.as_ref().map(|data| data.expose_secret()).filter(|data| !data.is_empty()),
        set(user.client_key.as_ref()),
        folder,
    )?;
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some((field, certificate)), Some((_, key))) => {
            CertificatePair::parse(&certificate, &key).map(Some).map_err(|error| invalid(field, error))
        }
        (Some(_), None) => {
            Err(invalid(format_args!("{field}.client-key"), "is required with client-certificate"))
        }
        (None, Some(_)) => {
            Err(invalid(format_args!("{field}.client-certificate"), "is required with client-key"))
        }
    }
}

fn credential(field: &str, user: &AuthInfo, folder: &Path) -> Result<Credential, Invalid> {
    let token = user.token.as_ref().map(|token| token.expose_secret()).filter(|token| !token.is_empty());
    let file = set(user.token_file.as_ref()).map(|file| folder.join(file));
    let credential = match (token, file) {
        (Some(_), Some(_)) => {
            return Err(invalid(
                format_args!("{field}.tokenFile"),
                "cannot be used together with token: remove one of them",
            ));
        }
        (None, None) => return Ok(Credential::None),
        (Some(token), None) => Credential::Token(Token::new(token)),
        (None, Some(file)) => Credential::TokenFile(file),
    };
    // A wrong file, or a token that cannot be sent, is an error at start.
    let name = if matches!(credential, Credential::Token(_)) { "token" } else { "tokenFile" };
    super::authorization(&credential)
        .map_err(|error| invalid(format_args!("{field}.{name}"), chain(&error)))?;
    Ok(credential)
}

/// Returns a text unless it is empty, which means "not set".
fn set(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

/// Returns the content of a pair of fields such as `client-key-data` and `client-key`, with the
/// name of the field that has it. As in client-go, data is used before a file.
fn content(
    field: &str,
    data: Option<&str>,
    file: Option<&str>,
    folder: &Path,
) -> Result<Option<(String, Vec<u8>)>, Invalid> {
    match (data, file) {
        (Some(data), _) => {
            let field = format!("{field}-data");
            let decoded = base64::decode(data.as_bytes()).map_err(|error| invalid(&field, error))?;
            Ok(Some((field, decoded)))
        }
        (None, Some(file)) => {
            let path = folder.join(file);
            let text = bounded_file::read(&path).map_err(|error| {
                invalid(field, format_args!("could not read {}: {error}", path.display()))
            })?;
            Ok(Some((field.to_owned(), text.into_bytes())))
        }
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests;
