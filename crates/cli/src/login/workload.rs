//! The token of a workload, such as a CI job or a pod: a JWT that its platform has issued, and that
//! a JWTAuthenticator accepts. No user and no browser is involved.

use std::path::Path;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, HeaderName};
use http::{HeaderValue, Method};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use url::Url;
use zeroize::Zeroizing;

use pinniped_go_compat::io::GoIoError;
use pinniped_go_compat::json::quote;
use pinniped_http_client::https::{Redirects, SendError};
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_jose::Jws;
use pinniped_jose::json::parse_object;
use pinniped_pki::tls::{Profile, Roots, TlsError};
use pinniped_secret::SecretString;

use crate::bounded_file;
use crate::environment::Environment;
use crate::flags::{Parsed, Value, WorkloadTokenSource};
use crate::https;

/// The path of a pod's token; a projected token with an audience of its own has another path.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// The variable of a GitLab job, as the documentation suggests for `id_tokens`.
const GITLAB_VARIABLE: &str = "PINNIPED_ID_TOKEN";
/// The address of the token service of GitHub Actions, and the permission to use it.
const GITHUB_URL: &str = "ACTIONS_ID_TOKEN_REQUEST_URL";
const GITHUB_TOKEN: &str = "ACTIONS_ID_TOKEN_REQUEST_TOKEN";
/// The time limit of a request to the token service.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// There is no token.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The source is missing.
    #[error("--from must be set")]
    NoSource,
    /// A flag is missing.
    #[error("--from {from} needs --{flag}")]
    Flag {
        /// The source.
        from: &'static str,
        /// The flag.
        flag: &'static str,
    },
    /// The variable does not exist.
    #[error("variable {} is not set{}", quote(.name), .advice)]
    NotSet {
        /// The variable.
        name: String,
        /// The remedy; may be empty.
        advice: &'static str,
    },
    /// The file cannot be read.
    #[error("could not read the token: open {path}")]
    File {
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// The token is not a JWT. The text contains no part of it.
    #[error("{origin} does not contain a JWT")]
    NoJwt {
        /// The source of the token.
        origin: String,
    },
    /// The roots cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address of the token service is not a URL.
    #[error("variable {GITHUB_URL} is not an address")]
    ServiceUrl(#[from] url::ParseError),
    /// The permission does not fit into a header.
    #[error("variable {GITHUB_TOKEN} is not a token")]
    ServiceToken,
    /// There is no response.
    #[error("could not request a token from GitHub Actions")]
    Send(#[from] SendError),
    /// The response is an error.
    #[error("could not request a token from GitHub Actions: {0}")]
    Status(String),
    /// The response has no token.
    #[error("could not request a token from GitHub Actions: the response has no token")]
    Response,
}

/// The source of a workload's token.
#[derive(Clone, Debug)]
pub(super) enum WorkloadToken {
    /// A token that is known.
    Known { origin: String, token: SecretString },
    /// The token service of GitHub Actions.
    GithubActions { url: String, permission: SecretString, audience: String },
}

impl WorkloadToken {
    /// Reads the flags of `login token`, and the token, unless a service issues it.
    pub(super) fn from_flags(parsed: &Parsed, environment: &Environment) -> Result<Self, WorkloadError> {
        let file = || parsed.string("token-file");
        let variable = || parsed.string("token-env");
        let Some(Value::WorkloadTokenSource(source)) = parsed.value("from") else {
            return Err(WorkloadError::NoSource);
        };
        if let Some(flag) = source.required_flag()
            && parsed.string(flag).is_empty()
        {
            return Err(WorkloadError::Flag { from: source.as_str(), flag });
        }
        match source {
            WorkloadTokenSource::File => read_file(&file()),
            WorkloadTokenSource::Kubernetes if file().is_empty() => read_file(POD_TOKEN),
            WorkloadTokenSource::Kubernetes => read_file(&file()),
            WorkloadTokenSource::Env => read_variable(&variable(), environment, ""),
            WorkloadTokenSource::Gitlab if variable().is_empty() => read_variable(
                GITLAB_VARIABLE,
                environment,
                ": define it with `id_tokens` in the job, or name another one with --token-env",
            ),
            WorkloadTokenSource::Gitlab => {
                read_variable(&variable(), environment, ": define it with `id_tokens` in the job")
            }
            WorkloadTokenSource::GithubActions => {
                let read = |name: &str| {
                    let advice = ": the workflow needs `permissions: {id-token: write}`";
                    let missing = || WorkloadError::NotSet { name: name.to_owned(), advice };
                    environment.non_empty(name).map(str::to_owned).ok_or_else(missing)
                };
                Ok(Self::GithubActions {
                    url: read(GITHUB_URL)?,
                    permission: read(GITHUB_TOKEN)?.into(),
                    audience: parsed.string("audience"),
                })
            }
        }
    }

    /// Returns the secret that distinguishes this workload from others with the same arguments.
    pub(super) fn identity(&self) -> &SecretString {
        match self {
            Self::Known { token, .. } => token,
            Self::GithubActions { permission, .. } => permission,
        }
    }

    /// Returns the token and the end of its validity.
    pub(super) async fn token(
        &self,
        dialer: TcpDialer,
    ) -> Result<(SecretString, Option<Time>), WorkloadError> {
        let (origin, token) = match self {
            Self::Known { origin, token } => (origin.as_str(), token.clone()),
            Self::GithubActions { url, permission, audience } => {
                ("GitHub Actions", request(url, permission, audience, dialer).await?)
            }
        };
        let expiry = expiry(&token).ok_or_else(|| WorkloadError::NoJwt { origin: origin.to_owned() })?;
        Ok((token, expiry.map(Time)))
    }
}

fn read_file(path: &str) -> Result<WorkloadToken, WorkloadError> {
    let text = bounded_file::read_to_string(Path::new(path))
        .map_err(|error| WorkloadError::File { path: path.to_owned(), source: error.into() })?;
    let text = Zeroizing::new(text);
    Ok(WorkloadToken::Known { origin: format!("file {path}"), token: text.trim().into() })
}

fn read_variable(
    name: &str,
    environment: &Environment,
    advice: &'static str,
) -> Result<WorkloadToken, WorkloadError> {
    let missing = || WorkloadError::NotSet { name: name.to_owned(), advice };
    let token = environment.non_empty(name).ok_or_else(missing)?;
    Ok(WorkloadToken::Known { origin: format!("variable {name}"), token: token.trim().into() })
}

/// Returns the end of a JWT's validity, which nothing has verified; `None` if it is not a JWT.
fn expiry(token: &SecretString) -> Option<Option<Timestamp>> {
    let jws = Jws::parse(token.expose()).ok()?;
    let claims = parse_object(jws.unverified_payload()).ok()?;
    let seconds = match claims.get("exp") {
        None => return Some(None),
        Some(expiry) => expiry.as_f64()?,
    };
    #[expect(clippy::cast_possible_truncation, reason = "fractions and absurd values are of no interest")]
    Some(Timestamp::from_second(seconds as i64).ok())
}

async fn request(
    url: &str,
    permission: &SecretString,
    audience: &str,
    dialer: TcpDialer,
) -> Result<SecretString, WorkloadError> {
    #[derive(Deserialize)]
    struct Response {
        value: SecretString,
    }
    let mut url = Url::parse(url)?;
    if !audience.is_empty() {
        url.query_pairs_mut().append_pair("audience", audience);
    }
    let bearer = Zeroizing::new(format!("Bearer {}", permission.expose()));
    let mut bearer = HeaderValue::from_str(&bearer).map_err(|_| WorkloadError::ServiceToken)?;
    bearer.set_sensitive(true);
    let headers: [(HeaderName, HeaderValue); 2] =
        [(AUTHORIZATION, bearer), (ACCEPT, HeaderValue::from_static("application/json"))];
    let client =
        https::client_with(dialer, Profile::Default, Roots::System, Some(REQUEST_LIMIT), Redirects::Return)?;
    let response = client.send(&Method::GET, &url, &headers, bytes::Bytes::new()).await?;
    if !response.status.is_success() {
        return Err(WorkloadError::Status(response.status_line()));
    }
    let response: Response = serde_json::from_slice(&response.body).map_err(|_| WorkloadError::Response)?;
    Ok(response.value)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use data_encoding::BASE64URL_NOPAD;
    use pinniped_error::chain;

    use super::*;
    use crate::flags::parse::ParseResult;
    use crate::flags::{parse, tree::ROOT};

    fn jwt(claims: &str) -> String {
        let encode = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
        format!("{}.{}.{}", encode(r#"{"alg":"RS256"}"#), encode(claims), encode("signature"))
    }

    fn workload(flags: &[&str], variables: &[(&str, &str)]) -> Result<WorkloadToken, String> {
        let args: Vec<String> =
            ["login", "token"].iter().chain(flags).map(|word| (*word).to_owned()).collect();
        let ParseResult::Run(parsed) = parse(&ROOT, &args) else { panic!("{args:?}") };
        let variables: HashMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let environment = Environment::new(args, variables);
        WorkloadToken::from_flags(&parsed, &environment).map_err(|error| chain(&error).to_string())
    }

    #[tokio::test]
    async fn a_token_comes_from_a_file_or_a_variable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let token = jwt(r#"{"exp":1795257000,"sub":"s"}"#);
        std::fs::write(&path, format!("{token}\n")).unwrap();
        let path = format!("--token-file={}", path.display());
        for (flags, variables) in [
            (&["--from=file", path.as_str()][..], &[][..]),
            (&["--from=kubernetes", path.as_str()], &[]),
            (&["--from=env", "--token-env=T"], &[("T", token.as_str())]),
            (&["--from=gitlab"], &[("PINNIPED_ID_TOKEN", token.as_str())]),
            (&["--from=gitlab", "--token-env=T"], &[("T", token.as_str())]),
        ] {
            let workload = workload(flags, variables).unwrap();
            assert_eq!(workload.identity().expose(), token, "{flags:?}");
            let (found, expiry) = workload.token(TcpDialer::default()).await.unwrap();
            assert_eq!(found.expose(), token);
            assert_eq!(expiry.unwrap().0.as_second(), 1_795_257_000);
        }
    }

    #[tokio::test]
    async fn text_that_is_no_jwt_is_not_sent_and_not_printed() {
        for text in ["secret", "a.b", "a.b.c", &jwt("[]"), &jwt(r#"{"exp":"x"}"#)] {
            let workload = workload(&["--from=env", "--token-env=T"], &[("T", text)]).unwrap();
            let error = workload.token(TcpDialer::default()).await.unwrap_err().to_string();
            assert_eq!(error, "variable T does not contain a JWT");
        }
        let workload = workload(&["--from=env", "--token-env=T"], &[("T", &jwt("{}"))]).unwrap();
        assert!(workload.token(TcpDialer::default()).await.unwrap().1.is_none());
    }

    #[test]
    fn a_missing_source_is_reported_with_its_remedy() {
        for (flags, error) in [
            (&["--from=file"][..], "--from file needs --token-file"),
            (&["--from=env"], "--from env needs --token-env"),
            (&["--from=env", "--token-env=T"], "variable \"T\" is not set"),
            (
                &["--from=gitlab"],
                "variable \"PINNIPED_ID_TOKEN\" is not set: define it with `id_tokens` in the job, or name another one with --token-env",
            ),
            (
                &["--from=github-actions"],
                "variable \"ACTIONS_ID_TOKEN_REQUEST_URL\" is not set: the workflow needs `permissions: {id-token: write}`",
            ),
            (
                &["--from=file", "--token-file=/no/file"],
                "could not read the token: open /no/file: no such file or directory",
            ),
        ] {
            assert_eq!(workload(flags, &[]).unwrap_err(), error);
        }
    }
}
