//! `login oidc` against a scripted issuer.
//!
//! ```text
//! issuer            the issuer
//! browser           the user's browser, which a test drives
//! flows             the flows, and what can go wrong in them
//! disks             caches on disks that are full or read-only, and of processes that are killed
//! repeated          programs that call their plugin again after a failed login
//! terminal          prompts
//! commands          commands that log in as the plugin of a kubeconfig would
//! desktop_programs  the conditions under which k9s and Lens run the plugin
//! sessions          caches, refresh, and many processes at once
//! ```

pub(crate) mod browser;
#[cfg(unix)]
mod commands;
#[cfg(target_os = "linux")]
mod desktop_programs;
#[cfg(target_os = "linux")]
mod disks;
pub(crate) mod flows;
pub(crate) mod issuer;
#[cfg(unix)]
mod repeated;
mod sessions;
#[cfg(unix)]
mod terminal;
