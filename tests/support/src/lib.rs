//! A real control plane, and stand-ins for the rest of a cluster, for tests and the demo.
//!
//! ```text
//! World             one per test executable, in its own network namespace (tools/test-runner.sh)
//!   ControlPlane    etcd, kube-apiserver, kube-controller-manager; own PKI, folder and audit log
//!     Guardian      terminates all processes, also when this process is killed
//!   service proxy   makes ClusterIPs and Service names work, as kube-proxy and cluster DNS do
//!   Pods            runs Deployments of the product, as scheduler and kubelet do
//! ```
//!
//! A typical test (`#[tokio::test]`, run by cargo; `cargo xtask control-plane` provides the tools):
//!
//! ```no_run
//! # async fn test() -> anyhow::Result<()> {
//! use std::time::Duration;
//! use pinniped_test_support::{wait, world::World};
//!
//! let world = World::shared()?; // the first caller waits about five seconds
//! let client = world.client().await?; // one client per runtime, never shared between tests
//! world.kubectl().apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: my-test}\n").await?;
//! type Account = k8s_openapi::api::core::v1::ServiceAccount;
//! let accounts = kube::Api::<Account>::namespaced(client, "my-test");
//! wait::until_ok(Duration::from_secs(10), "the default account", async || {
//!     Ok(accounts.get("default").await?)
//! })
//! .await?;
//! let of_test = |event: &serde_json::Value| event["objectRef"]["namespace"] == "my-test";
//! world.control_plane().await_audit_event("the read", "my-test", of_test).await?;
//!
//! // Pods of the product, from manifests. They need namespaces, so the test may be skipped (the
//! // skip is recorded; `cargo xtask test --require-all` turns it into a failure).
//! let Some(pods) = world.pods("my test") else { return Ok(()) };
//! println!("{}", pods.log_tails("pinniped-concierge", 20));
//! # Ok(())
//! # }
//! ```
//!
//! `cargo xtask world` starts control planes in advance, which [`world::World::shared`] then uses.
//!
//! For logins of people, [`identity_provider`] starts a real identity provider, and [`browser`] a
//! real browser for its pages; [`exchange`] sends single HTTP requests.
//!
//! For a control plane with other flags, use [`control_plane::ControlPlane::start`]. To wait for a
//! condition, use [`wait`] and never a sleep. To repeat a check during another operation, use
//! [`rounds`]. [`certs`] issues certificates for peers, [`wire`] has raw TLS and HTTP/1.1 upgrades,
//! [`issuer`] is a scripted OpenID Connect provider, [`collector`] a real collector of traces,
//! [`log_events`] records the log events of a test, [`process_status`] reads the memory of a
//! process, [`own_thread`] is for work that must not share the test's thread. [`kubectl`] and
//! [`tools::binary`] run programs.
#![forbid(unsafe_code)]

pub mod attacks;
pub mod audit_log;
pub mod browser;
pub mod certs;
pub mod cgroup;
pub mod collector;
pub mod control_plane;
pub mod exchange;
pub mod guardian;
pub mod hosts;
pub mod identity_provider;
pub mod issuer;
pub mod kubectl;
pub mod log_events;
pub mod own_thread;
pub mod pods;
mod prepared;
pub mod process_status;
pub mod rng;
pub mod rounds;
pub mod service_proxy;
pub mod tools;
pub mod wait;
pub mod wire;
pub mod world;
