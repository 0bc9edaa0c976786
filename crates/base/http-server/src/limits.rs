//! What one client may cost: every bound and every timeout of the server, with its default.
//!
//! The defaults are those of a Kubernetes API server (k8s.io/apiserver `secure_serving.go` and Go's
//! `net/http`) where clients can tell the difference, and smaller where only memory is at stake.

use std::time::Duration;

use crate::capacity::{Capacity, ConnectionPermit};

/// Bounds and timeouts of a server. Start from [`Limits::default`] and change what must differ.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of the request line and all headers of one request. Over it: 431, on both protocols.
    pub header_bytes: usize,
    /// The same on connections that are provisional when they begin to speak HTTP: see [`Capacity`].
    pub provisional_header_bytes: usize,
    /// Header fields of one HTTP/1.1 request. Over it: 431. (HTTP/2 is bounded by the bytes.)
    pub header_fields: usize,
    /// From accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// From the first byte of a request to the end of its headers; for the first request of a connection,
    /// from the end of the handshake.
    pub header_read_timeout: Duration,
    /// A connection without any request for this long is closed (HTTP/2: with GOAWAY).
    pub idle_timeout: Duration,
    /// Concurrent streams of one HTTP/2 connection.
    pub h2_streams: u32,
    /// Flow-control window of one HTTP/2 stream, bytes: what a client may send ahead of the reader. Connections begin
    /// with 64 KiB less one for the stream and for the connection, and get the larger windows when a service reads a
    /// larger body and the [`Capacity`] has room for them.
    pub h2_stream_window: u32,
    /// Flow-control window of a whole HTTP/2 connection, bytes, as above.
    pub h2_connection_window: u32,
    /// Response bytes that may wait in one HTTP/2 stream for a slow client.
    pub h2_send_buffer: usize,
    /// Streams that a client opened and reset before they were looked at; more ends the connection
    /// (the "rapid reset" attack).
    pub h2_pending_resets: usize,
    /// Streams reset by us because of the client's protocol errors; more ends the connection.
    pub h2_local_resets: usize,
    /// Requests that a client takes back before their answer is complete, on one HTTP/2 connection; more ends the
    /// connection with `ENHANCE_YOUR_CALM`.
    pub h2_resets: ResetLimits,
    /// A PING is sent this often on HTTP/2 connections, so that a client that vanished is noticed.
    pub h2_ping_interval: Duration,
    /// How long the answer to a PING may take.
    pub h2_ping_timeout: Duration,
    /// Open connections of this listener; further ones are closed right after accept, and counted.
    pub connections: usize,
    /// What all listeners of the program share.
    pub capacity: Capacity,
    /// Time without traffic after which TCP asks whether the peer is still there.
    pub tcp_keepalive: Duration,
}

impl Limits {
    /// [`Self::header_bytes`] of a connection with this permit.
    pub(crate) fn header_bytes_for(&self, permit: &ConnectionPermit) -> usize {
        if permit.is_confirmed() {
            self.header_bytes
        } else {
            self.header_bytes.min(self.provisional_header_bytes)
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_bytes: 1 << 20,
            provisional_header_bytes: 64 << 10,
            header_fields: 2000,
            handshake_timeout: Duration::from_secs(10),
            header_read_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
            h2_streams: 1000,
            h2_stream_window: 256 << 10,
            h2_connection_window: 1 << 20,
            h2_send_buffer: 64 << 10,
            h2_pending_resets: 200,
            h2_local_resets: 1024,
            h2_resets: ResetLimits::default(),
            h2_ping_interval: Duration::from_secs(30),
            h2_ping_timeout: Duration::from_secs(15),
            connections: 16_384,
            capacity: Capacity::default(),
            tcp_keepalive: Duration::from_secs(180),
        }
    }
}

/// How often a client may do something: a bucket that leaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetLimits {
    /// So many at once.
    pub burst: u32,
    /// So many each second for ever.
    pub per_second: u32,
}

impl Default for ResetLimits {
    /// As much as an informer that ends all its watches at once, and a dashboard whose users turn pages all the time.
    fn default() -> Self {
        Self { burst: 1000, per_second: 50 }
    }
}
