//! Requests to the issuer. Failures leave a log line with the audit ID, by which an administrator
//! finds them in the audit log of a Supervisor.

use bytes::Bytes;
use http::Method;
use http::header::{self, HeaderName, HeaderValue};
use serde_json::json;
use url::Url;
use zeroize::Zeroizing;

use pinniped_go_compat::url::{encode_query, first_query_value};
use pinniped_http_client::https::{FullResponse, HttpsClient, Redirects, SendError};

use crate::printer::Printer;

/// Sends requests to the issuer.
#[derive(Clone, Debug)]
pub(super) struct IssuerClient {
    /// Follows redirects of GET requests.
    following: HttpsClient,
    /// Returns redirects.
    direct: HttpsClient,
    printer: Printer,
}

impl IssuerClient {
    /// Creates a client from one that follows redirects.
    pub(super) fn new(following: HttpsClient, printer: Printer) -> Self {
        Self { direct: following.with_redirects(Redirects::Return), following, printer }
    }

    /// Sends a GET request, and follows redirects.
    pub(super) async fn get(
        &self,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<FullResponse, SendError> {
        let response = self.following.send(&Method::GET, url, headers, Bytes::new()).await?;
        self.log_failure(url, &response);
        Ok(response)
    }

    /// Sends a GET request, and returns a redirect.
    pub(super) async fn get_redirect(
        &self,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<FullResponse, SendError> {
        let response = self.direct.send(&Method::GET, url, headers, Bytes::new()).await?;
        self.log_failure(url, &response);
        Ok(response)
    }

    /// Sends a form.
    pub(super) async fn post_form(
        &self,
        url: &Url,
        form: &[(&str, &str)],
        authorization: Option<HeaderValue>,
    ) -> Result<FullResponse, SendError> {
        let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        let mut headers = vec![
            (header::CONTENT_TYPE, form_type),
            (header::ACCEPT, HeaderValue::from_static("application/json")),
        ];
        headers.extend(authorization.map(|value| (header::AUTHORIZATION, value)));
        // A form contains codes and tokens.
        let body = Zeroizing::new(encode_query(form).into_bytes());
        let response = self.direct.send(&Method::POST, url, &headers, Bytes::from_owner(body)).await?;
        self.log_failure(url, &response);
        Ok(response)
    }

    fn log_failure(&self, url: &Url, response: &FullResponse) {
        let Some(id) = response.headers.get("audit-id").and_then(|id| id.to_str().ok()) else { return };
        let location = response.headers.get(header::LOCATION).and_then(|location| location.to_str().ok());
        if is_failure(response.status.as_u16(), location) {
            self.printer.info(
                "Received auditID for failed request",
                &[
                    ("path", json!(url.path())),
                    ("statusCode", json!(response.status.as_u16())),
                    ("auditID", json!(id)),
                ],
            );
        }
    }
}

/// Returns whether a response reports a failure; a redirect does if its address has an error.
fn is_failure(status: u16, location: Option<&str>) -> bool {
    match status {
        0..300 => false,
        300..400 => location
            .and_then(|location| location.split_once('?'))
            .and_then(|(_, query)| first_query_value(query.split('#').next().unwrap_or_default(), "error"))
            .is_some_and(|error| !error.is_empty()),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_redirects_with_an_error_are_failures() {
        for (status, location, expected) in [
            (200, None, false),
            (201, Some("http://x/?error=a"), false),
            (302, None, false),
            (302, Some("http://x/callback?code=a"), false),
            (302, Some("http://x/callback?error="), false),
            (302, Some("http://x/callback?a=b&error=access_denied"), true),
            (400, None, true),
            (502, None, true),
        ] {
            assert_eq!(is_failure(status, location), expected, "{status} {location:?}");
        }
    }
}
