//! Kubernetes protobuf: a writer of messages, and the envelope `runtime.Unknown` of objects.
//!
//! The few messages that a server needs are written by hand, field by field, in the order of their
//! numbers. Like Go's generated code, callers write texts and numbers that are not optional even
//! when they are empty, so the bytes are equal.
//!
//! [`Envelope::decode`] reads input of clients. It copies nothing, follows groups without
//! recursion, and its errors are those of Go's generated code, which API servers return.

use std::borrow::Cow;

/// The first bytes of every Kubernetes protobuf body.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// The media type of Kubernetes protobuf.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// A message that is written field by field. Protobuf requires no order, but Go's encoders write
/// the fields in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

impl Message {
    /// Writes bytes, or a nested message.
    pub fn bytes(&mut self, field: u32, value: &[u8]) -> &mut Self {
        self.varint(u64::from(field) << 3 | u64::from(LENGTH_DELIMITED));
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Writes a text.
    pub fn string(&mut self, field: u32, value: &str) -> &mut Self {
        self.bytes(field, value.as_bytes())
    }

    /// Writes a nested message.
    pub fn message(&mut self, field: u32, value: &Self) -> &mut Self {
        self.bytes(field, &value.0)
    }

    /// Writes an integer. A negative number takes ten bytes, as protobuf requires for `int32`.
    pub fn number(&mut self, field: u32, value: impl Into<i64>) -> &mut Self {
        self.varint(u64::from(field) << 3 | u64::from(VARINT));
        self.varint(value.into().cast_unsigned());
        self
    }

    /// Returns the encoded message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the encoded message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8 & 0x7f) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// `runtime.Unknown`: the type of an object, and the encoded object. The fields `contentEncoding`
/// and `contentType` are read and ignored, as an API server does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Group and version of the object; may be empty. Not necessarily UTF-8.
    pub api_version: &'a [u8],
    /// Kind of the object; may be empty. Not necessarily UTF-8.
    pub kind: &'a [u8],
    /// The encoded object.
    pub raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Returns a body with an object.
    pub fn encode(api_version: &str, kind: &str, object: &Message) -> Vec<u8> {
        let mut type_meta = Message::default();
        type_meta.string(1, api_version).string(2, kind);
        let mut unknown = Message::default();
        unknown.message(1, &type_meta).message(2, object).string(3, "").string(4, "");
        [&MAGIC[..], unknown.as_bytes()].concat()
    }

    /// Reads the envelope of a body. Of a repeated field, the last value counts.
    ///
    /// # Errors
    /// [`DecodeError`] when the body is not a valid envelope. The object is not validated.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        if body.is_empty() {
            return Err(DecodeError::NoData);
        }
        let unknown = body.strip_prefix(&MAGIC).ok_or(DecodeError::NoMagic)?;
        if unknown.is_empty() {
            return Err(DecodeError::NoBody);
        }
        let mut envelope = Self::default();
        let names = ["TypeMeta", "Raw", "ContentEncoding", "ContentType"];
        each_field("Unknown", &names, unknown, |field, value| {
            match field {
                "TypeMeta" => each_field("TypeMeta", &["APIVersion", "Kind"], value, |field, value| {
                    match field {
                        "APIVersion" => envelope.api_version = value,
                        _ => envelope.kind = value,
                    }
                    Ok(())
                })?,
                "Raw" => envelope.raw = value,
                _ => {}
            }
            Ok(())
        })?;
        Ok(envelope)
    }

    /// Returns group and version as text.
    pub fn api_version_text(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.api_version)
    }

    /// Returns the kind as text.
    pub fn kind_text(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.kind)
    }
}

