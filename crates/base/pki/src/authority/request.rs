//! A request for a client certificate (PKCS#10, RFC 2986) that another authority signs.

use std::fmt;

use der::{Encode as _, asn1::BitString};
use signature::Signer as _;
use spki::DynSignatureAlgorithmIdentifier as _;
use x509_cert::request::{CertReq, CertReqInfo, Version};

use super::{ClientSubject, IssueError, IssuedPair, Signature, Signer, Validity, generate_key, public_key};
use crate::{
    CertificatePair, PrivateKeyPem, certificate,
    key::KeyPair,
    name,
    pair::PairError,
    pem::{self, CERTIFICATE},
};

/// The label of a request in PEM.
const CERTIFICATE_REQUEST: &str = "CERTIFICATE REQUEST";

/// The reason why a signed certificate is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignedCertificateError {
    /// The certificate does not belong to the key of the request, or cannot be parsed.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// The certificate is for another user, or for a user with other groups or extras.
    #[error("certificate has another subject than the request")]
    Subject,
    /// The certificate can sign other certificates.
    #[error("certificate is a CA certificate")]
    Ca,
    /// Servers do not accept the certificate from clients.
    #[error("certificate does not have the extended key usage of clients")]
    Usage,
}

/// A new P-256 key, and the request for a client certificate with it.
pub struct ClientCertificateRequest {
    pem: String,
    private_key_pem: PrivateKeyPem,
    subject: ClientSubject,
}

impl fmt::Debug for ClientCertificateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificateRequest").finish_non_exhaustive()
    }
}

impl ClientCertificateRequest {
    /// Generates a key and the request. The subject is encoded as in
    /// [`CertificateAuthority::issue_client`](super::CertificateAuthority::issue_client).
    ///
    /// # Errors
    ///
    /// Returns an error when there is no randomness.
    pub fn generate(subject: &ClientSubject) -> Result<Self, IssueError> {
        let key = generate_key()?;
        let pkcs8 = key.to_pkcs8v1().map_err(|_| IssueError::GenerateKey)?;
        let private_key_pem = PrivateKeyPem::new(pem::encode("PRIVATE KEY", pkcs8.as_ref()));
        let public_key = public_key(&key)?;
        let signer = Signer::new(KeyPair::Ecdsa(key), public_key.clone());
        // Not with the builder of x509-cert, which adds an empty list of extensions. RFC 2985
        // requires at least one extension in that list.
        let info = CertReqInfo {
            version: Version::V1,
            subject: name::client(subject)?,
            public_key,
            attributes: Default::default(),
        };
        let failed = x509_cert::builder::Error::from;
        let signature: Signature = signer.try_sign(&info.to_der()?).map_err(failed)?;
        let request = CertReq {
            info,
            algorithm: signer.signature_algorithm_identifier().map_err(x509_cert::builder::Error::from)?,
            signature: BitString::from_bytes(&signature.0)?,
        };
        let pem = pem::encode(CERTIFICATE_REQUEST, &request.to_der()?);
        Ok(Self { pem, private_key_pem, subject: subject.clone() })
    }

    /// Returns the request: one `CERTIFICATE REQUEST` block.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the signed certificate with the key of the request. `chain_pem` has the certificate,
    /// and after it the intermediate authorities, if there are any; text around the blocks is
    /// dropped.
    ///
    /// # Errors
    ///
    /// Returns [`SignedCertificateError`] if the certificate is not the requested one.
    pub fn accept(self, chain_pem: &[u8]) -> Result<IssuedPair, SignedCertificateError> {
        let pair = CertificatePair::parse(chain_pem, self.private_key_pem.as_bytes())?;
        let leaf = pair.leaf();
        if !is_of(leaf, &self.subject) {
            return Err(SignedCertificateError::Subject);
        }
        if leaf.is_ca {
            return Err(SignedCertificateError::Ca);
        }
        let parsed = certificate::parse(&leaf.der).map_err(PairError::Certificate)?;
        let usage = parsed.extended_key_usage().ok().flatten();
        if !usage.is_some_and(|usage| usage.value.client_auth) {
            return Err(SignedCertificateError::Usage);
        }
        let validity = Validity { not_before: leaf.not_before, not_after: leaf.not_after };
        let certificate_pem = pair.chain().iter().map(|der| pem::encode(CERTIFICATE, der)).collect();
        Ok(IssuedPair { certificate_pem, private_key_pem: self.private_key_pem, validity })
    }
}

/// Returns whether a server derives exactly this user from the certificate. The order of groups and
/// extras is not significant, because DER sorts them.
fn is_of(certificate: &crate::Certificate, subject: &ClientSubject) -> bool {
    let units = subject
        .extra
        .iter()
        .flat_map(|(key, values)| values.iter().map(move |value| format!("{key}={value}")));
    certificate.subject_cn == subject.username
        && sorted(certificate.organizations.iter().cloned()) == sorted(subject.groups.iter().cloned())
        && sorted(certificate.organizational_units.iter().cloned()) == sorted(units)
        && certificate.uids.is_empty()
}

