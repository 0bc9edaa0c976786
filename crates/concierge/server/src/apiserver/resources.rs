//! The operations `create` and `list` of the two resources.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::Body as HttpBody;
use jiff::Timestamp;
use pinniped_concierge_api::identity::{UserInfo, WhoAmIRequest, WhoAmIRequestList};
use pinniped_concierge_api::login::{TokenCredentialRequest, TokenCredentialRequestList};
use pinniped_concierge_api::names::VERSION;
use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_http_server::{Body, BoxError};
use pinniped_kube_request::identity::User;
use pinniped_kube_request::request_info::{first_query_value, query_pairs};
use pinniped_kube_types::status::{Status, StatusCause};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_secret::text::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::bodies::Bodies;
use super::catalog::Kind;
use super::decode::{self, Decoded, FieldValidation};
use super::encode::{Output, Shape};
use super::exchange::Exchange;

/// The time limit of a create request, in addition to the one that the client requests. API servers
/// have the same limit.
const CREATE_TIMEOUT: Duration = Duration::from_secs(34);

/// Maximum number of characters of all warnings of a response, and the length to which each is
/// shortened beyond that (k8s.io/apiserver's `filters/warning.go`).
const WARNINGS_LIMIT: usize = 4096;
const WARNING_LIMIT: usize = 256;

/// Maximum length of a field manager's name.
const FIELD_MANAGER_LIMIT: usize = 128;

const WARNING: HeaderName = HeaderName::from_static("warning");

/// An authorized request for a collection.
pub(super) struct Call<'a> {
    pub(super) kind: Kind,
    pub(super) headers: &'a HeaderMap,
    pub(super) query: Option<&'a str>,
    pub(super) user: &'a User,
    /// The client to which the permit of a login is charged.
    pub(super) client: ClientKey<'a>,
    pub(super) audit_id: &'a str,
    pub(super) now: Timestamp,
    pub(super) bodies: &'a Bodies,
}

impl Call<'_> {
    /// Handles the request, or returns its error.
    pub(super) async fn respond<B>(
        &self,
        method: &Method,
        body: B,
        exchange: &Exchange,
    ) -> Result<Response<Body>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let suffix = &exchange.suffix;
        match *method {
            Method::GET => self.list(suffix),
            Method::POST => {
                let created = async {
                    match self.kind {
                        Kind::TokenCredentialRequest => self.log_in(body, exchange).await,
                        Kind::WhoAmIRequest => self.who_am_i(body, suffix).await,
                    }
                };
                let created = tokio::time::timeout(CREATE_TIMEOUT, created).await;
                created.unwrap_or_else(|_elapsed| Err(Box::new(Status::create_timeout())))
            }
            _ => Err(Box::new(Status::method_not_allowed())),
        }
    }

    fn list(&self, suffix: &GroupSuffix) -> Result<Response<Body>, Box<Status>> {
        let query = self.query.unwrap_or_default();
        let watch = first_query_value(query, "watch");
        if watch.is_some_and(|watch| !matches!(watch.to_ascii_lowercase().as_str(), "false" | "0")) {
            let group = self.kind.group(suffix);
            return Err(Box::new(Status::method_not_supported(&group, self.kind.plural(), "watch")));
        }
        let output = self.output(Shape::List)?;
        Ok(match self.kind {
            Kind::TokenCredentialRequest => {
                output.write(StatusCode::OK, &TokenCredentialRequestList::empty(suffix), Shape::List)
            }
            Kind::WhoAmIRequest => {
                output.write(StatusCode::OK, &WhoAmIRequestList::empty(suffix), Shape::List)
            }
        })
    }

    async fn log_in<B>(&self, body: B, exchange: &Exchange) -> Result<Response<Body>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let created: Created<TokenCredentialRequest> = self.read(body, &exchange.suffix).await?;
        let request = created.decoded.object;
        let name = request.metadata.name.as_deref().unwrap_or_default();
        if request.spec.token.as_ref().is_none_or(SecretString::is_empty) {
            let cause = StatusCause::required("spec.token.value", "token must be supplied");
            return Err(Box::new(self.invalid(name, cause)));
        }
        self.refuse_dry_run(name, created.dry_run)?;
        let status = exchange.run(&request.spec, &self.client, self.audit_id, self.now).await?;
        let response = TokenCredentialRequest::response(&exchange.suffix, status);
        Ok(finish(&created.output, &response, &created.decoded.warnings))
    }

    async fn who_am_i<B>(&self, body: B, suffix: &GroupSuffix) -> Result<Response<Body>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let created: Created<WhoAmIRequest> = self.read(body, suffix).await?;
        let name = created.decoded.object.metadata.name.as_deref().unwrap_or_default();
        self.refuse_dry_run(name, created.dry_run)?;
        let user = UserInfo {
            username: self.user.name.clone(),
            uid: self.user.uid.clone(),
            groups: self.user.groups.clone(),
            extra: self.user.extra.clone(),
        };
        let response = WhoAmIRequest::response(suffix, user);
        Ok(finish(&created.output, &response, &created.decoded.warnings))
    }

    /// Performs all steps before the object is used, in the order of k8s.io/apiserver's create
    /// handler.
    async fn read<B, T>(&self, body: B, suffix: &GroupSuffix) -> Result<Created<T>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
        T: DeserializeOwned,
    {
        let output = self.output(Shape::Object)?;
        let form = decode::body_form(self.headers)?;
        let body = self.bodies.read(body).await?;
        let options = Options::parse(self.query.unwrap_or_default())?;
        let decoded = decode::decode(self.kind, suffix, form, &body.bytes, options.validation)?;
        Ok(Created { output, decoded, dry_run: options.dry_run })
    }

    fn output(&self, shape: Shape) -> Result<Output, Box<Status>> {
        let list = if shape == Shape::List { "List" } else { "" };
        let go_type = format!("{VERSION}.{}{list}", self.kind.as_str());
        Output::negotiate(self.headers, self.query, shape, &go_type)
    }

    fn refuse_dry_run(&self, name: &str, dry_run: bool) -> Result<(), Box<Status>> {
        if !dry_run {
            return Ok(());
        }
        Err(Box::new(self.invalid(name, StatusCause::not_supported("dryRun", "[\"All\"]", &[]))))
    }

    /// Returns a validation error. As in upstream, its kind is empty.
    fn invalid(&self, name: &str, cause: StatusCause) -> Status {
        Status::invalid(self.kind.plain_group(), "", name, vec![cause])
    }
}

