//! Tests of the server with real sockets, real TLS and hyper's own clients.

mod drain;
mod hostile;
mod http2;
mod memory;
mod protocols;
mod support;
