//! Inspects a serving certificate. The result is the input of
//! `pinniped_concierge_domain::strategy::certificate_validation`, which decides whether the
//! certificate is valid.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use pinniped_concierge_domain::strategy::certificate_validation::{CertificateDetails, Chain};
use pinniped_concierge_domain::strategy::external_certificate::{NOT_A_CERTIFICATE, advertised_bundle};
use pinniped_pki::chain::{self, ChainError};
use pinniped_pki::{CaBundle, Certificate, CertificateDer, CertificatePair, pem};

use super::certificates::{CA_CERTIFICATE, TLS_CERTIFICATE, TLS_KEY};
use crate::api_certs::bytes;

/// Inspects the Secret's certificate and checks it against the bundle that is advertised with it.
/// Returns `None` if there is no certificate.
pub(super) fn read(
    secret: &Secret,
    certificate_authority_data: &str,
    now: Timestamp,
) -> Option<CertificateDetails> {
    let text = bytes(secret, TLS_CERTIFICATE);
    let mut ders = pem::blocks(text)
        .into_iter()
        .filter(|block| block.label == pem::CERTIFICATE)
        .map(|block| CertificateDer::from(block.contents.to_vec()));
    let leaf = Certificate::parse_der(&ders.next()?).ok()?;
    let others: Vec<CertificateDer<'static>> = ders.collect();
    let bundle = advertised_bundle(certificate_authority_data, bytes(secret, CA_CERTIFICATE));
    let pair = CertificatePair::parse(text, bytes(secret, TLS_KEY));
    Some(CertificateDetails {
        may_serve: leaf.may_serve(),
        weaknesses: weaknesses(&leaf, &others, &bundle),
        chain: verify(&leaf, &others, &bundle, now),
        loadable: pair.is_ok_and(|pair| !pair.leaf().is_ca),
        not_before: leaf.not_before,
        not_after: leaf.not_after,
        ips: leaf.ip_addresses,
        dns_names: leaf.dns_names,
    })
}

