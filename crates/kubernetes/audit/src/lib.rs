//! Audit of requests as a Kubernetes API server does it (`audit.k8s.io/v1`).
//!
//! | module | content |
//! |---|---|
//! | [`policy`] | reads a policy file, and decides which stages of a request are logged |
//! | [`event`] | encodes events |
//! | [`auditor`] | the policy and the backends of a server; start reading here |
//! | [`queue`] | the bounded buffer between requests and a backend |
//! | [`mod@file`] | the file with rotation, and standard output |
//! | `losses` | metrics and log lines of lost events |
//!
//! Bodies of requests and responses are not logged, so a policy that requires them is refused. A
//! backend that fails never delays a request, unless it is configured to write each event before
//! its request continues.
//!
//! A test compares the decisions of policies with those of a real kube-apiserver for a thousand
//! requests (`tests/e2e/tests/it/audit_policy.rs`).

#![forbid(unsafe_code)]

pub mod auditor;
pub mod event;
pub mod file;
mod losses;
mod platform;
pub mod policy;
pub mod queue;
