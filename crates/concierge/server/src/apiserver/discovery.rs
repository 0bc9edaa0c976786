//! Discovery documents: groups, versions and resources, as JSON, YAML and protobuf.

use pinniped_apiserver::respond::{Encoding, json_to_yaml};
use pinniped_concierge_api::names::VERSION;
use pinniped_go_compat::json as gojson;
use pinniped_kube_types::protobuf::{Envelope, Message};
use pinniped_kube_types::suffix::GroupSuffix;
use serde_json::{Value, json};

use super::catalog::{CATEGORIES, Kind, VERBS};
use super::encode::{list_meta, object_meta};

/// The parameters of the media types of aggregated discovery.
pub(super) const AGGREGATED: &str = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A document in all formats.
#[derive(Clone, Debug)]
pub(super) struct DiscoveryDocument {
    pub(super) json: Value,
    protobuf: Vec<u8>,
}

impl DiscoveryDocument {
    fn new(json: Value, api_version: &str, kind: &str, message: &Message) -> Self {
        Self { json, protobuf: Envelope::encode(api_version, kind, message) }
    }

    /// Returns the body of a response.
    pub(super) fn encode(&self, encoding: Encoding, pretty: bool) -> Vec<u8> {
        let json = || self.json.to_string();
        match encoding {
            Encoding::Protobuf => self.protobuf.clone(),
            Encoding::Yaml => json_to_yaml(&json()).unwrap_or_default().into_bytes(),
            Encoding::Json if pretty => gojson::to_string_pretty(&self.json).into_bytes(),
            Encoding::Json => (json() + "\n").into_bytes(),
        }
    }
}

/// Returns `APIGroupList`, the response of `/apis`. Like in Go servers, it has no `apiVersion` as
/// JSON.
pub(super) fn groups(suffix: &GroupSuffix, server_address: &str) -> DiscoveryDocument {
    const ANY_CLIENT: &str = "0.0.0.0/0";
    let mut list = Message::default();
    // Unlike in the aggregated format, the order is that in which a Go server installs the groups.
    let groups: Vec<Value> = [Kind::TokenCredentialRequest, Kind::WhoAmIRequest]
        .into_iter()
        .map(|kind| {
            let (mut group, mut message) = group_members(kind, suffix);
            group["serverAddressByClientCIDRs"] =
                json!([{ "clientCIDR": ANY_CLIENT, "serverAddress": server_address }]);
            let mut address = Message::default();
            address.string(1, ANY_CLIENT).string(2, server_address);
            list.message(1, message.message(4, &address));
            group
        })
        .collect();
    DiscoveryDocument::new(json!({ "kind": "APIGroupList", "groups": groups }), "v1", "APIGroupList", &list)
}

/// Returns `APIGroup`, the response of `/apis/<group>`.
pub(super) fn group(kind: Kind, suffix: &GroupSuffix) -> DiscoveryDocument {
    let (mut group, message) = group_members(kind, suffix);
    group["kind"] = json!("APIGroup");
    group["apiVersion"] = json!("v1");
    DiscoveryDocument::new(group, "v1", "APIGroup", &message)
}

fn group_members(kind: Kind, suffix: &GroupSuffix) -> (Value, Message) {
    let (name, group_version) = (kind.group(suffix), kind.group_version(suffix));
    let mut version = Message::default();
    version.string(1, &group_version).string(2, VERSION);
    let mut message = Message::default();
    message.string(1, &name).message(2, &version).message(3, &version);
    let version = json!({ "groupVersion": group_version, "version": VERSION });
    (json!({ "name": name, "versions": [version], "preferredVersion": version }), message)
}

/// Returns `APIResourceList`, the response of `/apis/<group>/<version>`.
pub(super) fn resources(kind: Kind, suffix: &GroupSuffix) -> DiscoveryDocument {
    let group_version = kind.group_version(suffix);
    let mut verbs = Message::default();
    VERBS.iter().for_each(|verb| _ = verbs.string(1, verb));
    let mut resource = Message::default();
    resource.string(1, kind.plural()).number(2, 0).string(3, kind.as_str()).message(4, &verbs);
    resource.string(6, kind.singular());
    CATEGORIES.iter().for_each(|category| _ = resource.string(7, category));
    // Group, version and storage version hash.
    resource.string(8, "").string(9, "").string(10, "");
    let mut list = Message::default();
    list.string(1, &group_version).message(2, &resource);
    let json = json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": [{
            "name": kind.plural(),
            "singularName": kind.singular(),
            "namespaced": false,
            "kind": kind.as_str(),
            "verbs": VERBS,
            "categories": CATEGORIES,
        }],
    });
    DiscoveryDocument::new(json, "v1", "APIResourceList", &list)
}

