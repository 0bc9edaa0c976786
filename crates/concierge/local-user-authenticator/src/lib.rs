//! The local-user-authenticator: a TokenReview webhook whose users are Secrets, for demonstrations and tests.
//!
//! ```text
//! POST /authenticate -> protocol.rs   is it a TokenReview, and whose password is in it
//!                    -> users.rs      the Secret of that name, its groups
//!                    -> passwords.rs  bcrypt
//! certificates.rs  makes the serving certificate's Secret when there is none, and follows it
//! service.rs       the request's way; run.rs  the program
//! ```
//!
//! It takes no flags and no configuration: names, port and log level are fixed, as upstream has them, and must agree
//! with the manifest. It is not for production: static passwords travel as tokens, and whoever may write Secrets in
//! its namespace can make users.

pub mod certificates;
pub mod passwords;
pub mod protocol;
pub mod run;
pub mod service;
pub mod users;

/// The namespace of the program, of its serving certificate and of its users.
pub const NAMESPACE: &str = "local-user-authenticator";

/// The Service in front of it, for whose DNS names the serving certificate is issued.
pub const SERVICE: &str = "local-user-authenticator";

/// The Secret with the serving certificate and its CA.
pub const CERTIFICATE_SECRET: &str = "local-user-authenticator-tls-serving-certificate";
