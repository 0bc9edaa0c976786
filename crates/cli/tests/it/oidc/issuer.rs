//! A scripted OIDC issuer over TLS: it has no pages and no users, so that a test plays both.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use pinniped_jose::Algorithm;
use pinniped_jose::test_util::{Signer, base64url};
use serde_json::{Value, json};

use crate::support::{ReceivedResponse, Request, Server};

/// The settings of the issuer, which a test may change at any time.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Whether the issuer is a Supervisor, with these identity providers.
    pub(crate) identity_providers: Option<Value>,
    /// The authorization endpoint, if it is not that of the issuer.
    pub(crate) authorization_endpoint: Option<String>,
    /// The address to which the login with a password redirects, if it is not the callback.
    pub(crate) password_redirect: Option<String>,
    pub(crate) form_post: bool,
    pub(crate) basic_only: bool,
    pub(crate) id_lifetime: i64,
    pub(crate) access_lifetime: i64,
    pub(crate) audience: Value,
    /// The response of the userinfo endpoint.
    pub(crate) userinfo: Option<Value>,
    /// Changes the claims of every ID token.
    pub(crate) claims: Value,
    /// The responses of the token endpoint to a device code, before the tokens.
    pub(crate) device: Option<Vec<&'static str>>,
    /// The code that the user enters on the other device.
    pub(crate) user_code: &'static str,
    /// The response to the next refresh.
    pub(crate) refresh_error: Option<&'static str>,
    /// The status of the revocation endpoint, if the issuer has one.
    pub(crate) revocation: Option<u16>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            identity_providers: None,
            authorization_endpoint: None,
            password_redirect: None,
            form_post: false,
            basic_only: false,
            id_lifetime: 3600,
            access_lifetime: 3600,
            audience: json!("pinniped-cli"),
            userinfo: None,
            claims: json!({}),
            device: None,
            user_code: "ABCD-EFGH",
            refresh_error: None,
            revocation: None,
        }
    }
}

/// The parameters of a login that the issuer remembers.
#[derive(Clone, Debug)]
struct Authorization {
    nonce: String,
    challenge: String,
    redirect_uri: String,
}

#[derive(Default)]
struct State {
    settings: Settings,
    codes: HashMap<String, Authorization>,
    refresh_tokens: Vec<String>,
    /// The number of tokens so far, which makes them different.
    count: usize,
    /// The grant types of the requests that returned tokens.
    granted: Vec<String>,
}

/// The issuer.
pub(crate) struct Issuer {
    pub(crate) server: Server,
    state: Arc<Mutex<State>>,
}

impl Issuer {
    pub(crate) fn start(settings: Settings) -> Self {
        let state = Arc::new(Mutex::new(State { settings, ..State::default() }));
        let signer = Signer::generate(Algorithm::Es256, "key");
        let server = Server::start({
            let state = Arc::clone(&state);
            move |request| respond(request, &mut state.lock().unwrap(), &signer)
        });
        Self { server, state }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.state.lock().unwrap().settings);
    }

    /// Returns the grant types of the requests that returned tokens.
    pub(crate) fn granted(&self) -> Vec<String> {
        self.state.lock().unwrap().granted.clone()
    }

    /// Returns the refresh tokens that the issuer accepts.
    pub(crate) fn refresh_tokens(&self) -> Vec<String> {
        self.state.lock().unwrap().refresh_tokens.clone()
    }

    /// Logs the user in at the page of this address, and returns the code.
    pub(crate) fn authorize(&self, url: &str) -> String {
        let query = query(url.split_once('?').unwrap().1);
        let mut state = self.state.lock().unwrap();
        let code = format!("code-{}", state.codes.len());
        let authorization = Authorization {
            nonce: query["nonce"].clone(),
            challenge: query["code_challenge"].clone(),
            redirect_uri: query["redirect_uri"].clone(),
        };
        assert_eq!(query["code_challenge_method"], "S256");
        state.codes.insert(code.clone(), authorization);
        code
    }

    /// Returns the arguments of `login oidc` for this issuer.
    pub(crate) fn args(&self, more: &[&str]) -> Vec<String> {
        let issuer = format!("--issuer={}", self.server.url());
        let ca = format!("--ca-bundle-data={}", self.server.ca_data());
        let fixed = ["login", "oidc", &issuer, &ca].map(str::to_owned);
        fixed.into_iter().chain(more.iter().map(|arg| (*arg).to_owned())).collect()
    }
}

