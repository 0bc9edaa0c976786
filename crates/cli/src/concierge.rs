//! The Concierge as a login command sees it: one anonymous request that turns a token into a cluster credential.

use bytes::Bytes;
use http::{HeaderValue, header};
use serde_json::json;
use url::Url;

use pinniped_api::client_auth::ExecCredentialStatus;
use pinniped_api::gojson::{self, quote};
use pinniped_api::login::{TokenCredentialRequest, TokenCredentialRequestSpec, TypedLocalObjectReference};
use pinniped_api::suffix::GroupSuffix;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{Profile, Roots};

use crate::admin::{Subject, generic_answer};
use crate::dial::Dialer;
use crate::https::HttpsClient;
use crate::printer::Printer;
use pinniped_api::gobase64;

/// Where the Concierge is and what shall judge the token, as given by flags.
#[derive(Clone, Debug, Default)]
pub struct ConciergeParams {
    /// URL; the API lies below it.
    pub endpoint: String,
    /// Base64 of PEM; empty for the system's roots.
    pub ca_bundle_data: String,
    /// `webhook` or `jwt`.
    pub authenticator_type: String,
    /// Name of the authenticator.
    pub authenticator_name: String,
    /// Suffix of the API groups.
    pub api_group_suffix: String,
}

/// A Concierge whose parameters make sense.
#[derive(Clone, Debug)]
pub struct Concierge {
    endpoint: Url,
    roots: Roots,
    authenticator: TypedLocalObjectReference,
    suffix: GroupSuffix,
}

impl Concierge {
    /// Checks the parameters.
    ///
    /// # Errors
    ///
    /// The first parameter that is wrong, in the order in which they have always been checked.
    pub fn new(params: &ConciergeParams) -> Result<Self, String> {
        let endpoint = parse_endpoint(&params.endpoint)?;
        let roots = parse_roots(&params.ca_bundle_data)?;
        if params.authenticator_name.is_empty() {
            return Err("authenticator name must not be empty".into());
        }
        let kind = match params.authenticator_type.to_lowercase().as_str() {
            "webhook" => "WebhookAuthenticator",
            "jwt" => "JWTAuthenticator",
            _ => {
                return Err(format!(
                    "invalid authenticator type: {}, supported values are \"webhook\" and \"jwt\"",
                    quote(&params.authenticator_type)
                ));
            }
        };
        let suffix = GroupSuffix::parse(&params.api_group_suffix)
            .map_err(|err| format!("invalid API group suffix: {err}"))?;
        let authenticator = TypedLocalObjectReference {
            api_group: Some(suffix.replace("authentication.concierge.pinniped.dev")),
            kind: kind.to_owned(),
            name: params.authenticator_name.clone(),
        };
        Ok(Self { endpoint, roots, authenticator, suffix })
    }

    /// Sends the token and returns what the Concierge gives for it. Neither a client certificate nor an
    /// `Authorization` header goes with the request.
    ///
    /// # Errors
    ///
    /// `login failed: <message>` if the token was refused, `could not login: …` for everything else.
    pub async fn exchange(
        &self,
        token: &str,
        dialer: Dialer,
        printer: Printer,
    ) -> Result<ExecCredentialStatus, String> {
        let could_not = |why: String| format!("could not login: {why}");
        let client = HttpsClient::new(dialer, Profile::Secure, self.roots.clone()).map_err(could_not)?;
        let path = format!(
            "/apis/{}/{}",
            TokenCredentialRequest::group_version(&self.suffix),
            TokenCredentialRequest::PLURAL
        );
        let mut url = self.endpoint.clone();
        url.set_path(&format!("{}{path}", self.endpoint.path().trim_end_matches('/')));
        let request = TokenCredentialRequest::new(
            &self.suffix,
            TokenCredentialRequestSpec {
                token: (!token.is_empty()).then(|| token.into()),
                authenticator: self.authenticator.clone(),
            },
        );
        let body = format!("{}\n", gojson::to_string(&request));
        let json = HeaderValue::from_static("application/json");
        let headers = [(header::CONTENT_TYPE, json.clone()), (header::ACCEPT, json)];
        let answer = client
            .send("POST", &url, &headers, Bytes::from(body))
            .await
            .map_err(|err| could_not(err.to_string()))?;

        if let Some(id) = answer.headers.get("audit-id").and_then(|id| id.to_str().ok()) {
            printer.info(
                "Received auditID for failed request",
                &[
                    ("path", json!(url.path())),
                    ("statusCode", json!(answer.status.as_u16())),
                    ("auditID", json!(id)),
                ],
            );
        }
        if !answer.status.is_success() {
            let resource = format!(
                "{}.{}",
                TokenCredentialRequest::PLURAL,
                self.suffix.replace(TokenCredentialRequest::GROUP)
            );
            let subject = Subject { verb: "create", resource: &resource, name: "", path: &path };
            return Err(could_not(failure_text(answer.status.as_u16(), &answer.body, subject)));
        }
        let answer: TokenCredentialRequest = serde_json::from_slice(&answer.body)
            .map_err(|err| could_not(format!("could not read the answer of the Concierge: {err}")))?;
        match (answer.status.credential, answer.status.message) {
            (Some(credential), _) => Ok(ExecCredentialStatus {
                expiration_timestamp: credential.expiration_timestamp,
                token: credential.token,
                client_certificate_data: credential.client_certificate_data,
                client_key_data: credential.client_key_data,
            }),
            (None, Some(message)) => Err(format!("login failed: {message}")),
            (None, None) => Err("login failed: unknown cause".into()),
        }
    }
}

