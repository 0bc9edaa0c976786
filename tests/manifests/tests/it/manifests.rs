//! Compares the objects of our install files with those of upstream.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{difference, documents};

const RESOURCES: &str = "deploy/install-pinniped-concierge-resources.yaml";
const LOCAL_USER_AUTHENTICATOR: &str = "deploy/install-local-user-authenticator.yaml";
const GATEWAY: &str = "deploy/install-pinniped-gateway.yaml";
const GATEWAY_LEGACY: &str = "deploy/install-pinniped-gateway-legacy.yaml";
const UPSTREAM: &str = "testdata/upstream/manifests/upstream-concierge.yaml";
const UPSTREAM_LOCAL_USER_AUTHENTICATOR: &str =
    "testdata/upstream/manifests/upstream-local-user-authenticator.yaml";
/// The single image of upstream's program.
const UPSTREAM_IMAGE: &str = "\"ghcr.io/vmware/pinniped/pinniped-server:latest\"";

/// Returns the difference of the images: upstream's, and ours.
fn images() -> String {
    format!("{UPSTREAM_IMAGE} -> \"{}\"", pinniped_image::REFERENCE)
}

/// The objects that upstream reads to apply admission to its own API.
const ADMISSION: &str = "[\"validatingwebhookconfigurations\",\"mutatingwebhookconfigurations\",\
                         \"validatingadmissionpolicies\",\"validatingadmissionpolicybindings\",\
                         \"mutatingadmissionpolicies\",\"mutatingadmissionpolicybindings\"]";

