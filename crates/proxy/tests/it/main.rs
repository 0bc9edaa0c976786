//! The proxy over real sockets and real TLS, in front of a scripted API server.

mod api_server;
mod forwarding;
mod identity;
mod refusals;
mod streams;
mod upgrades;
mod world;
