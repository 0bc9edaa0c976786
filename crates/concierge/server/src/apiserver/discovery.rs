//! Discovery documents: groups, versions and resources.

use pinniped_concierge_api::names::VERSION;
use pinniped_kube_types::suffix::GroupSuffix;
use serde_json::{Value, json};

use super::catalog::{CATEGORIES, Kind, VERBS};

/// The media type of aggregated discovery.
pub(super) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Returns `APIGroupList`, the response of `/apis`. Like in Go servers, it has no `apiVersion`.
pub(super) fn groups(suffix: &GroupSuffix, server_address: &str) -> Value {
    // Unlike in the aggregated format, the order is that in which a Go server installs the groups.
    let groups: Vec<Value> = [Kind::TokenCredentialRequest, Kind::WhoAmIRequest]
        .into_iter()
        .map(|kind| {
            let mut group = group_members(kind, suffix);
            group["serverAddressByClientCIDRs"] =
                json!([{ "clientCIDR": "0.0.0.0/0", "serverAddress": server_address }]);
            group
        })
        .collect();
    json!({ "kind": "APIGroupList", "groups": groups })
}

/// Returns `APIGroup`, the response of `/apis/<group>`.
pub(super) fn group(kind: Kind, suffix: &GroupSuffix) -> Value {
    let mut group = group_members(kind, suffix);
    group["kind"] = json!("APIGroup");
    group["apiVersion"] = json!("v1");
    group
}

fn group_members(kind: Kind, suffix: &GroupSuffix) -> Value {
    let version = json!({ "groupVersion": kind.group_version(suffix), "version": VERSION });
    json!({ "name": kind.group(suffix), "versions": [version], "preferredVersion": version })
}

/// Returns `APIResourceList`, the response of `/apis/<group>/<version>`.
pub(super) fn resources(kind: Kind, suffix: &GroupSuffix) -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": kind.group_version(suffix),
        "resources": [{
            "name": kind.plural(),
            "singularName": kind.singular(),
            "namespaced": false,
            "kind": kind.as_str(),
            "verbs": VERBS,
            "categories": CATEGORIES,
        }],
    })
}

/// Returns `APIGroupDiscoveryList` of `apidiscovery.k8s.io/v2`.
pub(super) fn aggregated(suffix: &GroupSuffix) -> Value {
    let items: Vec<Value> = Kind::ALL
        .into_iter()
        .map(|kind| {
            json!({
                "metadata": { "name": kind.group(suffix) },
                "versions": [{
                    "version": VERSION,
                    "resources": [{
                        "resource": kind.plural(),
                        "responseKind": { "group": "", "version": "", "kind": kind.as_str() },
                        "scope": "Cluster",
                        "singularResource": kind.singular(),
                        "verbs": VERBS,
                        "categories": CATEGORIES,
                    }],
                    "freshness": "Current",
                }],
            })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

/// Returns the list of paths that `/`, and every 404 for an unknown path, contains.
pub(super) fn paths(suffix: &GroupSuffix, health_checks: &[String], ready_checks: &[String]) -> Value {
    let mut paths: Vec<String> =
        ["/apis", "/metrics", "/metrics/slis", "/openapi/v2", "/openapi/v3", "/openapi/v3/", "/version"]
            .map(str::to_owned)
            .into();
    for kind in Kind::ALL {
        paths.push(format!("/apis/{}", kind.group(suffix)));
        paths.push(format!("/apis/{}", kind.group_version(suffix)));
    }
    for (root, checks) in [("/healthz", health_checks), ("/livez", health_checks), ("/readyz", ready_checks)]
    {
        paths.push(root.to_owned());
        paths.extend(checks.iter().map(|check| format!("{root}/{check}")));
    }
    paths.sort();
    json!({ "paths": paths })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_suffix_and_resources_only_create_and_list() {
        let suffix = GroupSuffix::parse("tuna.io").expect("a suffix");
        let list = resources(Kind::TokenCredentialRequest, &suffix);
        assert_eq!(list["groupVersion"], "login.concierge.tuna.io/v1alpha1");
        assert_eq!(list["resources"][0]["verbs"], json!(["create", "list"]));
        assert_eq!(list["resources"][0]["categories"], json!(["pinniped"]));
        let all = aggregated(&suffix);
        let names: Vec<_> =
            all["items"].as_array().expect("items").iter().map(|g| &g["metadata"]["name"]).collect();
        assert_eq!(names, ["identity.concierge.tuna.io", "login.concierge.tuna.io"]);
        let one = group(Kind::WhoAmIRequest, &suffix);
        assert_eq!(one["preferredVersion"]["groupVersion"], "identity.concierge.tuna.io/v1alpha1");
        assert!(one.get("serverAddressByClientCIDRs").is_none());
    }

    #[test]
    fn the_paths_are_sorted() {
        let paths = paths(&GroupSuffix::default(), &["ping".to_owned()], &["ping".to_owned()]);
        let paths: Vec<_> =
            paths["paths"].as_array().expect("paths").iter().filter_map(Value::as_str).collect();
        assert!(paths.is_sorted());
        assert!(
            paths.contains(&"/readyz/ping") && paths.contains(&"/apis/login.concierge.pinniped.dev/v1alpha1")
        );
    }
}
