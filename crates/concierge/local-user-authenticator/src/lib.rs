//! The local-user-authenticator: a TokenReview webhook whose users are Secrets, for demonstrations
//! and tests.
//!
//! ```text
//! POST /authenticate -> protocol.rs   parses the TokenReview and the user's credentials
//!                    -> users.rs      the Secret of that name, its groups
//!                    -> passwords.rs  bcrypt
//! certificates.rs  creates the Secret of the serving certificate if it is missing, and follows it
//! service.rs       the handling of a request; run.rs  the program
//! ```
//!
//! The file of the program is `pinniped-server`, which runs [`run::main`].
//!
//! It has no flags and no configuration: names, port and log level are fixed as in upstream, and
//! must match the manifest. It is not for production: static passwords are sent as tokens, and
//! every client that may write Secrets in its namespace can create users.

pub mod certificates;
pub mod passwords;
pub mod protocol;
pub mod run;
pub mod service;
pub mod users;

/// The namespace of the program, of its serving certificate and of its users.
pub const NAMESPACE: &str = "local-user-authenticator";

/// The Service of the program. The serving certificate is issued for its DNS names.
pub const SERVICE: &str = "local-user-authenticator";

/// The Secret with the serving certificate and its CA.
pub const CERTIFICATE_SECRET: &str = "local-user-authenticator-tls-serving-certificate";