/// A create request that was parsed and validated syntactically.
struct Created<T> {
    output: Output,
    decoded: Decoded<T>,
    dry_run: bool,
}

/// The options of a create request.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    dry_run: bool,
    validation: FieldValidation,
}

impl Options {
    fn parse(query: &str) -> Result<Self, Box<Status>> {
        let mut options = Self { dry_run: false, validation: FieldValidation::Warn };
        let mut dry_runs = Vec::new();
        let mut causes = Vec::new();
        for (key, value) in query_pairs(query) {
            match (key.as_str(), value.as_str()) {
                ("dryRun", _) => dry_runs.push(value),
                ("fieldValidation", "" | "Warn") => options.validation = FieldValidation::Warn,
                ("fieldValidation", "Ignore") => options.validation = FieldValidation::Ignore,
                ("fieldValidation", "Strict") => options.validation = FieldValidation::Strict,
                ("fieldValidation", other) => causes.push(StatusCause::not_supported(
                    "fieldValidation",
                    &pinniped_go_compat::json::quote(other),
                    &["Ignore", "Strict", "Warn"],
                )),
                ("fieldManager", name) if name.len() > FIELD_MANAGER_LIMIT => {
                    let message = format!("Too long: may not be more than {FIELD_MANAGER_LIMIT} bytes");
                    let reason = "FieldValueTooLong".to_owned();
                    causes.push(StatusCause { reason, message, field: "fieldManager".to_owned() });
                }
                _ => {}
            }
        }
        if dry_runs.iter().any(|value| value != "All") {
            let quoted: Vec<String> =
                dry_runs.iter().map(|value| pinniped_go_compat::json::quote(value)).collect();
            let given = format!("[{}]", quoted.join(","));
            causes.insert(0, StatusCause::not_supported("dryRun", &given, &["All"]));
        }
        if !causes.is_empty() {
            return Err(Box::new(Status::invalid("meta.k8s.io", "CreateOptions", "", causes)));
        }
        options.dry_run = !dry_runs.is_empty();
        Ok(options)
    }
}

fn finish<T: Serialize>(output: &Output, object: &T, warnings: &[String]) -> Response<Body> {
    let mut response = output.write(StatusCode::CREATED, object, Shape::Object);
    for warning in warnings_that_fit(warnings) {
        let text = format!("299 - {}", pinniped_go_compat::json::quote(&warning));
        // A field name may contain characters that a header cannot contain; then only this warning
        // is omitted.
        if let Ok(value) = HeaderValue::try_from(text) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// Returns all warnings if they fit into the limit, or else shortened ones up to the limit.
fn warnings_that_fit(warnings: &[String]) -> Vec<Cow<'_, str>> {
    let characters = |text: &str| text.chars().count();
    if warnings.iter().map(|warning| characters(warning)).sum::<usize>() <= WARNINGS_LIMIT {
        return warnings.iter().map(|warning| Cow::Borrowed(warning.as_str())).collect();
    }
    let mut written = 0;
    let mut fitting = Vec::new();
    for warning in warnings {
        if written >= WARNINGS_LIMIT {
            break;
        }
        let short: String = warning.chars().take(WARNING_LIMIT).collect();
        written += characters(&short);
        fitting.push(Cow::Owned(short));
    }
    fitting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_shortened_to_the_limit_of_clients() {
        let few = vec!["a".repeat(1000), "b".repeat(1000)];
        assert_eq!(warnings_that_fit(&few), few);
        let many: Vec<String> = (0..100).map(|_| "\u{e4}".repeat(300)).collect();
        let fitting = warnings_that_fit(&many);
        assert_eq!(fitting.len(), 16);
        assert!(fitting.iter().all(|text| text.chars().count() == 256));
    }
}
