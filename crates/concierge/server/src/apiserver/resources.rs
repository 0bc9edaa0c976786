//! The operations `create` and `list` of the two resources.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::Body as HttpBody;
use jiff::Timestamp;
use pinniped_concierge_api::identity::{UserInfo, WhoAmIRequest, WhoAmIRequestList};
use pinniped_concierge_api::login::{
    TokenCredentialRequest, TokenCredentialRequestList, TokenCredentialRequestSpec,
};
use pinniped_concierge_controllers::admission_report::AdmissionGate;
use pinniped_concierge_domain::admission_report::{ADMISSION_APPLIED, CreateRefusal};
use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_go_compat::json::quote;
use pinniped_http_server::{Body, BoxError};
use pinniped_kube_request::identity::User;
use pinniped_kube_request::request_info::{first_query_value, query_pairs};
use pinniped_kube_types::status::{Status, StatusCause, StatusDetails};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_secret::text::SecretString;
use serde::Serialize;

use super::bodies::Bodies;
use super::catalog::Kind;
use super::decode::{self, Decoded, FieldValidation};
use super::encode::{Output, Shape};
use super::exchange::Exchange;

/// The time limit of a create request, in addition to the one that the client requests. API servers
/// have the same limit.
const CREATE_TIMEOUT: Duration = Duration::from_secs(34);

/// The seconds after which a client should try again while it is not known which objects match, as
/// in the refusals of the handler chain.
const RETRY_AFTER_SECONDS: i32 = 1;

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
    pub(super) admission: &'a AdmissionGate,
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
        let output = Output::negotiate(self.headers, self.query)?;
        match self.kind {
            Kind::TokenCredentialRequest => {
                let list = TokenCredentialRequestList::empty(suffix);
                output.write(StatusCode::OK, &list, self.kind, Shape::List)
            }
            Kind::WhoAmIRequest => {
                output.write(StatusCode::OK, &WhoAmIRequestList::empty(suffix), self.kind, Shape::List)
            }
        }
    }

    async fn log_in<B>(&self, body: B, exchange: &Exchange) -> Result<Response<Body>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let Created { output, name, spec, warnings, dry_run } = self.read(body, &exchange.suffix).await?;
        if spec.token.as_ref().is_none_or(SecretString::is_empty) {
            let cause = StatusCause::required("spec.token.value", "token must be supplied");
            return Err(Box::new(self.invalid(&name, cause)));
        }
        self.refuse_dry_run(&name, dry_run)?;
        let status = exchange.run(spec, &self.client, self.audit_id, self.now).await?;
        let response = TokenCredentialRequest::response(&exchange.suffix, status);
        self.finish(&output, &response, warnings)
    }

    async fn who_am_i<B>(&self, body: B, suffix: &GroupSuffix) -> Result<Response<Body>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let Created { output, name, warnings, dry_run, .. } = self.read(body, suffix).await?;
        self.refuse_dry_run(&name, dry_run)?;
        let user = UserInfo {
            username: self.user.name.clone(),
            uid: self.user.uid.clone(),
            groups: self.user.groups.clone(),
            extra: self.user.extra.clone(),
        };
        let response = WhoAmIRequest::response(suffix, user);
        self.finish(&output, &response, warnings)
    }

    /// Performs all steps before the object is used, in the order of k8s.io/apiserver's create
    /// handler. The body is dropped at the end: a login may take half a minute.
    async fn read<B>(&self, body: B, suffix: &GroupSuffix) -> Result<Created, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let output = Output::negotiate(self.headers, self.query)?;
        let form = decode::body_form(self.headers)?;
        let body = self.bodies.read(body).await?;
        let options = Options::parse(self.query.unwrap_or_default())?;
        let Decoded { name, spec, warnings } =
            decode::decode(self.kind, suffix, form, body.bytes(), options.validation)?;
        self.refuse_without_admission(&name, suffix)?;
        Ok(Created { output, name, spec, warnings: warning_values(&warnings), dry_run: options.dry_run })
    }

    /// Refuses the object if the configuration demands it, because an admission object that is not
    /// applied may match. API servers run admission at this step, before the validation.
    fn refuse_without_admission(&self, name: &str, suffix: &GroupSuffix) -> Result<(), Box<Status>> {
        let refusals = self.admission.refusals();
        let plural = self.kind.plural();
        match refusals.of(plural) {
            None => Ok(()),
            Some(CreateRefusal::Unapplied(kinds)) => {
                let why = format!(
                    "this API does not apply admission, and objects of these kinds may match: {kinds}. The \
                     condition {ADMISSION_APPLIED} of the CredentialIssuer names them"
                );
                Err(Box::new(Status::object_forbidden(&self.kind.group(suffix), plural, name, &why)))
            }
            Some(CreateRefusal::Unread(kinds)) => {
                let kinds = if kinds.is_empty() { String::new() } else { format!(": {kinds}") };
                let status = Status::service_unavailable(format!(
                    "this API does not apply admission, and cannot read yet which policies and webhooks may \
                     match{kinds}"
                ));
                let details =
                    StatusDetails { retry_after_seconds: RETRY_AFTER_SECONDS, ..Default::default() };
                Err(Box::new(Status { details: Some(details), ..status }))
            }
        }
    }

    fn refuse_dry_run(&self, name: &str, dry_run: bool) -> Result<(), Box<Status>> {
        if !dry_run {
            return Ok(());
        }
        Err(Box::new(self.invalid(name, StatusCause::not_supported("dryRun", "[\"All\"]", &[]))))
    }

    /// Responds with a new object.
    fn finish<T: Serialize>(
        &self,
        output: &Output,
        object: &T,
        warnings: Vec<HeaderValue>,
    ) -> Result<Response<Body>, Box<Status>> {
        let mut response = output.write(StatusCode::CREATED, object, self.kind, Shape::Object)?;
        for warning in warnings {
            response.headers_mut().append(WARNING, warning);
        }
        Ok(response)
    }

    /// Returns a validation error. As in upstream, its kind is empty.
    fn invalid(&self, name: &str, cause: StatusCause) -> Status {
        Status::invalid(self.kind.plain_group(), "", name, vec![cause])
    }
}

