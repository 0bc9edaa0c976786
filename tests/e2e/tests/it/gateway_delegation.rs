//! Certificate delegation in a real cluster: objects through the real API server, the real gateway
//! as pods, and a client that checks the certificates it receives.
//!
//! `pinniped-gateway-routing` tests the same table as plain data. This module repeats the rows in
//! which the cluster matters: validation by the API server, the order and time of watch events, and
//! the resulting statuses. [`environment`] has a separate gateway for these tests, with its own
//! class, so that no other test restarts it.

mod client_ca;
mod cluster;
mod design;
mod environment;
mod etcd;
mod fallback;
mod grants;
mod howto;
mod ingress;
mod ingress_route;
mod lookalikes;
mod permissions;
mod secrets;
mod services;
