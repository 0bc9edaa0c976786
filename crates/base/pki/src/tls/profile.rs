//! Versions, suites and groups.

use std::sync::Arc;

use rustls::{
    SupportedCipherSuite, SupportedProtocolVersion,
    crypto::{
        CryptoProvider,
        aws_lc_rs::{cipher_suite as suite, default_provider, kx_group},
    },
    version::{TLS12, TLS13},
};

/// Which versions are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// TLS 1.3 only: both sides are ours, or Kubernetes'.
    Secure,
    /// TLS 1.2 and 1.3: the other side is somebody else's.
    Default,
}

impl Profile {
    pub(super) fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::Secure => ONLY_1_3,
            Self::Default => BOTH,
        }
    }

    /// The lowest version, as Go prints it.
    pub fn min_version(self) -> &'static str {
        match self {
            Self::Secure => "TLS 1.3",
            Self::Default => "TLS 1.2",
        }
    }

    /// The highest version, as Go prints it.
    pub fn max_version(self) -> &'static str {
        "TLS 1.3"
    }
}

static ONLY_1_3: &[&SupportedProtocolVersion] = &[&TLS13];
static BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// Not configurable. Scanners expect this order.
const SUITES_1_3: [SupportedCipherSuite; 3] =
    [suite::TLS13_AES_128_GCM_SHA256, suite::TLS13_AES_256_GCM_SHA384, suite::TLS13_CHACHA20_POLY1305_SHA256];

/// Elliptic curve Diffie-Hellman with authenticated encryption, in the order in which they are preferred.
const SUITES_1_2: [(&str, SupportedCipherSuite); 6] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Known to the configuration, because upstream's Supervisor uses them for LDAP; never spoken here.
const LDAP_SUITES: [&str; 4] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];

/// Short names of older releases.
const ALIASES: [(&str, &str); 2] = [
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
];

/// Names in the configured list that are no TLS 1.2 suites. The text is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unrecognized ciphers [{}], ciphers must be from list [{}]", .unrecognized.join(", "), known().join(", "))]
pub struct CipherError {
    /// The names, in the order of the configuration.
    pub unrecognized: Vec<String>,
}

/// Narrows the TLS 1.2 suites to configured ones. The default allows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CipherRestriction {
    /// Full names; empty means all.
    allowed: Vec<&'static str>,
}

impl CipherRestriction {
    /// Parses the configured names. An empty list means all, and so does a list that holds none of the suites
    /// spoken here.
    ///
    /// # Errors
    ///
    /// When a name is no suite of any profile.
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

    /// The TLS 1.2 suites that remain, in the order in which they are preferred.
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

/// aws-lc-rs with our suites and groups.
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
    fn ciphers_are_restricted_in_the_profiles_own_order() {
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
    fn unknown_ciphers_are_told_with_all_known_ones() {
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
