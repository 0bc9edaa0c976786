//! The kubeconfig that `get kubeconfig` writes: one cluster, one user with an exec plugin, one
//! context.

use kube::config::Cluster;
use serde_json::{Map, Value, json};

use super::{Resolved, identity};
use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_go_compat::{base64 as gobase64, yaml as goyaml};

/// The command that kubectl runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecPlugin {
    /// The path of the program.
    pub command: String,
    /// The arguments.
    pub args: Vec<String>,
    /// The message if the program is missing; omitted if empty.
    pub install_hint: String,
}

/// Returns the cluster entry of `source` with another server and CA.
///
/// Keeps all other fields, except the path of a CA file: kubectl refuses an entry with both, and
/// `ca` already contains the file.
pub fn cluster_entry(source: &Cluster, server: &str, ca: &[u8], keep_insecure: bool) -> Cluster {
    let mut cluster = source.clone();
    cluster.server = Some(server.to_owned());
    cluster.certificate_authority = None;
    cluster.certificate_authority_data = (!ca.is_empty()).then(|| gobase64::encode(ca));
    if !keep_insecure {
        cluster.insecure_skip_tls_verify = None;
    }
    // Go omits false and empty values.
    cluster.insecure_skip_tls_verify = cluster.insecure_skip_tls_verify.filter(|set| *set);
    cluster.disable_compression = cluster.disable_compression.filter(|set| *set);
    cluster.tls_server_name = cluster.tls_server_name.filter(|text| !text.is_empty());
    cluster.proxy_url = cluster.proxy_url.filter(|text| !text.is_empty());
    cluster.extensions = cluster.extensions.filter(|list| !list.is_empty());
    cluster.other.clear();
    cluster
}

/// The entries of a kubeconfig for logins: one cluster, one user and one context.
#[derive(Clone, Debug, PartialEq)]
pub struct Entries {
    /// The name of the cluster.
    pub cluster_name: String,
    /// The name of the user.
    pub user_name: String,
    /// The name of the context.
    pub context_name: String,
    /// The content of the cluster entry.
    pub cluster: Value,
    /// The content of the user entry.
    pub user: Value,
}

impl Entries {
    /// Creates the entries; the user impersonates `impersonate`, if that is known.
    ///
    /// # Errors
    ///
    /// A cluster entry that was read from a file causes no error; the result is fallible because
    /// serde serializes it.
    pub fn new(
        source: &Resolved,
        cluster: &Cluster,
        plugin: &ExecPlugin,
        impersonate: Option<&ImpersonatedUser>,
        name_suffix: &str,
    ) -> Result<Self, serde_json::Error> {
        let mut exec = Map::new();
        exec.insert("apiVersion".into(), "client.authentication.k8s.io/v1beta1".into());
        let args = plugin.args.iter().cloned().chain(impersonate.map(identity::expectation));
        exec.insert("args".into(), args.collect());
        exec.insert("command".into(), json!(plugin.command));
        exec.insert("env".into(), Value::Array(Vec::new()));
        if !plugin.install_hint.is_empty() {
            exec.insert("installHint".into(), json!(plugin.install_hint));
        }
        exec.insert("provideClusterInfo".into(), true.into());
        let mut user = impersonate.map(identity::fields).unwrap_or_default();
        user.insert("exec".into(), exec.into());
        Ok(Self {
            cluster_name: format!("{}{name_suffix}", source.cluster_name),
            user_name: format!("{}{name_suffix}", source.user),
            context_name: format!("{}{name_suffix}", source.context),
            cluster: serde_json::to_value(cluster)?,
            user: user.into(),
        })
    }

    /// Returns the same entries with another name for all of them.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let name = || name.to_owned();
        Self { cluster_name: name(), user_name: name(), context_name: name(), ..self }
    }

    /// Returns the content of the context entry.
    pub fn context(&self) -> Value {
        json!({"cluster": self.cluster_name, "user": self.user_name})
    }

    /// Returns a kubeconfig with these entries alone.
    pub fn document(&self) -> String {
        goyaml::to_string(&json!({
            "apiVersion": "v1",
            "clusters": [{"cluster": self.cluster, "name": self.cluster_name}],
            "contexts": [{"context": self.context(), "name": self.context_name}],
            "current-context": self.context_name,
            "kind": "Config",
            "users": [{"name": self.user_name, "user": self.user}],
        }))
    }
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;

    use super::*;
    use crate::flags::tree::DEFAULT_INSTALL_HINT;
    use crate::kubeconfig::resolve;

    const SOURCE: &str = "
current-context: kind-context
contexts:
- {name: kind-context, context: {cluster: kind-cluster, user: kind-user, namespace: dropped}}
- {name: other, context: {cluster: kind-cluster, user: kind-user}}
clusters:
- name: kind-cluster
  cluster:
    server: https://source
    certificate-authority: /some/ca.crt
    tls-server-name: name
    proxy-url: http://proxy:3128
    insecure-skip-tls-verify: true
    disable-compression: true
    extensions: [{name: e, extension: {k: v}}]
users:
- {name: kind-user, user: {token: t}}
";

    #[test]
    fn the_layout_equals_that_of_upstream() {
        let source = resolve(&Kubeconfig::from_yaml(SOURCE).unwrap(), "").unwrap();
        let cluster = cluster_entry(&source.cluster, "https://endpoint:1", b"pem", true);
        let plugin = ExecPlugin {
            command: "/usr/local/bin/pinniped".into(),
            args: vec!["login".into(), "static".into(), "--enable-concierge".into(), "--token=t".into()],
            install_hint: DEFAULT_INSTALL_HINT.into(),
        };
        assert_eq!(
            Entries::new(&source, &cluster, &plugin, None, "-pinniped").unwrap().document(),
            "apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: cGVt
    disable-compression: true
    extensions:
    - extension:
        k: v
      name: e
    insecure-skip-tls-verify: true
    proxy-url: http://proxy:3128
    server: https://endpoint:1
    tls-server-name: name
  name: kind-cluster-pinniped
contexts:
- context:
    cluster: kind-cluster-pinniped
    user: kind-user-pinniped
  name: kind-context-pinniped
current-context: kind-context-pinniped
kind: Config
users:
- name: kind-user-pinniped
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      args:
      - login
      - static
      - --enable-concierge
      - --token=t
      command: /usr/local/bin/pinniped
      env: []
      installHint: The pinniped CLI does not appear to be installed.  See https://get.pinniped.dev/cli
        for more details
      provideClusterInfo: true
"
        );
    }

    #[test]
    fn without_a_ca_there_is_no_ca_field_and_verification_stays_enabled() {
        let source = resolve(&Kubeconfig::from_yaml(SOURCE).unwrap(), "").unwrap();
        let cluster = cluster_entry(&source.cluster, "https://endpoint", b"", false);
        let entry = serde_json::to_value(&cluster).unwrap();
        assert_eq!(entry.get("certificate-authority-data"), None);
        assert_eq!(entry.get("certificate-authority"), None);
        assert_eq!(entry.get("insecure-skip-tls-verify"), None);
        assert_eq!(entry.get("proxy-url"), Some(&json!("http://proxy:3128")));
    }
}
