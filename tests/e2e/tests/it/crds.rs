//! The custom resources on a real API server: upstream's definitions and ours in either order,
//! validation, defaults, printer columns, and round trips through our types.
//!
//! Every test has its own definitions under its own API group suffix.

use std::time::Duration;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, Client};
use pinniped_concierge_api::authentication::{JwtAuthenticator, WebhookAuthenticator};
use pinniped_concierge_api::config::CredentialIssuer;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_test_support::world::World;
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};

const TIME_LIMIT: Duration = Duration::from_secs(30);
const OURS: &str = "deploy/crds";
const UPSTREAM: &str = "testdata/upstream/crds";
/// Plural, group, kind.
const KINDS: [(&str, &str, &str); 3] = [
    ("webhookauthenticators", "authentication.concierge", "WebhookAuthenticator"),
    ("jwtauthenticators", "authentication.concierge", "JWTAuthenticator"),
    ("credentialissuers", "config.concierge", "CredentialIssuer"),
];
/// No enum has more values than this.
const VARIANTS: usize = 9;

/// Returns the definitions of `folder` with another group suffix. The CredentialIssuer comes last:
/// the API server processes definitions in order, so when it serves the last one it serves the
/// others too.
fn definitions(folder: &str, suffix: &str) -> String {
    KINDS
        .map(|(plural, group, _)| {
            let file = tools::repository().join(folder).join(format!("{group}.pinniped.dev_{plural}.yaml"));
            let text =
                std::fs::read_to_string(&file).unwrap_or_else(|err| panic!("{}: {err}", file.display()));
            text.replace("concierge.pinniped.dev", &format!("concierge.{suffix}"))
        })
        .join("\n---\n")
}

/// Applies definitions and waits until they are served.
async fn install(world: &World, folder: &str, suffix: &str) {
    world.kubectl().apply(&definitions(folder, suffix)).await.unwrap();
    let names = KINDS.map(|(plural, group, _)| format!("crd/{plural}.{group}.{suffix}"));
    world.kubectl().await_established(&names.each_ref().map(String::as_str)).await.unwrap();
    // Established means accepted. Which version of a definition is served shows in the fields that
    // it keeps.
    let client = world.client().await.unwrap();
    for kind in KINDS {
        // The API server reports "storage is (re)initializing" for a moment.
        let api = dynamic(&client, suffix, kind);
        let list = async || Ok(api.list(&ListParams::default()).await?);
        wait::until_ok(TIME_LIMIT, format!("{} to be served", kind.0), list).await.unwrap();
    }
    let api = dynamic(&client, suffix, KINDS[2]);
    let probe = json!({
        "apiVersion": format!("config.concierge.{suffix}/v1alpha1"), "kind": "CredentialIssuer",
        "metadata": {"name": "probe"},
        "spec": {"impersonationProxy": {"mode": "auto"}, "serviceAccountTokens": {"mode": "disabled"}},
    });
    let probe: DynamicObject = serde_json::from_value(probe).unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    wait::until(TIME_LIMIT, format!("the definitions of {folder} to be served"), async || {
        let kept = api.create(&dry, &probe).await.ok()?;
        (kept.data["spec"].get("serviceAccountTokens").is_some() == (folder == OURS)).then_some(())
    })
    .await
    .unwrap();
}

/// Installs our definitions under another suffix, for tests of their readers.
pub(crate) async fn install_ours(world: &World, suffix: &str) {
    install(world, OURS, suffix).await;
}

fn dynamic(client: &Client, suffix: &str, (plural, group, kind): (&str, &str, &str)) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(&format!("{group}.{suffix}"), "v1alpha1", kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, plural))
}

