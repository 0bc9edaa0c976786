//! The kubeconfig of one run of kubectl: readable only by the user, and removed after the run.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use kube::config::Kubeconfig;

use pinniped_go_compat::yaml as goyaml;

use crate::environment::Environment;
use crate::private_file;

/// A file that is removed when the value is dropped.
pub(super) struct SessionFile(PathBuf);

impl SessionFile {
    /// Writes the file to the user's directory for temporary files.
    pub(super) fn create(config: &Kubeconfig, environment: &Environment) -> io::Result<Self> {
        let mut config = config.clone();
        make_absolute(&mut config)?;
        let value = serde_json::to_value(&config).map_err(io::Error::other)?;
        let runtime = environment.non_empty("XDG_RUNTIME_DIR").map(PathBuf::from);
        let dir = match runtime.filter(|dir| dir.is_dir()) {
            Some(dir) => dir,
            None => environment.non_empty("TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from),
        };
        let path = dir.join(format!("pinniped-kubectl-{}.yaml", private_file::random_name()?));
        let mut file = private_file::create(&path)?;
        // From here on the file is removed, even if writing fails.
        let this = Self(path);
        file.write_all(goyaml::to_string(&value).as_bytes())?;
        Ok(this)
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SessionFile {
    fn drop(&mut self) {
        // An error cannot be reported here; the file contains the same as the kubeconfig and no
        // cluster token.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes paths absolute: they are relative to the directory of the kubeconfig, which changes.
fn make_absolute(config: &mut Kubeconfig) -> io::Result<()> {
    let absolute = |path: &mut Option<String>| -> io::Result<()> {
        if let Some(text) = path.as_deref().filter(|text| !text.is_empty()) {
            *path = Some(std::path::absolute(text)?.to_string_lossy().into_owned());
        }
        Ok(())
    };
    for cluster in config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        absolute(&mut cluster.certificate_authority)?;
    }
    for user in config.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        absolute(&mut user.client_certificate)?;
        absolute(&mut user.client_key)?;
        absolute(&mut user.token_file)?;
        let exec = user.exec.as_mut();
        if let Some(exec) = exec.filter(|exec| exec.command.as_deref().is_some_and(|name| name.contains('/')))
        {
            absolute(&mut exec.command)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_file_is_private_and_complete_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let config = Kubeconfig::from_yaml(
            "
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: some}}]
clusters: [{name: c, cluster: {server: 'https://c', certificate-authority: ca.crt, made-up: kept}}]
users: [{name: u, user: {exec: {apiVersion: v, command: ./plugin, args: [a]}}}, {name: t, user: {token: secret}}]
",
        )
        .unwrap();
        let variables = HashMap::from([("TMPDIR".to_owned(), dir.path().to_str().unwrap().to_owned())]);
        let file = SessionFile::create(&config, &Environment::new(Vec::new(), variables)).unwrap();
        let path = file.path().to_owned();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let here = std::env::current_dir().unwrap();
        for part in [
            "server: https://c",
            "made-up: kept",
            "token: secret",
            "namespace: some",
            &here.join("ca.crt").to_string_lossy(),
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        drop(file);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
