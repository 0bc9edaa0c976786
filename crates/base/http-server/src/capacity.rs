//! Limits for the connections and the memory that clients may use in a program, shared by all its
//! listeners.
//!
//! Without limits that follow from the memory limit, any client could make the kernel kill the
//! program. Therefore each connection has a [permit](ConnectionPermit), and there are only as many
//! permits as connections fit into the memory limit. The fixed cost of a connection covers the
//! first [`FREE_BYTES`] that the client sends ahead of the service; further bytes are charged to
//! one budget of the program. Bytes of bodies in transit may use a part of the rest.
//!
//! A connection is *provisional* until its service [confirms](ConnectionPermit::confirm) it,
//! usually when it has authenticated a request of the connection. Provisional connections can use
//! half of the budget, and when all permits are taken, the oldest provisional connection is closed
//! for a new one. A client that only opens connections therefore displaces its own connections. It
//! displaces a connection of another client only if that one becomes the oldest provisional
//! connection before its service confirms it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pinniped_http_core::client_network;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::in_transit::{Holding, InTransit, Overload, Pieces};
use crate::platform;

/// Memory of a connection in bytes: TLS, HTTP, its task, and [`FREE_BYTES`]. Measured: 33 to 43 KiB
/// with nothing in transit, and a partial TLS record of 16 KiB at most.
pub const CONNECTION_BYTES: u64 = 64 << 10;

/// Memory of a connection whose bytes are relayed unchanged, in bytes.
const RELAYED_BYTES: u64 = 8 << 10;

/// Bytes that a connection may hold before the budget is charged.
pub const FREE_BYTES: usize = 16 << 10;

/// Bytes that one provisional connection may hold at most: about 400 concurrent requests.
const PROVISIONAL_BYTES: usize = 4 << 20;

/// Memory in bytes that is reserved for everything except data of clients: the program and its
/// caches.
const MIN_RESERVE: u64 = 64 << 20;

/// Number of connections that may still be closing while their successors are already open.
const CLOSING: usize = 64;

/// Number of connections that are allowed regardless of the limits.
const MIN_CONNECTIONS: u64 = 16;

/// The part of the free memory that bytes in transit may use: one of this number of parts. Their
/// counts are estimates, and the allocator returns the memory of closed connections after some
/// time.
const IN_TRANSIT_PART: i64 = 4;

/// Number of bytes that may be in transit at least: a program with almost no memory must still send
/// a response.
const MIN_IN_TRANSIT: i64 = 4 << 20;

/// When too many bytes are in transit, one of this number of parts of the limit is freed at once.
const SPARE_PART: i64 = 16;

/// The budget in bytes of a program without a memory limit.
const UNLIMITED_BUDGET: u64 = 256 << 20;
/// The memory in bytes that connections leave for bytes in transit: in a program without a memory
/// limit, and at most in any other one.
const UNLIMITED_MEMORY: u64 = 1 << 30;

/// The inputs from which the capacity of a program is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityParams {
    /// Maximum number of connections, regardless of the available memory.
    pub connections: usize,
    /// Maximum number of connections of one client address: an IPv4 address, or the 64-bit network
    /// prefix of an IPv6 address. `None` where a load balancer may represent many clients.
    pub connections_per_address: Option<NonZero<usize>>,
    /// The memory limit in bytes.
    pub memory: Option<u64>,
    /// Number of files that the program may have open.
    pub files: Option<u64>,
    /// Open files for each connection: 2 where each connection has a second one to an upstream.
    pub files_per_connection: u64,
}

impl CapacityParams {
    /// Returns the limits that the system sets for this process. Raises the soft limit on open
    /// files to the hard limit.
    pub fn of_this_process(connections: usize, connections_per_address: Option<NonZero<usize>>) -> Self {
        Self {
            connections,
            connections_per_address,
            memory: platform::memory_limit(),
            files: platform::raise_open_files(),
            files_per_connection: 1,
        }
    }