fn failure_text(code: u16, body: &[u8], subject: Subject<'_>) -> String {
    #[derive(serde::Deserialize)]
    struct Status {
        kind: String,
        #[serde(default)]
        message: String,
    }
    match serde_json::from_slice::<Status>(body) {
        Ok(status) if status.kind == "Status" && !status.message.is_empty() => status.message,
        _ => generic_answer(code, String::from_utf8_lossy(body).trim(), subject),
    }
}

fn parse_endpoint(text: &str) -> Result<Url, String> {
    if text.is_empty() {
        return Err("endpoint must not be empty".into());
    }
    let invalid = |why: &str| format!("invalid endpoint URL: parse {}: {why}", quote(text));
    if text.chars().any(|c| c.is_ascii_control()) {
        return Err(invalid("net/url: invalid control character in URL"));
    }
    if text.starts_with(':') {
        return Err(invalid("missing protocol scheme"));
    }
    let scheme = match text.split_once(':') {
        Some((scheme, _))
            if scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) =>
        {
            scheme.to_lowercase()
        }
        Some((first, _)) if !first.contains('/') => {
            return Err(invalid("first path segment in URL cannot contain colon"));
        }
        _ => String::new(),
    };
    if scheme != "https" {
        return Err(format!("invalid endpoint scheme {} (must be \"https\")", quote(&scheme)));
    }
    Url::parse(text).map_err(|err| invalid(&err.to_string()))
}

fn parse_roots(data: &str) -> Result<Roots, String> {
    if data.is_empty() {
        return Ok(Roots::System);
    }
    let pem = gobase64::decode(data.as_bytes()).map_err(|err| format!("invalid CA bundle data: {err}"))?;
    let bundle =
        CaBundle::from_pem(&pem).map_err(|_| "invalid CA bundle data: no certificates found".to_owned())?;
    Ok(Roots::Bundle(bundle))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> ConciergeParams {
        ConciergeParams {
            endpoint: "https://concierge.example.com".into(),
            authenticator_type: "WebHook".into(),
            authenticator_name: "a".into(),
            api_group_suffix: "pinniped.dev".into(),
            ..ConciergeParams::default()
        }
    }

    #[test]
    fn parameters_are_checked_in_order() {
        assert!(Concierge::new(&params()).is_ok());
        type Change = fn(&mut ConciergeParams);
        let cases: [(Change, &str); 11] = [
            (|p| *p = ConciergeParams::default(), "endpoint must not be empty"),
            (|p| p.endpoint = "http://x".into(), "invalid endpoint scheme \"http\" (must be \"https\")"),
            (|p| p.endpoint = "x/y".into(), "invalid endpoint scheme \"\" (must be \"https\")"),
            (|p| p.endpoint = ":x".into(), "invalid endpoint URL: parse \":x\": missing protocol scheme"),
            (
                |p| p.endpoint = "https://x\n".into(),
                "invalid endpoint URL: parse \"https://x\\n\": net/url: invalid control character in URL",
            ),
            (
                |p| p.ca_bundle_data = "a".into(),
                "invalid CA bundle data: illegal base64 data at input byte 0",
            ),
            (|p| p.ca_bundle_data = "aGVsbG8=".into(), "invalid CA bundle data: no certificates found"),
            (|p| p.authenticator_name.clear(), "authenticator name must not be empty"),
            (
                |p| p.authenticator_type = "x".into(),
                "invalid authenticator type: \"x\", supported values are \"webhook\" and \"jwt\"",
            ),
            (|p| p.api_group_suffix = "nodot".into(), "invalid API group suffix: must contain '.'"),
            (
                |p| {
                    p.endpoint = "http://x".into();
                    p.authenticator_name.clear();
                },
                "invalid endpoint scheme \"http\" (must be \"https\")",
            ),
        ];
        for (change, error) in cases {
            let mut params = params();
            change(&mut params);
            assert_eq!(Concierge::new(&params).unwrap_err(), error);
        }
    }
}