/// Returns the schema that the API server has for a kind.
async fn schema(world: &World, suffix: &str, (plural, group, _): (&str, &str, &str)) -> Value {
    let name = format!("{plural}.{group}.{suffix}");
    let crd: Value =
        serde_json::from_str(&world.kubectl().output(&["get", "crd", &name, "-o", "json"]).await.unwrap())
            .unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// The amount of a schema that a sample fills in.
#[derive(Clone, Copy)]
enum Extent {
    /// Every property; of each enum the value with this index, modulo the number of values.
    Everything(usize),
    /// Required properties only.
    Required,
}

/// Creates an object that conforms to a schema.
fn sample(schema: &Value, extent: Extent) -> Value {
    if let Some(choices) = schema["enum"].as_array() {
        let number = if let Extent::Everything(number) = extent { number } else { 0 };
        return choices[number % choices.len()].clone();
    }
    match schema["type"].as_str().expect("a structural schema has types") {
        "object" if schema["additionalProperties"].is_object() => {
            json!({"some/key": sample(&schema["additionalProperties"], extent)})
        }
        "object" => {
            let required = |name: &str| {
                schema["required"].as_array().is_some_and(|required| required.iter().any(|r| r == name))
            };
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            properties
                .iter()
                .filter(|(name, _)| matches!(extent, Extent::Everything(_)) || required(name))
                .map(|(name, property)| (name.clone(), sample(property, extent)))
                .collect()
        }
        "array" => json!([sample(&schema["items"], extent)]),
        "integer" => json!(schema["minimum"].as_i64().unwrap_or(6) + 1),
        "boolean" => json!(true),
        "string" if schema["format"] == "date-time" => json!("2026-11-21T10:00:00Z"),
        "string" if schema["pattern"].as_str().is_some_and(|p| p.starts_with("^https://")) => {
            json!("https://example.com")
        }
        "string" => json!("Text"),
        other => panic!("no sample for type {other}"),
    }
}

/// Creates samples of one kind so that every enum value occurs in one of them.
fn samples(schema: &Value, api_version: &str, kind: &str) -> Vec<Value> {
    (0..VARIANTS)
        .map(|number| (format!("full-{number}"), Extent::Everything(number)))
        .chain([("bare".to_owned(), Extent::Required)])
        .map(|(name, extent)| {
            let mut object = sample(schema, extent);
            object["apiVersion"] = json!(api_version);
            object["kind"] = json!(kind);
            object["metadata"] = json!({"name": name, "labels": {"a": "b"}, "annotations": {"c": "d"}});
            object
        })
        .collect()
}

/// Writes a whole object including its status; returns the object as stored by the API server.
async fn store(api: &Api<DynamicObject>, object: &Value) -> DynamicObject {
    let post = PostParams::default();
    let typed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let mut stored = api.create(&post, &typed).await.unwrap_or_else(|err| panic!("{err}: {object}"));
    if object.get("status").is_some() {
        stored.data["status"] = object["status"].clone();
        let name = stored.metadata.name.clone().unwrap();
        stored =
            api.replace_status(&name, &post, &stored).await.unwrap_or_else(|err| panic!("{err}: {object}"));
    }
    stored
}

/// Collects members of `before` that are missing or different in `after`.
fn lost(before: &Value, after: &Value, path: &str, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(_)) => {
            for (name, member) in before {
                lost(member, &after[name], &format!("{path}.{name}"), found);
            }
        }
        (Value::Array(before), Value::Array(items)) if before.len() == items.len() => {
            for (before, after) in before.iter().zip(items) {
                lost(before, after, &format!("{path}[]"), found);
            }
        }
        _ if before == after => {}
        _ => found.push(path.to_owned()),
    }
}

/// Replaces the definitions `first` by `second` while the cluster contains objects with every
/// field; returns the fields that the second ones drop.
async fn replace_definitions(suffix: &str, first: &str, second: &str) -> Vec<String> {
    let world = World::shared().unwrap();
    let client = world.client().await.unwrap();
    install(world, first, suffix).await;
    let mut stored = Vec::new();
    for kind in KINDS {
        let api = dynamic(&client, suffix, kind);
        let api_version = format!("{}.{suffix}/v1alpha1", kind.1);
        for object in samples(&schema(world, suffix, kind).await, &api_version, kind.2) {
            let before = store(&api, &object).await;
            let mut missing = Vec::new();
            lost(&object, &serde_json::to_value(&before).unwrap(), kind.2, &mut missing);
            assert!(missing.is_empty(), "{first} itself does not keep {missing:?}");
            stored.push((api.clone(), kind.2, before));
        }
    }
    install(world, second, suffix).await;
    let post = PostParams::default();
    let mut missing = Vec::new();
    for (api, kind, before) in stored {
        let name = before.metadata.name.clone().unwrap();
        let object = api.get(&name).await.unwrap();
        lost(&before.data, &object.data, kind, &mut missing);
        let again = api.replace(&name, &post, &object).await;
        let again = again.unwrap_or_else(|err| panic!("{kind} {name} is no longer valid: {err}"));
        assert_eq!(again.data, object.data, "{kind} {name}");
        let again = api.replace_status(&name, &post, &again).await;
        let again =
            again.unwrap_or_else(|err| panic!("the status of {kind} {name} is no longer valid: {err}"));
        assert_eq!(again.data, object.data, "{kind} {name}");
        // A change of one leaves the other unchanged.
        let mut changed = again;
        changed.metadata.labels.get_or_insert_default().insert("changed".to_owned(), "yes".to_owned());
        let changed = api.replace(&name, &post, &changed).await;
        let changed = changed.unwrap_or_else(|err| panic!("{kind} {name} cannot be changed: {err}"));
        assert_eq!(changed.data, object.data, "{kind} {name}");
    }
    missing.sort();
    missing.dedup();
    missing
}

