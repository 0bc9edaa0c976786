//! The status of a JWTAuthenticator, and its effect on logins, with a scripted issuer.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pinniped_concierge_api::authentication::JwtAuthenticator;
use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_jose::Algorithm;
use pinniped_jose::test_util::{Signer, key_set};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_test_support::certs::Authority;
use pinniped_test_support::issuer::{DISCOVERY_PATH, KEYS_PATH, Reply, ScriptedIssuer};
use pinniped_test_support::pods::NODE_IP;
use pinniped_test_support::wait;
use serde_json::{Value, json};
use x509_parser::prelude::*;

use crate::apis::log_in_with_jwt;
use crate::authenticators::await_status;
use crate::installed::{self, Installed, TIME_LIMIT};

const NOT_READY: &str = "the JWTAuthenticator is not ready: see other conditions for details";
const UNKNOWN: &str = "unable to validate; see other conditions for details";

const READY: [[&str; 4]; 7] = [
    ["AuthenticatorValid", "True", "Success", "authenticator initialized"],
    ["DiscoveryURLValid", "True", "Success", "discovery performed successfully"],
    ["IssuerURLValid", "True", "Success", "issuer is a valid URL"],
    ["JWKSFetchValid", "True", "Success", "successfully fetched jwks"],
    ["JWKSURLValid", "True", "Success", "jwks_uri is a valid URL"],
    ["Ready", "True", "Success", "the JWTAuthenticator is ready"],
    ["TLSConfigurationValid", "True", "Success", "spec.tls is valid: using configured CA bundle"],
];

