//! Constructors of [`Status`] for each failure, in the wording of `k8s.io/apimachinery`'s
//! `api/errors` and of the handlers of `k8s.io/apiserver`.

use std::fmt;

use pinniped_go_compat::json::quote;

use super::{Status, StatusCause, StatusDetails, cause};

impl Status {
    fn failure(code: i32, reason: &str, message: impl Into<String>, details: Option<StatusDetails>) -> Self {
        Self {
            kind: "Status".to_owned(),
            api_version: "v1".to_owned(),
            status: "Failure".to_owned(),
            message: message.into(),
            reason: reason.to_owned(),
            details,
            code,
            ..Self::default()
        }
    }

    /// 401: the client is not authenticated. The response deliberately contains no details.
    pub fn unauthorized() -> Self {
        Self::failure(401, "Unauthorized", "Unauthorized", None)
    }

    /// 403 with a complete message that names user, verb and object.
    pub fn forbidden(message: impl Into<String>, details: StatusDetails) -> Self {
        Self::failure(403, "Forbidden", message, Some(details))
    }

    /// 403 for an object that admission refuses; `resource` is the plural, and `name` may be empty.
    pub fn object_forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let details = StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..StatusDetails::default()
        };
        let object = qualified(group, resource);
        let object = if name.is_empty() { object } else { format!("{object} {}", quote(name)) };
        Self::forbidden(format!("{object} is forbidden: {why}"), details)
    }

    /// 400 Bad Request.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, "BadRequest", message, None)
    }

    /// 500. The client receives `message`, so it must not contain confidential details.
    pub fn internal_error(message: impl Into<String>) -> Self {
        let message = message.into();
        let whole = format!("Internal error occurred: {message}");
        let causes = vec![StatusCause { message, ..StatusCause::default() }];
        Self::failure(500, "InternalError", whole, Some(StatusDetails { causes, ..StatusDetails::default() }))
    }

    /// 404 for an unknown path, or for a method that the path does not support.
    pub fn not_found() -> Self {
        Self::failure(
            404,
            "NotFound",
            "the server could not find the requested resource",
            Some(StatusDetails::default()),
        )
    }

    /// 404 for an object that does not exist; `resource` is the plural.
    pub fn object_not_found(group: &str, resource: &str, name: &str) -> Self {
        let details = StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..StatusDetails::default()
        };
        Self::failure(
            404,
            "NotFound",
            format!("{} {} not found", qualified(group, resource), quote(name)),
            Some(details),
        )
    }

    /// 405 for an action that a resource does not support, such as `watch`; `resource` is the
    /// plural.
    pub fn method_not_supported(group: &str, resource: &str, action: &str) -> Self {
        let details =
            StatusDetails { group: group.to_owned(), kind: resource.to_owned(), ..StatusDetails::default() };
        let message =
            format!("{action} is not supported on resources of kind \"{}\"", qualified(group, resource));
        Self::failure(405, "MethodNotAllowed", message, Some(details))
    }

    /// 405 for a method that a path does not support.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::failure(405, "MethodNotAllowed", message, Some(StatusDetails::default()))
    }

    /// 406 of a handler that lists the media types that it supports.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::failure(406, "NotAcceptable", message, None)
    }

    /// 406 with the wording of a Go server for creating or listing objects.
    pub fn no_acceptable_representation(available: &[&str]) -> Self {
        let message = format!("406: Not Acceptable\n\nAvailable representations: {}", available.join(", "));
        Self::failure(406, "NotAcceptable", message, Some(StatusDetails::default()))
    }

    /// 409 with a complete message.
    pub fn conflict(group: &str, resource: &str, name: &str, message: &str) -> Self {
        let details = StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..StatusDetails::default()
        };
        let object = format!("{} {}", qualified(group, resource), quote(name));
        let message = format!("Operation cannot be fulfilled on {object}: {message}");
        Self::failure(409, "Conflict", message, Some(details))
    }

    /// 413 for a body that exceeds a limit: a number of bytes, or a text that names the limit.
    pub fn request_entity_too_large(limit: impl fmt::Display) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::failure(413, "RequestEntityTooLarge", message, None)
    }

    /// 415; each entry of `accepted` is a media type.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::failure(415, "UnsupportedMediaType", message, None)
    }

    /// 422 for an invalid object, with one cause for each violation. The message of a cause does
    /// not include its field.
    ///
    /// `kind` may be empty: upstream Pinniped's responses to its own request kinds then begin with
    /// a dot, and its tests expect it.
    pub fn invalid(group: &str, kind: &str, name: &str, causes: Vec<StatusCause>) -> Self {
        let texts: Vec<String> = causes.iter().map(StatusCause::text).collect();
        let all = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let details = StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            causes,
            ..StatusDetails::default()
        };
        Self::failure(
            422,
            "Invalid",
            format!("{} {} is invalid: {all}", qualified(group, kind), quote(name)),
            Some(details),
        )
    }

    /// 429. The caller also sends `retry_after_seconds` as the `Retry-After` header.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: i32) -> Self {
        let details = StatusDetails { retry_after_seconds, ..StatusDetails::default() };
        Self::failure(429, "TooManyRequests", message, Some(details))
    }

    /// 503 Service Unavailable.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::failure(503, "ServiceUnavailable", message, None)
    }

    /// 504 for a request that exceeded its deadline. Like the Go server, it omits kind and version.
    pub fn timeout() -> Self {
        let message = "Timeout: request did not complete within the allotted timeout";
        Self {
            kind: String::new(),
            api_version: String::new(),
            ..Self::failure(504, "Timeout", message, Some(StatusDetails::default()))
        }
    }

    /// 504 for an object that could not be created before the deadline.
    pub fn create_timeout() -> Self {
        let message =
            "Timeout: request did not complete within requested timeout - context deadline exceeded";
        Self::failure(504, "Timeout", message, Some(StatusDetails::default()))
    }
}

impl StatusCause {
    /// Returns the cause for a missing value.
    pub fn required(field: &str, detail: &str) -> Self {
        let message = match detail {
            "" => "Required value".to_owned(),
            detail => format!("Required value: {detail}"),
        };
        Self { reason: cause::REQUIRED.to_owned(), message, field: field.to_owned() }
    }

    /// Returns the cause for an unsupported value. `value` is Go's rendering of it, such as
    /// `["All"]`; `supported` may be empty.
    pub fn not_supported(field: &str, value: &str, supported: &[&str]) -> Self {
        let mut message = format!("Unsupported value: {value}");
        if !supported.is_empty() {
            let quoted: Vec<String> = supported.iter().map(|s| quote(s)).collect();
            message.push_str(": supported values: ");
            message.push_str(&quoted.join(", "));
        }
        Self { reason: cause::NOT_SUPPORTED.to_owned(), message, field: field.to_owned() }
    }

    /// Returns field and message on one line.
    fn text(&self) -> String {
        if self.field.is_empty() { self.message.clone() } else { format!("{}: {}", self.field, self.message) }
    }
}

/// Returns `resource.group`, or the resource alone for the core group.
fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}
