//! TLS versions, cipher suites and groups.

use std::sync::Arc;

use rustls::{
    SupportedCipherSuite, SupportedProtocolVersion,
    crypto::{
        CryptoProvider,
        aws_lc_rs::{cipher_suite as suite, default_provider, kx_group},
    },
    version::{TLS12, TLS13},
};

/// The TLS versions of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Only TLS 1.3, for connections between components that all support it.
    Secure,
    /// TLS 1.2 and 1.3, for connections with other software.
    Default,
}

impl Profile {
    pub(super) fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::Secure => ONLY_1_3,
            Self::Default => BOTH,
        }
    }

    /// Returns the lowest version in Go's notation.
    pub fn min_version(self) -> &'static str {
        match self {
            Self::Secure => "TLS 1.3",
            Self::Default => "TLS 1.2",
        }
    }

    /// Returns the highest version in Go's notation.
    pub fn max_version(self) -> &'static str {
        "TLS 1.3"
    }
}

static ONLY_1_3: &[&SupportedProtocolVersion] = &[&TLS13];
static BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// Not configurable. Security scanners expect this order.
const SUITES_1_3: [SupportedCipherSuite; 3] =
    [suite::TLS13_AES_128_GCM_SHA256, suite::TLS13_AES_256_GCM_SHA384, suite::TLS13_CHACHA20_POLY1305_SHA256];

/// Elliptic curve Diffie-Hellman with authenticated encryption, in order of preference.
const SUITES_1_2: [(&str, SupportedCipherSuite); 6] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Names that the configuration accepts because upstream uses them for LDAP in another component;
/// never used here.
const LDAP_SUITES: [&str; 4] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];

/// Short names from older releases.
const ALIASES: [(&str, &str); 2] = [
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
];

/// The names in the configured list that are not TLS 1.2 suites. The text is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unrecognized ciphers [{}], ciphers must be from list [{}]", .unrecognized.join(", "), known().join(", "))]
pub struct CipherError {
    /// The names, in the order of the configuration.
    pub unrecognized: Vec<String>,
}

/// Restricts the TLS 1.2 suites to configured ones. The default allows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CipherRestriction {
    /// The full names; empty means all.
    allowed: Vec<&'static str>,
}

impl CipherRestriction {
    /// Parses the configured names. An empty list means all, and so does a list without any of the
    /// supported suites.
    ///
    /// # Errors
    ///
    /// Returns an error when a name is not a suite of any profile.
    pub fn parse(names: &[String]) -> Result<Self, CipherError> {
        let mut allowed = Vec::new();
        let mut unrecognized = Vec::new();
        for name in names {
            let full =
                ALIASES.iter().find(|(alias, _)| alias == name).map_or(name.as_str(), |(_, full)| full);
            match known().into_iter().find(|known| *known == full) {
                Some(known) => allowed.push(known),
                None => unrecognized.push(name.clone()),
            }
        }
        if !unrecognized.is_empty() {
            return Err(CipherError { unrecognized });
        }
        allowed.retain(|name| SUITES_1_2.iter().any(|(suite, _)| suite == name));
        Ok(Self { allowed })
    }

    /// Returns the allowed TLS 1.2 suites in order of preference.
    pub fn suite_names(&self) -> Vec<&'static str> {
        self.suites().map(|(name, _)| name).collect()
    }

    fn suites(&self) -> impl Iterator<Item = (&'static str, SupportedCipherSuite)> {
        SUITES_1_2.into_iter().filter(|(name, _)| self.allowed.is_empty() || self.allowed.contains(name))
    }
}

fn known() -> Vec<&'static str> {
    SUITES_1_2.iter().map(|(name, _)| *name).chain(LDAP_SUITES).collect()
}

/// Returns aws-lc-rs with the suites and groups of this module.
pub(super) fn provider(ciphers: &CipherRestriction) -> Arc<CryptoProvider> {
    let cipher_suites = SUITES_1_3.into_iter().chain(ciphers.suites().map(|(_, suite)| suite)).collect();
    let kx_groups = vec![kx_group::X25519MLKEM768, kx_group::X25519, kx_group::SECP256R1];
    Arc::new(CryptoProvider { cipher_suites, kx_groups, ..default_provider() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(names: &[&str]) -> Result<Vec<&'static str>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        CipherRestriction::parse(&names).map(|parsed| parsed.suite_names()).map_err(|error| error.to_string())
    }

    #[test]
    fn restricted_ciphers_stay_in_the_order_of_the_profile() {
        let all: Vec<&str> = SUITES_1_2.iter().map(|(name, _)| *name).collect();
        let table: &[(&str, &[&str], Vec<&str>)] = &[
            ("nothing configured", &[], all.clone()),
            ("all", &all.clone(), all.clone()),
            ("only CBC leaves nothing, so all", &["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"], all.clone()),
            (
                "order of the configuration does not count, CBC is not spoken",
                &[
                    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
                    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
                    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
                ],
                vec!["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"],
            ),
            (
                "aliases",
                &["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"],
                vec![
                    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
                    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
                ],
            ),
        ];
        for (name, configured, expected) in table {
            assert_eq!(parse(configured).as_ref(), Ok(expected), "{name}");
        }
    }

    #[test]
    fn an_error_for_unknown_ciphers_lists_all_known_ones() {
        assert_eq!(
            parse(&["foo", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"]).unwrap_err(),
            "unrecognized ciphers [foo, TLS_AES_128_GCM_SHA256], ciphers must be from list \
             [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, \
             TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, \
             TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, \
             TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, \
             TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA]"
        );
    }
}
