//! Each value of the chart reaches the objects: a table of values with the places where they are
//! rendered. `chart.rs` has the tests of the image, the names and the configuration file.

use std::collections::BTreeMap;

use pinniped_test_support::tools::helm;
use serde_json::{Value, json};

use crate::chart::{CONFIGURATION, DEFINED, render};
use crate::documents;

const CONCIERGE: &str = "Deployment pinniped-concierge/pinniped-concierge";
const GATEWAY: &str = "Deployment pinniped-gateway/pinniped-gateway";
const AUTHENTICATOR: &str = "Deployment local-user-authenticator/local-user-authenticator";
const ACCOUNT: &str = "ServiceAccount pinniped-concierge/pinniped-concierge";
const ISSUER: &str = "CredentialIssuer pinniped-concierge-config";

/// Enables every component, without other values.
const ENABLED: &str =
    "--set=serviceAccountTokens.enabled=true,localUserAuthenticator.enabled=true,gateway.enabled=true";

/// Values that other tests cover, or that select a whole part of the chart.
const ELSEWHERE: [&str; 14] = [
    "name",
    "image.repository",
    "image.tag",
    "image.digest",
    "plain",
    "config",
    "crds",
    "concierge.enabled",
    "concierge.certificateSigningRequests.enabled",
    "credentialIssuer.create",
    "localUserAuthenticator.enabled",
    "gateway.enabled",
    "gateway.legacy",
    "serviceAccountTokens",
];

fn constraint(app: &str) -> Value {
    json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}}}])
}

/// Values that every component has.
fn component(name: &str, replicas: u64) -> Value {
    json!({
        "replicas": replicas,
        // Helm merges objects with the defaults, so all fields are set.
        "resources": {"requests": {"cpu": format!("{replicas}m"), "memory": "11Mi"}, "limits": {"memory": "99Mi"}},
        "priorityClassName": format!("{name}-class"),
        "nodeSelector": {"pool": name},
        "tolerations": [{"key": name, "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": replicas, "preference": {"matchExpressions": [{"key": name, "operator": "Exists"}]}}]}},
        "topologySpreadConstraints": constraint(name),
        "labels": {"label": name},
        "annotations": {"annotation": name},
        "podLabels": {"pod-label": name},
        "podAnnotations": {"pod-annotation": name},
    })
}

/// Adds values to others.
fn merged(mut values: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("{more}") };
    values.as_object_mut().unwrap().extend(more);
    values
}

/// Values that differ from the default at every place.
fn values() -> Value {
    let namespace = |name: &str| json!({"labels": {"ns": name}, "annotations": {"ns-annotation": name}});
    let monitor = |name: &str| json!({"enabled": true, "interval": "7s", "labels": {"release": name}, "annotations": {"monitor": name}});
    let egress = |port: u64| json!([{"ports": [{"protocol": "TCP", "port": port}]}]);
    json!({
        "image": {"pullPolicy": "Always"},
        "imagePullSecrets": ["one", "two"],
        "commonLabels": {"team": "access"},
        "commonAnnotations": {"contact": "someone"},
        "concierge": merged(component("concierge", 5), json!({
            "namespace": merged(namespace("concierge"), json!({"create": true})),
            "env": [{"name": "HTTPS_PROXY", "value": "https://proxy.example.com"}],
            "strategy": {"rollingUpdate": {"maxSurge": 2}},
            "terminationGracePeriodSeconds": 77,
            "serviceAccount": {"annotations": {"account": "concierge"}},
            "podDisruptionBudget": {"enabled": true, "minAvailable": null, "maxUnavailable": 2},
            "networkPolicy": {"enabled": true, "egress": egress(6443)},
            "metrics": {
                "reader": {"create": true, "subjects": [{"kind": "User", "name": "prometheus",
                    "apiGroup": "rbac.authorization.k8s.io"}]},
                "serviceMonitor": monitor("concierge"),
            },
            "debugState": {"reader": {"create": true, "subjects": [{"kind": "User", "name": "operator",
                "apiGroup": "rbac.authorization.k8s.io"}]}},
        })),
        "credentialIssuer": {"spec": {"impersonationProxy": {"mode": "disabled"}}},
        "serviceAccountTokens": {"usersNamespace": namespace("users")},
        "localUserAuthenticator": merged(component("authenticator", 3), json!({
            "namespace": merged(namespace("authenticator"), json!({"create": true, "name": "local-user-authenticator"})),
            "args": ["--log-format=text"],
        })),
        "gateway": merged(component("gateway", 4), json!({
            "namespace": merged(namespace("gateway"), json!({"create": true, "name": "pinniped-gateway"})),
            "args": ["--log-level=debug"],
            "env": [{"name": "HTTPS_PROXY", "value": "https://proxy.example.com"}],
            "tracing": {"endpoint": "https://collector:4318", "samplingRatePerMillion": 1_000_000,
                "certificateAuthorityData": "LS0=", "trustClients": true},
            "terminationGracePeriodSeconds": 88,
            "serviceAccount": {"annotations": {"account": "gateway"}},
            "service": {"type": "NodePort", "annotations": {"service": "gateway"},
                "spec": {"externalTrafficPolicy": "Local"}},
            "podDisruptionBudget": {"enabled": true, "minAvailable": 1, "maxUnavailable": null},
            "networkPolicy": {"enabled": true, "egress": egress(8443)},
            "podMonitor": monitor("gateway"),
        })),
        "test": {"enabled": true, "image": "registry.example.com/kubectl:1"},
    })
}

