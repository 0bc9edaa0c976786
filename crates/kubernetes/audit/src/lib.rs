//! Audit of requests as a Kubernetes API server does it (`audit.k8s.io/v1`).
//!
//! | module | content |
//! |---|---|
//! | [`policy`] | reads a policy file, and decides which stages of a request are logged |
//!
//! A test compares the decisions with those of a real kube-apiserver for a thousand requests
//! (`tests/e2e/tests/it/audit_policy.rs`).

#![forbid(unsafe_code)]

pub mod policy;
