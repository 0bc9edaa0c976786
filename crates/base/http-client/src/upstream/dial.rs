//! A trait for connections to a server that are not plain TCP connections.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use rustls::ClientConfig;

use crate::dial::{ConnectError, Stream};

/// Opens connections, for example through an HTTP proxy. `Debug` must not print the proxy's
/// password.
pub trait Dial: fmt::Debug + Send + Sync {
    /// Opens a connection to `host`, an address without brackets, on which the caller speaks TLS
    /// with the configuration `tls`, if there is one. The caller sets the deadline.
    ///
    /// # Errors
    /// Returns an error that describes the failure.
    fn dial<'a>(
        &'a self,
        host: &'a str,
        port: u16,
        tls: Option<&'a Arc<ClientConfig>>,
    ) -> BoxFuture<'a, Result<Stream, ConnectError>>;
}
