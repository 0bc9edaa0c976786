//! Tests of the gateway's control plane on a real API server, with exactly the permissions of the
//! manifests.

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

/// The group of all gateways of these tests. Each test has its own user, which identifies its
/// requests in the audit log.
const GATEWAYS: &str = "gateways";

/// The namespace of the gateway.
const NAMESPACE: &str = "pinniped-gateway";

static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();

/// Returns a control plane with all kinds of the gateway, which the tests share.
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

/// Returns a control plane without the kinds, but with the permissions of the gateway.
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

/// Returns a client with the permissions of a gateway.
async fn gateway(plane: &ControlPlane, user: &str) -> anyhow::Result<Client> {
    plane.client_as(user, &[GATEWAYS, "system:authenticated"]).await
}