/// Returns the weaknesses of the leaf's key, and of the signatures of all certificates that are not
/// trusted directly.
fn weaknesses(leaf: &Certificate, others: &[CertificateDer<'static>], bundle: &[u8]) -> Vec<String> {
    let roots = CaBundle::from_pem(bundle).unwrap_or_default();
    let others = others.iter().filter(|der| !roots.ders().contains(der));
    let others = others.filter_map(|der| Certificate::parse_der(der).ok());
    let mut found: Vec<String> = leaf.weak_key().iter().map(ToString::to_string).collect();
    for weak in leaf.weak_signature().into_iter().chain(others.filter_map(|other| other.weak_signature())) {
        let weak = weak.to_string();
        if !found.contains(&weak) {
            found.push(weak);
        }
    }
    found
}

fn verify(leaf: &Certificate, others: &[CertificateDer<'static>], bundle: &[u8], now: Timestamp) -> Chain {
    if bundle.is_empty() {
        return Chain::NoBundle;
    }
    let blocks = pem::blocks(bundle);
    if blocks.is_empty() {
        return Chain::BadBundle(1, NOT_A_CERTIFICATE.to_owned());
    }
    let mut roots = Vec::with_capacity(blocks.len());
    for (index, block) in blocks.into_iter().enumerate() {
        if block.label != pem::CERTIFICATE {
            return Chain::BadBundle(index + 1, format!("a PEM block of type {:?}", block.label));
        }
        match Certificate::parse_der(&block.contents) {
            Ok(root) => roots.push(root.der),
            Err(error) => return Chain::BadBundle(index + 1, error.to_string()),
        }
    }
    // A certificate that clients trust directly needs no issuer.
    if roots.contains(&leaf.der) {
        return Chain::Verified;
    }
    // The validity and the key usage of the leaf itself are checked separately.
    let time = now.clamp(leaf.not_before, leaf.not_after.max(leaf.not_before));
    match chain::verify_server(&leaf.der, others, &CaBundle::from_ders(roots), time) {
        Err(ChainError::IncompatibleUsage) if !leaf.may_serve() => Chain::Verified,
        Err(error) => Chain::Failed(error.to_string()),
        Ok(()) => Chain::Verified,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use pinniped_pki::{CertificateAuthority, IssuedPair, Validity};

    use super::*;
    use crate::api_certs::data;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn now() -> Timestamp {
        Timestamp::from_second(1_900_000_000).unwrap()
    }

    fn authority(name: &str) -> CertificateAuthority {
        CertificateAuthority::generate(name, &Validity::starting(now(), 100 * DAY)).unwrap()
    }

    fn issue(ca: &CertificateAuthority) -> IssuedPair {
        let validity = Validity::starting(now(), 10 * DAY);
        ca.issue_server(&["a.example.com".to_owned()], &["1.2.3.4".parse().unwrap()], &validity).unwrap()
    }

    fn secret(certificate: &str, key: &str, ca: &str) -> Secret {
        let values = [
            (TLS_CERTIFICATE, certificate.as_bytes()),
            (TLS_KEY, key.as_bytes()),
            (CA_CERTIFICATE, ca.as_bytes()),
        ];
        Secret { data: data(values), ..Secret::default() }
    }

    #[test]
    fn a_valid_pair_has_the_properties_of_its_leaf() {
        let ca = authority("x");
        let leaf = issue(&ca);
        let secret = secret(&leaf.certificate_pem, leaf.private_key_pem.as_str(), ca.certificate_pem());
        let details = read(&secret, "", now()).unwrap();
        let wanted = CertificateDetails {
            ips: vec!["1.2.3.4".parse().unwrap()],
            dns_names: vec!["a.example.com".to_owned()],
            not_before: details.not_before,
            not_after: now() + 10 * DAY,
            may_serve: true,
            weaknesses: Vec::new(),
            chain: Chain::Verified,
            loadable: true,
        };
        assert_eq!(details, wanted);
        assert!(details.not_before <= now());
    }

    #[test]
    fn the_chain_is_verified_with_the_advertised_bundle() {
        let (ca, other) = (authority("x"), authority("y"));
        let leaf = issue(&ca);
        let (good, bad) = (ca.certificate_pem(), other.certificate_pem());
        let unknown = Chain::Failed("x509: certificate signed by unknown authority".to_owned());
        let key = pem::encode("PUBLIC KEY", b"x");
        let broken = pem::encode("CERTIFICATE", b"x");
        let both = format!("{bad}{good}");
        let malformed = "x509: malformed certificate".to_owned();
        let not_a_certificate = "a PEM block of type \"PUBLIC KEY\"".to_owned();
        // Bundle of the spec, `ca.crt` of the Secret, expected chain.
        let rows = [
            (String::new(), String::new(), Chain::NoBundle),
            (String::new(), good.to_owned(), Chain::Verified),
            (String::new(), bad.to_owned(), unknown.clone()),
            (good.to_owned(), bad.to_owned(), Chain::Verified),
            (bad.to_owned(), good.to_owned(), unknown),
            (both.clone(), String::new(), Chain::Verified),
            (format!("# a comment\n{}", both.replace('\n', "\r\n")), String::new(), Chain::Verified),
            (leaf.certificate_pem.clone(), String::new(), Chain::Verified),
            (format!("{good}{key}"), String::new(), Chain::BadBundle(2, not_a_certificate)),
            (format!("{good}{bad}{broken}"), String::new(), Chain::BadBundle(3, malformed)),
            ("words".to_owned(), String::new(), Chain::BadBundle(1, "data is not a certificate".to_owned())),
        ];
        for (data, ca_crt, wanted) in rows {
            let secret = secret(&leaf.certificate_pem, leaf.private_key_pem.as_str(), &ca_crt);
            let details = read(&secret, &STANDARD.encode(&data), now()).unwrap();
            assert_eq!(details.chain, wanted, "{data}{ca_crt}");
        }
    }

    #[test]
    fn an_expired_leaf_has_a_chain_and_an_expired_root_does_not() {
        let ca = authority("x");
        let leaf = issue(&ca);
        let secret = secret(&leaf.certificate_pem, leaf.private_key_pem.as_str(), ca.certificate_pem());
        assert_eq!(read(&secret, "", now() + 20 * DAY).unwrap().chain, Chain::Verified);

        let short = CertificateAuthority::generate("x", &Validity::starting(now(), DAY)).unwrap();
        let leaf = issue(&short);
        let secret = super::tests::secret(
            &leaf.certificate_pem,
            leaf.private_key_pem.as_str(),
            short.certificate_pem(),
        );
        assert_eq!(read(&secret, "", now()).unwrap().chain, Chain::Verified);
        let wanted = Chain::Failed("x509: certificate signed by unknown authority".to_owned());
        assert_eq!(read(&secret, "", now() + 2 * DAY).unwrap().chain, wanted);
    }

    #[test]
    fn an_unloadable_certificate_differs_from_an_unreadable_one() {
        let ca = authority("x");
        let leaf = issue(&ca);
        let key = leaf.private_key_pem.as_str();
        let loadable = |certificate: &str, key: &str| {
            read(&secret(certificate, key, ""), "", now()).map(|details| details.loadable)
        };
        assert_eq!(loadable("", key), None);
        assert_eq!(loadable("words", key), None);
        assert_eq!(loadable(key, key), None);
        assert_eq!(loadable(&pem::encode("CERTIFICATE", b"x"), key), None);
        assert_eq!(loadable(&leaf.certificate_pem, ""), Some(false));
        assert_eq!(loadable(&leaf.certificate_pem, issue(&ca).private_key_pem.as_str()), Some(false));
        assert_eq!(loadable(ca.certificate_pem(), ca.private_key_pem().as_str()), Some(false), "a CA");
        assert_eq!(loadable(&leaf.certificate_pem, key), Some(true));
        let around = format!("words\n{}more words\n{}", leaf.certificate_pem, ca.certificate_pem());
        assert_eq!(loadable(&around.replace('\n', "\r\n"), &format!("x\n{key}y")), Some(true));
    }
}
