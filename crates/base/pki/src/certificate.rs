//! Parsed certificates, with the fields that this project uses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use data_encoding::HEXLOWER;
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use x509_parser::{
    asn1_rs::{Any, Oid, Tag, oid},
    extensions::{GeneralName, ParsedExtension},
    prelude::{FromDer as _, X509Certificate},
};

use crate::pem;

const COMMON_NAME: Oid<'static> = oid!(2.5.4.3);
const ORGANIZATION: Oid<'static> = oid!(2.5.4.10);
const ORGANIZATIONAL_UNIT: Oid<'static> = oid!(2.5.4.11);
/// The subject attribute in which servers find a user's UID.
const USER_UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// Basic constraints and subject alternative names.
const READ_EXTENSIONS: [Oid<'static>; 2] = [oid!(2.5.29.19), oid!(2.5.29.17)];

/// The reason why input is not a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The input has no PEM block.
    #[error("data is not a certificate")]
    NotPem,
    /// The PEM block has another type, or the DER is not an X.509 certificate.
    #[error("x509: malformed certificate")]
    Malformed,
    /// The input continues after the certificate.
    #[error("x509: trailing data")]
    TrailingData,
}

/// The fields of a certificate that this project uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The common name of the subject, the last one if there are several; empty if there is none.
    pub subject_cn: String,
    /// The organizations of the subject, in the order of the certificate.
    pub organizations: Vec<String>,
    /// The organizational units of the subject, in the order of the certificate.
    pub organizational_units: Vec<String>,
    /// The first value of the subject attribute 1.3.6.1.4.1.57683.2, a user's UID; empty if there
    /// is none.
    pub uid: String,
    /// All values of that attribute. Servers refuse a certificate with more than one, or with an
    /// empty one.
    pub uids: Vec<String>,
    /// The start of the validity.
    pub not_before: Timestamp,
    /// The end of the validity.
    pub not_after: Timestamp,
    /// Whether the basic constraints mark a CA.
    pub is_ca: bool,
    /// The DNS names of the subject alternative names.
    pub dns_names: Vec<String>,
    /// The IP addresses of the subject alternative names, without those of an invalid length.
    pub ip_addresses: Vec<IpAddr>,
    /// The certificate in DER.
    pub der: CertificateDer<'static>,
}

impl Certificate {
    /// Parses one certificate.
    ///
    /// # Errors
    ///
    /// Returns an error when `der` is not exactly one X.509 certificate.
    pub fn parse_der(der: &[u8]) -> Result<Self, CertificateError> {
        Self::read(&parse(der)?, der)
    }

    /// Parses the first PEM block of `pem`, which must be a certificate.
    ///
    /// # Errors
    ///
    /// Returns [`CertificateError::NotPem`] when there is no block, otherwise the errors of
    /// [`Self::parse_der`].
    pub fn parse_pem(pem: &[u8]) -> Result<Self, CertificateError> {
        let block = pem::first(pem).ok_or(CertificateError::NotPem)?;
        if block.label != pem::CERTIFICATE {
            return Err(CertificateError::Malformed);
        }
        Self::parse_der(&block.contents)
    }

    /// Returns the SHA-256 of the DER in lower-case hex.
    pub fn sha256_hex(&self) -> String {
        HEXLOWER.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &self.der).as_ref())
    }

    fn read(parsed: &X509Certificate<'_>, der: &[u8]) -> Result<Self, CertificateError> {
        let mut certificate = Self {
            subject_cn: String::new(),
            organizations: Vec::new(),
            organizational_units: Vec::new(),
            uid: String::new(),
            uids: Vec::new(),
            not_before: timestamp(parsed.validity().not_before.timestamp())?,
            not_after: timestamp(parsed.validity().not_after.timestamp())?,
            is_ca: false,
            dns_names: Vec::new(),
            ip_addresses: Vec::new(),
            der: CertificateDer::from(der.to_vec()),
        };
        for attribute in parsed.subject().iter_attributes() {
            // A subject that cannot be read completely must not become one with fewer names, so
            // this is an error, as in Go.
            let value = || text(attribute.attr_value()).ok_or(CertificateError::Malformed);
            match attribute.attr_type() {
                oid if *oid == COMMON_NAME => certificate.subject_cn = value()?,
                oid if *oid == ORGANIZATION => certificate.organizations.push(value()?),
                oid if *oid == ORGANIZATIONAL_UNIT => certificate.organizational_units.push(value()?),
                oid if *oid == USER_UID => certificate.uids.push(value()?),
                _ => {}
            }
        }
        certificate.uid = certificate.uids.first().cloned().unwrap_or_default();
        for extension in parsed.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::BasicConstraints(constraints) => certificate.is_ca = constraints.ca,
                ParsedExtension::SubjectAlternativeName(names) => {
                    for name in &names.general_names {
                        match name {
                            GeneralName::DNSName(name) => certificate.dns_names.push((*name).to_owned()),
                            GeneralName::IPAddress(bytes) => certificate.ip_addresses.extend(address(bytes)),
                            _ => {}
                        }
                    }
                }
                // Other extensions may be malformed.
                ParsedExtension::ParseError { .. } if READ_EXTENSIONS.contains(&extension.oid) => {
                    return Err(CertificateError::Malformed);
                }
                _ => {}
            }
        }
        Ok(certificate)
    }
}