/// The reason why a body is not a valid envelope, in the words of k8s.io/apimachinery and of the
/// code that gogo/protobuf generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The body is empty.
    #[error("empty data")]
    NoData,
    /// The body does not begin with [`MAGIC`].
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoMagic,
    /// Nothing follows [`MAGIC`].
    #[error("empty body")]
    NoBody,
    /// The body ends within a value.
    #[error("unexpected EOF")]
    UnexpectedEnd,
    /// A number has more than 64 bits.
    #[error("proto: integer overflow")]
    Overflow,
    /// A length is negative.
    #[error("proto: negative length found during unmarshaling")]
    NegativeLength,
    /// A group ends that did not begin.
    #[error("proto: {message}: wiretype end group for non-group")]
    EndOfNoGroup {
        /// Name of the message.
        message: &'static str,
    },
    /// A field number is not positive.
    #[error("proto: {message}: illegal tag {number} (wire type {wire})")]
    IllegalTag {
        /// Name of the message.
        message: &'static str,
        /// The field number.
        number: i32,
        /// Field number and wire type as they are encoded.
        wire: u64,
    },
    /// A field has a value of the wrong type.
    #[error("proto: wrong wireType = {wire_type} for field {field}")]
    WrongWireType {
        /// The encoded type.
        wire_type: u8,
        /// Name of the field.
        field: &'static str,
    },
    /// An unknown field has a type that does not exist.
    #[error("proto: illegal wireType {0}")]
    IllegalWireType(u8),
}

const VARINT: u8 = 0;
const EIGHT_BYTES: u8 = 1;
const LENGTH_DELIMITED: u8 = 2;
const START_GROUP: u8 = 3;
const END_GROUP: u8 = 4;
const FOUR_BYTES: u8 = 5;

