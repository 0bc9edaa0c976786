//! The one response body type, and the few ways to make it.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};

use crate::incoming::Incoming;

/// Any error a body may end with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of every response (and of requests that are sent on).
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body without bytes; its length is known to be 0.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that is all there; its length is known.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is passed on as it comes, trailers included.
pub fn from_incoming(incoming: Incoming) -> Body {
    incoming.boxed_unsync()
}
