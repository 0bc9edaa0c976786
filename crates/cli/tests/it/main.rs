//! Tests that run the real binary against scripted TLS servers in this process.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot continue must fail immediately")]

mod cluster;
mod discovery;
mod doctor;
mod explain;
mod get_kubeconfig;
mod hostile;
#[cfg(target_os = "linux")]
mod keyring;
mod login_static;
mod login_token;
mod logout;
mod merge;
mod messages;
mod oidc;
mod oidc_issuer;
mod proxy;
mod server_texts;
mod service_account_tokens;
#[cfg(target_os = "linux")]
mod shells;
mod status;
mod support;
mod whoami;