/// Calls `visit` with each known field of a message: those with a name, which are numbered from 1
/// and length-delimited. Other fields are skipped.
fn each_field<'a>(
    message: &'static str,
    names: &[&'static str],
    bytes: &'a [u8],
    mut visit: impl FnMut(&'static str, &'a [u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let mut reader = Reader(bytes);
    while !reader.0.is_empty() {
        let start = reader.0;
        let wire = reader.varint()?;
        // Like Go, the number is cut to 32 bits.
        let number = ((wire >> 3) as u32).cast_signed();
        let wire_type = (wire & 7) as u8;
        if wire_type == END_GROUP {
            return Err(DecodeError::EndOfNoGroup { message });
        }
        if number <= 0 {
            return Err(DecodeError::IllegalTag { message, number, wire });
        }
        let name = usize::try_from(number - 1).ok().and_then(|at| names.get(at).copied());
        match name {
            Some(field) if wire_type == LENGTH_DELIMITED => visit(field, reader.length_delimited()?)?,
            Some(field) => return Err(DecodeError::WrongWireType { wire_type, field }),
            None => {
                reader.0 = start;
                reader.skip_field()?;
            }
        }
    }
    Ok(())
}

/// The bytes that are not read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(DecodeError::UnexpectedEnd)?;
            self.0 = rest;
            // Bits above the 64th are lost, as in Go.
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Overflow)
    }

    fn length_delimited(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.varint()?.cast_signed();
        if length < 0 {
            return Err(DecodeError::NegativeLength);
        }
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (value, rest) = self.0.split_at_checked(length).ok_or(DecodeError::UnexpectedEnd)?;
        self.0 = rest;
        Ok(value)
    }

    /// Skips one field, with all fields inside it if it is a group.
    fn skip_field(&mut self) -> Result<(), DecodeError> {
        let mut depth = 0_usize;
        loop {
            match (self.varint()? & 7) as u8 {
                VARINT => _ = self.varint()?,
                EIGHT_BYTES => _ = self.take(8)?,
                LENGTH_DELIMITED => _ = self.length_delimited()?,
                START_GROUP => depth += 1,
                // The field is not the end of a group, so a group is open.
                END_GROUP => depth -= 1,
                FOUR_BYTES => _ = self.take(4)?,
                other => return Err(DecodeError::IllegalWireType(other)),
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: &str = "login.concierge.pinniped.dev/v1alpha1";

    #[test]
    fn an_envelope_is_read_back() {
        let mut object = Message::default();
        object.string(1, "x").number(31, 300);
        assert_eq!(object.as_bytes(), b"\x0a\x01x\xf8\x01\xac\x02");
        let body = Envelope::encode(VERSION, "Kind", &object);
        let envelope = Envelope::decode(&body).unwrap();
        assert_eq!(
            envelope,
            Envelope { api_version: VERSION.as_bytes(), kind: b"Kind", raw: object.as_bytes() }
        );
        assert_eq!((&*envelope.api_version_text(), &*envelope.kind_text()), (VERSION, "Kind"));
    }

    /// The texts are those of the decoder of k8s.io/apimachinery v0.36.3 for the same bytes.
    #[test]
    fn errors_have_the_texts_of_the_go_decoder() {
        let no_magic =
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";
        let overflow = "proto: integer overflow";
        let negative = "proto: negative length found during unmarshaling";
        for (body, wanted) in [
            (&b""[..], "empty data"),
            (b"{}", no_magic),
            (b"k8", no_magic),
            (b"k8s\0", "empty body"),
            (b"k8s\0\x0a\x05a", "unexpected EOF"),
            (b"k8s\0\x0c", "proto: Unknown: wiretype end group for non-group"),
            (b"k8s\0\0", "proto: Unknown: illegal tag 0 (wire type 0)"),
            (b"k8s\0\x08\x01", "proto: wrong wireType = 0 for field TypeMeta"),
            (b"k8s\0\x10\x01", "proto: wrong wireType = 0 for field Raw"),
            (b"k8s\0\x18\x01", "proto: wrong wireType = 0 for field ContentEncoding"),
            (b"k8s\0\x20\x01", "proto: wrong wireType = 0 for field ContentType"),
            (b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", overflow),
            (b"k8s\0\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", negative),
            (b"k8s\0\x2b", "unexpected EOF"),
            (b"k8s\0\x2e", "proto: illegal wireType 6"),
            (b"k8s\0\x29\x01", "unexpected EOF"),
            (b"k8s\0\x0a\x02\x08\x01", "proto: wrong wireType = 0 for field APIVersion"),
            (b"k8s\0\x0a\x01\0", "proto: TypeMeta: illegal tag 0 (wire type 0)"),
            (b"k8s\0\x0a\x01\x0c", "proto: TypeMeta: wiretype end group for non-group"),
            (b"k8s\0\x0a\x02\x10\x01", "proto: wrong wireType = 0 for field Kind"),
            (b"k8s\0\x2b\x2c\x2c", "proto: Unknown: wiretype end group for non-group"),
            (b"k8s\0\x2a\x05a", "unexpected EOF"),
            (b"k8s\0\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", negative),
            (b"k8s\0\xff\xff\xff\xff\xff\x01", "proto: Unknown: illegal tag -1 (wire type 68719476735)"),
            (b"k8s\0\x0f", "proto: wrong wireType = 7 for field TypeMeta"),
            (b"k8s\0\x0b", "proto: wrong wireType = 3 for field TypeMeta"),
        ] {
            let error = Envelope::decode(body).expect_err(wanted);
            assert_eq!(error.to_string(), wanted, "{body:x?}");
        }
    }

    #[test]
    fn unknown_fields_and_groups_are_skipped() {
        for body in [&b"k8s\0\x28\x01"[..], b"k8s\0\x2b\x2c", b"k8s\0\x2d\x01\x02\x03\x04"] {
            assert_eq!(Envelope::decode(body), Ok(Envelope::default()), "{body:x?}");
        }
        let deep = [&MAGIC[..], &[0x2b; 100_000], &[0x2c; 100_000], b"\x0a\x03\x12\x01K"].concat();
        assert_eq!(Envelope::decode(&deep).map(|envelope| envelope.kind), Ok(&b"K"[..]));
    }

    #[test]
    fn the_last_value_of_a_repeated_field_counts() {
        let body = b"k8s\0\x0a\x03\x12\x01A\x12\x01x\x0a\x03\x0a\x01v\x12\x01y";
        let wanted = Envelope { api_version: b"v", kind: b"A", raw: b"y" };
        assert_eq!(Envelope::decode(body), Ok(wanted));
    }
}
