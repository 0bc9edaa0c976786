//! The aggregated API behind a real aggregator: discovery, explanations, the two requests, and the
//! trust between API server and Concierge, also while its CA bundle changes.

use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use pinniped_e2e::walkthrough::Names;
use pinniped_test_support::certs::Authority;
use pinniped_test_support::world::World;
use pinniped_test_support::{wait, wire};
use serde_json::{Value, json};
use x509_parser::prelude::*;

use crate::installed::{self, Installed, TIME_LIMIT};
use crate::sites::{self, Site};

const LOGIN: &str = "/apis/login.concierge.pinniped.dev/v1alpha1";
const LOCAL_USERS: &str = "local-user-authenticator";

/// Returns a TokenCredentialRequest for the WebhookAuthenticator with this name.
pub(crate) fn token_credential_request(token: &str, authenticator: &str) -> Value {
    request_for(&Names::DEFAULT, "WebhookAuthenticator", token, authenticator)
}

fn request_for(names: &Names, kind: &str, token: &str, authenticator: &str) -> Value {
    json!({"apiVersion": format!("{}/v1alpha1", names.group_of("login")), "kind": "TokenCredentialRequest",
        "metadata": {"name": "foo"},
        "spec": {"token": token, "authenticator": {"apiGroup": names.group_of("authentication"),
            "kind": kind, "name": authenticator}}})
}

impl Site<'_> {
    /// Sends a TokenCredentialRequest of this installation through the aggregator.
    async fn log_in(
        &self,
        client: &kube::Client,
        token: &str,
        authenticator: &str,
    ) -> Result<Value, kube::Error> {
        let body = request_for(&self.names(), "WebhookAuthenticator", token, authenticator);
        post(client, &format!("{}/tokencredentialrequests", self.path("login")), &body).await
    }

    fn api_services(&self) -> [String; 2] {
        ["login", "identity"].map(|group| format!("v1alpha1.{}", self.names().group_of(group)))
    }
}

/// Sends a TokenCredentialRequest for a JWTAuthenticator through the aggregator.
pub(crate) async fn log_in_with_jwt(
    client: &kube::Client,
    token: &str,
    authenticator: &str,
) -> Result<Value, kube::Error> {
    let body = request_for(&Names::DEFAULT, "JWTAuthenticator", token, authenticator);
    post(client, &format!("{LOGIN}/tokencredentialrequests"), &body).await
}

async fn call(client: &kube::Client, request: http::Request<Vec<u8>>) -> Result<Value, kube::Error> {
    client.request(request).await
}

pub(crate) async fn post(client: &kube::Client, path: &str, body: &Value) -> Result<Value, kube::Error> {
    let request = http::Request::post(path).header("content-type", "application/json");
    call(client, request.body(body.to_string().into_bytes()).unwrap()).await
}

/// Sends a TokenCredentialRequest through the aggregator.
pub(crate) async fn log_in(
    client: &kube::Client,
    token: &str,
    authenticator: &str,
) -> Result<Value, kube::Error> {
    let body = token_credential_request(token, authenticator);
    post(client, &format!("{LOGIN}/tokencredentialrequests"), &body).await
}

/// Creates a client without credentials.
pub(crate) async fn anonymous(world: &World) -> kube::Client {
    client_with(world, AuthInfo::default()).await
}

/// Creates a client of the API server with these credentials.
pub(crate) async fn client_with(world: &World, credentials: AuthInfo) -> kube::Client {
    let mut kubeconfig = Kubeconfig::read_from(world.admin_kubeconfig()).unwrap();
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(credentials.clone());
    }
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

#[tokio::test]
async fn discovery_lists_every_resource_in_both_forms() {
    let Some(installed) = installed::shared("discovery").await else { return };
    for site in sites::all(&installed).await {
        assert_discovery(&site).await;
    }
}

