//! Structured authentication configurations, and tokens that they accept.

use anyhow::Context as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use pinniped_test_support::control_plane::ControlPlane;
use pinniped_test_support::issuer::{DISCOVERY_PATH, KEYS_PATH, Reply, ScriptedIssuer};
use serde_json::{Map, Value, json};

/// The audience of all tokens.
const AUDIENCE: &str = "cel-test";

/// A JWT authenticator with an issuer of its own.
pub(super) struct Authenticator {
    pub(super) issuer: String,
    /// The value expressions of extra fields.
    pub(super) extra: Vec<String>,
    pub(super) user_rules: Vec<String>,
}

impl Authenticator {
    /// Returns an authenticator, and makes the provider serve its issuer.
    pub(super) fn new(provider: &ScriptedIssuer, number: usize) -> Self {
        let path = format!("/{number}");
        let issuer = format!("{}{path}", provider.url());
        let document = json!({"issuer": issuer, "jwks_uri": format!("{}{KEYS_PATH}", provider.url())});
        provider.reply(&format!("{path}{DISCOVERY_PATH}"), Reply::json(&document));
        Self { issuer, extra: Vec::new(), user_rules: Vec::new() }
    }
}

/// Returns the key of an extra field.
pub(super) fn extra_key(index: usize) -> String {
    format!("example.com/e{index}")
}

/// Returns the configuration file. JSON is YAML, too.
pub(super) fn configuration(
    provider: &ScriptedIssuer,
    authenticators: &[Authenticator],
) -> anyhow::Result<String> {
    let jwt: Vec<Value> = authenticators
        .iter()
        .map(|authenticator| {
            let extra = authenticator.extra.iter().enumerate();
            let extra: Vec<Value> =
                extra.map(|(index, e)| json!({"key": extra_key(index), "valueExpression": e})).collect();
            let rules: Vec<Value> =
                authenticator.user_rules.iter().map(|e| json!({"expression": e})).collect();
            json!({
                "issuer": {
                    "url": authenticator.issuer,
                    "certificateAuthority": provider.ca_pem,
                    "audiences": [AUDIENCE],
                },
                "claimMappings": {"username": {"claim": "sub", "prefix": ""}, "extra": extra},
                "userValidationRules": rules,
            })
        })
        .collect();
    let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": jwt});
    serde_json::to_string(&configuration).context("the configuration is JSON")
}

/// Returns a kubeconfig with a token.
pub(super) fn kubeconfig(control_plane: &ControlPlane, token: &str) -> String {
    let cluster = json!({
        "server": control_plane.server(),
        "certificate-authority-data": STANDARD.encode(&control_plane.ca().certificate_pem),
    });
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": token}}],
    })
    .to_string()
}

/// Signs tokens with ES256.
pub(super) struct Signer(EcdsaKeyPair);

impl Signer {
    pub(super) fn new() -> anyhow::Result<Self> {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING);
        Ok(Self(key.map_err(|_| anyhow::anyhow!("could not generate a key"))?))
    }

    pub(super) fn key_set(&self) -> Value {
        // The public key is a byte, and the two coordinates.
        let (x, y) = self.0.public_key().as_ref()[1..].split_at(32);
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"keys": [{
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "key",
            "x": encode(x), "y": encode(y),
        }]})
    }

    /// Completes claims so that a token with them is valid for an hour.
    pub(super) fn claims(&self, issuer: &str, mut claims: Map<String, Value>) -> Map<String, Value> {
        let now = jiff::Timestamp::now().as_second();
        claims.insert("iss".into(), issuer.into());
        claims.insert("aud".into(), AUDIENCE.into());
        claims.insert("iat".into(), (now - 10).into());
        claims.insert("exp".into(), (now + 3_590).into());
        claims
    }

    pub(super) fn sign(&self, claims: &Map<String, Value>) -> anyhow::Result<String> {
        let part = |value: &str| URL_SAFE_NO_PAD.encode(value);
        let header = part(r#"{"alg":"ES256","kid":"key"}"#);
        let signed = format!("{header}.{}", part(&serde_json::to_string(claims)?));
        let signature = self.0.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = signature.map_err(|_| anyhow::anyhow!("could not sign"))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }
}
