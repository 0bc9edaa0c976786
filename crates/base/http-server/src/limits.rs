//! The bounds and timeouts that a server applies to its clients, with their defaults.
//!
//! The defaults are those of upstream's implementation (a server on Go's `net/http`) where clients
//! can observe the difference, and smaller where only memory is affected.

use std::time::Duration;

use crate::capacity::{Capacity, ConnectionPermit};

/// The bounds and timeouts of a server. Start from [`Limits::default`] and change individual
/// fields.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum size of the request line and all headers of one request, in bytes. A larger request
    /// gets status 431, on both protocols.
    pub header_bytes: usize,
    /// The same for connections that are still provisional when they begin to speak HTTP: see
    /// [`Capacity`].
    pub provisional_header_bytes: usize,
    /// Maximum number of header fields of one HTTP/1.1 request. More get status 431. (HTTP/2 is
    /// limited by `header_bytes`.)
    pub header_fields: usize,
    /// Time from accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// Time from the first byte of a request to the end of its headers; for the first request of a
    /// connection, from the end of the handshake.
    pub header_read_timeout: Duration,
    /// Time without any request after which a connection is closed (HTTP/2: with GOAWAY).
    pub idle_timeout: Duration,
    /// Maximum number of concurrent streams of one HTTP/2 connection.
    pub h2_streams: u32,
    /// Flow-control window of one HTTP/2 stream in bytes: the amount that a client may send ahead
    /// of the reader. Connections begin with 65,535 bytes for each stream and for the connection,
    /// and get the larger windows when a service reads a larger body and the [`Capacity`] has
    /// memory for them.
    pub h2_stream_window: u32,
    /// Flow-control window of a whole HTTP/2 connection in bytes, with the same rule as
    /// `h2_stream_window`.
    pub h2_connection_window: u32,
    /// Maximum number of response bytes that wait in one HTTP/2 stream for a slow client.
    pub h2_send_buffer: usize,
    /// Maximum number of streams that a client opened and reset before they were accepted; more end
    /// the connection (the "rapid reset" attack).
    pub h2_pending_resets: usize,
    /// Maximum number of streams that the server reset because of the client's protocol errors;
    /// more end the connection.
    pub h2_local_resets: usize,
    /// Rate of requests on one HTTP/2 connection that a client may cancel before their response is
    /// complete; a higher rate ends the connection with `ENHANCE_YOUR_CALM`.
    pub h2_resets: ResetLimits,
    /// Time without incoming data after which the server sends a PING on an HTTP/2 connection, to
    /// detect a client that vanished.
    pub h2_ping_interval: Duration,
    /// Time in which a client must answer a PING.
    pub h2_ping_timeout: Duration,
    /// Maximum number of open connections of this listener; further ones are closed right after
    /// accept, and counted.
    pub connections: usize,
    /// The capacity that all listeners of the program share.
    pub capacity: Capacity,
    /// Time without traffic after which TCP sends keep-alive probes.
    pub tcp_keepalive: Duration,
}

impl Limits {
    /// Returns [`Self::header_bytes`] for a connection with this permit.
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

/// The rate at which a client may cancel requests, as a leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetLimits {
    /// Number of requests that may be cancelled at once.
    pub burst: u32,
    /// Number of requests that may be cancelled each second in the long run.
    pub per_second: u32,
}

impl Default for ResetLimits {
    /// Enough for a client that ends a thousand long-running requests at once, and for a dashboard
    /// whose users change pages all the time.
    fn default() -> Self {
        Self { burst: 1000, per_second: 50 }
    }
}
