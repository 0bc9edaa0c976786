//! A real one-node cluster, as kind makes one, without a container daemon: containerd, kubelet, kube-proxy,
//! scheduler and control plane in PID, mount, network, UTS and IPC namespaces of their own, on a root file system
//! that is the machine's own seen through an overlay.
//!
//! ```text
//! pinniped-node up          checks the machine, takes a snapshot of it, starts the next and waits
//!   supervise               a session and cgroups of its own; becomes unshare(1), which makes the namespaces
//!     init                  process 1 of the node: file systems, network; then reaps what is orphaned
//!       run                 certificates, etcd, API server, containerd, kubelet, ...; ends when one of them does
//! pinniped-node down        ends process 1: with it go all processes, mounts, links and packet filter rules of the
//!                           node; removes cgroups and files; compares the machine with the snapshot
//! ```
//!
//! So several nodes run side by side, each with the well-known addresses, ports and paths
//! (`https://10.123.0.1:6443`, `/etc/kubernetes/pki`, `/var/lib/kubelet`), and what listens or runs on the machine
//! does not matter to them. A node has no way out: images are imported, names of the world do not resolve.
//!
//! A program is brought into a node's network, with the names of its Services, by [`Node::enter`]; a part of this
//! process by [`Node::block_on_inside`]. Tests share a node by [`fixture::shared`].
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod cgroups;
pub mod cli;
pub mod fixture;
mod hosts;
mod images;
mod inside;
mod instance;
mod layout;
mod node;
mod prerequisites;
mod process;
mod record;
mod snapshot;

pub use images::PAUSE;
pub use inside::{NODE_IP, POD_RANGE};
pub use layout::{DEFAULT_NAME, Layout, STATE_ENV, TOOLS_ENV};
pub use node::{Health, Node, Status, UpOptions};
pub use prerequisites::missing;