/// Returns the parameters of a query or a form.
pub(crate) fn query(text: &str) -> HashMap<String, String> {
    pinniped_go_compat::url::query_pairs(text).collect()
}

fn oauth_error(code: &str) -> ReceivedResponse {
    ReceivedResponse::json(&json!({"error": code})).with_status(400)
}

fn respond(request: &Request, state: &mut State, signer: &Signer) -> ReceivedResponse {
    let issuer = format!("https://{}", request.headers["host"]);
    let (path, query_text) = request.path.split_once('?').unwrap_or((&request.path, ""));
    match (request.method.as_str(), path) {
        ("GET", "/.well-known/openid-configuration") => {
            ReceivedResponse::json(&discovery(&issuer, &state.settings))
        }
        ("GET", "/jwks") => ReceivedResponse::json(&json!({"keys": [signer.jwk()]})),
        ("GET", "/idps") => {
            ReceivedResponse::json(&json!({"pinniped_identity_providers": state.settings.identity_providers}))
        }
        ("GET", "/authorize") => password_login(request, &query(query_text), state),
        ("POST", "/token") => token(request, &issuer, state, signer),
        ("GET", "/userinfo") => {
            assert!(request.headers["authorization"].starts_with("Bearer access-"));
            ReceivedResponse::json(state.settings.userinfo.as_ref().unwrap())
        }
        ("POST", "/revoke") => revoke(request, state),
        ("POST", "/device") => {
            let form = query(&request.body);
            assert_eq!(form["client_id"], "pinniped-cli");
            state.codes.insert(
                "device-code".to_owned(),
                Authorization {
                    nonce: String::new(),
                    challenge: form["code_challenge"].clone(),
                    redirect_uri: String::new(),
                },
            );
            ReceivedResponse::json(&json!({
                "device_code": "device-code", "user_code": state.settings.user_code, "interval": 1, "expires_in": 60,
                "verification_uri": format!("{issuer}/activate"),
            }))
        }
        _ => ReceivedResponse::text(404, "no such page"),
    }
}

fn discovery(issuer: &str, settings: &Settings) -> Value {
    let mut document = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/jwks"),
        "id_token_signing_alg_values_supported": ["RS256", "ES256"],
        "scopes_supported": ["openid", "username", "groups"],
    });
    if let Some(endpoint) = &settings.authorization_endpoint {
        document["authorization_endpoint"] = json!(endpoint);
    }
    if settings.form_post {
        document["response_modes_supported"] = json!(["query", "form_post"]);
    }
    if settings.userinfo.is_some() {
        document["userinfo_endpoint"] = json!(format!("{issuer}/userinfo"));
    }
    if settings.device.is_some() {
        document["device_authorization_endpoint"] = json!(format!("{issuer}/device"));
    }
    if settings.revocation.is_some() {
        document["revocation_endpoint"] = json!(format!("{issuer}/revoke"));
    }
    if settings.identity_providers.is_some() {
        document["discovery.supervisor.pinniped.dev/v1alpha1"] =
            json!({"pinniped_identity_providers_endpoint": format!("{issuer}/idps")});
    }
    document
}

/// The revocation endpoint of RFC 7009, for a public client that sends its ID in the form.
fn revoke(request: &Request, state: &mut State) -> ReceivedResponse {
    let form = query(&request.body);
    if form.get("client_id").is_none_or(|id| id != "pinniped-cli") {
        return ReceivedResponse::json(&json!({"error": "invalid_client"})).with_status(401);
    }
    assert_eq!(form["token_type_hint"], "refresh_token");
    let status = state.settings.revocation.unwrap();
    if status == 200 {
        state.refresh_tokens.retain(|known| *known != form["token"]);
    }
    ReceivedResponse::text(status, "")
}

