//! A trait for connections to a server that are not plain TCP connections.

use std::fmt;

use futures::future::BoxFuture;
use tokio::net::TcpStream;

use crate::dial::ConnectError;

/// Opens TCP connections, for example through an HTTP proxy. `Debug` must not print the proxy's
/// password.
pub trait Dial: fmt::Debug + Send + Sync {
    /// Opens a connection to `host`, an address without brackets. The caller sets the deadline.
    ///
    /// # Errors
    /// Returns an error that describes the failure.
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, Result<TcpStream, ConnectError>>;
}
