//! The client half of SPDY/3.1, and the decoders of an observer between client and server, as far
//! as remote commands need it (`docs/adr/0001-exec-over-spdy.md`).
//!
//! ```text
//! decode.rs      bytes -> frames, without I/O, for input in parts of any size
//! headers.rs     the headers with which a client opens streams, for an observer
//! dictionary.rs  the dictionary of their compression
//! encode.rs      frames -> bytes
//! client.rs      a connection: opens streams, returns data, replies to pings
//! ```
//!
//! The crate does not implement HTTP: the caller upgrades a connection and provides the headers of
//! its streams. The client does not send data on a stream, accepts no stream of the server, and
//! does not read the headers of replies, which have no meaning in a remote command. Therefore it
//! decompresses nothing. Only an observer decompresses the headers of a client, because the type of
//! a stream is one of them.
//!
//! All memory of the client is one buffer of [`client::BUFFER`] bytes, which is overwritten when
//! the client is dropped, because data of a stream may be a secret.
//!
//! ```
//! use pinniped_spdy::{Client, Event};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), pinniped_spdy::ClientError> {
//! # use tokio::io::AsyncWriteExt as _;
//! # let (connection, mut server) = tokio::io::duplex(1024);
//! # server.write_all(&[0, 0, 0, 1, 1, 0, 0, 4, b't', b'e', b'x', b't']).await?;
//! // `connection` was upgraded by the caller.
//! let mut client = Client::new(connection, 1 << 20);
//! let output = client.open(&[("streamtype", "stdout")]).await?;
//! assert_eq!(client.next().await?, Some(Event::Data(output, b"text")));
//! assert_eq!(client.next().await?, Some(Event::Closed(output)));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod client;
pub mod decode;
mod dictionary;
pub mod encode;
pub mod headers;

pub use client::{Client, ClientError, Event};
pub use decode::{DecodeError, StreamId};
