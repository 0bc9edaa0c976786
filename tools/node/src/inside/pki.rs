//! Certificates, keys and kubeconfigs in the layout of kubeadm in `/etc/kubernetes`.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use pinniped_test_support::certs::{Authority, Pair, service_account_key};
use pinniped_test_support::control_plane::{KUBERNETES_SERVICE_IP, kubeconfig};

use super::{API_PORT, KUBERNETES, NODE_IP};

/// The name of the cluster in kubeconfigs.
const CLUSTER: &str = "kubernetes";
/// The group of administrators, to which kubeadm binds the role `cluster-admin`. In contrast to
/// `system:masters`, an administrator can remove its permissions.
pub(super) const ADMINS: &str = "kubeadm:cluster-admins";
/// The group that the API server always permits everything.
const MASTERS: &str = "system:masters";

/// Writes all files.
pub(super) fn write(node_name: &str) -> anyhow::Result<()> {
    let base = Path::new(KUBERNETES);
    let pki = base.join("pki");
    std::fs::create_dir_all(&pki).context("could not create pki")?;
    let ca = Authority::rsa("kubernetes")?;
    pair(&pki, "ca", &ca.certificate_pem, &ca.private_key_pem)?;
    let server = ca.server(
        "kube-apiserver",
        &[
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            node_name,
            "localhost",
        ],
        &[IpAddr::V4(KUBERNETES_SERVICE_IP), IpAddr::V4(NODE_IP), IpAddr::V4(Ipv4Addr::LOCALHOST)],
    )?;
    leaf(&pki, "apiserver", &server)?;
    let kubelet_client = ca.client("kube-apiserver-kubelet-client", Some(ADMINS))?;
    leaf(&pki, "apiserver-kubelet-client", &kubelet_client)?;
    let front_proxy = Authority::new("front-proxy-ca")?;
    pair(&pki, "front-proxy-ca", &front_proxy.certificate_pem, &front_proxy.private_key_pem)?;
    leaf(&pki, "front-proxy-client", &front_proxy.client("front-proxy-client", None)?)?;
    let (private, public) = service_account_key()?;
    file(&pki.join("sa.key"), &private, 0o600)?;
    file(&pki.join("sa.pub"), &public, 0o644)?;

    let node_user = format!("system:node:{node_name}");
    let kubelet =
        ca.server(&node_user, &[node_name], &[IpAddr::V4(NODE_IP), IpAddr::V4(Ipv4Addr::LOCALHOST)])?;
    leaf(&pki, "kubelet", &kubelet)?;
    for (name, user, group) in [
        ("admin", "kubernetes-admin", Some(ADMINS)),
        ("super-admin", "kubernetes-super-admin", Some(MASTERS)),
        ("controller-manager", "system:kube-controller-manager", None),
        ("scheduler", "system:kube-scheduler", None),
        ("kube-proxy", "system:kube-proxy", None),
        ("kubelet", node_user.as_str(), Some("system:nodes")),
    ] {
        let credentials = ca.client(user, group)?;
        let context = format!("{user}@{CLUSTER}");
        let text = kubeconfig(CLUSTER, user, &context, &server_url(), &ca, &credentials);
        file(&base.join(format!("{name}.conf")), &text, 0o600)?;
    }
    Ok(())
}

/// Returns the URL of the API server.
pub(super) fn server_url() -> String {
    format!("https://{NODE_IP}:{API_PORT}")
}

fn leaf(dir: &Path, name: &str, of: &Pair) -> anyhow::Result<()> {
    pair(dir, name, &of.certificate_pem, &of.private_key_pem)
}

fn pair(dir: &Path, name: &str, certificate: &str, key: &str) -> anyhow::Result<()> {
    file(&dir.join(format!("{name}.crt")), certificate, 0o644)?;
    file(&dir.join(format!("{name}.key")), key, 0o600)
}

fn file(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    use std::io::Write as _;
    let opened = std::fs::File::options().create(true).truncate(true).write(true).mode(mode).open(path);
    opened
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("could not write {}", path.display()))
}