    /// Returns the number of connections for which there are open files, the memory of all
    /// connections in bytes, and the budget in bytes.
    fn sizes(&self) -> (usize, u64, u64) {
        let (memory, budget) = match self.memory {
            None => (u64::MAX, UNLIMITED_BUDGET),
            Some(limit) => {
                let usable = limit.saturating_sub(MIN_RESERVE.max(limit / 5));
                let budget = (usable / 5).min(UNLIMITED_BUDGET);
                // A program with almost no memory must still answer a probe.
                ((usable - budget).max(MIN_CONNECTIONS * CONNECTION_BYTES), budget)
            }
        };
        // A quarter is reserved for all other files, such as connections to upstreams.
        let by_files =
            self.files.map_or(u64::MAX, |files| (files - files / 4) / self.files_per_connection.max(1));
        let by_files = usize::try_from(by_files.max(MIN_CONNECTIONS)).unwrap_or(usize::MAX);
        (by_files, memory, budget)
    }
}

/// Returns the maximum number of connections for the configured one.
fn connections(configured: usize, by_files: usize) -> usize {
    configured.min(by_files).max(1)
}

/// The reason why a connection or a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// All permits belong to confirmed connections.
    #[error("too many connections are open")]
    Connections,
    /// The client's address has its maximum number of connections.
    #[error("too many connections of this address are open")]
    Address,
    /// The budget is exhausted.
    #[error("the memory for data of clients is used up")]
    Budget,
}

/// The capacity of a program; see the [module](self). Clones share one state.
#[derive(Clone, Debug)]
pub struct Capacity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Number of connections for which there are open files.
    by_files: usize,
    memory: u64,
    budget: i64,
    used: AtomicI64,
    /// The memory of connections and the budget in bytes.
    usable: i64,
    /// The memory of the open connections in bytes, as in [`State::memory`].
    reserved: AtomicI64,
    /// Bytes of bodies in transit, see [`InTransit`].
    in_transit: AtomicI64,
    /// The number of the next piece of a body.
    next_piece: AtomicU64,
    state: Mutex<State>,
    displaced: AtomicU64,
    evicted: AtomicU64,
    refused: [AtomicU64; 3],
}

#[derive(Debug, Default)]
struct State {
    /// Maximum number of connections.
    connections: usize,
    per_address: Option<NonZero<usize>>,
    open: usize,
    /// Memory of the open connections in bytes.
    memory: u64,
    next: u64,
    by_address: HashMap<IpAddr, usize>,
    /// The provisional connections by age; without a handle until the connection's task exists.
    provisional: BTreeMap<u64, Option<AbortHandle>>,
    permits: HashMap<u64, Weak<ConnectionPermit>>,
    overload: Overload,
}

/// The figures of a [`Capacity`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapacityStats {
    /// Maximum number of open connections, for which there must also be memory.
    pub connections_limit: u64,
    /// Number of open connections.
    pub connections_open: u64,
    /// Number of open connections that are provisional.
    pub connections_provisional: u64,
    /// Number of provisional connections that were closed for new ones.
    pub connections_displaced: u64,
    /// Number of connections that were closed because too many bytes were in transit.
    pub connections_evicted: u64,
    /// Number of connections that were refused because all others were confirmed.
    pub refused_connections: u64,
    /// Number of connections that were refused because of their address.
    pub refused_address: u64,
    /// Number of requests and connections that were refused because the budget was exhausted.
    pub refused_budget: u64,
    /// The memory that open connections may reserve, in bytes; `None` without a memory limit.
    pub memory_limit: Option<u64>,
    /// The memory that open connections reserve, in bytes. A connection whose bytes are relayed
    /// reserves less.
    pub memory_used: u64,
    /// The budget in bytes.
    pub budget_limit: u64,
    /// The part of the budget that is in use, in bytes, without [`Self::in_transit`].
    pub budget_used: u64,
    /// The bytes of bodies in transit that all connections may hold now.
    pub in_transit_limit: u64,
    /// Bytes of bodies in transit: of requests that no upstream has taken yet, and of responses
    /// that clients have not read yet. The first bytes of each connection do not count.
    pub in_transit: u64,
}

