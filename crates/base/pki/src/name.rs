//! Subjects, encoded as Go's `pkix.Name` does.
//!
//! Servers read groups from the organizations, so their encoding is a contract: attribute types in
//! the order O, OU, CN; all values of one type in one multi-valued RDN, a DER SET; a value is a
//! PrintableString when its characters allow it, else a UTF8String.

use der::{
    Decode as _, Encode as _, Tag,
    asn1::Any,
    oid::{
        ObjectIdentifier,
        db::rfc4519::{COMMON_NAME, ORGANIZATION_NAME, ORGANIZATIONAL_UNIT_NAME},
    },
};
use x509_cert::{
    attr::AttributeTypeAndValue,
    name::{Name, RdnSequence, RelativeDistinguishedName},
};

use crate::ClientSubject;

/// Returns a subject that consists of a common name.
pub(crate) fn common_name(name: &str) -> der::Result<Name> {
    encode([(COMMON_NAME, vec![name.to_owned()])])
}

/// Returns the subject of a client certificate.
pub(crate) fn client(subject: &ClientSubject) -> der::Result<Name> {
    let extra = subject.extra.iter();
    let units: Vec<String> =
        extra.flat_map(|(key, values)| values.iter().map(move |value| format!("{key}={value}"))).collect();
    let username = if subject.username.is_empty() { vec![] } else { vec![subject.username.clone()] };
    encode([
        (ORGANIZATION_NAME, subject.groups.clone()),
        (ORGANIZATIONAL_UNIT_NAME, units),
        (COMMON_NAME, username),
    ])
}

fn encode<const N: usize>(attributes: [(ObjectIdentifier, Vec<String>); N]) -> der::Result<Name> {
    let mut sequence = RdnSequence::default();
    for (oid, values) in attributes {
        if values.is_empty() {
            continue;
        }
        let values: Vec<_> = values
            .into_iter()
            .map(|value| Ok(AttributeTypeAndValue { oid, value: string(&value)? }))
            .collect::<der::Result<_>>()?;
        sequence.push(RelativeDistinguishedName::try_from(values)?);
    }
    // There is no other conversion: a `Name` is an `RdnSequence` by contents.
    Name::from_der(&sequence.to_der()?)
}

fn string(value: &str) -> der::Result<Any> {
    let tag = if value.bytes().all(is_printable) { Tag::PrintableString } else { Tag::Utf8String };
    Any::new(tag, value.as_bytes())
}

/// Returns whether a PrintableString may contain the character (X.680, section 41.4).
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte)
}
