//! What should run for a `CredentialIssuer`, and what its status says about it.
//!
//! [`impersonator::decide`] is the heart: from everything that was observed to a list of steps and a verdict. It stands
//! on [`spec`] (validation), [`certificate_names`] (for whom a serving certificate is), [`service`] (what the Services
//! look like), [`external`] (certificates that the administrator brings) and [`validation`] (whether those can work).
//! [`cert_agent`] judges the other strategy, [`status`] puts the entries of both into the list.

pub mod cert_agent;
pub mod certificate_names;
pub mod external;
pub mod impersonator;
pub mod service;
pub mod spec;
pub mod status;
pub mod validation;
