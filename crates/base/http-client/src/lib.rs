//! An HTTP client for proxies and long-running programs: connections, pools and the dial policy.
//!
//! [`upstream`] is a pool of connections to one server. [`https`] sends single requests to any
//! server. [`dial`] and [`tcp_dialer`] open connections, directly or through a [`proxy`], which
//! [`proxy_environment`] finds in the environment. [`lingering`] keeps a permit and a stream for a
//! short time after a client has cancelled its request.
//!
//! Errors are typed and refer to "the server". A program that has a better name for it, such as
//! "the backend", matches the variants and prints its own texts.
//!
//! ```
//! use http::Request;
//! use http_body_util::BodyExt as _;
//! use pinniped_http_client::upstream::{AddressParams, RequestBody, Upstream, UpstreamLimits};
//! use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//! use tokio::net::TcpListener;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let server = TcpListener::bind("127.0.0.1:0").await?;
//! let params = AddressParams {
//!     address: server.local_addr()?,
//!     tls: None,
//!     limits: UpstreamLimits::default(),
//! };
//! tokio::spawn(async move {
//!     let (mut stream, _) = server.accept().await.unwrap();
//!     stream.read(&mut [0; 1024]).await.unwrap();
//!     stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntext").await.unwrap();
//! });
//!
//! let upstream = Upstream::to_address(&params);
//! let mut request = Request::get("/").body(RequestBody::Empty)?;
//! let response = upstream.try_send_keep_alive(&mut request).await?;
//! assert_eq!(response.into_body().collect().await?.to_bytes(), "text");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod dial;
pub mod https;
pub mod lingering;
mod platform;
pub mod proxy;
pub mod proxy_environment;
pub mod tcp_dialer;
pub mod upstream;