#[tokio::test]
async fn our_definitions_over_upstreams_keep_every_object_valid_and_complete() {
    let missing = replace_definitions("ours-over.example.com", UPSTREAM, OURS).await;
    assert!(missing.is_empty(), "our definitions do not keep {missing:?}");
}

#[tokio::test]
async fn upstreams_definitions_over_ours_keep_every_object_valid_and_drop_only_our_additions() {
    let missing = replace_definitions("upstream-over.example.com", OURS, UPSTREAM).await;
    assert_eq!(
        missing,
        [
            "CredentialIssuer.spec.certificateSigningRequests",
            "CredentialIssuer.spec.impersonationProxy.service.externalTrafficPolicy",
            "CredentialIssuer.spec.impersonationProxy.service.ipFamilyPolicy",
            "CredentialIssuer.spec.impersonationProxy.service.loadBalancerClass",
            "CredentialIssuer.spec.impersonationProxy.service.loadBalancerSourceRanges",
            "CredentialIssuer.spec.impersonationProxy.tls.validation",
            "CredentialIssuer.spec.serviceAccountTokens",
            "CredentialIssuer.status.conditions",
            "CredentialIssuer.status.servingCertificate",
            "CredentialIssuer.status.strategies[].frontend.serviceAccountTokenInfo",
        ]
    );
}

/// Applies an object and returns the text of the refusal.
async fn refusal(world: &World, object: Value) -> String {
    let command = world.kubectl().command(&["create", "-f", "-"]);
    let output = pinniped_test_support::kubectl::run(command, Some(&object.to_string())).await.unwrap();
    assert_eq!(output.code, 1, "was accepted: {object}");
    output.stderr.trim_end().to_owned()
}