/// Returns every intended difference of the Concierge's objects, by object.
fn concierge() -> BTreeMap<&'static str, Vec<String>> {
    let container = ".spec.template.spec.containers[pinniped-concierge]";
    let authenticators = ".rules[[\"authentication.concierge.pinniped.dev\"] \
                          [\"jwtauthenticators/status\",\"webhookauthenticators/status\"]]";
    let issuer = ".rules[[\"config.concierge.pinniped.dev\"] [\"credentialissuers/status\"]]";
    BTreeMap::from([
        (
            "ConfigMap pinniped-concierge/pinniped-concierge-config",
            // The default is the Concierge's own image, so that the manifest names it once.
            vec![format!("- .data.pinniped.yaml.kubeCertAgent.image = {UPSTREAM_IMAGE}")],
        ),
        (
            "Deployment pinniped-concierge/pinniped-concierge",
            vec![
                format!("~ {container}.image: {}", images()),
                // This path reports whether the proxy of this pod serves, which /healthz does not.
                format!("~ {container}.readinessProbe.httpGet.path: \"/healthz\" -> \"/readyz\""),
                // CPU throttling would delay every user; the requests cover what the program needs
                // when idle.
                format!("- {container}.resources.limits.cpu = \"100m\""),
                format!("~ {container}.resources.limits.memory: \"128Mi\" -> \"256Mi\""),
                format!("~ {container}.resources.requests.cpu: \"100m\" -> \"20m\""),
                format!("~ {container}.resources.requests.memory: \"128Mi\" -> \"32Mi\""),
                // Names for the ports, here and in the Services.
                format!(
                    "+ {container}.ports = [{{\"containerPort\":10250,\"name\":\"api\",\"protocol\":\"TCP\"}},\
                     {{\"containerPort\":8444,\"name\":\"proxy\",\"protocol\":\"TCP\"}}]"
                ),
                // The grace period of open streams depends on this value, so the manifest sets it.
                "+ .spec.template.spec.terminationGracePeriodSeconds = 30".to_owned(),
            ],
        ),
        ("Service pinniped-concierge/pinniped-concierge-api", named_port("api", 10250)),
        ("Service pinniped-concierge/pinniped-concierge-proxy", named_port("proxy", 8444)),
        (
            "ClusterRole pinniped-concierge-aggregated-api-server",
            vec![
                // The kinds that grant the use of a certificate in another namespace.
                "+ .rules[[\"projectcontour.io\",\"contour.heptio.com\",\"contour.vmware.com\"] [\"tlscertificatedelegations\"]] = \
                 {\"apiGroups\":[\"projectcontour.io\",\"contour.heptio.com\",\"contour.vmware.com\"],\
                 \"resources\":[\"tlscertificatedelegations\"],\"verbs\":[\"get\",\"list\",\"watch\"]}"
                    .to_owned(),
                // Requests are limited without reading the cluster's flow schemas.
                "- .rules[[\"flowcontrol.apiserver.k8s.io\"] [\"flowschemas\",\"prioritylevelconfigurations\"]] = \
                 {\"apiGroups\":[\"flowcontrol.apiserver.k8s.io\"],\"resources\":[\"flowschemas\",\"prioritylevelconfigurations\"],\
                 \"verbs\":[\"get\",\"list\",\"watch\"]}"
                    .to_owned(),
                // The Concierge reads none of these.
                "- .rules[[\"\"] [\"namespaces\"]] = {\"apiGroups\":[\"\"],\"resources\":[\"namespaces\"],\
                 \"verbs\":[\"get\",\"list\",\"watch\"]}"
                    .to_owned(),
                format!(
                    "- .rules[[\"admissionregistration.k8s.io\"] {ADMISSION}] = {{\"apiGroups\":[\"admissionregistration.k8s.io\"],\
                     \"resources\":{ADMISSION},\"verbs\":[\"get\",\"list\",\"watch\"]}}"
                ),
                // Those that match are reported. Bindings are not read.
                "+ .rules[[\"admissionregistration.k8s.io\"] [\"mutatingadmissionpolicies\",\"mutatingwebhookconfigurations\",\
                 \"validatingadmissionpolicies\",\"validatingwebhookconfigurations\"]] = \
                 {\"apiGroups\":[\"admissionregistration.k8s.io\"],\"resources\":[\"mutatingadmissionpolicies\",\
                 \"mutatingwebhookconfigurations\",\"validatingadmissionpolicies\",\"validatingwebhookconfigurations\"],\
                 \"verbs\":[\"list\",\"watch\"]}"
                    .to_owned(),
                // Statuses are written, and read together with their objects.
                format!("- {authenticators}.verbs[\"get\"] = \"get\""),
                format!("- {authenticators}.verbs[\"list\"] = \"list\""),
                format!("- {authenticators}.verbs[\"watch\"] = \"watch\""),
                format!("- {issuer}.verbs[\"get\"] = \"get\""),
                format!("- {issuer}.verbs[\"patch\"] = \"patch\""),
            ],
        ),
        (
            "Role pinniped-concierge/pinniped-concierge-aggregated-api-server",
            // The Concierge requests no tokens of other accounts.
            vec![
                "+ .rules[[\"\"] [\"serviceaccounts/token\"]].resourceNames = \
                 [\"pinniped-concierge-impersonation-proxy\",\"pinniped-concierge-service-account-tokens\"]"
                    .to_owned(),
            ],
        ),
        // Kubernetes 1.25 removed PodSecurityPolicies, and these objects allow nothing else.
        ("Role pinniped-concierge/pinniped-concierge-kube-cert-agent", vec!["- object".to_owned()]),
        ("RoleBinding pinniped-concierge/pinniped-concierge-kube-cert-agent", vec!["- object".to_owned()]),
        // Certificates of the cluster's signer.
        ("ClusterRole pinniped-concierge-certificate-signing-requests", vec!["+ object".to_owned()]),
        ("ClusterRoleBinding pinniped-concierge-certificate-signing-requests", vec!["+ object".to_owned()]),
        // Events about the CredentialIssuer.
        ("Role default/pinniped-concierge-events", vec!["+ object".to_owned()]),
        ("RoleBinding default/pinniped-concierge-events", vec!["+ object".to_owned()]),
    ])
}

/// Returns the difference of a Service whose port has a name.
fn named_port(name: &str, target: u16) -> Vec<String> {
    let port = format!("\"port\":443,\"protocol\":\"TCP\",\"targetPort\":{target}}}");
    vec![
        format!("- .spec.ports[0] = {{{port}"),
        format!("+ .spec.ports[{name}] = {{\"name\":\"{name}\",{port}"),
    ]
}