async fn assert_discovery(site: &Site<'_>) {
    let kubectl = site.world.kubectl();
    let suffix = site.names().suffix;
    // kubectl requests the aggregated document, which the API server creates from ours.
    let wanted = [
        "authentication.concierge.pinniped.dev/v1alpha1 false JWTAuthenticator \
         delete,deletecollection,get,list,patch,create,update,watch \
         pinniped,pinniped-authenticator,pinniped-authenticators jwtauthenticators",
        "authentication.concierge.pinniped.dev/v1alpha1 false WebhookAuthenticator \
         delete,deletecollection,get,list,patch,create,update,watch \
         pinniped,pinniped-authenticator,pinniped-authenticators webhookauthenticators",
        "config.concierge.pinniped.dev/v1alpha1 false CredentialIssuer \
         delete,deletecollection,get,list,patch,create,update,watch pinniped credentialissuers",
        "identity.concierge.pinniped.dev/v1alpha1 false WhoAmIRequest create,list pinniped whoamirequests",
        "login.concierge.pinniped.dev/v1alpha1 false TokenCredentialRequest create,list pinniped \
         tokencredentialrequests",
    ]
    .map(|row| row.replace("concierge.pinniped.dev", &format!("concierge.{suffix}")));
    let version = format!(".concierge.{suffix}/v1alpha1");
    wait::until_ok(TIME_LIMIT, "kubectl api-resources", async || {
        let args = ["api-resources", "--categories=pinniped", "-o", "wide", "--no-headers", "--cached=false"];
        let text = kubectl.output(&args).await?;
        let mut rows: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|cells| cells[1].ends_with(&version))
            .map(|cells| [&cells[1..], &cells[..1]].concat().join(" "))
            .collect();
        rows.sort();
        anyhow::ensure!(rows == wanted, "{rows:#?}");
        Ok(())
    })
    .await
    .unwrap();

    let raw = async |path: &str| -> Value {
        serde_json::from_str(&kubectl.output(&["get", "--raw", path]).await.unwrap()).unwrap()
    };
    for (group, name, kind) in [
        ("login", "tokencredentialrequest", "TokenCredentialRequest"),
        ("identity", "whoamirequest", "WhoAmIRequest"),
    ] {
        let path = site.path(group);
        let list = raw(&path).await;
        assert_eq!(list["groupVersion"], path.trim_start_matches("/apis/"));
        assert_eq!(
            list["resources"],
            json!([{"name": format!("{name}s"), "singularName": name, "namespaced": false, "kind": kind,
                "verbs": ["create", "list"], "categories": ["pinniped"]}])
        );
        let group = raw(path.trim_end_matches("/v1alpha1")).await;
        assert_eq!(group["kind"], "APIGroup");
        assert_eq!(group["preferredVersion"]["version"], "v1alpha1");
    }
}

#[tokio::test]
async fn a_list_of_requests_is_empty() {
    let Some(installed) = installed::shared("listing requests").await else { return };
    for site in sites::all(&installed).await {
        let kubectl = site.world.kubectl();
        let resources = [("tokencredentialrequests", "login"), ("whoamirequests", "identity")]
            .map(|(plural, group)| format!("{plural}.v1alpha1.{}", site.names().group_of(group)));
        for resource in &resources {
            let output = kubectl.run(&["get", resource]).await.unwrap().success().unwrap();
            assert_eq!(
                (output.stdout.as_str(), output.stderr.as_str()),
                ("", "No resources found\n"),
                "{resource}"
            );
        }
        let output = kubectl.run(&["get", &resources[0], "x"]).await.unwrap();
        assert_eq!(output.code, 1);
        assert!(
            output.stderr.contains("the server could not find the requested resource"),
            "{}",
            output.stderr
        );
    }
}

/// Runs `kubectl explain` for one path, and checks what holds for every path.
async fn explain(world: &World, path: &str, group: &str, more: &[&str]) -> String {
    let args = [&["explain", path], more].concat();
    // The API server collects the documents of aggregated APIs in the background.
    let text = wait::until_ok(TIME_LIMIT, format!("kubectl explain {path}"), async || {
        world.kubectl().output(&args).await
    })
    .await
    .unwrap();
    let group_line = text.lines().any(|line| line.split_whitespace().eq(["GROUP:", group]));
    let version_line = text.lines().any(|line| line.split_whitespace().eq(["VERSION:", "v1alpha1"]))
        || text.lines().any(|line| line.split_whitespace().eq(["VERSION:", &format!("{group}/v1alpha1")]));
    assert!(version_line && (group_line || text.contains(&format!("{group}/v1alpha1"))), "{path}: {text}");
    assert!(text.contains("DESCRIPTION:"), "{path}: {text}");
    assert!(!text.contains("<empty>"), "{path}: {text}");
    text
}

#[tokio::test]
async fn kubectl_explains_every_resource_and_every_field_of_the_requests() {
    let Some(installed) = installed::shared("kubectl explain").await else { return };
    for site in sites::all(&installed).await {
        assert_explanations(&site).await;
    }
}

