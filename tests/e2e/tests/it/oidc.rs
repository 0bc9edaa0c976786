//! Logins at real identity providers, on their own pages, in a real browser.
//!
//! ```text
//! environment.rs   the providers, one of each for all tests, and a new browser for each test
//! keycloak.rs      passwords, permissions of a group, claim rules, scopes, refresh
//! consent.rs       the consent pages of oidc-provider, and a cancelled login
//! device.rs        the device flow, which a browser on another machine completes
//! demo.rs          the demo as a process
//! howto.rs         the commands of docs/howto/oidc.md
//! tutorial.rs      the tutorial docs/tutorials/oidc.md
//! ```
//!
//! Screenshots of the pages are in `screenshots/` of the target folder. Faults that no real
//! provider shows are tested with scripted issuers, next to the code.

mod consent;
mod demo;
mod device;
mod environment;
mod howto;
mod keycloak;
mod tutorial;