/// Returns `APIGroupDiscoveryList` of `apidiscovery.k8s.io/v2`.
pub(super) fn aggregated(suffix: &GroupSuffix) -> DiscoveryDocument {
    const SCOPE: &str = "Cluster";
    const FRESHNESS: &str = "Current";
    let mut list = Message::default();
    list.message(1, &list_meta(""));
    let items: Vec<Value> = Kind::ALL
        .into_iter()
        .map(|kind| {
            let mut response_kind = Message::default();
            response_kind.string(1, "").string(2, "").string(3, kind.as_str());
            let mut resource = Message::default();
            resource.string(1, kind.plural()).message(2, &response_kind).string(3, SCOPE);
            resource.string(4, kind.singular());
            VERBS.iter().for_each(|verb| _ = resource.string(5, verb));
            CATEGORIES.iter().for_each(|category| _ = resource.string(7, category));
            let mut version = Message::default();
            version.string(1, VERSION).message(2, &resource).string(3, FRESHNESS);
            let mut group = Message::default();
            group.message(1, &object_meta(&kind.group(suffix))).message(2, &version);
            list.message(2, &group);
            json!({
                "metadata": { "name": kind.group(suffix) },
                "versions": [{
                    "version": VERSION,
                    "resources": [{
                        "resource": kind.plural(),
                        "responseKind": { "group": "", "version": "", "kind": kind.as_str() },
                        "scope": SCOPE,
                        "singularResource": kind.singular(),
                        "verbs": VERBS,
                        "categories": CATEGORIES,
                    }],
                    "freshness": FRESHNESS,
                }],
            })
        })
        .collect();
    let (api_version, kind) = ("apidiscovery.k8s.io/v2", "APIGroupDiscoveryList");
    let json = json!({ "kind": kind, "apiVersion": api_version, "metadata": {}, "items": items });
    DiscoveryDocument::new(json, api_version, kind, &list)
}

/// Returns the list of paths that `/`, and every 404 for an unknown path, contains.
pub(super) fn paths(suffix: &GroupSuffix, health_checks: &[String], ready_checks: &[String]) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/apis",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/",
        "/statusz",
        "/version",
    ]
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
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_suffix_and_resources_only_create_and_list() {
        let suffix = GroupSuffix::parse("tuna.io").expect("a suffix");
        let list = resources(Kind::TokenCredentialRequest, &suffix).json;
        assert_eq!(list["groupVersion"], "login.concierge.tuna.io/v1alpha1");
        assert_eq!(list["resources"][0]["verbs"], json!(["create", "list"]));
        assert_eq!(list["resources"][0]["categories"], json!(["pinniped"]));
        let all = aggregated(&suffix).json;
        let names: Vec<_> =
            all["items"].as_array().expect("items").iter().map(|g| &g["metadata"]["name"]).collect();
        assert_eq!(names, ["identity.concierge.tuna.io", "login.concierge.tuna.io"]);
        let one = group(Kind::WhoAmIRequest, &suffix).json;
        assert_eq!(one["preferredVersion"]["groupVersion"], "identity.concierge.tuna.io/v1alpha1");
        assert!(one.get("serverAddressByClientCIDRs").is_none());
    }

    /// The bytes were compared with those of k8s.io/apimachinery v0.36.3 for shorter names.
    #[test]
    fn documents_have_the_bytes_of_the_go_encoder() {
        let suffix = GroupSuffix::default();
        let envelope = |kind: &str, message: &[u8]| {
            let mut type_meta = Message::default();
            type_meta.string(1, "v1").string(2, kind);
            let mut unknown = Message::default();
            unknown.message(1, &type_meta).bytes(2, message).string(3, "").string(4, "");
            [b"k8s\0", unknown.as_bytes()].concat()
        };
        let resources = resources(Kind::WhoAmIRequest, &suffix).encode(Encoding::Protobuf, false);
        let wanted = b"\x0a\x28identity.concierge.pinniped.dev/v1alpha1\x12\x50\x0a\x0ewhoamirequests\x10\0\
            \x1a\x0dWhoAmIRequest\x22\x0e\x0a\x06create\x0a\x04list\x32\x0dwhoamirequest\x3a\x08pinniped\x42\0\
            \x4a\0\x52\0";
        assert_eq!(resources, envelope("APIResourceList", wanted));
        let version = b"\x0a\x28identity.concierge.pinniped.dev/v1alpha1\x12\x08v1alpha1";
        let length = u8::try_from(version.len()).expect("a short message");
        let wanted = [
            &b"\x0a\x1fidentity.concierge.pinniped.dev\x12"[..],
            &[length],
            version,
            b"\x1a",
            &[length],
            version,
        ];
        let group = group(Kind::WhoAmIRequest, &suffix).encode(Encoding::Protobuf, false);
        assert_eq!(group, envelope("APIGroup", &wanted.concat()));
    }

    #[test]
    fn the_paths_are_sorted() {
        let paths = paths(&GroupSuffix::default(), &["ping".to_owned()], &["ping".to_owned()]);
        assert!(paths.is_sorted());
        for path in ["/readyz/ping", "/apis/login.concierge.pinniped.dev/v1alpha1", "/statusz"] {
            assert!(paths.iter().any(|listed| listed == path), "{path}");
        }
    }
}