async fn assert_explanations(site: &Site<'_>) {
    let world = site.world;
    const V2: [&str; 2] = ["--output", "plaintext-openapiv2"];
    let resources = [
        ("tokencredentialrequests", "login"),
        ("whoamirequests", "identity"),
        ("credentialissuers", "config"),
        ("webhookauthenticators", "authentication"),
        ("jwtauthenticators", "authentication"),
    ]
    .map(|(resource, group)| (resource, site.names().group_of(group)));
    for (resource, group) in &resources {
        // Definitions with other suffixes may exist at the same time.
        let qualified = format!("--api-version={group}/v1alpha1");
        let text = explain(world, resource, group, &["--recursive", &qualified]).await;
        assert!(text.contains("FIELDS:") && text.contains("spec\t<"), "{text}");
        explain(world, resource, group, &[&V2[..], &[&qualified]].concat()).await;
    }
    let (login, identity) = (&resources[0].1, &resources[1].1);
    let versions = [login, identity].map(|group| format!("--api-version={group}/v1alpha1"));
    let [of_login, of_identity] = versions.each_ref().map(String::as_str);
    for (path, group, version) in [
        ("tokencredentialrequests.spec", login, of_login),
        ("tokencredentialrequests.spec.token", login, of_login),
        ("tokencredentialrequests.spec.authenticator", login, of_login),
        ("tokencredentialrequests.spec.authenticator.apiGroup", login, of_login),
        ("tokencredentialrequests.status.credential.clientKeyData", login, of_login),
        ("tokencredentialrequests.status.credential.expirationTimestamp", login, of_login),
        ("tokencredentialrequests.status.message", login, of_login),
        ("whoamirequests.spec", identity, of_identity),
        ("whoamirequests.status.kubernetesUserInfo.user", identity, of_identity),
        ("whoamirequests.status.kubernetesUserInfo.user.extra", identity, of_identity),
        ("whoamirequests.status.kubernetesUserInfo.audiences", identity, of_identity),
    ] {
        explain(world, path, group, &[version]).await;
    }
    let spec = explain(world, "whoamirequests.spec", identity, &[&V2[..], &[of_identity]].concat()).await;
    assert!(!spec.contains("FIELDS:") && !spec.contains("FIELD:"), "{spec}");
    let options = [&V2[..], &[of_login]].concat();
    explain(world, "tokencredentialrequests.spec.token", login, &options).await;
}

