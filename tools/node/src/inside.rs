//! The processes in the node's namespaces.

use std::net::Ipv4Addr;

mod addons;
mod component;
mod configuration;
mod containerd;
mod control_plane;
mod init;
mod mounts;
mod network;
mod pki;
mod progress;
mod run;

pub(crate) use init::init;
pub(crate) use mounts::hosts;
pub(crate) use progress::{FAILED, READY};
pub(crate) use run::run;

/// The node's address.
pub const NODE_IP: Ipv4Addr = Ipv4Addr::new(10, 123, 0, 1);
/// Addresses of pods; kube-controller-manager assigns the first /24 to the only node.
pub const POD_RANGE: &str = "10.244.0.0/16";
const POD_SUBNET: &str = "10.244.0.0/24";
/// kubeadm's default range of ClusterIPs.
const SERVICE_RANGE: &str = "10.96.0.0/12";
const DNS_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const API_PORT: u16 = 6443;

/// Paths inside the node.
const TOOLS: &str = "/opt/pinniped-node/bin";
const RUN: &str = "/run/pinniped-node";
pub(crate) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
const KUBERNETES: &str = "/etc/kubernetes";
const LOGS: &str = "/var/log";
