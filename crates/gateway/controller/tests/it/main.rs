//! The gateway's control plane on a real API server, with exactly the rights that the manifests give it.

mod kinds;
mod objects;
mod ownership;
mod reaction;
mod replica;
mod scale;
mod scope;
mod statuses;

use kube::Client;
use pinniped_test_support::control_plane::ControlPlane;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const CRDS: &str = include_str!("../../../../../deploy/install-gateway-crds.yaml");
const DELEGATION: &str = include_str!("../../../../../deploy/install-tls-certificate-delegation.yaml");
const LEGACY: &str = include_str!("../../../../../deploy/install-tls-certificate-delegation-legacy.yaml");
const GATEWAY: &str = include_str!("../../../../../deploy/install-pinniped-gateway.yaml");
const GATEWAY_LEGACY: &str = include_str!("../../../../../deploy/install-pinniped-gateway-legacy.yaml");

/// The group of all gateways of these tests. A user for each tells them apart in the audit log.
const GATEWAYS: &str = "gateways";

/// The gateway's namespace.
const NAMESPACE: &str = "pinniped-gateway";

static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();

/// A control plane with all kinds of the gateway, which its tests share.
async fn plane() -> anyhow::Result<&'static ControlPlane> {
    PLANE
        .get_or_try_init(async || {
            let plane = bare_plane().await?;
            for manifest in [CRDS, DELEGATION, LEGACY] {
                plane.kubectl().apply(manifest).await?;
            }
            anyhow::Ok(plane)
        })
        .await
}

/// A control plane without them, but with the gateway's rights.
async fn bare_plane() -> anyhow::Result<ControlPlane> {
    pinniped_pki::install_crypto_provider();
    let plane = ControlPlane::start(Default::default()).await?;
    let documents = [GATEWAY, GATEWAY_LEGACY].into_iter().flat_map(|manifest| manifest.split("\n---\n"));
    let is_ours = |document: &&str| {
        ["\nkind: Namespace\n", "\nkind: ServiceAccount\n", "\nkind: Role", "\nkind: ClusterRole"]
            .iter()
            .any(|kind| document.contains(kind))
    };
    let documents: Vec<&str> = documents.filter(is_ours).collect();
    plane.kubectl().apply(&documents.join("\n---\n")).await?;
    let subjects = json!([{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": GATEWAYS}]);
    let binding = |kind: &str, role_kind: &str, role: &str, namespace: Value| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": {"name": format!("{GATEWAYS}-{role}"), "namespace": namespace}, "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
        })
    };
    let bindings = json!({"apiVersion": "v1", "kind": "List", "items": [
        binding("ClusterRoleBinding", "ClusterRole", "pinniped-gateway", Value::Null),
        binding("ClusterRoleBinding", "ClusterRole", "pinniped-gateway-legacy", Value::Null),
        binding("RoleBinding", "Role", "pinniped-gateway", NAMESPACE.into()),
    ]});
    plane.kubectl().apply(&bindings.to_string()).await?;
    Ok(plane)
}

/// A client with a gateway's rights.
async fn gateway(plane: &ControlPlane, user: &str) -> anyhow::Result<Client> {
    plane.client_as(user, &[GATEWAYS, "system:authenticated"]).await
}
