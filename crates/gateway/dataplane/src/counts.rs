//! What became of connections and requests, counted.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the start.
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
    /// Connections of port 443 whose first bytes were no ClientHello.
    not_tls,
    /// Connections of port 443 that were too slow with it, or ended within.
    hello_unfinished,
    /// Connections of port 443 for a name that nobody has, or for none.
    unknown_name,
    /// Connections of port 443 for a host whose demands on clients cannot be checked.
    unservable,
    /// Connections that were passed through, or ended here and went on as bytes.
    relayed,
    /// Bytes of clients that were passed on so.
    relayed_from_clients,
    /// Bytes of backends that were passed on so.
    relayed_to_clients,
    /// Connections that no endpoint took.
    unconnected,
    /// Requests.
    requests,
    /// Requests for no known host or path.
    not_found,
    /// Requests for another host than their connection.
    misdirected,
    /// Requests that got no answer from a backend.
    failed,
}

/// One count.
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
