//! The names of acceptable CAs that a server sends with its request for a client certificate.
//!
//! They change when a CA is rotated, but rustls borrows them as a slice from the verifier.
//! Therefore every list is stored in a chain that only grows, and the newest list is borrowed. CAs
//! rotate a few times a year. If the lists change too often, no names are sent any more, which
//! clients interpret as "any".

use std::{fmt, sync::OnceLock};

use rustls::DistinguishedName;

use super::server::ClientCaHints;

/// Maximum number of different lists of CAs in a process, more than any is expected to need.
const MAX_LISTS: usize = 64;

/// Requests the names from their source and stores the results.
pub(super) struct Hints {
    source: ClientCaHints,
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
    pub(super) fn new(source: ClientCaHints) -> Self {
        Self { source, first: OnceLock::new() }
    }

    /// Returns the current names.
    pub(super) fn now(&self) -> &[DistinguishedName] {
        let names = (self.source)();
        if names.is_empty() {
            return &[];
        }
        let mut slot = &self.first;
        for _ in 0..MAX_LISTS {
            // Another handshake may store its list first; then that list is compared like any
            // other.
            let list = slot.get_or_init(|| Box::new(List { names: names.clone(), next: OnceLock::new() }));
            if equal(&list.names, &names) {
                return &list.names;
            }
            slot = &list.next;
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
        for n in 1..=MAX_LISTS {
            turn.store(n, Ordering::SeqCst);
            assert!(equal(hints.now(), &[name(n)]));
        }
        turn.store(MAX_LISTS + 1, Ordering::SeqCst);
        assert!(hints.now().is_empty());
        turn.store(1, Ordering::SeqCst);
        assert!(equal(hints.now(), &[name(1)]));
    }
}