/// A create request that was parsed and validated syntactically: the parts that are needed until
/// the response is written.
struct Created {
    output: Output,
    /// The object's name, for error messages.
    name: String,
    spec: TokenCredentialRequestSpec,
    /// The values of the `Warning` headers.
    warnings: Vec<HeaderValue>,
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
        // Of the options with one value, the first one counts.
        let (mut dry_runs, mut validation, mut manager) = (Vec::new(), None, None);
        for (key, value) in query_pairs(query) {
            match key.as_str() {
                "dryRun" => dry_runs.push(value),
                "fieldValidation" => _ = validation.get_or_insert(value),
                "fieldManager" => _ = manager.get_or_insert(value),
                _ => {}
            }
        }
        let mut causes = Vec::new();
        if manager.is_some_and(|name| name.len() > FIELD_MANAGER_LIMIT) {
            let message = format!("Too long: may not be more than {FIELD_MANAGER_LIMIT} bytes");
            let reason = "FieldValueTooLong".to_owned();
            causes.push(StatusCause { reason, message, field: "fieldManager".to_owned() });
        }
        if dry_runs.iter().any(|value| value != "All") {
            let quoted: Vec<String> = dry_runs.iter().map(|value| quote(value)).collect();
            let given = format!("[{}]", quoted.join(","));
            causes.push(StatusCause::not_supported("dryRun", &given, &["All"]));
        }
        let validation = match validation.as_deref().unwrap_or_default() {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let supported = ["Ignore", "Strict", "Warn"];
                causes.push(StatusCause::not_supported("fieldValidation", &quote(other), &supported));
                FieldValidation::Warn
            }
        };
        if !causes.is_empty() {
            return Err(Box::new(Status::invalid("meta.k8s.io", "CreateOptions", "", causes)));
        }
        Ok(Self { dry_run: !dry_runs.is_empty(), validation })
    }
}

/// Returns the values of the `Warning` headers.
fn warning_values(warnings: &[String]) -> Vec<HeaderValue> {
    let value = |text: Cow<'_, str>| HeaderValue::try_from(format!("299 - {}", quote(&text)));
    // A field name may contain characters that a header cannot contain; then only this warning is
    // omitted.
    warnings_that_fit(warnings).into_iter().filter_map(|text| value(text).ok()).collect()
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
