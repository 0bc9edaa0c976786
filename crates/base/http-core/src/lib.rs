//! The parts of HTTP that a server, a client and a reverse proxy share.
//!
//! A reverse proxy passes the body of a server's request to a client, and the body of the client's
//! response back to the server, without a box for each frame. Therefore the types of bodies, and
//! the data that both sides exchange for a response, are below both:
//!
//! ```text
//! body         the body of a response, and its constructors
//! incoming     the body of a request, or of an HTTP/2 response, as it arrives
//! delivery     the deadline of a response, and interim responses before it
//! workers      threads with one runtime each; a connection stays on its worker
//! tunnels      connections that left HTTP
//! liveness     detection of idle connections, and of vanished peers
//! plain_write  plain writes in place of vectored writes of one buffer
//! ```
//!
//! The crate opens no connection and accepts none.
//!
//! ```
//! use http_body_util::BodyExt as _;
//! use pinniped_http_core::{Body, body};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let response: Body = body::full("text");
//! assert_eq!(response.collect().await.unwrap().to_bytes(), "text");
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod body;
mod client_network;
pub mod delivery;
mod incoming;
pub mod liveness;
mod plain_write;
pub mod tunnels;
pub mod workers;

pub use body::{Body, BoxError};
pub use client_network::client_network;
pub use delivery::interim;
pub use incoming::{Incoming, MapData, ReceivedBytes, StreamBody, UnreadGuard};
pub use plain_write::PlainWrite;
