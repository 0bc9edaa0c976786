//! The serving certificate from an external issuer: cert-manager as in the release post, or the
//! walk in its place.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use pinniped_test_support::certs::Authority;
use serde_json::json;

use super::proxy::{EXTERNAL_NAME, Serving};
use super::{CONCIERGE, CREDENTIAL_ISSUER, TIMEOUT_FLAG, Walk};
use crate::cert_manager::{CertManager, NAMESPACE};
use crate::environment::Step;
use crate::narrator::{Narrator, Show};
use crate::third_party::MADE_BY_WALK;

/// Environment variable with the folder of the post's `yq`; `cargo xtask test` and `cargo xtask
/// demo --with-cert-manager` set it.
pub const YQ_ENV: &str = "PINNIPED_YQ";
/// The Secret of the post's certificate authority.
pub const AUTHORITY_SECRET: &str = "self-signed-ca-for-kind-testing";
/// The Secret of the post's serving certificate.
pub const SERVING_SECRET: &str = "impersonation-proxy-tls-serving-cert";
/// The Certificate of the post for that Secret.
pub const SERVING_CERTIFICATE: &str = "impersonation-serving-cert";
/// The file in which the post saves the authority's certificate.
const AUTHORITY_FILE: &str = "self-signed-ca-for-kind-testing.pem.b64";
/// The issuers that the post applies; their namespace already exists.
const ISSUERS: &str = "\
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata:
  name: selfsigned-cluster-issuer
spec:
  selfSigned: {}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: my-selfsigned-ca
  namespace: cert-manager
spec:
  isCA: true
  commonName: my-selfsigned-ca
  secretName: self-signed-ca-for-kind-testing
  privateKey:
    algorithm: ECDSA
    size: 256
  issuerRef:
    name: selfsigned-cluster-issuer
    kind: ClusterIssuer
    group: cert-manager.io
---
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata:
  name: my-ca-issuer
spec:
  ca:
    secretName: self-signed-ca-for-kind-testing
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: impersonation-serving-cert
  namespace: pinniped-concierge
spec:
  secretName: impersonation-proxy-tls-serving-cert
  duration: 2160h # 90d
  renewBefore: 360h # 15d
  subject:
    organizations:
    - Pinniped
  isCA: false
  privateKey:
    algorithm: RSA
    encoding: PKCS1
    size: 2048
  usages:
  - server auth
  dnsNames:
  - impersonation-proxy-mtls.local
  issuerRef:
    name: my-ca-issuer
    kind: ClusterIssuer
    group: cert-manager.io
";