#[tokio::test]
async fn the_api_server_refuses_invalid_objects_with_the_known_messages() {
    const SUFFIX: &str = "refusals.example.com";
    let world = World::shared().unwrap();
    install(world, OURS, SUFFIX).await;
    let group = format!("authentication.concierge.{SUFFIX}");
    let data_source = |source: Value| json!({"certificateAuthorityDataSource": source});
    for (kind, url, valid) in [
        ("WebhookAuthenticator", "endpoint", json!({"endpoint": "https://example.com"})),
        ("JWTAuthenticator", "issuer", json!({"issuer": "https://example.com", "audience": "a"})),
    ] {
        let with = |name: &str, value: Value| {
            let mut spec = valid.clone();
            spec[name] = value;
            spec
        };
        let too_short = |path: &str| {
            format!(r#"spec.{path}: Invalid value: "": spec.{path} in body should be at least 1 chars long"#)
        };
        let mut cases = vec![
            (with(url, json!("")), vec![too_short(url)]),
            (
                with(url, json!("http://example.com")),
                vec![format!(
                    r#"spec.{url}: Invalid value: "http://example.com": spec.{url} in body should match '^https://'"#
                )],
            ),
            (
                with("tls", data_source(json!({"kind": "sorcery", "name": "n", "key": "k"}))),
                vec![
                    r#"spec.tls.certificateAuthorityDataSource.kind: Unsupported value: "sorcery": supported values: "Secret", "ConfigMap""#
                        .to_owned(),
                ],
            ),
            (
                with("tls", data_source(json!({"kind": "Secret", "name": "", "key": ""}))),
                vec![
                    too_short("tls.certificateAuthorityDataSource.name"),
                    too_short("tls.certificateAuthorityDataSource.key"),
                ],
            ),
            (
                with("tls", data_source(json!({"kind": "Secret"}))),
                vec![
                    "spec.tls.certificateAuthorityDataSource.name: Required value".to_owned(),
                    "spec.tls.certificateAuthorityDataSource.key: Required value".to_owned(),
                ],
            ),
        ];
        if kind == "JWTAuthenticator" {
            cases.push((with("audience", json!("")), vec![too_short("audience")]));
        }
        let plural = kind.to_lowercase() + "s";
        for (spec, wanted) in cases {
            let object = json!({"apiVersion": format!("{group}/v1alpha1"), "kind": kind,
                "metadata": {"name": "wrong"}, "spec": spec});
            let text = refusal(world, object).await;
            let head = format!(r#"The {kind} "wrong" is invalid: "#);
            assert!(text.starts_with(&head), "{text}");
            for wanted in wanted {
                assert!(text.contains(&wanted), "{plural}: {text}\nlacks {wanted}");
            }
        }
        let object =
            json!({"apiVersion": format!("{group}/v1alpha1"), "kind": kind, "metadata": {"name": "wrong"}});
        assert!(refusal(world, object).await.contains("spec: Required value"));
    }
}

#[tokio::test]
async fn the_api_server_refuses_an_invalid_credential_issuer() {
    const SUFFIX: &str = "issuer-refusals.example.com";
    let world = World::shared().unwrap();
    install(world, OURS, SUFFIX).await;
    let cases = [
        (json!({}), "spec.impersonationProxy: Required value"),
        (json!({"impersonationProxy": {}}), "spec.impersonationProxy.mode: Required value"),
        (
            json!({"impersonationProxy": {"mode": "on"}}),
            r#"spec.impersonationProxy.mode: Unsupported value: "on": supported values: "auto", "enabled", "disabled""#,
        ),
        (
            json!({"impersonationProxy": {"mode": "auto", "service": {"type": "NodePort"}}}),
            r#"spec.impersonationProxy.service.type: Unsupported value: "NodePort": supported values: "LoadBalancer", "ClusterIP", "None""#,
        ),
        (
            json!({"impersonationProxy": {"mode": "auto", "service": {"loadBalancerIP": ""}}}),
            "spec.impersonationProxy.service.loadBalancerIP in body should be at least 1 chars long",
        ),
        (
            json!({"impersonationProxy": {"mode": "auto", "service": {"loadBalancerIP": "1".repeat(256)}}}),
            "spec.impersonationProxy.service.loadBalancerIP: Too long: may not be more than 255 bytes",
        ),
        (
            json!({"impersonationProxy": {"mode": "auto", "tls": {"secretName": ""}}}),
            "spec.impersonationProxy.tls.secretName in body should be at least 1 chars long",
        ),
    ];
    for (spec, wanted) in cases {
        let object = json!({"apiVersion": format!("config.concierge.{SUFFIX}/v1alpha1"), "kind": "CredentialIssuer",
            "metadata": {"name": "wrong"}, "spec": spec});
        let text = refusal(world, object).await;
        assert!(text.contains(wanted), "{text}\nlacks {wanted}");
    }
}

/// Returns the rows of `kubectl get`, split at runs of two or more spaces.
async fn table(world: &World, resource: &str) -> Vec<Vec<String>> {
    printed(world, &["get", resource]).await
}

async fn printed(world: &World, args: &[&str]) -> Vec<Vec<String>> {
    let text = world.kubectl().output(args).await.unwrap();
    let cells =
        |line: &str| line.split("  ").map(str::trim).filter(|c| !c.is_empty()).map(str::to_owned).collect();
    text.lines().map(cells).collect()
}

#[tokio::test]
async fn defaults_are_set_and_kubectl_shows_the_columns() {
    const SUFFIX: &str = "columns.example.com";
    let world = World::shared().unwrap();
    install(world, OURS, SUFFIX).await;
    let client = world.client().await.unwrap();
    let object = |kind: (&str, &str, &str), spec: Value| {
        json!({"apiVersion": format!("{}.{SUFFIX}/v1alpha1", kind.1), "kind": kind.2,
            "metadata": {"name": "x"}, "spec": spec})
    };

    let issuers = dynamic(&client, SUFFIX, KINDS[2]);
    let mut issuer = object(KINDS[2], json!({"impersonationProxy": {"mode": "enabled"}}));
    let strategy = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "Pending", "message": "m",
            "lastUpdateTime": "2026-11-21T10:00:00Z"})
    };
    let strategies =
        [strategy("KubeClusterSigningCertificate", "Error"), strategy("ImpersonationProxy", "Success")];
    let mut strategies = json!(strategies);
    strategies[1]["frontend"] = json!({"type": "ImpersonationProxy",
        "impersonationProxyInfo": {"endpoint": "https://proxy", "certificateAuthorityData": "Y2E="}});
    issuer["status"] = json!({"strategies": strategies,
        "servingCertificate": {"notAfter": "2126-11-21T10:00:00Z"}});
    let stored = store(&issuers, &issuer).await;
    assert_eq!(stored.data["spec"]["impersonationProxy"]["service"], json!({"type": "LoadBalancer"}));
    let rows = table(world, &format!("credentialissuers.config.concierge.{SUFFIX}")).await;
    assert_eq!(rows[0], ["NAME", "PROXYMODE", "DEFAULTSTRATEGY", "AGE"]);
    assert_eq!(rows[1][..3], ["x", "enabled", "ImpersonationProxy"]);
    let resource = format!("credentialissuers.config.concierge.{SUFFIX}");
    let wide = printed(world, &["get", &resource, "--output=wide"]).await;
    assert_eq!(wide[0][4..], ["ENDPOINT", "CERTEXPIRES"]);
    assert_eq!(wide[1][4..], ["https://proxy", "2126-11-21T10:00:00Z"]);

    let webhooks = dynamic(&client, SUFFIX, KINDS[0]);
    let mut webhook = object(KINDS[0], json!({"endpoint": "https://example.com/authenticate"}));
    webhook["status"] = json!({});
    assert_eq!(store(&webhooks, &webhook).await.data["status"], json!({"phase": "Pending"}));
    let rows = table(world, &format!("webhookauthenticators.authentication.concierge.{SUFFIX}")).await;
    assert_eq!(rows[0], ["NAME", "ENDPOINT", "STATUS", "AGE"]);
    assert_eq!(rows[1][..3], ["x", "https://example.com/authenticate", "Pending"]);

    let jwts = dynamic(&client, SUFFIX, KINDS[1]);
    let mut jwt = object(KINDS[1], json!({"issuer": "https://example.com", "audience": "me"}));
    jwt["status"] = json!({"phase": "Ready"});
    store(&jwts, &jwt).await;
    let rows = table(world, &format!("jwtauthenticators.authentication.concierge.{SUFFIX}")).await;
    assert_eq!(rows[0], ["NAME", "ISSUER", "AUDIENCE", "STATUS", "AGE"]);
    assert_eq!(rows[1][..4], ["x", "https://example.com", "me", "Ready"]);
}