/// Parses exactly one certificate.
pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, CertificateError> {
    match X509Certificate::from_der(der) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err(CertificateError::TrailingData),
        Err(_) => Err(CertificateError::Malformed),
    }
}

/// Returns the text of a name's attribute, in the string types that Go reads.
fn text(value: &Any<'_>) -> Option<String> {
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString => {
            std::str::from_utf8(value.data).ok().map(str::to_owned)
        }
        // In practice it contains Latin-1.
        Tag::T61String => Some(value.data.iter().copied().map(char::from).collect()),
        Tag::BmpString => {
            let (units, rest) = value.data.as_chunks::<2>();
            let units: Vec<u16> = units.iter().copied().map(u16::from_be_bytes).collect();
            if rest.is_empty() { String::from_utf16(&units).ok() } else { None }
        }
        _ => None,
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::V4(Ipv4Addr::from(v4)));
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| IpAddr::V6(Ipv6Addr::from(v6)))
}

fn timestamp(seconds: i64) -> Result<Timestamp, CertificateError> {
    Timestamp::from_second(seconds).map_err(|_| CertificateError::Malformed)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

    use super::*;

    #[test]
    fn names_with_invalid_text_are_refused() {
        for (kind, broken) in [(DnType::CommonName, "cn"), (DnType::OrganizationName, "o")] {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(kind, broken);
            let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
            assert!(Certificate::parse_der(&der).is_ok());
            // A UTF8String: type, length, text. The first byte of the text is replaced with one
            // that UTF-8 does not have.
            let text = [&[12, u8::try_from(broken.len()).unwrap()], broken.as_bytes()].concat();
            let at = der.windows(text.len()).position(|window| window == text).unwrap();
            let mut odd = der.clone();
            odd[at + 2] = 0xff;
            // The subject is the second of the two names in a self-signed certificate.
            let second = der[at + 1..].windows(text.len()).position(|window| window == text).unwrap();
            odd[at + 1 + second + 2] = 0xff;
            assert_eq!(Certificate::parse_der(&odd), Err(CertificateError::Malformed), "{broken}");
        }
    }

    #[test]
    fn all_fields_are_parsed() {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::IpAddress("10.0.0.1".parse().unwrap()));
        params.subject_alt_names.push(SanType::IpAddress("::1".parse().unwrap()));
        params.subject_alt_names.push(SanType::Rfc822Name("a@example.com".try_into().unwrap()));
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "alice");
        name.push(DnType::OrganizationName, DnValue::BmpString("grüppe".try_into().unwrap()));
        name.push(DnType::OrganizationalUnitName, DnValue::TeletexString("key=value".try_into().unwrap()));
        name.push(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), "some-uid");
        params.not_before = rcgen::date_time_ymd(2020, 2, 3);
        params.not_after = rcgen::date_time_ymd(2050, 2, 3);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let expected = Certificate {
            subject_cn: "alice".to_owned(),
            organizations: vec!["grüppe".to_owned()],
            organizational_units: vec!["key=value".to_owned()],
            uid: "some-uid".to_owned(),
            uids: vec!["some-uid".to_owned()],
            not_before: "2020-02-03T00:00:00Z".parse().unwrap(),
            not_after: "2050-02-03T00:00:00Z".parse().unwrap(),
            is_ca: false,
            dns_names: vec!["a.example".to_owned()],
            ip_addresses: vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
            der: made.der().clone(),
        };
        assert_eq!(Certificate::parse_der(made.der()), Ok(expected.clone()));
        assert_eq!(Certificate::parse_pem(made.pem().as_bytes()), Ok(expected));
    }

    #[test]
    fn inputs_that_are_not_a_certificate_have_different_errors() {
        let table: &[(&str, CertificateError)] = &[
            ("", CertificateError::NotPem),
            ("just words", CertificateError::NotPem),
            ("-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n", CertificateError::Malformed),
            ("-----BEGIN PUBLIC KEY-----\nYWJj\n-----END PUBLIC KEY-----\n", CertificateError::Malformed),
        ];
        for (text, expected) in table {
            assert_eq!(Certificate::parse_pem(text.as_bytes()), Err(*expected), "{text}");
        }
    }

    #[test]
    fn the_fingerprint_is_lower_case_hex() {
        let made = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        let sum = Certificate::parse_der(made.cert.der()).unwrap().sha256_hex();
        assert!(
            sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
        );
    }
}
