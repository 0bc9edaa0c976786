//! Keys, certificates and TLS configurations, all on aws-lc-rs.
//!
//! All cryptography of the programs uses this crate: issuing certificates
//! ([`CertificateAuthority`]), parsing them ([`Certificate`], [`CertificatePair`], [`CaBundle`]),
//! storing a pair that changes while it is in use ([`CertificateStore`]), verifying chains
//! ([`chain`]), and the TLS profiles ([`tls`]).
//!
//! The crate reads no files and no objects of a cluster. Time is always an argument, except inside
//! TLS handshakes, where rustls reads the system clock.
//!
//! ```
//! use std::time::Duration;
//!
//! use jiff::Timestamp;
//! use pinniped_pki::{CaBundle, CertificateAuthority, Validity};
//!
//! let validity = Validity::starting(Timestamp::now(), Duration::from_secs(3600));
//! let ca = CertificateAuthority::generate("An example", &validity).unwrap();
//! let pair = ca.issue_server(&["example.com".to_owned()], &[], &validity).unwrap();
//! assert_eq!(pair.validity, validity);
//! assert_eq!(CaBundle::from_pem(ca.certificate_pem().as_bytes()).unwrap().ders().len(), 1);
//! ```

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

pub use authority::{
    CertificateAuthority, ClientCertificateRequest, ClientSubject, IssueError, IssuedPair, LoadError,
    SignedCertificateError, Validity,
};
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
/// Call it first in `main`, because libraries that build their own TLS configuration look it up.
/// Another call does nothing.
pub fn install_crypto_provider() {
    // An error means that a provider is already installed, which is the intended state.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
