//! Audit of requests as a Kubernetes API server does it (`audit.k8s.io/v1`).
//!
//! | module | content |
//! |---|---|
//! | [`policy`] | reads a policy file, and decides which stages of a request are logged |
//! | [`event`] | encodes events |
//! | [`bodies`] | copies of the bodies of requests and responses |
//! | [`auditor`] | the policy and the backends of a server; start reading here |
//! | [`queue`] | the bounded buffer between requests and a backend; encodes events in groups |
//! | [`mod@file`] | the file with rotation, and standard output |
//! | [`webhook`] | the webhook: requests, retries, and its kubeconfig |
//! | `losses` | metrics and log lines of lost events |
//!
//! Bodies are logged as they are transferred, if they are JSON; a server that does not decode them
//! cannot log others, such as protobuf.
//!
//! A backend that fails never delays a request, unless it is configured to block: then a log that
//! is slow delays requests without a limit, and a webhook delays each stage of a request for at
//! most [`auditor::BLOCKING_LIMIT`].
//!
//! A test compares the decisions of policies with those of a real kube-apiserver for a thousand
//! requests (`tests/e2e/tests/it/audit_policy.rs`).

#![forbid(unsafe_code)]

pub mod auditor;
pub mod bodies;
mod bounded_file;
pub mod event;
pub mod file;
mod losses;
mod platform;
pub mod policy;
pub mod queue;
pub mod webhook;