#[test]
fn the_concierge_differs_from_upstream_only_where_intended() {
    assert_objects(UPSTREAM, RESOURCES, &concierge());
}

#[test]
fn the_local_user_authenticator_differs_from_upstream_only_where_intended() {
    let container = ".spec.template.spec.containers[local-user-authenticator]";
    let intended = BTreeMap::from([
        (
            "Deployment local-user-authenticator/local-user-authenticator",
            vec![
                format!("~ {container}.image: {}", images()),
                format!(
                    "+ {container}.ports = [{{\"containerPort\":8443,\"name\":\"https\",\"protocol\":\"TCP\"}}]"
                ),
            ],
        ),
        ("Service local-user-authenticator/local-user-authenticator", named_port("https", 8443)),
    ]);
    assert_objects(UPSTREAM_LOCAL_USER_AUTHENTICATOR, LOCAL_USER_AUTHENTICATOR, &intended);
}

#[test]
fn the_events_role_has_only_the_rules_that_it_needs() {
    let objects = objects(RESOURCES);
    assert_eq!(
        objects["Role default/pinniped-concierge-events"]["rules"],
        serde_json::json!([{"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}])
    );
    let binding = &objects["RoleBinding default/pinniped-concierge-events"];
    assert_eq!(
        binding["subjects"],
        serde_json::json!([{"kind": "ServiceAccount", "name": "pinniped-concierge", "namespace": "pinniped-concierge"}])
    );
    assert_eq!(binding["roleRef"]["name"], "pinniped-concierge-events");
}

#[test]
fn the_concierge_may_approve_requests_for_one_signer_only() {
    let objects = objects(RESOURCES);
    let name = "pinniped-concierge-certificate-signing-requests";
    assert_eq!(
        objects["ClusterRole pinniped-concierge-certificate-signing-requests"]["rules"],
        serde_json::json!([
            {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
                "verbs": ["create", "get", "list", "delete"]},
            {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval"],
                "verbs": ["update"]},
            {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"],
                "resourceNames": ["kubernetes.io/kube-apiserver-client"], "verbs": ["approve"]},
        ])
    );
    let binding = &objects["ClusterRoleBinding pinniped-concierge-certificate-signing-requests"];
    assert_eq!(
        binding["subjects"],
        serde_json::json!([{"kind": "ServiceAccount", "name": "pinniped-concierge", "namespace": "pinniped-concierge"}])
    );
    assert_eq!(binding["roleRef"]["name"], name);
    let others = objects.iter().filter(|(identity, object)| {
        !identity.ends_with(name) && object["rules"].to_string().contains("certificates.k8s.io")
    });
    assert_eq!(others.count(), 0, "no other role has such a permission");
}

#[test]
fn the_impersonation_proxy_has_exactly_two_rules() {
    let objects = objects(RESOURCES);
    let account = "pinniped-concierge-impersonation-proxy";
    let bound: Vec<&Value> = objects
        .values()
        .filter(|object| {
            object["subjects"].as_array().is_some_and(|s| s.iter().any(|subject| subject["name"] == account))
        })
        .collect();
    assert_eq!(bound.len(), 1);
    assert_eq!(bound[0]["roleRef"]["name"], account);
    assert_eq!(
        objects["ClusterRole pinniped-concierge-impersonation-proxy"]["rules"],
        serde_json::json!([
            {"apiGroups": [""], "resources": ["users", "groups", "serviceaccounts"], "verbs": ["impersonate"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["*"], "verbs": ["impersonate"]}
        ])
    );
}

#[test]
fn api_services_have_no_ca_bundle_until_the_concierge_sets_it() {
    let services = objects(RESOURCES);
    let services: Vec<&Value> = services.values().filter(|object| object["kind"] == "APIService").collect();
    assert_eq!(services.len(), 2);
    for service in services {
        assert!(service["spec"].get("caBundle").is_none());
        assert!(service["spec"].get("insecureSkipTLSVerify").is_none());
    }
}

#[test]
fn the_concierge_reads_secrets_of_its_own_namespace_only() {
    for (identity, object) in objects(RESOURCES) {
        for rule in object["rules"].as_array().into_iter().flatten() {
            let names = |field: &str, name: &str| {
                rule[field].as_array().is_some_and(|all| all.iter().any(|one| one == name || one == "*"))
            };
            if names("apiGroups", "") && names("resources", "secrets") {
                assert_eq!(identity, "Role pinniped-concierge/pinniped-concierge-aggregated-api-server");
            }
        }
    }
}

#[test]
fn delegations_are_one_schema_in_three_groups() {
    let main = documents::all("deploy/install-tls-certificate-delegation.yaml");
    let legacy = documents::all("deploy/install-tls-certificate-delegation-legacy.yaml");
    let delegation = |crd: &&Value| crd["spec"]["names"]["kind"] == "TLSCertificateDelegation";
    let found: Vec<_> = main.iter().chain(&legacy).filter(delegation).map(|crd| {
        let names = &crd["spec"]["names"];
        assert_eq!(crd["metadata"]["name"], format!("tlscertificatedelegations.{}", crd["spec"]["group"].as_str().unwrap()));
        assert_eq!(
            (&names["kind"], &names["plural"], &crd["spec"]["scope"]),
            (&"TLSCertificateDelegation".into(), &"tlscertificatedelegations".into(), &"Namespaced".into())
        );
        let version = &crd["spec"]["versions"][0];
        let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        assert_eq!(spec["required"], serde_json::json!(["delegations"]));
        let entry = &spec["properties"]["delegations"]["items"];
        assert_eq!(entry["required"], serde_json::json!(["secretName", "targetNamespaces"]));
        assert_eq!(entry, &main[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["delegations"]["items"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&crd["spec"]["group"]), text(&version["name"]), names["shortNames"].clone(), !version["subresources"].is_null())
    }).collect();
    assert_eq!(
        found,
        [
            ("projectcontour.io".to_owned(), "v1".to_owned(), serde_json::json!(["tlscerts"]), true),
            ("contour.heptio.com".to_owned(), "v1beta1".to_owned(), Value::Null, false),
            ("contour.vmware.com".to_owned(), "v1".to_owned(), Value::Null, false),
        ]
    );
}

/// The table of permissions is in `docs/reference/gateway.md`. When you add a permission here,
/// document its reason there.
#[test]
fn the_gateway_reads_what_it_serves_and_writes_nothing_but_statuses_events_and_its_lease() {
    let objects = objects(GATEWAY);
    assert_eq!(
        objects["ClusterRole pinniped-gateway"]["rules"],
        serde_json::json!([
            {"apiGroups": [""], "resources": ["secrets", "services"], "verbs": ["list", "watch"]},
            {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses/status"], "verbs": ["update"]},
            {"apiGroups": ["projectcontour.io"], "resources": ["httpproxies"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["projectcontour.io"], "resources": ["httpproxies/status"], "verbs": ["update"]},
            {"apiGroups": ["projectcontour.io"], "resources": ["tlscertificatedelegations"],
                "verbs": ["list", "watch"]},
        ])
    );
    assert_eq!(
        objects["Role pinniped-gateway/pinniped-gateway"]["rules"],
        serde_json::json!([
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]},
        ])
    );
    let legacy = self::objects(GATEWAY_LEGACY);
    assert_eq!(
        legacy["ClusterRole pinniped-gateway-legacy"]["rules"],
        serde_json::json!([
            {"apiGroups": ["contour.heptio.com"], "resources": ["ingressroutes"],
                "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": ["contour.heptio.com", "contour.vmware.com"], "resources": ["tlscertificatedelegations"],
                "verbs": ["list", "watch"]},
        ])
    );
    assert_eq!(
        legacy.keys().collect::<Vec<_>>(),
        ["ClusterRole pinniped-gateway-legacy", "ClusterRoleBinding pinniped-gateway-legacy"]
    );
}

#[test]
fn all_permissions_of_the_gateway_belong_to_its_one_account_and_to_no_aggregated_role() {
    let account = serde_json::json!([
        {"kind": "ServiceAccount", "name": "pinniped-gateway", "namespace": "pinniped-gateway"}
    ]);
    for file in [GATEWAY, GATEWAY_LEGACY] {
        for (identity, object) in objects(file) {
            assert_eq!(object["metadata"]["labels"]["app"], "pinniped-gateway", "{identity}");
            // The gateway's roles have no label that would aggregate them to "edit" or "admin".
            let labels = object["metadata"]["labels"].as_object().unwrap();
            assert!(!labels.keys().any(|label| label.contains("aggregate")), "{identity}");
            if !object["roleRef"].is_null() {
                assert_eq!(object["subjects"], account, "{identity}");
                assert_eq!(object["roleRef"]["name"], object["metadata"]["name"], "{identity}");
            }
        }
    }
}

#[test]
fn the_gateway_has_two_unprivileged_replicas_behind_ports_80_and_443() {
    let objects = objects(GATEWAY);
    let deployment = &objects["Deployment pinniped-gateway/pinniped-gateway"]["spec"];
    assert_eq!(deployment["replicas"], 2);
    let pod = &deployment["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "pinniped-gateway");
    let container = &pod["containers"][0];
    assert_eq!(
        container["securityContext"],
        serde_json::json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true, "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}})
    );
    assert_eq!(container["readinessProbe"]["httpGet"], serde_json::json!({"path": "/readyz", "port": 8000}));
    assert_eq!(container["livenessProbe"]["httpGet"], serde_json::json!({"path": "/healthz", "port": 8000}));
    let ports: Vec<_> =
        container["ports"].as_array().unwrap().iter().map(|port| &port["containerPort"]).collect();
    assert_eq!(ports, [8080, 8443, 8000]);
    let service = &objects["Service pinniped-gateway/pinniped-gateway"]["spec"];
    assert_eq!(service["selector"], deployment["selector"]["matchLabels"]);
    let ports: Vec<_> = service["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| (&port["port"], &port["targetPort"]))
        .collect();
    assert_eq!(ports, [(&80.into(), &8080.into()), (&443.into(), &8443.into())]);
    let namespace = &objects["Namespace pinniped-gateway"]["metadata"]["labels"];
    assert_eq!(namespace["pod-security.kubernetes.io/enforce"], "restricted");
}

#[test]
fn every_object_of_the_concierge_carries_its_label() {
    for file in [RESOURCES, "deploy/install-pinniped-concierge-crds.yaml"] {
        for object in documents::all(file) {
            assert_eq!(
                object["metadata"]["labels"]["app"],
                "pinniped-concierge",
                "{}",
                documents::identity(&object)
            );
        }
    }
}

fn assert_objects(theirs: &str, ours: &str, intended: &BTreeMap<&str, Vec<String>>) {
    let (theirs, ours) = (objects(theirs), objects(ours));
    let identities: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    for identity in &identities {
        let found = match (theirs.get(*identity), ours.get(*identity)) {
            (Some(theirs), Some(ours)) => difference::of(theirs, ours),
            (None, _) => BTreeSet::from(["+ object".to_owned()]),
            (_, None) => BTreeSet::from(["- object".to_owned()]),
        };
        let table: Vec<&str> =
            intended.get(identity.as_str()).into_iter().flatten().map(String::as_str).collect();
        difference::assert_exactly(identity, &found, &table);
    }
    for listed in intended.keys() {
        assert!(identities.iter().any(|identity| identity == listed), "{listed} is in the table only");
    }
}

/// Returns the objects of a file without the definitions, by kind and name, with the Concierge's
/// configuration parsed.
fn objects(file: &str) -> BTreeMap<String, Value> {
    let all = documents::all(file).into_iter();
    let objects = documents::by_identity(all.filter(|o| o["kind"] != "CustomResourceDefinition").collect());
    assert!(!objects.is_empty(), "{file}");
    objects
}