/// Returns the conditions when the one at `index` is false and those at `unknown` are unknown.
fn not_ready<'a>(index: usize, reason: &'a str, message: &'a str, unknown: &[usize]) -> [[&'a str; 4]; 7] {
    let mut wanted: [[&'a str; 4]; 7] = READY;
    wanted[index] = [wanted[index][0], "False", reason, message];
    for index in unknown {
        wanted[*index] = [wanted[*index][0], "Unknown", "UnableToValidate", UNKNOWN];
    }
    wanted[5] = ["Ready", "False", "NotReady", NOT_READY];
    wanted
}

async fn authenticators(installed: &Installed) -> Api<JwtAuthenticator> {
    Api::all_with(installed.admin().await, &GroupSuffix::default())
}

async fn create(api: &Api<JwtAuthenticator>, name: &str, spec: Value) {
    let object = json!({"apiVersion": "authentication.concierge.pinniped.dev/v1alpha1",
        "kind": "JWTAuthenticator", "metadata": {"name": name}, "spec": spec});
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// An issuer that the pods of the world reach.
struct Provider {
    issuer: ScriptedIssuer,
    signer: Signer,
}

impl Provider {
    async fn start() -> Self {
        let issuer = ScriptedIssuer::start(IpAddr::V4(NODE_IP)).await.unwrap();
        let signer = Signer::generate(Algorithm::Es256, "first");
        issuer.publish(&key_set([&signer]));
        Self { issuer, signer }
    }

    fn spec(&self) -> Value {
        json!({"issuer": self.issuer.url(), "audience": "cluster",
            "tls": {"certificateAuthorityData": STANDARD.encode(&self.issuer.ca_pem)}})
    }

    fn claims(&self, more: &Value) -> Value {
        let expiry = jiff::Timestamp::now().as_second() + 600;
        let mut claims = json!({"iss": self.issuer.url(), "aud": ["other", "cluster"], "exp": expiry});
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        claims
    }
}

/// Returns name, groups and extra attributes of the certificate that a login gave.
fn subject(status: &Value) -> Option<(String, Vec<String>, Vec<String>)> {
    let pem = status["credential"]["clientCertificateData"].as_str()?;
    let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let texts = |attributes: Vec<&AttributeTypeAndValue<'_>>| -> Vec<String> {
        attributes.iter().map(|attribute| attribute.as_str().unwrap().to_owned()).collect()
    };
    let subject = certificate.subject();
    let name = texts(subject.iter_common_name().collect()).concat();
    let groups = texts(subject.iter_organization().collect());
    Some((name, groups, texts(subject.iter_organizational_unit().collect())))
}

/// Waits until ten logins in a row succeed or fail as `works` specifies: every replica must have
/// the change.
async fn await_login(client: &kube::Client, token: &str, authenticator: &str, works: bool) {
    wait::until_ok(TIME_LIMIT, format!("logins through {authenticator}"), async || {
        for _ in 0..10 {
            let status = log_in_with_jwt(client, token, authenticator).await?["status"].clone();
            anyhow::ensure!(status["credential"].is_object() == works, "{}", status["message"]);
        }
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_token_gives_a_certificate_of_its_user_also_while_the_issuer_is_down() {
    let Some(installed) = installed::shared("logins with JWTs").await else { return };
    let (api, client) = (authenticators(&installed).await, installed.admin().await);
    let mut provider = Provider::start().await;
    let mut spec = provider.spec();
    spec["claims"] = json!({"username": "email", "groups": "roles"});
    spec["claimValidationRules"] = json!([{"claim": "hd", "requiredValue": "example.com"}]);
    create(&api, "jwt-login", spec).await;
    await_status(&api, "jwt-login", "Ready", &READY).await;

    let claims = json!({"email": "jane@example.com", "email_verified": true, "hd": "example.com",
        "roles": ["developers", "operators"], "jti": "id-1"});
    let token = provider.signer.sign(&provider.claims(&claims));
    await_login(&client, &token, "jwt-login", true).await;
    let status = log_in_with_jwt(&client, &token, "jwt-login").await.unwrap()["status"].clone();
    let (name, mut groups, extra) = subject(&status).unwrap();
    groups.sort();
    assert_eq!(name, "jane@example.com");
    assert_eq!(groups, ["developers", "operators"]);
    assert_eq!(extra, ["authentication.kubernetes.io/credential-id=JTI=id-1"]);

    let failed = json!({"message": "authentication failed"});
    for (change, why) in [
        (json!({"hd": "example.org"}), "another value of a required claim"),
        (json!({"email_verified": false}), "an address that is not verified"),
        (json!({"aud": "other"}), "another audience"),
        (json!({"exp": 1}), "expired"),
        (json!({"iss": "https://other.example"}), "another issuer"),
        (json!({"email": ""}), "no name"),
    ] {
        let mut all = provider.claims(&claims);
        all.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let token = provider.signer.sign(&all);
        let response = log_in_with_jwt(&client, &token, "jwt-login").await.unwrap();
        assert_eq!(response["status"], failed, "{why}");
    }
    let forged = Signer::generate(Algorithm::Es256, "first").sign(&provider.claims(&claims));
    let response = log_in_with_jwt(&client, &forged, "jwt-login").await.unwrap();
    assert_eq!(response["status"], failed, "a forged signature");

    // A new key needs no change of the object; a known key needs no issuer.
    let next = Signer::generate(Algorithm::Rs256, "second");
    provider.issuer.publish(&key_set([&provider.signer, &next]));
    let new = next.sign(&provider.claims(&claims));
    await_login(&client, &new, "jwt-login", true).await;
    provider.issuer.stop().await;
    await_login(&client, &new, "jwt-login", true).await;
    await_status(&api, "jwt-login", "Ready", &READY).await;

    api.delete("jwt-login", &DeleteParams::default()).await.unwrap();
    await_login(&client, &new, "jwt-login", false).await;
}

#[tokio::test]
async fn the_status_reports_the_problem_of_an_issuer() {
    let Some(installed) = installed::shared("the status of JWTAuthenticators").await else { return };
    let api = authenticators(&installed).await;
    let (provider, no_keys, moved) =
        (Provider::start().await, Provider::start().await, Provider::start().await);
    no_keys.issuer.reply(KEYS_PATH, Reply::not_found());
    let document = json!({"issuer": "https://other.example", "jwks_uri": "https://other.example"});
    moved.issuer.reply(DISCOVERY_PATH, Reply::json(&document));
    let with = |provider: &Provider, change: Value| {
        let mut spec = provider.spec();
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        spec
    };
    let other_ca = STANDARD.encode(Authority::new("another").unwrap().certificate_pem);
    let prefix = "could not perform oidc discovery on provider issuer: ";
    let get = |provider: &Provider| format!("{prefix}Get \"{}{DISCOVERY_PATH}\": ", provider.issuer.url());
    let untrusted = format!(
        "{}tls: failed to verify certificate: x509: certificate signed by unknown authority",
        get(&provider)
    );
    let down = format!(
        "{prefix}Get \"https://127.0.0.1:1{DISCOVERY_PATH}\": dial tcp 127.0.0.1:1: connect: connection refused"
    );
    let other = format!(
        "{prefix}oidc: issuer URL provided to client (\"{}\") did not match the issuer URL returned by provider \
         (\"https://other.example\")",
        moved.issuer.url()
    );
    let query = format!("spec.issuer {}?a=b cannot include query params", provider.issuer.url());
    let keys =
        "could not fetch keys: fetching keys oidc: get keys failed: 404 Not Found 404 page not found\n";
    let field = "could not initialize jwt authenticator: claims.groups: Invalid value: \"\": claim and expression \
                 can't both be set";
    let base64 = "spec.tls.certificateAuthorityData is invalid: illegal base64 data at input byte 3";
    let all = [0, 1, 3, 4];
    let cases = [
        ("jwt-ready", provider.spec(), "Ready", READY),
        (
            "jwt-down",
            with(&provider, json!({"issuer": "https://127.0.0.1:1"})),
            "Error",
            not_ready(1, "InvalidDiscoveryProbe", &down, &[0, 3, 4]),
        ),
        (
            "jwt-wrong-ca",
            with(&provider, json!({"tls": {"certificateAuthorityData": other_ca}})),
            "Error",
            not_ready(1, "InvalidDiscoveryProbe", &untrusted, &[0, 3, 4]),
        ),
        (
            "jwt-other-issuer",
            moved.spec(),
            "Error",
            not_ready(1, "InvalidDiscoveryProbe", &other, &[0, 3, 4]),
        ),
        ("jwt-no-keys", no_keys.spec(), "Error", not_ready(3, "InvalidCouldNotFetchJWKS", keys, &[0])),
        (
            "jwt-query",
            with(&provider, json!({"issuer": format!("{}?a=b", provider.issuer.url())})),
            "Error",
            not_ready(2, "InvalidIssuerURLContainsQueryParams", &query, &all),
        ),
        (
            "jwt-no-base64",
            with(&provider, json!({"tls": {"certificateAuthorityData": "abc$"}})),
            "Error",
            not_ready(6, "InvalidTLSConfig", base64, &all),
        ),
        (
            "jwt-field",
            with(&provider, json!({"claims": {"groups": "a", "groupsExpression": "b"}})),
            "Error",
            not_ready(0, "InvalidAuthenticator", field, &[]),
        ),
    ];
    for (name, spec, ..) in &cases {
        create(&api, name, spec.clone()).await;
    }
    for (name, _, phase, wanted) in &cases {
        await_status(&api, name, phase, wanted).await;
    }

    // A corrected issuer is found without a change of the object.
    no_keys.issuer.publish(&key_set([&no_keys.signer]));
    await_status(&api, "jwt-no-keys", "Ready", &READY).await;
    for (name, ..) in &cases {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn an_edited_status_is_restored_and_a_changed_bundle_takes_effect() {
    let Some(installed) = installed::shared("changes of a JWTAuthenticator").await else { return };
    let kubectl = installed.world().kubectl();
    let api = authenticators(&installed).await;
    let provider = Provider::start().await;
    let bundle = |data: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "jwt-ca", "namespace": CONCIERGE},
            "data": {"ca": data}})
        .to_string()
    };
    kubectl.apply(&bundle(&provider.issuer.ca_pem)).await.unwrap();
    let mut spec = provider.spec();
    spec["tls"] =
        json!({"certificateAuthorityDataSource": {"kind": "ConfigMap", "name": "jwt-ca", "key": "ca"}});
    create(&api, "jwt-edited", spec).await;
    await_status(&api, "jwt-edited", "Ready", &READY).await;

    let patch = json!({"status": {"phase": "Error", "conditions": [{"type": "Ready", "status": "False",
        "reason": "Whim", "message": "by hand", "lastTransitionTime": "2026-11-21T10:00:00Z"}]}});
    api.patch_status("jwt-edited", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    await_status(&api, "jwt-edited", "Ready", &READY).await;

    kubectl.apply(&bundle("no certificate")).await.unwrap();
    let message = "spec.tls.certificateAuthorityDataSource is invalid: key \"ca\" with 14 bytes of data in configmap \
                   \"pinniped-concierge/jwt-ca\" is not a PEM-encoded certificate (PEM certificates must begin with \
                   \"-----BEGIN CERTIFICATE-----\")";
    await_status(&api, "jwt-edited", "Error", &not_ready(6, "InvalidTLSConfig", message, &[0, 1, 3, 4]))
        .await;
    kubectl.apply(&bundle(&provider.issuer.ca_pem)).await.unwrap();
    await_status(&api, "jwt-edited", "Ready", &READY).await;
    api.delete("jwt-edited", &DeleteParams::default()).await.unwrap();
}
