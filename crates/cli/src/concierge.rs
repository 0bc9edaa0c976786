//! The client of the Concierge: one anonymous request that exchanges a token for a cluster
//! credential.

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use serde_json::json;
use url::Url;
use zeroize::Zeroizing;

use pinniped_concierge_api::login::{
    CredentialType, TokenCredentialRequest, TokenCredentialRequestSpec, TokenCredentialRequestStatus,
    TypedLocalObjectReference,
};
use pinniped_concierge_api::names::GROUP_AUTHENTICATION;
use pinniped_go_compat::base64::{self as gobase64, CorruptInput};
use pinniped_go_compat::{json as gojson, json::quote};
use pinniped_http_client::https::SendError;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_kube_types::client_auth::ExecCredentialStatus;
use pinniped_kube_types::suffix::{GroupSuffix, SuffixError};
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{Profile, Roots, TlsError};

use crate::admin::{Subject, generic_response};
use crate::https;
use crate::login::{HeaderError, Login, impersonation_headers};
use crate::printer::Printer;

/// The message of a Concierge that returns no reason.
const AUTHENTICATION_FAILED: &str = "authentication failed";
/// The permissions of a user's service account take a moment to become effective everywhere.
const RETRY: &str = "if your token is good, retry in a few seconds: the cluster may still be setting up your service \
                     account";

/// The Concierge and its authenticator, as given by flags.
#[derive(Clone, Debug)]
pub struct ConciergeParams {
    /// The URL of the server; the API path is appended.
    pub endpoint: String,
    /// PEM in base64; empty for the system roots.
    pub ca_bundle_data: String,
    /// `webhook` or `jwt`.
    pub authenticator_type: String,
    /// The name of the authenticator.
    pub authenticator_name: String,
    /// The suffix of the API groups.
    pub api_group_suffix: String,
    /// The requested kind of credential.
    pub credential_type: CredentialType,
}

/// A Concierge with valid parameters.
#[derive(Clone, Debug)]
pub struct Concierge {
    endpoint: Url,
    roots: Roots,
    authenticator: TypedLocalObjectReference,
    suffix: GroupSuffix,
    credential_type: CredentialType,
}

/// The parameters of a Concierge are invalid.
#[derive(Debug, thiserror::Error)]
pub enum ParamsError {
    /// The endpoint is empty.
    #[error("endpoint must not be empty")]
    NoEndpoint,
    /// The endpoint is not a URL, for Go's reason.
    #[error("invalid endpoint URL: parse {}: {problem}", quote(.endpoint))]
    EndpointSyntax {
        /// The endpoint.
        endpoint: String,
        /// The problem.
        problem: &'static str,
    },
    /// The endpoint is not a URL.
    #[error("invalid endpoint URL: parse {}", quote(.endpoint))]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// The error of the parser.
        #[source]
        source: url::ParseError,
    },
    /// The endpoint is not https.
    #[error("invalid endpoint scheme {} (must be \"https\")", quote(.0))]
    EndpointScheme(String),
    /// The CA bundle is not base64.
    #[error("invalid CA bundle data")]
    CaBundle(#[from] CorruptInput),
    /// The CA bundle has no certificate.
    #[error("invalid CA bundle data: no certificates found")]
    NoCertificates,
    /// The name of the authenticator is empty.
    #[error("authenticator name must not be empty")]
    NoAuthenticator,
    /// The type of the authenticator is unknown.
    #[error(
        "invalid authenticator type: {}, supported values are \"webhook\" and \"jwt\"",
        quote(.0)
    )]
    AuthenticatorType(String),
    /// The API group suffix is invalid.
    #[error("invalid API group suffix")]
    Suffix(#[from] SuffixError),
}

