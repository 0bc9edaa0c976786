//! The kubeconfig for clients of the proxy.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use pinniped_go_compat::io::GoIoError;
use pinniped_go_compat::json::quote;
use pinniped_go_compat::{base64 as gobase64, yaml as goyaml};
use pinniped_secret::text::SecretString;
use serde_json::{Map, json};

use crate::kubeconfig::Resolved;
use crate::{bounded_file, private_file};

/// The first line of our files, which identifies them.
const MARK: &str =
    "# Created by `pinniped proxy`, valid while it runs. Anyone who can read it can act as you.";
/// The suffix for the names of the source kubeconfig.
const SUFFIX: &str = "-proxy";

/// The connection parameters for clients.
pub(super) struct ConnectionParams {
    /// The address of the proxy.
    pub(super) server: String,
    /// The CA certificate in PEM form.
    pub(super) authority: String,
    /// The secret.
    pub(super) secret: SecretString,
}

/// Returns the kubeconfig.
pub(super) fn document(source: &Resolved, namespace: Option<&str>, given: &ConnectionParams) -> String {
    let [cluster, user, name] =
        [&source.cluster_name, &source.user, &source.context].map(|name| format!("{name}{SUFFIX}"));
    let mut context = Map::new();
    context.insert("cluster".to_owned(), json!(cluster));
    if let Some(namespace) = namespace.filter(|namespace| !namespace.is_empty()) {
        context.insert("namespace".to_owned(), json!(namespace));
    }
    context.insert("user".to_owned(), json!(user));
    let authority = gobase64::encode(given.authority.as_bytes());
    let document = goyaml::to_string(&json!({
        "apiVersion": "v1",
        "clusters": [{"cluster": {"certificate-authority-data": authority, "server": given.server}, "name": cluster}],
        "contexts": [{"context": context, "name": name}],
        "current-context": name,
        "kind": "Config",
        "users": [{"name": user, "user": {"token": given.secret.expose()}}],
    }));
    format!("{MARK}\n{document}")
}

/// The file was not written.
#[derive(Debug, thiserror::Error)]
pub enum WrittenError {
    /// Another program wrote a file with this name.
    #[error(
        "{} is there already and was not made by `pinniped proxy`: remove it, or choose another --output",
        quote(.0)
    )]
    Foreign(String),
    /// The existing file cannot be read.
    #[error("could not read {}", quote(.path))]
    Read {
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// The file cannot be written.
    #[error("could not write {}", quote(.path))]
    Write {
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
}

/// A file that only its owner can read. Dropping the value removes the file, unless its content has
/// changed.
pub(super) struct Written {
    path: PathBuf,
    text: String,
}

impl Written {
    /// Writes the file atomically. Does not replace a file that another program wrote.
    ///
    /// # Errors
    /// Returns an error if the name belongs to another program, or if the file cannot be written.
    pub(super) fn write(path: PathBuf, text: String) -> Result<Self, WrittenError> {
        let shown = || path.to_string_lossy().into_owned();
        match bounded_file::read(&path) {
            Ok(existing) if !existing.starts_with(MARK.as_bytes()) => {
                return Err(WrittenError::Foreign(shown()));
            }
            Ok(_) => {}
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(WrittenError::Read { path: shown(), source: error.into() }),
        }
        replace(&path, text.as_bytes())
            .map_err(|error| WrittenError::Write { path: shown(), source: error.into() })?;
        Ok(Self { path, text })
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // Another proxy may have replaced the file.
        if bounded_file::read(&self.path).is_ok_and(|existing| existing == self.text.as_bytes()) {
            // A remaining file is useless without the proxy.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = private_file::create(&temporary)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // The file may not exist.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;
    use pinniped_error::chain;

    use super::*;

    fn given() -> ConnectionParams {
        ConnectionParams {
            server: "https://127.0.0.1:8443".to_owned(),
            authority: "pem".to_owned(),
            secret: "hush".into(),
        }
    }

    fn source() -> Resolved {
        let text = "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], \
                    clusters: [{name: c, cluster: {server: 'https://h'}}], users: [{name: u, user: {}}]}";
        crate::kubeconfig::resolve(&Kubeconfig::from_yaml(text).unwrap(), "").unwrap()
    }

    #[test]
    fn a_kubeconfig_contains_the_proxy_and_the_secret_and_keeps_the_namespace() {
        assert_eq!(
            document(&source(), Some("ns"), &given()),
            "# Created by `pinniped proxy`, valid while it runs. Anyone who can read it can act as you.
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: cGVt
    server: https://127.0.0.1:8443
  name: c-proxy
contexts:
- context:
    cluster: c-proxy
    namespace: ns
    user: u-proxy
  name: a-proxy
current-context: a-proxy
kind: Config
users:
- name: u-proxy
  user:
    token: hush
"
        );
        assert!(!document(&source(), None, &given()).contains("namespace"));
    }

    #[test]
    fn a_file_is_private_and_replaces_only_proxy_files_and_is_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("proxy.yaml");
        let first = Written::write(path.clone(), format!("{MARK}\nfirst")).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let second = Written::write(path.clone(), format!("{MARK}\nsecond")).unwrap();
        drop(first);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            format!("{MARK}\nsecond"),
            "it was not the first's any more"
        );
        drop(second);
        assert!(!path.exists());

        std::fs::write(&path, "precious").unwrap();
        let refused = Written::write(path.clone(), format!("{MARK}\n")).err().unwrap().to_string();
        assert!(refused.contains("was not made by `pinniped proxy`"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        let nowhere = dir.path().join("nowhere/proxy.yaml");
        let refused = chain(&Written::write(nowhere, String::new()).err().unwrap()).to_string();
        assert!(refused.contains("no such file or directory"), "{refused}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
