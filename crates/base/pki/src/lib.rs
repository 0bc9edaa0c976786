//! Keys, certificates and TLS configurations, all on aws-lc-rs.
//!
//! Everything cryptographic that the programs do goes through this crate: issuing ([`CertificateAuthority`]),
//! reading ([`Certificate`], [`CertificatePair`], [`CaBundle`]), holding a pair that changes while it is in use
//! ([`CertificateStore`]), checking a client's chain ([`chain`]) and the two TLS profiles ([`tls`]).
//!
//! It refuses to know anything about Kubernetes: no Secrets, no names of objects, no files. Time is always an
//! argument, except inside TLS handshakes, where rustls asks the system clock.

#![forbid(unsafe_code)]

mod authority;
mod bundle;
mod certificate;
pub mod chain;
mod key;
mod name;
mod pair;
pub mod pem;
pub mod random;
mod store;
mod suitability;
pub mod tls;

pub use authority::{CertificateAuthority, ClientSubject, IssueError, IssuedPair, LoadError, Validity};
pub use bundle::{BundleError, CaBundle};
pub use certificate::{Certificate, CertificateError};
pub use key::PrivateKeyPem;
pub use pair::{CertificatePair, PairError};
pub use store::{CertificateStore, SetError};
pub use suitability::Weakness;

pub use rustls::DistinguishedName;
pub use rustls_pki_types::CertificateDer;

/// Makes aws-lc-rs the process-wide crypto provider of rustls.
///
/// Call it first thing in `main`; libraries which build their own TLS configuration (kube does) look it up.
/// Calling it again does nothing.
pub fn install_crypto_provider() {
    // An error means that a provider is installed already, which is what was asked for.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
