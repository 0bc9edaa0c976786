//! Runs the real binary against scripted TLS servers in this process.
#![forbid(unsafe_code)]

mod get_kubeconfig;
mod login_static;
mod messages;
mod support;
mod whoami;
