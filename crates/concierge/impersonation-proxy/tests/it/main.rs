//! Tests of the proxy over real sockets and real TLS, in front of a scripted API server.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

mod api_server;
mod audit;
mod client_impersonation;
mod credentials;
mod exchange;
mod forwarding;
mod goaway;
mod hostile;
mod identity;
mod impostors;
mod large;
mod leaks;
mod metrics;
mod provisional;
mod raw;
mod recordings;
mod refusals;
mod resets;
mod reviews;
mod short_reads;
mod streams;
mod tls_server;
mod traces;
mod upgrades;
mod uploads;
mod world;