/// The Concierge returned no credential.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The roots cannot be used.
    #[error("could not login")]
    Tls(#[from] TlsError),
    /// There is no response.
    #[error("could not login")]
    Send(#[from] SendError),
    /// The response is an error, with the text of client-go.
    #[error("could not login: {0}")]
    Response(String),
    /// The response is not a `TokenCredentialRequest`.
    #[error("could not login: could not read the response of the Concierge")]
    Decode(#[source] serde_json::Error),
    /// There is no response within the time limit.
    #[error("could not login: context deadline exceeded")]
    Timeout,
    /// The Concierge refused the token, with its message.
    #[error("login failed: {0}")]
    Refused(String),
    /// The Concierge refused the token, and a service account of the user may be too new.
    #[error("login failed: {0}; {RETRY}")]
    RefusedForNow(String),
    /// The Concierge refused the token without a message.
    #[error("login failed: unknown cause")]
    RefusedSilently,
    /// A token without the user to impersonate.
    #[error(
        "login failed: the Concierge returned a service account token, but not the user to impersonate \
         with it"
    )]
    NoUser,
    /// A user to impersonate without a token.
    #[error("login failed: the Concierge returned user {} to impersonate, but no token", quote(.0))]
    NoToken(String),
    /// The user to impersonate does not fit into headers.
    #[error("login failed")]
    Headers(#[from] HeaderError),
}

impl Concierge {
    /// Validates the parameters.
    ///
    /// # Errors
    ///
    /// Returns the first error, in a fixed order of the parameters.
    pub fn new(params: &ConciergeParams) -> Result<Self, ParamsError> {
        let endpoint = parse_endpoint(&params.endpoint)?;
        let roots = parse_roots(&params.ca_bundle_data)?;
        if params.authenticator_name.is_empty() {
            return Err(ParamsError::NoAuthenticator);
        }
        let kind = match params.authenticator_type.to_lowercase().as_str() {
            "webhook" => "WebhookAuthenticator",
            "jwt" => "JWTAuthenticator",
            _ => return Err(ParamsError::AuthenticatorType(params.authenticator_type.clone())),
        };
        let suffix = GroupSuffix::parse(&params.api_group_suffix)?;
        let authenticator = TypedLocalObjectReference {
            api_group: Some(suffix.replace(GROUP_AUTHENTICATION)),
            kind: kind.to_owned(),
            name: params.authenticator_name.clone(),
        };
        Ok(Self { endpoint, roots, authenticator, suffix, credential_type: params.credential_type.clone() })
    }

    /// Sends the token and returns the credential. The request contains neither a client
    /// certificate nor an `Authorization` header.
    ///
    /// # Errors
    ///
    /// Returns `login failed: <message>` if the token was refused, and `could not login: …` for all
    /// other errors.
    pub async fn exchange(
        &self,
        token: &str,
        dialer: TcpDialer,
        printer: Printer,
    ) -> Result<Login, ExchangeError> {
        let client = https::client(dialer, Profile::Secure, self.roots.clone())?;
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
                accept_credential_types: match self.credential_type {
                    // An empty list means this type for upstream's servers, too.
                    CredentialType::ClientCertificate => Vec::new(),
                    ref other => vec![other.clone()],
                },
            },
        );
        let mut body = Zeroizing::new(gojson::to_string(&request).into_bytes());
        body.push(b'\n');
        let json = HeaderValue::from_static("application/json");
        let headers = [(header::CONTENT_TYPE, json.clone()), (header::ACCEPT, json)];
        let response = client.send(&Method::POST, &url, &headers, Bytes::from_owner(body)).await?;

        if let Some(id) = response.headers.get("audit-id").and_then(|id| id.to_str().ok()) {
            printer.info(
                "Received auditID for failed request",
                &[
                    ("path", json!(url.path())),
                    ("statusCode", json!(response.status.as_u16())),
                    ("auditID", json!(id)),
                ],
            );
        }
        if !response.status.is_success() {
            let resource = format!(
                "{}.{}",
                TokenCredentialRequest::PLURAL,
                self.suffix.replace(TokenCredentialRequest::GROUP)
            );
            let subject = Subject { verb: "create", resource: &resource, name: "", path: &path };
            let text = failure_text(response.status.as_u16(), &response.body, subject);
            return Err(ExchangeError::Response(text));
        }
        let response: TokenCredentialRequest =
            serde_json::from_slice(&response.body).map_err(ExchangeError::Decode)?;
        read_response(response.status, &self.credential_type)
    }
}

