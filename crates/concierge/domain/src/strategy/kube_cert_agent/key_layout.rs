//! The key layout of the kube-cert-agent: where kube-controller-manager has the cluster's signing
//! key, and how the agent gets the paths.

/// The flags of kube-controller-manager with the path of a file, and its default path. The first
/// flag that is set counts.
#[derive(Debug)]
pub struct FileFlags {
    /// Names of the flags without the dashes.
    pub flags: [&'static str; 2],
    /// Path of the file if no flag is set.
    pub default_path: &'static str,
}

/// The certificate of the cluster's CA.
pub const CERTIFICATE: FileFlags = FileFlags {
    flags: ["cluster-signing-cert-file", "cluster-signing-kube-apiserver-client-cert-file"],
    default_path: "/etc/kubernetes/ca/ca.pem",
};

/// The key of that certificate.
pub const KEY: FileFlags = FileFlags {
    flags: ["cluster-signing-key-file", "cluster-signing-kube-apiserver-client-key-file"],
    default_path: "/etc/kubernetes/ca/ca.key",
};

/// Environment variable of the agent with the path of the certificate.
pub const CERTIFICATE_VARIABLE: &str = "CERT_PATH";

/// Environment variable of the agent with the path of the key.
pub const KEY_VARIABLE: &str = "KEY_PATH";

/// Default data directory of k3s.
pub const K3S_DATA_DIRECTORY: &str = "/var/lib/rancher/k3s";

/// Folder of the certificates of a k3s server, below its data directory.
pub const K3S_TLS_FOLDER: &str = "server/tls";

/// File with the certificate of the cluster's CA in that folder.
pub const K3S_CERTIFICATE: &str = "client-ca.nochain.crt";

/// File with the key of that certificate.
pub const K3S_KEY: &str = "client-ca.key";
