//! The contents of each kind of certificate, in the order in which Go writes them.

use std::net::IpAddr;

use der::{
    Encode,
    asn1::{Ia5String, OctetString},
    flagset::FlagSet,
    oid::{
        AssociatedOid, ObjectIdentifier,
        db::rfc5280::{ID_KP_CLIENT_AUTH, ID_KP_SERVER_AUTH},
    },
};
use spki::SubjectPublicKeyInfoRef;
use x509_cert::{
    TbsCertificate,
    builder::{Result, profile::BuilderProfile},
    ext::{
        Extension,
        pkix::{
            AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectAltName,
            SubjectKeyIdentifier, name::GeneralName,
        },
    },
    name::Name,
};

use super::IssueError;

/// The names and the purpose of a certificate to be built.
pub(super) struct Profile<'a> {
    pub(super) issuer: &'a Name,
    pub(super) subject: Name,
    pub(super) kind: Kind<'a>,
}

/// The three kinds of certificates that the authority builds.
pub(super) enum Kind<'a> {
    /// A CA that may sign for clients and servers, with this subjectKeyIdentifier.
    Ca { key_id: &'a OctetString },
    /// A client, issued by a CA with this subjectKeyIdentifier.
    Client { authority: Option<&'a OctetString> },
    /// A server with these names, issued by a CA with this subjectKeyIdentifier.
    Server { authority: Option<&'a OctetString>, names: &'a SubjectAltName },
}

impl BuilderProfile for Profile<'_> {
    fn get_issuer(&self, _subject: &Name) -> Name {
        self.issuer.clone()
    }

    fn get_subject(&self) -> Name {
        self.subject.clone()
    }

    fn build_extensions(
        &self,
        _subject_key: SubjectPublicKeyInfoRef<'_>,
        _issuer_key: SubjectPublicKeyInfoRef<'_>,
        _tbs: &TbsCertificate,
    ) -> Result<Vec<Extension>> {
        match &self.kind {
            Kind::Ca { key_id } => Ok(vec![
                key_usage(KeyUsages::DigitalSignature | KeyUsages::KeyCertSign)?,
                purposes(&[ID_KP_CLIENT_AUTH, ID_KP_SERVER_AUTH])?,
                basic_constraints(true)?,
                extension(&SubjectKeyIdentifier((*key_id).clone()), false)?,
            ]),
            Kind::Client { authority } => {
                let mut extensions = vec![purposes(&[ID_KP_CLIENT_AUTH])?, basic_constraints(false)?];
                extensions.extend(authority_key(*authority)?);
                Ok(extensions)
            }
            Kind::Server { authority, names } => {
                let mut extensions = vec![purposes(&[ID_KP_SERVER_AUTH])?, basic_constraints(false)?];
                extensions.extend(authority_key(*authority)?);
                if !names.0.is_empty() {
                    // Critical if the subject is empty (RFC 5280, section 4.2.1.6).
                    extensions.push(extension(*names, self.subject.is_empty())?);
                }
                Ok(extensions)
            }
        }
    }
}

/// Returns the subjectAltName of a server: DNS names first, as Go writes them.
pub(super) fn alternative_names(
    dns: &[String],
    ips: &[IpAddr],
) -> std::result::Result<SubjectAltName, IssueError> {
    let mut names = Vec::with_capacity(dns.len() + ips.len());
    for name in dns {
        let ascii = Ia5String::new(name).map_err(|_| IssueError::DnsName(name.clone()))?;
        names.push(GeneralName::DnsName(ascii));
    }
    for ip in ips {
        let octets = match ip {
            IpAddr::V4(v4) => OctetString::new(v4.octets())?,
            IpAddr::V6(v6) => OctetString::new(v6.octets())?,
        };
        names.push(GeneralName::IpAddress(octets));
    }
    Ok(SubjectAltName(names))
}

fn key_usage(usages: FlagSet<KeyUsages>) -> Result<Extension> {
    extension(&KeyUsage(usages), true)
}

fn purposes(oids: &[ObjectIdentifier]) -> Result<Extension> {
    extension(&ExtendedKeyUsage(oids.to_vec()), false)
}

fn basic_constraints(ca: bool) -> Result<Extension> {
    extension(&BasicConstraints { ca, path_len_constraint: None }, true)
}

fn authority_key(key_id: Option<&OctetString>) -> Result<Option<Extension>> {
    let Some(key_id) = key_id else { return Ok(None) };
    let identifier = AuthorityKeyIdentifier {
        key_identifier: Some(key_id.clone()),
        authority_cert_issuer: None,
        authority_cert_serial_number: None,
    };
    extension(&identifier, false).map(Some)
}

fn extension<T: AssociatedOid + Encode>(value: &T, critical: bool) -> Result<Extension> {
    Ok(Extension { extn_id: T::OID, critical, extn_value: OctetString::new(value.to_der()?)? })
}
