//! The client half of SPDY/3.1, as far as Kubernetes' remote commands need it (`docs/adr/0001-exec-over-spdy.md`).
//!
//! ```text
//! decode.rs    bytes -> frames, without IO, in however many parts the bytes come
//! encode.rs    frames -> bytes
//! client.rs    a connection: opens streams, returns data, replies to pings
//! ```
//!
//! The crate knows nothing about Kubernetes or HTTP: the caller upgrades a connection and names the headers of its
//! streams. It does not send data on a stream, accepts no stream of the server, and does not read the headers of
//! replies, which have no meaning in a remote command. Therefore nothing is ever decompressed.
//!
//! All memory is one buffer of [`client::BUFFER`] bytes, which is overwritten when the client is dropped: what comes
//! over a stream may be a secret.

#![forbid(unsafe_code)]

pub mod client;
pub mod decode;
pub mod encode;

pub use client::{Client, ClientError, Event};
pub use decode::{DecodeError, StreamId};