fn sorted(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<String> = texts.collect();
    texts.sort_unstable();
    texts
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use rcgen::{
        BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
        Issuer, KeyPair as TestKey,
    };

    use super::*;
    use crate::{Certificate, CertificateAuthority};

    fn subject() -> ClientSubject {
        ClientSubject {
            username: "älice".to_owned(),
            groups: vec!["zebras".to_owned(), "a".to_owned(), "a".to_owned()],
            extra: [("example.com/k".to_owned(), vec!["2".to_owned(), "1".to_owned()])].into(),
        }
    }

    /// Returns a certificate for the key of the request and the subject [`simple`], after `change`.
    fn sign(request: &ClientCertificateRequest, change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "g");
        params.distinguished_name.push(DnType::OrganizationalUnitName, "example.com/k=v");
        params.distinguished_name.push(DnType::CommonName, "bob");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = Issuer::new(ca, TestKey::generate().unwrap());
        let key = TestKey::from_pem(request.private_key_pem.as_str()).unwrap();
        params.signed_by(&key, &issuer).unwrap().pem()
    }

    /// A subject that rcgen can encode, because each attribute occurs once.
    fn simple() -> ClientSubject {
        ClientSubject {
            username: "bob".to_owned(),
            groups: vec!["g".to_owned()],
            extra: [("example.com/k".to_owned(), vec!["v".to_owned()])].into(),
        }
    }

    #[test]
    fn a_request_contains_the_subject_and_no_extensions_and_is_signed_with_its_key() {
        use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer as _};

        let request = ClientCertificateRequest::generate(&subject()).unwrap();
        let blocks = pem::blocks(request.pem().as_bytes());
        assert_eq!((blocks.len(), blocks[0].label.as_str()), (1, "CERTIFICATE REQUEST"));
        let (rest, parsed) = X509CertificationRequest::from_der(&blocks[0].contents).unwrap();
        assert!(rest.is_empty());
        let info = &parsed.certification_request_info;
        assert_eq!(info.attributes(), []);
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all;
        let key = info.subject_pki.subject_public_key.data.as_ref();
        let message = info.raw;
        let verifies =
            |signature: &[u8]| algorithms.iter().any(|a| a.verify_signature(key, message, signature).is_ok());
        assert!(verifies(&parsed.signature_value.data));

        // The same encoding as in certificates that are issued here.
        let validity = Validity::starting(Timestamp::now(), Duration::from_secs(60));
        let ca = CertificateAuthority::generate("ca", &validity).unwrap();
        let issued = ca.issue_client(&subject(), &validity).unwrap();
        let issued = Certificate::parse_pem(issued.certificate_pem.as_bytes()).unwrap();
        let issued = certificate::parse(&issued.der).unwrap();
        assert_eq!(info.subject.as_raw(), issued.subject().as_raw());
        assert!(!format!("{request:?}").contains("PRIVATE"));
    }

    #[test]
    fn the_requested_certificate_is_returned_with_its_key_and_its_chain() {
        let request = ClientCertificateRequest::generate(&simple()).unwrap();
        let signed = sign(&request, |params| {
            params.not_before = rcgen::date_time_ymd(2026, 2, 3);
            params.not_after = rcgen::date_time_ymd(2026, 2, 4);
        });
        let other = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap().cert.pem();
        let pair = request.accept(format!("Subject: bob\n{signed}more\n{other}").as_bytes()).unwrap();
        let labels: Vec<String> =
            pem::blocks(pair.certificate_pem.as_bytes()).into_iter().map(|block| block.label).collect();
        assert_eq!(labels, ["CERTIFICATE", "CERTIFICATE"]);
        assert!(
            pair.certificate_pem.starts_with("-----BEGIN CERTIFICATE-----\n"),
            "{}",
            pair.certificate_pem
        );
        assert_eq!(pair.validity.not_before.to_string(), "2026-02-03T00:00:00Z");
        assert_eq!(pair.validity.not_after.to_string(), "2026-02-04T00:00:00Z");
        CertificatePair::parse(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes()).unwrap();
    }

    #[test]
    fn any_other_certificate_is_refused() {
        type Change = fn(&mut CertificateParams);
        let table: [(Change, SignedCertificateError); 8] = [
            (
                |params| params.distinguished_name.push(DnType::CommonName, "eve"),
                SignedCertificateError::Subject,
            ),
            (
                |params| params.distinguished_name.push(DnType::OrganizationName, "admins"),
                SignedCertificateError::Subject,
            ),
            (
                |params| {
                    params.distinguished_name.remove(DnType::OrganizationName);
                },
                SignedCertificateError::Subject,
            ),
            (
                |params| {
                    params.distinguished_name.remove(DnType::OrganizationalUnitName);
                },
                SignedCertificateError::Subject,
            ),
            (
                |params| {
                    let uid = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
                    params.distinguished_name.push(uid, "u");
                },
                SignedCertificateError::Subject,
            ),
            (|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained), SignedCertificateError::Ca),
            (|params| params.extended_key_usages.clear(), SignedCertificateError::Usage),
            (
                |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth],
                SignedCertificateError::Usage,
            ),
        ];
        for (at, (change, wanted)) in table.into_iter().enumerate() {
            let request = ClientCertificateRequest::generate(&simple()).unwrap();
            let signed = sign(&request, change);
            assert_eq!(request.accept(signed.as_bytes()).unwrap_err(), wanted, "row {at}");
        }
        // A certificate of the same subject for another key.
        let request = ClientCertificateRequest::generate(&simple()).unwrap();
        let signed = sign(&ClientCertificateRequest::generate(&simple()).unwrap(), |_| {});
        let error = request.accept(signed.as_bytes()).unwrap_err();
        assert_eq!(error, SignedCertificateError::Pair(PairError::Mismatch));
        let request = ClientCertificateRequest::generate(&simple()).unwrap();
        let error = request.accept(b"no certificate").unwrap_err();
        assert_eq!(error.to_string(), "tls: failed to find any PEM data in certificate input");
    }
}
