//! An HTTP client for proxies and long-running programs: connections, pools and the dial policy.
//!
//! [`upstream`] is a pool of connections to one server; [`dial`] opens single connections, directly
//! or through the proxy that [`proxy_environment`] finds in the environment; [`lingering`] keeps a
//! permit and a stream for a short time after a client has cancelled its request.

#![forbid(unsafe_code)]

pub mod dial;
pub mod lingering;
pub mod proxy_environment;
pub mod upstream;
