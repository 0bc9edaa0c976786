//! A guard against panics of handlers, and plain error responses. Call them at the appropriate step
//! of your request pipeline.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::{FutureExt as _, TryFutureExt as _};
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use pinniped_http_core::{Body, body};

/// A handler panicked. Contains the message of the panic, for the log only.
#[derive(Debug, thiserror::Error)]
#[error("a request handler panicked: {0}")]
pub struct Panicked(String);

/// Runs a handler and catches its panic, so that a panic ends one request and not the connection.
///
/// # Errors
/// Returns [`Panicked`] when the handler panics.
pub fn guard_panic<F: Future>(handler: F) -> impl Future<Output = Result<F::Output, Panicked>> {
    // Not an async function: its future would store the handler twice, and handlers are large.
    AssertUnwindSafe(handler).catch_unwind().map_err(|panic| Panicked(panic_message(&*panic)))
}

/// Runs a synchronous handler and catches its panic.
///
/// # Errors
/// Returns [`Panicked`] when the handler panics.
pub fn catch_panic<T>(handler: impl FnOnce() -> T) -> Result<T, Panicked> {
    std::panic::catch_unwind(AssertUnwindSafe(handler)).map_err(|panic| Panicked(panic_message(&*panic)))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "no message".to_owned(),
    }
}

/// Returns an error response in the format of Go's `http.Error`: plain text with a final newline,
/// and content sniffing disabled.
pub fn plain_error(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(body::full(format!("{text}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_an_error_with_its_message() {
        assert_eq!(guard_panic(async { 1 }).await.expect("no panic"), 1);
        let error = guard_panic(async { panic!("number {}", 7) }).await.expect_err("a panic");
        assert_eq!(error.to_string(), "a request handler panicked: number 7");
        assert_eq!(catch_panic(|| 1).expect("no panic"), 1);
        let error = catch_panic(|| panic!("number {}", 8)).map(|()| 0).expect_err("a panic");
        assert_eq!(error.to_string(), "a request handler panicked: number 8");
    }
}