impl Walk<'_> {
    /// Starts a real cert-manager.
    ///
    /// # Errors
    /// Returns an error when it does not work in time.
    pub async fn start_cert_manager(&self, programs: &Path) -> anyhow::Result<CertManager> {
        self.heading("Install cert-manager (1.11.5, its programs as processes)");
        let running = CertManager::start(self.environment, programs).await?;
        self.narrator.print("(controller, webhook and cainjector run; an issuer would be admitted)");
        Ok(running)
    }

    /// Applies the post's issuers and certificates, waits for the serving certificate, and saves
    /// the authority's.
    ///
    /// # Errors
    /// Returns an error when the certificate is not issued in time.
    pub async fn issue_certificates(&self) -> anyhow::Result<Serving> {
        self.heading("A certificate authority, and a serving certificate for the proxy");
        std::fs::write(self.home.join("self-signed-cert.yaml"), ISSUERS).context("could not write a file")?;
        self.kubectl(&["apply", "--filename", "-"], Some(ISSUERS), Show::Output).await?;
        let certificate = format!("certificates.cert-manager.io/{SERVING_CERTIFICATE}");
        let args = ["wait", &certificate, "--for=condition=Ready", "--namespace", CONCIERGE, TIMEOUT_FLAG];
        self.kubectl(&args, None, Show::Output).await?;
        let args = ["get", "secret", SERVING_SECRET, "--namespace", CONCIERGE];
        self.kubectl(&args, None, Show::Output).await?;
        self.save_authority().await
    }

    /// Creates the two Secrets that cert-manager creates in the post, and reads the authority's
    /// certificate as the post does.
    ///
    /// # Errors
    /// Returns an error when kubectl fails.
    pub async fn make_certificates(&self) -> anyhow::Result<Serving> {
        self.heading("A serving certificate for the proxy (signed by the demo instead of cert-manager)");
        let authority = Authority::new("my-selfsigned-ca")?;
        let leaf = authority.server(EXTERNAL_NAME, &[EXTERNAL_NAME], &[])?;
        let secret = |namespace: &str, name: &str, certificate: &str, key: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {"name": name, "namespace": namespace},
                "stringData": {"tls.crt": certificate, "tls.key": key, "ca.crt": authority.certificate_pem}})
        };
        let (key, value) = MADE_BY_WALK.split_once('=').unwrap_or_default();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": {key: value}}},
            secret(NAMESPACE, AUTHORITY_SECRET, &authority.certificate_pem, &authority.private_key_pem),
            secret(CONCIERGE, SERVING_SECRET, &leaf.certificate_pem, &leaf.private_key_pem),
        ]});
        // The input contains keys and is therefore not shown.
        let args = ["apply", "-f", "-"];
        let applied = self.admin_step(&args).run(Some(&list.to_string())).await?.success()?;
        for line in applied.stdout.lines() {
            self.narrator.print(line);
        }
        self.save_authority().await
    }

    /// Returns the authority's certificate in the form of the CredentialIssuer, and saves it to a
    /// file.
    async fn save_authority(&self) -> anyhow::Result<Serving> {
        let path = r"jsonpath={.data.ca\.crt}";
        let args = ["get", "secret", AUTHORITY_SECRET, "--namespace", NAMESPACE, "--output", path];
        let authority = self.kubectl(&args, None, Show::RedirectedTo(AUTHORITY_FILE)).await?.stdout;
        std::fs::write(self.home.join(AUTHORITY_FILE), &authority)
            .context("could not save the certificate authority")?;
        Ok(Serving::Secret { name: SERVING_SECRET.to_owned(), authority })
    }

    /// Runs the post's last three commands, which print the bundle in the kubeconfig, the one that
    /// the CredentialIssuer advertises, and the saved one. Uses the exact commands where the post's
    /// `yq` is available; otherwise kubectl reads the kubeconfig.
    ///
    /// # Errors
    /// Returns an error when the three are not the same, byte for byte.
    pub async fn check_bundles(&self) -> anyhow::Result<String> {
        self.heading("The same bundle everywhere");
        let in_kubeconfig = if std::env::var_os(YQ_ENV).is_some() {
            r#"cat pinniped-kubeconfig.yaml | yq ".clusters[0].cluster.certificate-authority-data""#
        } else {
            "kubectl config view --raw --kubeconfig pinniped-kubeconfig.yaml \
             -o jsonpath=\"{.clusters[0].cluster.certificate-authority-data}\""
        };
        let advertised = format!(
            "kubectl get {} {CREDENTIAL_ISSUER} -o \
             jsonpath='{{.status.strategies[?(@.type==\"ImpersonationProxy\")].frontend.impersonationProxyInfo.certificateAuthorityData}}'",
            // The post spells it this way.
            if self.narrator == Narrator::Loud {
                "CredentialIssuer".to_owned()
            } else {
                self.kind("credentialissuer")
            }
        );
        let saved = format!("cat {AUTHORITY_FILE}");
        let mut bundles = Vec::new();
        for line in [in_kubeconfig, &advertised, &saved] {
            let printed = self.narrator.run(self.shell(line)?, None, Show::Output).await?.success()?.stdout;
            // yq prints a final newline, the other programs do not.
            bundles.push(printed.trim_end_matches('\n').to_owned());
        }
        let bundle = bundles.pop().unwrap_or_default();
        anyhow::ensure!(
            !bundle.is_empty() && bundles.iter().all(|other| *other == bundle),
            "the three bundles differ: {}, {bundle}",
            bundles.join(", ")
        );
        self.narrator.print("(the three are the same, byte for byte)");
        Ok(bundle)
    }

    /// Returns a shell command line in the walk's home folder, with the administrator's kubeconfig
    /// and all programs in PATH.
    fn shell(&self, line: &str) -> anyhow::Result<Step> {
        let kubectl = self.admin();
        // Only the environment of this command is used.
        let typed = kubectl.command(&[]);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", line]);
        for (name, value) in typed.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let folders = [kubectl.program(), &self.pinniped].map(|file| file.parent().map(Path::to_owned));
        let mut path: Vec<PathBuf> = folders.into_iter().flatten().collect();
        path.extend(std::env::var_os(YQ_ENV).map(PathBuf::from));
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        command.env("PATH", std::env::join_paths(path).context("a folder of programs has a colon")?);
        command.env("HOME", &self.home).current_dir(&self.home);
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME");
        Ok(Step::inside(self.environment, command).shown_as(line))
    }
}
