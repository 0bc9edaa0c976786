//! The response body type and its constructors.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};

use crate::incoming::Incoming;

/// Any error that ends a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of every response, and of requests that a proxy forwards.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Returns a body without bytes, with the known length 0.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body that is complete in memory, with a known length.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body that forwards a request body frame by frame, including trailers.
pub fn from_incoming(incoming: Incoming) -> Body {
    incoming.boxed_unsync()
}