/// The places of the values that every component has, below the Deployment.
const COMPONENT: [(&str, &str); 11] = [
    ("replicas", "/spec/replicas"),
    ("resources", "/spec/template/spec/containers/0/resources"),
    ("priorityClassName", "/spec/template/spec/priorityClassName"),
    ("nodeSelector", "/spec/template/spec/nodeSelector"),
    ("tolerations", "/spec/template/spec/tolerations"),
    ("affinity", "/spec/template/spec/affinity"),
    ("topologySpreadConstraints", "/spec/template/spec/topologySpreadConstraints"),
    ("labels/label", "/metadata/labels/label"),
    ("annotations/annotation", "/metadata/annotations/annotation"),
    ("podLabels/pod-label", "/spec/template/metadata/labels/pod-label"),
    ("podAnnotations/pod-annotation", "/spec/template/metadata/annotations/pod-annotation"),
];

/// Other values: the object, the place in it, and the rendered value.
fn places() -> Vec<(&'static str, &'static str, Value)> {
    let secrets = json!([{"name": "one"}, {"name": "two"}]);
    let mut places = Vec::new();
    for deployment in [CONCIERGE, GATEWAY, AUTHENTICATOR] {
        places.extend([
            (deployment, "/spec/template/spec/containers/0/imagePullPolicy", json!("Always")),
            (deployment, "/spec/template/spec/imagePullSecrets", secrets.clone()),
            (deployment, "/metadata/labels/team", json!("access")),
            (deployment, "/spec/template/metadata/labels/team", json!("access")),
            (deployment, "/metadata/annotations/contact", json!("someone")),
        ]);
    }
    let rule = |ports: &[Value]| {
        let ports: Vec<Value> = ports.iter().map(|port| json!({"protocol": "TCP", "port": port})).collect();
        json!([{"ports": ports}])
    };
    let budget = "PodDisruptionBudget pinniped-concierge/pinniped-concierge";
    let policy = "NetworkPolicy pinniped-concierge/pinniped-concierge";
    let agent = "NetworkPolicy pinniped-concierge/pinniped-concierge-kube-cert-agent";
    let monitor = "ServiceMonitor pinniped-concierge/pinniped-concierge";
    let reader = "ClusterRoleBinding pinniped-concierge-metrics-reader";
    let state_reader = "ClusterRoleBinding pinniped-concierge-debug-state-reader";
    let users = "Namespace pinniped-concierge-users";
    let service = "Service pinniped-gateway/pinniped-gateway";
    places.extend([
        ("Namespace pinniped-concierge", "/metadata/labels/ns", json!("concierge")),
        ("Namespace pinniped-concierge", "/metadata/annotations/ns-annotation", json!("concierge")),
        (users, "/metadata/labels/ns", json!("users")),
        (users, "/metadata/annotations/ns-annotation", json!("users")),
        ("Namespace pinniped-gateway", "/metadata/labels/ns", json!("gateway")),
        ("Namespace pinniped-gateway", "/metadata/annotations/ns-annotation", json!("gateway")),
        ("Namespace local-user-authenticator", "/metadata/labels/ns", json!("authenticator")),
        ("Namespace local-user-authenticator", "/metadata/annotations/ns-annotation", json!("authenticator")),
        (CONCIERGE, "/spec/strategy", json!({"rollingUpdate": {"maxSurge": 2}})),
        (CONCIERGE, "/spec/template/spec/terminationGracePeriodSeconds", json!(77)),
        (CONCIERGE, "/spec/template/spec/containers/0/env/0/name", json!("HTTPS_PROXY")),
        (ACCOUNT, "/metadata/annotations/account", json!("concierge")),
        (ACCOUNT, "/metadata/labels/label", json!("concierge")),
        (CONFIGURATION, "/data/pinniped.yaml/kubeCertAgent/imagePullSecrets", json!(["one", "two"])),
        (budget, "/spec", json!({"maxUnavailable": 2, "selector": {"matchLabels": {"app": "pinniped-concierge"}}})),
        (policy, "/spec/podSelector/matchLabels",
            json!({"app": "pinniped-concierge", "deployment.pinniped.dev": "concierge"})),
        (policy, "/spec/policyTypes", json!(["Ingress", "Egress"])),
        (policy, "/spec/ingress", rule(&[json!(10250), json!(8444)])),
        (policy, "/spec/egress", rule(&[json!(6443)])),
        // Without rules, the policy allows nothing.
        (agent, "/spec", json!({"podSelector": {"matchLabels": {"kube-cert-agent.pinniped.dev": "v3"}},
            "policyTypes": ["Ingress", "Egress"]})),
        (monitor, "/metadata/labels/release", json!("concierge")),
        (monitor, "/metadata/annotations/monitor", json!("concierge")),
        (monitor, "/spec", json!({
            "selector": {"matchLabels": {"app": "pinniped-concierge"}},
            "endpoints": [{
                "port": "api", "scheme": "https", "path": "/metrics", "interval": "7s",
                "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
                "tlsConfig": {
                    "serverName": "pinniped-concierge-api.pinniped-concierge.svc",
                    "ca": {"secret": {"name": "pinniped-concierge-api-tls-serving-certificate", "key": "caCertificate"}},
                },
            }],
        })),
        (reader, "/subjects/0/name", json!("prometheus")),
        (reader, "/roleRef/name", json!("pinniped-concierge-metrics-reader")),
        (state_reader, "/subjects/0/name", json!("operator")),
        (ISSUER, "/spec/impersonationProxy/mode", json!("disabled")),
        (GATEWAY, "/spec/template/spec/terminationGracePeriodSeconds", json!(88)),
        (GATEWAY, "/spec/template/spec/containers/0/command/2", json!("--log-level=debug")),
        (GATEWAY, "/spec/template/spec/containers/0/command/3", json!("--tracing-endpoint=https://collector:4318")),
        (GATEWAY, "/spec/template/spec/containers/0/command/4",
            json!("--tracing-sampling-rate-per-million=1000000")),
        (GATEWAY, "/spec/template/spec/containers/0/command/5",
            json!("--tracing-certificate-authority-data=LS0=")),
        (GATEWAY, "/spec/template/spec/containers/0/command/6", json!("--tracing-trust-clients")),
        (GATEWAY, "/spec/template/spec/containers/0/env/0/name", json!("HTTPS_PROXY")),
        (AUTHENTICATOR, "/spec/template/spec/containers/0/command/1", json!("--log-format=text")),
        ("ServiceAccount pinniped-gateway/pinniped-gateway", "/metadata/annotations/account", json!("gateway")),
        (service, "/spec/type", json!("NodePort")),
        (service, "/spec/externalTrafficPolicy", json!("Local")),
        (service, "/metadata/annotations/service", json!("gateway")),
        ("PodDisruptionBudget pinniped-gateway/pinniped-gateway", "/spec",
            json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "pinniped-gateway"}}})),
        ("NetworkPolicy pinniped-gateway/pinniped-gateway", "/spec", json!({
            "podSelector": {"matchLabels": {"app": "pinniped-gateway"}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": rule(&[json!("http"), json!("https"), json!("metrics")]),
            "egress": rule(&[json!(8443)]),
        })),
        ("PodMonitor pinniped-gateway/pinniped-gateway", "/metadata/labels/release", json!("gateway")),
        ("PodMonitor pinniped-gateway/pinniped-gateway", "/metadata/annotations/monitor", json!("gateway")),
        ("PodMonitor pinniped-gateway/pinniped-gateway", "/spec", json!({
            "selector": {"matchLabels": {"app": "pinniped-gateway"}},
            "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": "7s"}],
        })),
        ("Role local-user-authenticator/local-user-authenticator", "/metadata/labels/label", json!("authenticator")),
        ("Pod pinniped-concierge/pinniped-concierge-test", "/spec/containers/0/image",
            json!("registry.example.com/kubectl:1")),
        ("Pod pinniped-concierge/pinniped-concierge-test", "/spec/imagePullSecrets", secrets),
        ("Pod pinniped-concierge/pinniped-concierge-test", "/spec/nodeSelector", json!({"pool": "concierge"})),
    ]);
    places
}

