//! A reverse proxy for one request: it forwards the request and streams the response back.
//!
//! ```text
//! forward    the request to the upstream, and the response back as it arrives
//! guard      the request guard
//! response   the response body: its deadline, and the request guard that lives until its last byte
//! tap        observes the bytes of an upgraded connection
//! upgrade    requests that leave HTTP, and the bytes that follow
//! ```
//!
//! The crate makes no decision. Authentication, authorization and the error responses are the
//! caller's. A value of a type of the caller, the *request guard*, lives as long as the exchange,
//! and for a short time longer if the client cancels the request before the server has finished.
//! Start reading in [`forward()`].
//!
//! Invariants: bodies are forwarded frame by frame and never collected; hop-by-hop header fields of
//! a response are removed; no header and no body is logged; credentials are header fields of single
//! requests, never state of a pooled connection.
//!
//! ```
//! use http::Request;
//! use http_body_util::BodyExt as _;
//! use pinniped_http_client::upstream::{
//!     AddressParams, RequestBody, Upstream, UpstreamError, UpstreamLimits,
//! };
//! use pinniped_reverse_proxy::{ForwardError, ProtocolPolicy, ResponseDeadline, forward};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! # let address = "127.0.0.1:1".parse().unwrap();
//! let params = AddressParams { address, tls: None, limits: UpstreamLimits::default() };
//! let upstream = Upstream::to_address(&params);
//! let mut request = Request::get("/").body(RequestBody::Empty).unwrap();
//! // The guard is a value that the caller wants to keep until the end of the response.
//! let guard = ();
//! let forwarded = forward(
//!     &upstream,
//!     &mut request,
//!     &[],
//!     ProtocolPolicy::Any,
//!     ResponseDeadline::Long,
//!     guard,
//! );
//! match forwarded.await {
//!     Ok(response) => {
//!         let _text = response.into_body().collect().await.unwrap().to_bytes();
//!     }
//!     // The caller words the error.
//!     Err(ForwardError::Upstream(UpstreamError::Dial(_))) => println!("no connection"),
//!     Err(error) => println!("{error}"),
//! }
//! # }
//! ```

#![forbid(unsafe_code)]

mod forward;
mod guard;
mod response;
mod tap;
mod upgrade;

pub use forward::{ForwardError, ProtocolPolicy, ResponseDeadline, bearer, forward, relay};
pub use guard::{Direction, Guard};
pub use response::{PauseLimit, TimeLimits};
pub use tap::{NextRead, Tap};
pub use upgrade::{ClientUpgrade, upgrade};
