//! Port 80: HTTP requests, routed by their `Host` header.

use std::sync::Arc;

use pinniped_http_server::connection::http;
use pinniped_http_server::{ConnectionError, Handler, Peer, Shared};
use tokio::net::TcpStream;

use crate::gateway::Inner;
use crate::http::{Entry, Http};

/// The handler of port 80.
#[derive(Clone, Debug)]
pub(crate) struct PlainPort(pub(crate) Arc<Inner>);

impl Handler for PlainPort {
    async fn run(self, shared: Arc<Shared>, stream: TcpStream, peer: Peer) -> Result<(), ConnectionError> {
        let service = Http::new(self.0, Entry::Plain);
        http(&shared.limits, &shared.draining, service, stream, peer).await
    }
}