/// Renders all objects, without the hook that deletes the CredentialIssuer.
fn rendered(helm: &std::path::PathBuf, args: &[&str]) -> BTreeMap<String, Value> {
    let objects = render(helm, &[&[DEFINED, ENABLED], args].concat()).into_iter();
    let deletes = |object: &Value| object["metadata"]["annotations"]["helm.sh/hook"] == "post-delete";
    documents::by_identity(objects.filter(|object| !deletes(object)).collect())
}

#[test]
fn each_value_is_rendered_where_it_takes_effect() {
    let Some(helm) = helm("values in the rendered objects") else { return };
    let values = values();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), values.to_string()).unwrap();
    let changed = rendered(&helm, &["--values", file.path().to_str().unwrap()]);
    let default = rendered(&helm, &[]);

    let mut places = places();
    let components =
        [("concierge", CONCIERGE), ("gateway", GATEWAY), ("localUserAuthenticator", AUTHENTICATOR)];
    for (component, deployment) in components {
        for (value, place) in COMPONENT {
            let wanted = values.pointer(&format!("/{component}/{value}")).unwrap();
            places.push((deployment, place, wanted.clone()));
        }
    }
    for (identity, place, wanted) in places {
        let found = changed.get(identity).unwrap_or_else(|| panic!("no {identity}"));
        assert_eq!(found.pointer(place), Some(&wanted), "{identity} {place}");
        let before = default.get(identity).and_then(|object| object.pointer(place));
        assert_ne!(before, Some(&wanted), "{identity} {place} is the default");
    }
}

/// A new value belongs into the table.
#[test]
fn the_table_has_every_value_of_the_chart() {
    let defaults = documents::one("deploy/chart/values.yaml");
    let values = values();
    let mut missing = Vec::new();
    leaves(&defaults, "", &mut |path| {
        let elsewhere = ELSEWHERE.iter().any(|part| path == *part || path.starts_with(&format!("{part}.")));
        let pointer = format!("/{}", path.replace('.', "/"));
        let covered = |pointer: &str| values.pointer(pointer).is_some();
        // The fields of this object are not those of the chart.
        let free = pointer.starts_with("/credentialIssuer/spec");
        if !elsewhere && !covered(&pointer) && !free {
            missing.push(path.to_owned());
        }
    });
    assert!(missing.is_empty(), "{missing:?}");
}

/// Calls a function with the path of each value that is not a non-empty object.
fn leaves(value: &Value, path: &str, each: &mut impl FnMut(&str)) {
    match value.as_object() {
        Some(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(value, &path, each);
            }
        }
        _ => each(path),
    }
}
