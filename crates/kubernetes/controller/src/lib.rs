//! A runtime for controllers: watch caches, leader election, and a queue with back-off.
//!
//! Reads come from shared watch caches ([`watch`]). Writes go through a [`client::Writer`], which
//! refuses them while this pod does not hold the Lease ([`lease`]). A refused write is not an
//! error: the leader makes it, the result arrives by watch, and the controller runs again
//! ([`runtime`]). A controller whose objects can delay each other runs each of them separately
//! ([`per_object`]).

#![forbid(unsafe_code)]

pub mod client;
pub mod clock;
pub mod event;
pub mod follow;
pub mod lease;
pub mod metrics;
pub mod per_object;
pub mod runtime;
pub mod service_account_token;
pub mod watch;
