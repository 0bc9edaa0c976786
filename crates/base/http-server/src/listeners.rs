//! The connection counters of all listeners of a process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::server::Stats;

type Source = Box<dyn Fn() -> Option<Stats> + Send + Sync>;

/// The listeners of a process by name. Cheap to clone; clones share the listeners.
#[derive(Clone, Default)]
pub struct Listeners(Arc<Mutex<BTreeMap<&'static str, Source>>>);

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listeners").finish_non_exhaustive()
    }
}

impl Listeners {
    /// Adds a listener, or replaces the one of that name, whose server was started again. `stats`
    /// is usually [`ServerHandle::stats_source`](crate::ServerHandle::stats_source).
    pub fn add(&self, name: &'static str, stats: impl Fn() -> Stats + Send + Sync + 'static) {
        self.add_temporary(name, move || Some(stats()));
    }

    /// Adds a listener like [`add`](Self::add), whose server may stop while the process continues:
    /// `stats` returns `None` from then on.
    pub fn add_temporary(
        &self,
        name: &'static str,
        stats: impl Fn() -> Option<Stats> + Send + Sync + 'static,
    ) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Box::new(stats));
    }

    /// Returns the counters of all listeners whose server runs, by name.
    pub fn stats(&self) -> Vec<(&'static str, Stats)> {
        let listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().filter_map(|(name, stats)| Some((*name, stats()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_of_the_same_name_replaces_the_earlier_one() {
        let listeners = Listeners::default();
        listeners.add("b", || Stats { open: 1, ..Stats::default() });
        listeners.add("a", || Stats { open: 2, ..Stats::default() });
        listeners.add("b", || Stats { open: 3, ..Stats::default() });
        let open: Vec<_> = listeners.stats().into_iter().map(|(name, stats)| (name, stats.open)).collect();
        assert_eq!(open, [("a", 2), ("b", 3)]);
    }

    #[test]
    fn a_listener_whose_server_has_stopped_has_no_counters() {
        let (listeners, running) = (Listeners::default(), Arc::new(Stats::default()));
        let stats = Arc::downgrade(&running);
        listeners.add_temporary("a", move || stats.upgrade().map(|stats| *stats));
        assert_eq!(listeners.stats().len(), 1);
        drop(running);
        assert_eq!(listeners.stats().len(), 0);
    }
}
