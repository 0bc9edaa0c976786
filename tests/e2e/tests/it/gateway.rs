//! The gateway as it is installed: our manifest unchanged, its program in two pods with the rights of its
//! ServiceAccount and no other, real servers behind it and clients before it.
//!
//! Who may use whose certificate is in `gateway_delegation`.

mod backend;
mod bad_input;
mod changes;
mod environment;
mod passthrough;
mod replicas;
mod stopped;
mod termination;
