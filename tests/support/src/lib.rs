//! A real control plane and other real parts for tests and the demo.
//!
//! ```text
//! World               one per test executable, in a network namespace of its own (tools/test-runner.sh)
//!   ControlPlane      etcd, kube-apiserver, kube-controller-manager; own PKI, ports, folder; audit log
//!     Guardian        ends all of it, also when this process is killed
//!   service proxy     ClusterIPs and Service names work, as with kube-proxy and cluster DNS
//!   Pods              Deployments of our own programs run, as with scheduler and kubelet
//! ```
//!
//! A test usually looks like this (`#[tokio::test]`, run by cargo, tools found by `cargo xtask control-plane`):
//!
//! ```no_run
//! # async fn test() -> anyhow::Result<()> {
//! use std::time::Duration;
//! use pinniped_test_support::{wait, world::World};
//!
//! let world = World::shared()?; // the first caller waits some five seconds
//! let client = world.client().await?; // a client per runtime, never shared between tests
//! world.kubectl().apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: my-test}\n").await?;
//! let accounts = kube::Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(client, "my-test");
//! wait::until_ok(Duration::from_secs(10), "the default account", async || Ok(accounts.get("default").await?)).await?;
//! world.control_plane().await_audit_event("the read", |e| e["objectRef"]["namespace"] == "my-test").await?;
//!
//! // Our own programs, from manifests: needs namespaces, so it may be skipped (noted, or failed by
//! // `cargo xtask test --require-all`).
//! let Some(pods) = world.pods("my test") else { return Ok(()) };
//! println!("{}", pods.log_tails("pinniped-concierge", 20));
//! # Ok(())
//! # }
//! ```
//!
//! Only a control plane with other flags: [`control_plane::ControlPlane::start`]. Waiting: [`wait`], never a
//! sleep. Doing something all the while: [`rounds`]. Certificates of peers: [`certs`]. Raw TLS and HTTP/1.1
//! upgrades: [`wire`]. Programs: [`kubectl`], [`tools::binary`].
#![forbid(unsafe_code)]

pub mod attacks;
pub mod certs;
pub mod cgroup;
pub mod chance;
pub mod control_plane;
pub mod guardian;
pub mod hosts;
pub mod kubectl;
pub mod pods;
pub mod rounds;
pub mod service_proxy;
pub mod tools;
pub mod wait;
pub mod wire;
pub mod world;