impl Default for Capacity {
    /// Returns a capacity without limits except for a budget, for tests and for programs that only
    /// their own user can reach.
    fn default() -> Self {
        Self::new(&CapacityParams {
            connections: usize::MAX,
            connections_per_address: None,
            memory: None,
            files: None,
            files_per_connection: 1,
        })
    }
}

impl Capacity {
    /// Creates a capacity from `params`.
    pub fn new(params: &CapacityParams) -> Self {
        let (by_files, memory, budget) = params.sizes();
        let new = Self(Arc::new(Inner {
            by_files,
            memory,
            budget: signed_u64(budget),
            used: AtomicI64::new(0),
            usable: signed_u64(memory.min(UNLIMITED_MEMORY).saturating_add(budget)),
            reserved: AtomicI64::new(0),
            in_transit: AtomicI64::new(0),
            next_piece: AtomicU64::new(0),
            state: Mutex::default(),
            displaced: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            refused: Default::default(),
        }));
        new.set_connections(params.connections, params.connections_per_address);
        new
    }

    /// Changes the configured maximum number of connections, and that of one address. Open
    /// connections remain open, also those above the new maximum.
    pub fn set_connections(&self, most: usize, per_address: Option<NonZero<usize>>) {
        let mut state = self.0.state();
        state.connections = connections(most, self.0.by_files);
        state.per_address = per_address;
    }

    /// Takes a permit for a connection of this client.
    ///
    /// # Errors
    /// Returns the reason when no permit is available.
    pub fn connect(&self, client: IpAddr) -> Result<Arc<ConnectionPermit>, Refusal> {
        let network = client_network(client);
        let mut state = self.0.state();
        if let Some(most) = state.per_address
            && state.by_address.get(&network).is_some_and(|open| *open >= most.get())
        {
            return Err(self.0.refuse(Refusal::Address));
        }
        if !self.0.has_room(&state, 0) {
            let oldest = state.provisional.iter().find(|(_, task)| task.is_some()).map(|(number, _)| *number);
            let oldest = oldest.filter(|_| self.0.has_room(&state, CLOSING));
            let displaced = oldest.and_then(|number| state.provisional.remove(&number)).flatten();
            let Some(task) = displaced else { return Err(self.0.refuse(Refusal::Connections)) };
            task.abort();
            self.0.displaced.fetch_add(1, Ordering::Relaxed);
        }
        state.open += 1;
        state.memory += CONNECTION_BYTES;
        self.0.reserved.store(signed_u64(state.memory), Ordering::Release);
        // Counted without a limit, too, because the limit can change.
        *state.by_address.entry(network).or_default() += 1;
        let number = state.next;
        state.next += 1;
        state.provisional.insert(number, None);
        let permit = Arc::new(ConnectionPermit {
            capacity: Arc::clone(&self.0),
            number,
            network,
            confirmed: AtomicBool::new(false),
            memory: AtomicU64::new(CONNECTION_BYTES),
            held: AtomicUsize::new(0),
            in_transit: InTransit::default(),
        });
        state.permits.insert(number, Arc::downgrade(&permit));
        drop(state);
        self.0.make_room();
        Ok(permit)
    }

