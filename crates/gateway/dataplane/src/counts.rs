//! Counters of the results of connections and requests.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counter values since the start of the gateway.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> Counts {
                Counts { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Connections to port 443 that did not start with a ClientHello.
    not_tls,
    /// Connections to port 443 that exceeded the deadline for the ClientHello or closed before it
    /// was complete.
    client_hello_unfinished,
    /// Connections to port 443 with an unknown server name, or without one.
    unknown_name,
    /// Connections to port 443 for a host whose client validation cannot be configured.
    unservable,
    /// Connections passed through, or terminated and relayed as bytes.
    relayed,
    /// Bytes relayed from clients to backends.
    relayed_from_clients,
    /// Bytes relayed from backends to clients.
    relayed_to_clients,
    /// Bytes of request bodies, and of upgraded connections from clients.
    request_bytes_from_clients,
    /// Bytes of response bodies, and of upgraded connections to clients.
    request_bytes_to_clients,
    /// Connections that no endpoint accepted.
    unconnected,
    /// Requests for an unknown host or path.
    not_found,
    /// Requests for a host that the connection does not serve (HTTP 421).
    misdirected,
    /// Requests that failed without a response from a backend.
    failed,
}

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }
}