/// Requests OpenAPI v2 as protobuf. Returns content type, content encoding and the bytes.
async fn openapi_v2(client: &kube::Client, encoding: &str) -> anyhow::Result<(String, String, Vec<u8>)> {
    let request = http::Request::get("/openapi/v2")
        .header("accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
        .header("accept-encoding", encoding)
        .body(kube::client::Body::empty())?;
    let response = client.send(request).await?;
    anyhow::ensure!(response.status() == 200, "{}", response.status());
    let header = |name: &str| -> anyhow::Result<String> {
        Ok(response
            .headers()
            .get(name)
            .map(|value| value.to_str())
            .transpose()?
            .unwrap_or_default()
            .to_owned())
    };
    let (media_type, encoding) = (header("content-type")?, header("content-encoding")?);
    Ok((media_type, encoding, response.into_body().collect_bytes().await?.to_vec()))
}

#[tokio::test]
async fn kubectl_reads_openapi_v2_as_protobuf_directly_and_through_the_api_server() {
    let Some(installed) = installed::shared("OpenAPI v2 as protobuf").await else { return };
    for site in sites::all(&installed).await {
        assert_openapi_v2(&site, &installed.admin().await).await;
    }
}

async fn assert_openapi_v2(site: &Site<'_>, admin: &kube::Client) {
    let (world, names) = (site.world, site.names());
    let ip = site.running().into_iter().find_map(|(_, pod)| pod.ip).unwrap();
    let ca = serving_secret(site).await.unwrap()["data"]["caCertificate"].as_str().unwrap().to_owned();
    let mut kubeconfig = Kubeconfig::read_from(world.admin_kubeconfig()).unwrap();
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|cluster| cluster.cluster.as_mut()) {
        cluster.server = Some(format!("https://{ip}:10250"));
        cluster.tls_server_name = Some(format!("{}.{}.svc", names.object("api"), names.app));
        cluster.certificate_authority = None;
        cluster.certificate_authority_data = Some(ca.clone());
    }
    let file = world.dir().join(format!("{}-api.kubeconfig", names.app));
    std::fs::write(&file, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    let directly = world.kubectl().with_kubeconfig(&file);

    // This output of kubectl requires the document as protobuf.
    for (path, group) in [
        ("tokencredentialrequests.spec", "login"),
        ("tokencredentialrequests.spec.token", "login"),
        ("tokencredentialrequests.status.credential", "login"),
        ("whoamirequests.spec", "identity"),
    ] {
        let group = names.group_of(group);
        let version = format!("--api-version={group}/v1alpha1");
        let options = ["--output", "plaintext-openapiv2", &version];
        let through_api_server = explain(world, path, &group, &options).await;
        let ours = directly.output(&[&["explain", path], &options[..]].concat()).await.unwrap();
        assert_eq!(ours, through_api_server, "{path}");
    }

    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let ours = kube::Client::try_from(config.unwrap()).unwrap();
    let (media_type, encoding, document) = openapi_v2(&ours, "identity").await.unwrap();
    let (media_type_of_api_server, _, merged) = openapi_v2(admin, "identity").await.unwrap();
    assert_eq!((media_type.as_str(), encoding.as_str()), (media_type_of_api_server.as_str(), ""));
    let model = b"dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequestSpec";
    for (document, origin) in [(&document, "the Concierge"), (&merged, "the API server")] {
        assert!(document.windows(model.len()).any(|bytes| bytes == model), "not in that of {origin}");
    }
    let (_, encoding, compressed) = openapi_v2(&ours, "gzip").await.unwrap();
    assert_eq!(encoding, "gzip");
    assert!(compressed.len() < document.len() / 2, "{} of {}", compressed.len(), document.len());
}

#[tokio::test]
async fn a_token_is_exchanged_for_a_certificate_through_the_aggregator() {
    let Some(installed) = installed::shared("a token is exchanged").await else { return };
    for site in sites::all(&installed).await {
        assert_exchange(&site).await;
    }
}

async fn assert_exchange(site: &Site<'_>) {
    let client = anonymous(site.world).await;
    let before = jiff::Timestamp::now().as_second();
    let response = site.log_in(&client, "pinny:password123", LOCAL_USERS).await.unwrap();
    let after = jiff::Timestamp::now().as_second();
    assert_eq!(response["kind"], "TokenCredentialRequest");
    assert_eq!(response["apiVersion"], site.path("login").trim_start_matches("/apis/"));
    assert!(
        response["metadata"].get("name").is_none(),
        "the answer is a fresh object: {}",
        response["metadata"]
    );
    assert_eq!(response["spec"], json!({"authenticator": {"apiGroup": null, "kind": "", "name": ""}}));
    let status = response["status"].as_object().unwrap();
    assert_eq!(status.keys().collect::<Vec<_>>(), ["credential"]);
    let credential = status["credential"].as_object().unwrap();
    assert_eq!(
        credential.keys().collect::<Vec<_>>(),
        ["clientCertificateData", "clientKeyData", "expirationTimestamp"]
    );
    assert!(credential["clientKeyData"].as_str().unwrap().starts_with("-----BEGIN PRIVATE KEY-----\n"));

    let pem = credential["clientCertificateData"].as_str().unwrap();
    assert_eq!(pem.matches("BEGIN CERTIFICATE").count(), 1);
    assert!(pem.ends_with("-----END CERTIFICATE-----\n"));
    let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let values = |all: Vec<&AttributeTypeAndValue<'_>>| -> Vec<String> {
        all.iter().map(|value| value.as_str().unwrap().to_owned()).collect()
    };
    let subject = certificate.subject();
    assert_eq!(values(subject.iter_common_name().collect()), ["pinny"]);
    assert_eq!(values(subject.iter_organization().collect()), ["group-for-mtls"]);
    assert_eq!(values(subject.iter_organizational_unit().collect()), Vec::<String>::new());
    let validity = certificate.validity();
    assert!((before - 300..=after - 300).contains(&validity.not_before.timestamp()), "{validity:?}");
    assert!((before + 300..=after + 300).contains(&validity.not_after.timestamp()), "{validity:?}");
    let expiration: jiff::Timestamp = credential["expirationTimestamp"].as_str().unwrap().parse().unwrap();
    assert_eq!(expiration.as_second(), validity.not_after.timestamp());
    let usage = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth);
    assert!(!certificate.is_ca());
}

