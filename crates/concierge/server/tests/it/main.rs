//! Tests of the Concierge's servers against a real API server.

mod audit;
mod concierge;
mod https_proxy;
mod restart;
mod short_reads;
mod traces;
