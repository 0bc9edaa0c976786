//! Other ways to a server than a plain TCP connection.

use std::fmt;

use futures::future::BoxFuture;
use tokio::net::TcpStream;

/// Makes TCP connections, for example through an HTTP proxy. `Debug` must not print the proxy's password.
pub trait Dial: fmt::Debug + Send + Sync {
    /// A connection to `host`, an address without brackets. The caller sets the deadline.
    ///
    /// # Errors
    /// A text for what went wrong.
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, Result<TcpStream, String>>;
}