#[tokio::test]
async fn a_failed_login_returns_the_failure_and_nothing_else() {
    let Some(installed) = installed::shared("a login that fails").await else { return };
    let client = anonymous(installed.world()).await;
    for site in sites::all(&installed).await {
        for (token, authenticator) in [
            ("pinny:wrong", LOCAL_USERS),
            ("nobody:password123", LOCAL_USERS),
            ("no colon", LOCAL_USERS),
            ("pinny:password123", "no-such-authenticator"),
        ] {
            let response = site.log_in(&client, token, authenticator).await.unwrap();
            assert_eq!(
                response["status"],
                json!({"message": "authentication failed"}),
                "{token} {authenticator}"
            );
            let spec = json!({"authenticator": {"apiGroup": null, "kind": "", "name": ""}});
            assert_eq!(response["spec"], spec);
        }
    }
}

#[tokio::test]
async fn a_request_without_a_token_is_invalid_with_one_cause() {
    let Some(installed) = installed::shared("a request without a token").await else { return };
    for site in sites::all(&installed).await {
        assert_one_cause(&site).await;
    }
}

/// The group in the message does not depend on the suffix, as in upstream.
async fn assert_one_cause(site: &Site<'_>) {
    let client = anonymous(site.world).await;
    let error = site.log_in(&client, "", LOCAL_USERS).await.unwrap_err();
    let kube::Error::Api(status) = error else { panic!("{error}") };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert_eq!(
        status.message,
        r#".login.concierge.pinniped.dev "foo" is invalid: spec.token.value: Required value: token must be supplied"#
    );
    let details = serde_json::to_value(status.details.unwrap()).unwrap();
    assert_eq!(
        details["causes"],
        json!([{"reason": "FieldValueRequired", "message": "Required value: token must be supplied",
            "field": "spec.token.value"}])
    );
}

#[tokio::test]
async fn who_am_i_returns_the_user_that_the_api_server_authenticated() {
    let Some(installed) = installed::shared("who am I").await else { return };
    for site in sites::all(&installed).await {
        assert_who_am_i(&installed, &site).await;
    }
}

async fn assert_who_am_i(installed: &Installed, site: &Site<'_>) {
    let group = site.names().group_of("identity");
    let body = json!({"apiVersion": format!("{group}/v1alpha1"), "kind": "WhoAmIRequest"});
    let path = format!("{}/whoamirequests", site.path("identity"));
    let who = async |client: &kube::Client| post(client, &path, &body).await.unwrap();

    let pair = installed.certificate("olive", Some("cooks"));
    let certificate = client_with(
        installed.world(),
        AuthInfo {
            client_certificate_data: Some(STANDARD.encode(&pair.certificate_pem)),
            client_key_data: Some(STANDARD.encode(&pair.private_key_pem).into()),
            ..AuthInfo::default()
        },
    );
    let certificate = certificate.await;
    let response = who(&certificate).await;
    assert_eq!(response["spec"], json!({}));
    let user = &response["status"]["kubernetesUserInfo"]["user"];
    assert_eq!(user["username"], "olive");
    assert_eq!(user["groups"], json!(["cooks", "system:authenticated"]));
    assert!(user.get("uid").is_none(), "{user}");
    let extra = &user["extra"]["authentication.kubernetes.io/credential-id"];
    let extra = extra[0].as_str().unwrap_or_else(|| panic!("{user}"));
    assert!(extra.starts_with("X509SHA256=") && extra.len() == 11 + 64, "{extra}");
    assert!(response["status"]["kubernetesUserInfo"].get("audiences").is_none());

    let response = who(&anonymous(installed.world()).await).await;
    assert_eq!(
        response["status"]["kubernetesUserInfo"]["user"],
        json!({"username": "system:anonymous", "groups": ["system:unauthenticated"]})
    );
}

async fn object(world: &World, args: &[&str]) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&world.kubectl().output(&[args, &["-o", "json"]].concat()).await?)?)
}

async fn ca_bundle(world: &World, name: &str) -> anyhow::Result<String> {
    let service = object(world, &["get", "apiservice", name]).await?;
    Ok(service["spec"]["caBundle"].as_str().unwrap_or_default().to_owned())
}

/// Waits until both APIServices trust `wanted` (base64).
async fn await_ca_bundles(site: &Site<'_>, wanted: &str) {
    for name in site.api_services() {
        wait::until_ok(TIME_LIMIT, format!("the CA bundle of {name}"), async || {
            let found = ca_bundle(site.world, &name).await?;
            anyhow::ensure!(found == wanted, "it is {found}");
            Ok(())
        })
        .await
        .unwrap();
    }
}

