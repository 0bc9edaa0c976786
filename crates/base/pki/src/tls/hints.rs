//! The names of acceptable CAs that a server sends with its request for a client certificate.
//!
//! They change when a CA is rotated, but rustls asks for them as a borrowed slice of the verifier. So every list ever
//! given is kept, in a chain that only grows, and the newest is lent. CAs rotate a few times a year; should the lists
//! change like the wind, no hints are sent any more, which clients take as "any".

use std::{fmt, sync::OnceLock};

use rustls::DistinguishedName;

use super::server::ClientCaHints;

/// No process is expected to see that many different sets of CAs.
const MOST_LISTS: usize = 64;

/// Asks for the hints and remembers the answers.
pub(super) struct Hints {
    ask: ClientCaHints,
    first: OnceLock<Box<List>>,
}

struct List {
    names: Vec<DistinguishedName>,
    next: OnceLock<Box<List>>,
}

impl fmt::Debug for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hints").finish_non_exhaustive()
    }
}

impl Hints {
    pub(super) fn new(ask: ClientCaHints) -> Self {
        Self { ask, first: OnceLock::new() }
    }

    /// The names as they are now.
    pub(super) fn now(&self) -> &[DistinguishedName] {
        let names = (self.ask)();
        if names.is_empty() {
            return &[];
        }
        let mut place = &self.first;
        for _ in 0..MOST_LISTS {
            // Another handshake may fill the place first; then its list is looked at like any other.
            let list = place.get_or_init(|| Box::new(List { names: names.clone(), next: OnceLock::new() }));
            if equal(&list.names, &names) {
                return &list.names;
            }
            place = &list.next;
        }
        &[]
    }
}

fn equal(one: &[DistinguishedName], other: &[DistinguishedName]) -> bool {
    one.iter().map(AsRef::as_ref).eq(other.iter().map(AsRef::<[u8]>::as_ref))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[test]
    fn hints_follow_their_source_until_they_change_too_often() {
        let turn = Arc::new(AtomicUsize::new(0));
        let source = Arc::clone(&turn);
        let name = |n: usize| DistinguishedName::in_sequence(&n.to_be_bytes());
        let hints = Hints::new(Arc::new(move || match source.load(Ordering::SeqCst) {
            0 => vec![],
            n => vec![name(n)],
        }));
        assert!(hints.now().is_empty());
        for n in 1..=MOST_LISTS {
            turn.store(n, Ordering::SeqCst);
            assert!(equal(hints.now(), &[name(n)]));
        }
        turn.store(MOST_LISTS + 1, Ordering::SeqCst);
        assert!(hints.now().is_empty());
        turn.store(1, Ordering::SeqCst);
        assert!(equal(hints.now(), &[name(1)]));
    }
}