/// The login of a Supervisor without a browser.
fn password_login(request: &Request, query: &HashMap<String, String>, state: &mut State) -> ReceivedResponse {
    let header = |name: &str| request.headers.get(name).map(String::as_str);
    assert_eq!(query.get("response_mode"), None);
    let (redirect, login) = (&query["redirect_uri"], &query["state"]);
    if (header("pinniped-username"), header("pinniped-password")) != (Some("pinny"), Some("sécret")) {
        return ReceivedResponse::redirect(&format!(
            "{redirect}?error=access_denied&error_description=Username%2FPassword+not+accepted&state={login}"
        ));
    }
    if let Some(elsewhere) = &state.settings.password_redirect {
        return ReceivedResponse::redirect(elsewhere);
    }
    let authorization = Authorization {
        nonce: query["nonce"].clone(),
        challenge: query["code_challenge"].clone(),
        redirect_uri: redirect.clone(),
    };
    state.codes.insert("password-code".to_owned(), authorization);
    ReceivedResponse::redirect(&format!("{redirect}?code=password-code&scope=openid&state={login}"))
}

fn token(request: &Request, issuer: &str, state: &mut State, signer: &Signer) -> ReceivedResponse {
    let form = query(&request.body);
    let basic =
        request.headers.get("authorization").is_some_and(|value| value == "Basic cGlubmlwZWQtY2xpOg==");
    let exchange = "urn:ietf:params:oauth:grant-type:token-exchange";
    let in_form = form.get("client_id").is_some_and(|id| id == "pinniped-cli");
    if form["grant_type"] != exchange && if state.settings.basic_only { !basic } else { !in_form || basic } {
        return ReceivedResponse::json(&json!({"error": "invalid_client"})).with_status(401);
    }
    let mut nonce = None;
    match form["grant_type"].as_str() {
        "authorization_code" => {
            // A code can be used once.
            let Some(authorization) = state.codes.remove(&form["code"]) else {
                return oauth_error("invalid_grant");
            };
            let digest =
                aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, form["code_verifier"].as_bytes());
            if base64url(digest) != authorization.challenge
                || form["redirect_uri"] != authorization.redirect_uri
            {
                return oauth_error("invalid_grant");
            }
            nonce = Some(authorization.nonce);
        }
        "refresh_token" => {
            if let Some(error) = state.settings.refresh_error {
                return oauth_error(error);
            }
            // A refresh token can be used once, too.
            let Some(at) = state.refresh_tokens.iter().position(|known| *known == form["refresh_token"])
            else {
                return oauth_error("invalid_grant");
            };
            state.refresh_tokens.remove(at);
        }
        "urn:ietf:params:oauth:grant-type:device_code" => {
            assert_eq!(form["device_code"], "device-code");
            let waiting = state.settings.device.as_mut().unwrap();
            if !waiting.is_empty() {
                return oauth_error(waiting.remove(0));
            }
        }
        grant if grant == exchange => {
            if !form["subject_token"].starts_with("access-") {
                return oauth_error("invalid_request");
            }
            state.granted.push("token-exchange".to_owned());
            let claims = claims(issuer, &json!(form["audience"]), &state.settings);
            return ReceivedResponse::json(&json!({
                "access_token": signer.sign(&claims), "token_type": "N_A",
                "issued_token_type": "urn:ietf:params:oauth:token-type:jwt",
            }));
        }
        _ => return oauth_error("unsupported_grant_type"),
    }
    state.granted.push(form["grant_type"].rsplit(':').next().unwrap().to_owned());
    state.count += 1;
    let count = state.count;
    let mut claims = claims(issuer, &state.settings.audience, &state.settings);
    claims["jti"] = json!(format!("{count}"));
    if let Some(nonce) = nonce {
        claims["nonce"] = json!(nonce);
    }
    for (name, value) in state.settings.claims.as_object().unwrap() {
        claims[name] = value.clone();
    }
    let refresh = format!("refresh-{count}");
    state.refresh_tokens.push(refresh.clone());
    ReceivedResponse::json(&json!({
        "access_token": format!("access-{count}"), "token_type": "Bearer", "refresh_token": refresh,
        "expires_in": state.settings.access_lifetime, "id_token": signer.sign(&claims),
    }))
}

fn claims(issuer: &str, audience: &Value, settings: &Settings) -> Value {
    let now = Timestamp::now().as_second();
    json!({
        "iss": issuer, "sub": "some-subject", "aud": audience, "preferred_username": "pinny",
        "iat": now, "exp": now + settings.id_lifetime,
    })
}