    /// Returns the current figures.
    pub fn stats(&self) -> CapacityStats {
        let state = self.0.state();
        let (open, provisional) = (state.open as u64, state.provisional.len() as u64);
        let (connections_limit, memory_used) = (state.connections as u64, state.memory);
        drop(state);
        let refused = |why: Refusal| self.0.refused[why as usize].load(Ordering::Relaxed);
        CapacityStats {
            connections_limit,
            connections_open: open,
            connections_provisional: provisional,
            connections_displaced: self.0.displaced.load(Ordering::Relaxed),
            connections_evicted: self.0.evicted.load(Ordering::Relaxed),
            refused_connections: refused(Refusal::Connections),
            refused_address: refused(Refusal::Address),
            refused_budget: refused(Refusal::Budget),
            memory_limit: (self.0.memory < u64::MAX).then_some(self.0.memory),
            memory_used,
            budget_limit: u64::try_from(self.0.budget).unwrap_or_default(),
            budget_used: u64::try_from(self.0.used.load(Ordering::Relaxed)).unwrap_or_default(),
            in_transit_limit: u64::try_from(self.0.in_transit_limit()).unwrap_or_default(),
            in_transit: u64::try_from(self.0.in_transit.load(Ordering::Relaxed)).unwrap_or_default(),
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether one more connection fits when `closing` of the open ones do not count.
    fn has_room(&self, state: &State, closing: usize) -> bool {
        let closing_bytes = closing as u64 * CONNECTION_BYTES;
        state.open < state.connections.saturating_add(closing)
            && state.memory.saturating_add(CONNECTION_BYTES) <= self.memory.saturating_add(closing_bytes)
    }

    /// Returns the bytes in transit that all connections may hold: a part of what other data of
    /// clients and the reserve of the connections leave free, and never less than the same part of
    /// the budget.
    fn in_transit_limit(&self) -> i64 {
        let used = self.used.load(Ordering::Acquire) + self.reserved.load(Ordering::Acquire);
        ((self.usable - used) / IN_TRANSIT_PART).max(self.in_transit_share())
    }

    fn in_transit_share(&self) -> i64 {
        (self.budget / IN_TRANSIT_PART).max(MIN_IN_TRANSIT)
    }

    /// Closes connections if too many bytes are in transit, see [`crate::in_transit`].
    fn make_room(&self) {
        let in_transit = || self.in_transit.load(Ordering::Acquire);
        // Most calls end here.
        if in_transit() <= self.in_transit_share() / 2 {
            return;
        }
        let limit = self.in_transit_limit();
        if in_transit() <= limit / 2 {
            return;
        }
        let (keep, stalled_before, permits) = {
            let mut state = self.state();
            let next_piece = self.next_piece.load(Ordering::Acquire);
            let stalled_before = state.overload.stalled_before(Instant::now(), next_piece);
            let (keep, stalled_before) = match stalled_before {
                _ if in_transit() > limit => (limit, None),
                Some(number) => (limit / 2, Some(number)),
                None => return,
            };
            // Dropping a permit takes the lock, so the permits outlive it.
            (keep, stalled_before, state.permits.values().filter_map(Weak::upgrade).collect::<Vec<_>>())
        };
        let is_old = |holding: &Holding| stalled_before.is_none_or(|number| holding.is_stalled(number));
        let mut holders = Vec::new();
        for permit in &permits {
            if let Some(holding) = permit.in_transit.holding().filter(is_old) {
                holders.push((permit.is_confirmed(), holding, permit));
            }
        }
        holders.sort_unstable_by_key(|(is_confirmed, holding, _)| (*is_confirmed, holding.order()));
        let keep = keep - limit / SPARE_PART;
        for (_, holding, permit) in holders {
            if in_transit() <= keep {
                return;
            }
            if let Some(freed) = permit.in_transit.abort(holding) {
                self.in_transit.fetch_sub(signed(freed), Ordering::AcqRel);
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.state().overload.none_is_stalled();
    }

    fn refuse(&self, why: Refusal) -> Refusal {
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
        why
    }
}

/// A connection's part of the capacity, until it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    capacity: Arc<Inner>,
    number: u64,
    network: IpAddr,
    confirmed: AtomicBool,
    memory: AtomicU64,
    /// Bytes that are charged to this connection, including the free ones.
    held: AtomicUsize,
    in_transit: InTransit,
}

impl ConnectionPermit {
    /// Confirms the connection, so that it is never closed for a new one.
    pub fn confirm(&self) {
        // In most calls the connection is already confirmed.
        if !self.is_confirmed() && !self.confirmed.swap(true, Ordering::AcqRel) {
            self.capacity.state().provisional.remove(&self.number);
        }
    }

    /// Records that the bytes of the connection are relayed unchanged from now on, which takes less
    /// memory.
    pub fn relay(&self) {
        self.confirm();
        let before = self.memory.swap(RELAYED_BYTES, Ordering::AcqRel);
        let mut state = self.capacity.state();
        state.memory -= before - RELAYED_BYTES;
        self.capacity.reserved.store(signed_u64(state.memory), Ordering::Release);
    }

    /// Returns whether the connection was [confirmed](Self::confirm).
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Records the task of the connection, which a new connection may abort.
    pub(crate) fn runs_as(&self, task: AbortHandle) {
        self.in_transit.runs_as(task.clone());
        // The entry is missing when the connection has ended or was confirmed in the meantime.
        if let Some(known) = self.capacity.state().provisional.get_mut(&self.number) {
            *known = Some(task);
        }
    }

    /// Charges bytes to the connection until they are [released](Self::release).
    ///
    /// # Errors
    /// Returns an error when there is no memory for them; nothing is charged then.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), Refusal> {
        let before = self.held.fetch_add(bytes, Ordering::AcqRel);
        let more = over(before.saturating_add(bytes)) - over(before);
        if more == 0 {
            return Ok(());
        }
        let used = self.capacity.used.fetch_add(signed(more), Ordering::AcqRel) + signed(more);
        let budget = self.capacity.budget;
        let fits = if self.is_confirmed() {
            used <= budget
        } else {
            used <= budget / 2 && before.saturating_add(bytes) <= PROVISIONAL_BYTES
        };
        if fits {
            self.capacity.make_room();
            return Ok(());
        }
        self.release(bytes);
        Err(self.capacity.refuse(Refusal::Budget))
    }

    /// Charges bytes that only improve the speed, if the budget is half free.
    pub(crate) fn charge_optional(&self, bytes: usize) -> Result<(), Refusal> {
        if self.capacity.used.load(Ordering::Acquire) + signed(bytes) > self.capacity.budget / 2 {
            return Err(Refusal::Budget);
        }
        self.charge(bytes)
    }

    /// Returns the number for a new piece of a body in transit.
    pub(crate) fn next_piece(&self) -> u64 {
        self.capacity.next_piece.fetch_add(1, Ordering::Relaxed)
    }

    /// Changes the pieces of bodies that the connection holds.
    pub(crate) fn change_in_transit(&self, change: impl FnOnce(&mut Pieces)) {
        let (before, after) = self.in_transit.change(change);
        let total = &self.capacity.in_transit;
        if after > before {
            total.fetch_add(signed(after - before), Ordering::AcqRel);
            self.capacity.make_room();
        } else if before > after {
            total.fetch_sub(signed(before - after), Ordering::AcqRel);
        }
    }

    /// Records that the client has read bytes, or that bytes of the client were taken.
    pub(crate) fn progressed(&self) {
        self.in_transit.progressed(self.capacity.next_piece.load(Ordering::Relaxed));
    }

    #[cfg(test)]
    pub(crate) fn holding(&self) -> Option<Holding> {
        self.in_transit.holding()
    }

    /// Records that the task of the connection has ended.
    pub(crate) fn ended(&self) {
        self.capacity.in_transit.fetch_sub(signed(self.in_transit.ended()), Ordering::AcqRel);
    }

    /// Releases charged bytes.
    pub(crate) fn release(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let before = self.held.fetch_sub(bytes, Ordering::AcqRel);
        let less = over(before) - over(before.saturating_sub(bytes));
        if less > 0 {
            self.capacity.used.fetch_sub(signed(less), Ordering::AcqRel);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let held = *self.held.get_mut();
        self.release(held);
        let mut state = self.capacity.state();
        state.open -= 1;
        state.memory -= *self.memory.get_mut();
        self.capacity.reserved.store(signed_u64(state.memory), Ordering::Release);
        state.provisional.remove(&self.number);
        state.permits.remove(&self.number);
        if let Some(open) = state.by_address.get_mut(&self.network) {
            *open -= 1;
            if *open == 0 {
                state.by_address.remove(&self.network);
            }
        }
    }
}

/// Returns the part of a connection's bytes that counts against the budget.
fn over(held: usize) -> usize {
    held.saturating_sub(FREE_BYTES)
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn signed_u64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn params() -> CapacityParams {
        CapacityParams {
            connections: 3,
            connections_per_address: None,
            memory: None,
            files: None,
            files_per_connection: 1,
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn task() -> AbortHandle {
        tokio::spawn(std::future::pending::<()>()).abort_handle()
    }

    #[test]
    fn connections_and_budget_follow_from_the_system_limits() {
        let sizes = |memory: Option<u64>, files: Option<u64>| {
            CapacityParams { connections: 16_384, memory, files, ..params() }.sizes()
        };
        assert_eq!(sizes(None, None), (usize::MAX, u64::MAX, UNLIMITED_BUDGET));
        let fitting = |memory: Option<u64>| {
            Capacity::new(&CapacityParams { memory, ..params() }).stats().memory_limit.unwrap()
                / CONNECTION_BYTES
        };
        for (mib, connections) in [(128, 819), (256, 2457), (512, 5242), (1024, 10_485)] {
            let memory = Some(mib * MIB);
            let (_, of_connections, budget) = sizes(memory, None);
            assert!(of_connections + budget + MIN_RESERVE <= mib * MIB, "{mib} MiB");
            assert_eq!(fitting(memory), connections, "{mib} MiB");
        }
        assert_eq!(fitting(Some(8 * MIB)), 16, "enough for probes");
        assert_eq!(Capacity::new(&params()).stats().memory_limit, None);
        assert_eq!(sizes(None, Some(1024)).0, 768);
        let relayed =
            CapacityParams { connections: 16_384, files: Some(1024), files_per_connection: 2, ..params() };
        assert_eq!(relayed.sizes().0, 384);
    }

    #[tokio::test]
    async fn the_oldest_provisional_connection_is_displaced_and_a_confirmed_one_never() {
        let capacity = Capacity::new(&params());
        let [first, second, third] = [1, 2, 3].map(|_| capacity.connect(address("192.0.2.1")).unwrap());
        let tasks = [task(), task(), task()];
        for (permit, task) in [&first, &second, &third].into_iter().zip(&tasks) {
            permit.runs_as(task.clone());
        }
        first.confirm();
        let fourth = capacity.connect(address("192.0.2.1")).unwrap();
        tokio::task::yield_now().await;
        assert_eq!(tasks.each_ref().map(AbortHandle::is_finished), [false, true, false]);
        drop(second);
        third.confirm();
        fourth.confirm();
        assert_eq!(capacity.connect(address("192.0.2.2")).unwrap_err(), Refusal::Connections);
        let stats = capacity.stats();
        assert_eq!(
            (stats.connections_open, stats.connections_displaced, stats.refused_connections),
            (3, 1, 1)
        );
        drop((first, third, fourth));
        assert_eq!(capacity.stats().connections_open, 0);
        assert_eq!(capacity.stats().connections_provisional, 0);
    }

    #[test]
    fn a_relayed_connection_takes_less_memory() {
        let params = CapacityParams { memory: Some(8 * MIB), connections: 99, ..params() };
        let capacity = Capacity::new(&params);
        let connect = || capacity.connect(address("192.0.2.1"));
        let open: Vec<_> = (0..16).map(|_| connect().unwrap()).collect();
        assert_eq!(connect().unwrap_err(), Refusal::Connections);
        assert_eq!(Some(capacity.stats().memory_used), capacity.stats().memory_limit);
        for permit in &open[..8] {
            permit.relay();
            permit.relay();
        }
        assert_eq!(capacity.stats().memory_used, 8 * (CONNECTION_BYTES + RELAYED_BYTES));
        let more: Vec<_> = (0..7).map(|_| connect().unwrap()).collect();
        assert_eq!(connect().unwrap_err(), Refusal::Connections);
        drop((open, more));
        assert_eq!((0..16).map_while(|_| connect().ok()).collect::<Vec<_>>().len(), 16);
    }

    #[test]
    fn an_address_has_a_limit_and_an_ipv6_network_counts_as_one_address() {
        let most = NonZero::new(1);
        let capacity =
            Capacity::new(&CapacityParams { connections_per_address: most, connections: 9, ..params() });
        let open: Vec<_> = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8:0:1::1"]
            .map(|client| capacity.connect(address(client)).unwrap())
            .into();
        for taken in ["192.0.2.1", "::ffff:192.0.2.2", "2001:db8::2"] {
            assert_eq!(capacity.connect(address(taken)).unwrap_err(), Refusal::Address, "{taken}");
        }
        drop(open);
        capacity.connect(address("2001:db8::2")).unwrap();
        assert_eq!(capacity.stats().refused_address, 3);
    }

    #[test]
    fn a_changed_maximum_applies_to_new_connections_only() {
        let capacity = Capacity::new(&CapacityParams { files: Some(1024), ..params() });
        let connect = |client: &str| {
            let permit = capacity.connect(address(client));
            permit.inspect(|permit| permit.confirm())
        };
        let open: Vec<_> = (0..3).map(|_| connect("192.0.2.1").unwrap()).collect();
        capacity.set_connections(9, NonZero::new(3));
        // Connections from before the change count.
        assert_eq!(connect("192.0.2.1").unwrap_err(), Refusal::Address);
        let more = connect("192.0.2.2").unwrap();
        capacity.set_connections(1, None);
        assert_eq!(connect("192.0.2.3").unwrap_err(), Refusal::Connections);
        assert_eq!(capacity.stats().connections_open, 4);
        drop((open, more));
        let _one = connect("192.0.2.1").unwrap();
        assert_eq!(connect("192.0.2.1").unwrap_err(), Refusal::Connections);
        capacity.set_connections(100_000, None);
        assert_eq!(capacity.stats().connections_limit, 768, "the limit on open files stays");
    }

    #[test]
    fn one_provisional_connection_has_its_own_limit() {
        let permit = Capacity::default().connect(address("192.0.2.1")).unwrap();
        assert_eq!(permit.charge(PROVISIONAL_BYTES), Ok(()));
        assert_eq!(permit.charge(1), Err(Refusal::Budget));
        permit.confirm();
        assert_eq!(permit.charge(PROVISIONAL_BYTES), Ok(()), "of the budget there is enough");
    }

    #[test]
    fn provisional_connections_leave_half_of_the_budget_to_confirmed_ones() {
        let capacity =
            Capacity::new(&CapacityParams { memory: Some(128 * MIB), connections: 99, ..params() });
        let budget = capacity.stats().budget_limit;
        let greedy: Vec<_> = (0..99)
            .map_while(|_| {
                let permit = capacity.connect(address("192.0.2.1")).ok()?;
                permit.charge(1 << 20).ok()?;
                Some(permit)
            })
            .collect();
        let used = capacity.stats().budget_used;
        assert!(used <= budget / 2 && used > budget / 2 - MIB, "{used} of {budget}");
        assert_eq!(greedy[0].charge(4 << 20), Err(Refusal::Budget));
        assert_eq!(capacity.stats().budget_used, used, "nothing was charged");
        let other = capacity.connect(address("192.0.2.2")).unwrap();
        assert_eq!(other.charge(FREE_BYTES), Ok(()), "the first piece is free");
        assert_eq!(other.charge(1 << 20), Err(Refusal::Budget));
        other.confirm();
        assert_eq!(other.charge(1 << 20), Ok(()));
        other.release(1 << 20);
        drop((greedy, other));
        assert_eq!(capacity.stats().budget_used, 0);
        assert_eq!(capacity.stats().refused_budget, 3);
    }
}