/// Converts the response. A certificate is accepted for any requested type, because upstream's
/// servers return nothing else. A token is only accepted together with the user to impersonate.
fn read_response(
    status: TokenCredentialRequestStatus,
    requested: &CredentialType,
) -> Result<Login, ExchangeError> {
    let TokenCredentialRequestStatus { credential, message, impersonate } = status;
    let wants_token = *requested == CredentialType::ServiceAccountToken;
    let Some(credential) = credential else {
        return Err(match message {
            Some(message) if wants_token && message == AUTHENTICATION_FAILED => {
                ExchangeError::RefusedForNow(message)
            }
            Some(message) => ExchangeError::Refused(message),
            None => ExchangeError::RefusedSilently,
        });
    };
    let login = Login {
        credential: ExecCredentialStatus {
            expiration_timestamp: credential.expiration_timestamp,
            token: credential.token,
            client_certificate_data: credential.client_certificate_data,
            client_key_data: credential.client_key_data,
            ..ExecCredentialStatus::default()
        },
        impersonate,
    };
    let no_user = login.impersonate.as_ref().is_none_or(|user| user.username.is_empty());
    if !login.credential.token.is_empty() && no_user && (wants_token || login.impersonate.is_some()) {
        return Err(ExchangeError::NoUser);
    }
    if let (true, Some(user)) = (login.credential.token.is_empty(), &login.impersonate) {
        return Err(ExchangeError::NoToken(user.username.clone()));
    }
    if let Some(user) = &login.impersonate {
        impersonation_headers(user)?;
    }
    Ok(login)
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
        _ => generic_response(code, String::from_utf8_lossy(body).trim(), subject),
    }
}

fn parse_endpoint(text: &str) -> Result<Url, ParamsError> {
    if text.is_empty() {
        return Err(ParamsError::NoEndpoint);
    }
    let invalid = |problem| ParamsError::EndpointSyntax { endpoint: text.to_owned(), problem };
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
        return Err(ParamsError::EndpointScheme(scheme));
    }
    Url::parse(text).map_err(|source| ParamsError::Endpoint { endpoint: text.to_owned(), source })
}

fn parse_roots(data: &str) -> Result<Roots, ParamsError> {
    if data.is_empty() {
        return Ok(Roots::System);
    }
    let pem = gobase64::decode(data.as_bytes())?;
    let bundle = CaBundle::from_pem(&pem).map_err(|_| ParamsError::NoCertificates)?;
    Ok(Roots::Bundle(bundle))
}

#[cfg(test)]
mod tests {
    use pinniped_error::chain;

    use super::*;

    fn params() -> ConciergeParams {
        ConciergeParams {
            endpoint: "https://concierge.example.com".into(),
            authenticator_type: "WebHook".into(),
            authenticator_name: "a".into(),
            api_group_suffix: "pinniped.dev".into(),
            ca_bundle_data: String::new(),
            credential_type: CredentialType::ClientCertificate,
        }
    }

    #[test]
    fn parameters_are_validated_in_order() {
        assert!(Concierge::new(&params()).is_ok());
        type Change = fn(&mut ConciergeParams);
        let cases: [(Change, &str); 11] = [
            (
                |p| {
                    p.endpoint.clear();
                    p.authenticator_name.clear();
                    p.api_group_suffix.clear();
                },
                "endpoint must not be empty",
            ),
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
            assert_eq!(chain(&Concierge::new(&params).unwrap_err()).to_string(), error);
        }
    }
}
