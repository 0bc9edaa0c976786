//! Certificate delegation as it is in a cluster: objects through the real API server, the real gateway as pods, and a
//! client that looks what is served.
//!
//! The rows of the table that `pinniped-gateway-routing` tests as plain data are here where the cluster could spoil them: what
//! the API server lets in, what watches bring and when, what statuses say in the end. [`place`] has a gateway of these
//! tests' own, with a class of its own, so that nobody else restarts it.

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
