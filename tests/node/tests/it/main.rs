//! Tests with a real node. They need root and the packages that `pinniped-node check` reports, and
//! are skipped without them.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod admin;
mod background;
mod bad_input;
mod cert_agent;
mod cluster;
mod existing_cluster;
mod gateway;
mod helm;
mod install;
mod kubectl;
mod lifecycle;
mod memory_limit;
mod reader;
mod rollout;
mod signed_logins;
mod tutorial;
mod walkthrough;
