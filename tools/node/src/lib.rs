//! A real one-node cluster like kind's, without a container daemon: containerd, kubelet,
//! kube-proxy, scheduler and control plane in their own PID, mount, network, UTS and IPC
//! namespaces, on the machine's root file system below an overlay.
//!
//! ```text
//! pinniped-node up    checks the machine, takes a snapshot of it, starts the next step and waits
//!   supervise         own session and cgroups; executes unshare(1), which creates the namespaces
//!     init            process 1 of the node: file systems, network; reaps orphaned processes
//!       run           certificates, etcd, API server, containerd, ...; exits with any of them
//! pinniped-node down  kills process 1, and with it all processes, mounts, links and packet
//!                     filter rules of the node; removes cgroups and files; compares the machine
//!                     with the snapshot
//! ```
//!
//! Several nodes can run concurrently, each with the well-known addresses, ports and paths
//! (`https://10.123.0.1:6443`, `/etc/kubernetes/pki`, `/var/lib/kubelet`), independent of the
//! machine's own ports and programs. A node has no route to other networks: images are imported,
//! and external names do not resolve.
//!
//! [`Node::enter`] runs a program in a node's network, with the names of its Services;
//! [`Node::block_on_inside`] runs a part of this process there. Tests share a node with
//! [`fixture::shared`].
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