/// Writes samples of a kind through our type and compares the stored objects with the samples.
async fn round_trip<T>(world: &World, suffix: &str, kind: (&str, &str, &str))
where
    T: kube::Resource<DynamicType = GroupSuffix> + serde::Serialize + serde::de::DeserializeOwned,
    T: Clone + std::fmt::Debug,
{
    let client = world.client().await.unwrap();
    let typed: Api<T> = Api::all_with(client.clone(), &GroupSuffix::parse(suffix).unwrap());
    let raw = dynamic(&client, suffix, kind);
    let post = PostParams::default();
    let api_version = format!("{}.{suffix}/v1alpha1", kind.1);
    for wanted in samples(&schema(world, suffix, kind).await, &api_version, kind.2) {
        let object: T = serde_json::from_value(wanted.clone()).unwrap();
        let name = wanted["metadata"]["name"].as_str().unwrap();
        let mut stored = typed.create(&post, &object).await.unwrap_or_else(|err| panic!("{err}: {wanted}"));
        if wanted.get("status").is_some() {
            let mut with_status = serde_json::to_value(&stored).unwrap();
            with_status["status"] = wanted["status"].clone();
            let with_status: T = serde_json::from_value(with_status).unwrap();
            stored = typed.replace_status(name, &post, &with_status).await.unwrap();
        }
        let held = serde_json::to_value(raw.get(name).await.unwrap()).unwrap();
        let mut missing = Vec::new();
        lost(&wanted, &held, kind.2, &mut missing);
        assert!(missing.is_empty(), "writing through our type lost {missing:?}");
        // Reading and writing an object back unchanged modifies nothing, independent of its writer.
        let read = typed.get(name).await.unwrap();
        lost(&held, &serde_json::to_value(&read).unwrap(), kind.2, &mut missing);
        assert!(missing.is_empty(), "reading through our type lost {missing:?}");
        let again = typed.replace(name, &post, &read).await.unwrap();
        assert_eq!(again.meta().resource_version, stored.meta().resource_version, "{name} was changed");
    }
}

#[tokio::test]
async fn our_types_carry_every_field_to_the_api_server_and_back() {
    const SUFFIX: &str = "types.example.com";
    let world = World::shared().unwrap();
    install(world, OURS, SUFFIX).await;
    round_trip::<WebhookAuthenticator>(world, SUFFIX, KINDS[0]).await;
    round_trip::<JwtAuthenticator>(world, SUFFIX, KINDS[1]).await;
    round_trip::<CredentialIssuer>(world, SUFFIX, KINDS[2]).await;
}