/// Returns the name of the Secret with the serving certificate.
fn serving_secret_name(names: &Names) -> String {
    names.object("api-tls-serving-certificate")
}

async fn serving_secret(site: &Site<'_>) -> anyhow::Result<Value> {
    let names = site.names();
    object(site.world, &["get", "secret", &serving_secret_name(&names), "-n", names.app]).await
}

async fn ten_logins_in_a_row_work(site: &Site<'_>) {
    let client = anonymous(site.world).await;
    let mut row = 0;
    wait::until_ok(Duration::from_secs(60), "ten logins in a row", async || {
        while row < 10 {
            let response = site.log_in(&client, "pinny:password123", LOCAL_USERS).await;
            let worked = response.as_ref().is_ok_and(|response| response["status"]["credential"].is_object());
            row = if worked { row + 1 } else { 0 };
            anyhow::ensure!(worked, "{response:?}");
        }
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_changed_ca_bundle_is_restored() {
    let Some(installed) = installed::alone("a CA bundle is put back").await else { return };
    for site in sites::all(&installed).await {
        assert_ca_bundle_is_restored(&site).await;
    }
}

async fn assert_ca_bundle_is_restored(site: &Site<'_>) {
    let wanted = serving_secret(site).await.unwrap()["data"]["caCertificate"].as_str().unwrap().to_owned();
    await_ca_bundles(site, &wanted).await;
    let other = STANDARD.encode(Authority::new("somebody else").unwrap().certificate_pem);
    let patches = [json!({"spec": {"caBundle": other}}), json!({"spec": {"caBundle": null}})];
    for (name, patch) in site.api_services().iter().zip(patches) {
        let args = ["patch", "apiservice", name, "--type=merge", "-p", &patch.to_string()];
        site.world.kubectl().output(&args).await.unwrap();
    }
    await_ca_bundles(site, &wanted).await;
    ten_logins_in_a_row_work(site).await;
}

/// Returns the certificate that a replica serves on its API port, PEM.
async fn served_by(names: &Names, ip: IpAddr) -> anyhow::Result<Vec<u8>> {
    let tcp = tokio::net::TcpStream::connect((ip, 10250)).await?;
    let name = format!("{}.{}.svc", names.object("api"), names.app);
    let tls = wire::connect_unverified(tcp, &name, &[b"http/1.1"], None).await?;
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.first().map(|leaf| leaf.to_vec()).unwrap_or_default())
}

#[tokio::test]
async fn a_deleted_serving_certificate_is_created_again_and_trusted_within_seconds() {
    let Some(installed) = installed::alone("a deleted serving certificate").await else { return };
    for site in sites::all(&installed).await {
        assert_deleted_certificate_is_created(&site).await;
    }
}

async fn assert_deleted_certificate_is_created(site: &Site<'_>) {
    let names = site.names();
    let old = serving_secret(site).await.unwrap();
    let secret = serving_secret_name(&names);
    site.world.kubectl().output(&["delete", "secret", &secret, "-n", names.app]).await.unwrap();
    let new = wait::until_ok(TIME_LIMIT, "a new serving certificate", async || {
        let new = serving_secret(site).await?;
        anyhow::ensure!(new["metadata"]["uid"] != old["metadata"]["uid"], "still the old one");
        Ok(new)
    })
    .await
    .unwrap();
    for key in ["caCertificate", "caCertificatePrivateKey", "tlsCertificateChain", "tlsPrivateKey"] {
        assert!(new["data"][key].is_string() && new["data"][key] != old["data"][key], "{key}");
    }
    assert_eq!(new["metadata"]["labels"]["app"], names.app);
    await_ca_bundles(site, new["data"]["caCertificate"].as_str().unwrap()).await;

    let chain = STANDARD.decode(new["data"]["tlsCertificateChain"].as_str().unwrap()).unwrap();
    let (_, leaf) = parse_x509_pem(&chain).unwrap();
    let replicas: Vec<_> = site.running().into_iter().filter_map(|(_, pod)| pod.ip).collect();
    assert_eq!(replicas.len(), site.replicas);
    for ip in replicas {
        wait::until_ok(TIME_LIMIT, format!("the replica {ip} to serve the new certificate"), async || {
            anyhow::ensure!(served_by(&names, ip.into()).await? == leaf.contents, "another one");
            Ok(())
        })
        .await
        .unwrap();
    }
    ten_logins_in_a_row_work(site).await;
}
