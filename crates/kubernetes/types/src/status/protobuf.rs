//! The Kubernetes protobuf encoding of a `Status`.
//!
//! A client that accepts only `application/vnd.kubernetes.protobuf` must be able to read an error
//! response. This takes only two messages, so they are encoded by hand: `runtime.Unknown` as the
//! envelope and `meta.v1.Status` inside it. Like Go's generated code, the encoder writes
//! non-optional strings and numbers even when they are empty, so the bytes are equal.

use super::{Status, StatusCause, StatusDetails};

/// The first bytes of every Kubernetes protobuf body.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// The media type of Kubernetes protobuf.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Encodes a status as a response body.
pub(super) fn encode(status: &Status) -> Vec<u8> {
    let mut type_meta = Message::default();
    type_meta.string(1, &status.api_version).string(2, &status.kind);
    let mut unknown = Message::default();
    unknown.bytes(1, &type_meta.0).bytes(2, &message(status).0).string(3, "").string(4, "");
    [&MAGIC[..], &unknown.0].concat()
}

fn message(status: &Status) -> Message {
    let mut list_meta = Message::default();
    list_meta.string(1, "").string(2, "").string(3, "");
    let mut out = Message::default();
    out.bytes(1, &list_meta.0).string(2, &status.status).string(3, &status.message).string(4, &status.reason);
    if let Some(of) = &status.details {
        out.bytes(5, &details(of).0);
    }
    out.int32(6, status.code);
    out
}

fn details(of: &StatusDetails) -> Message {
    let mut out = Message::default();
    out.string(1, &of.name).string(2, &of.group).string(3, &of.kind);
    for one in &of.causes {
        out.bytes(4, &cause(one).0);
    }
    out.int32(5, of.retry_after_seconds).string(6, &of.uid);
    out
}

fn cause(of: &StatusCause) -> Message {
    let mut out = Message::default();
    out.string(1, &of.reason).string(2, &of.message).string(3, &of.field);
    out
}

/// Encodes a message field by field, in the order of the field numbers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn bytes(&mut self, field: u8, value: &[u8]) -> &mut Self {
        self.0.push(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn string(&mut self, field: u8, value: &str) -> &mut Self {
        self.bytes(field, value.as_bytes())
    }

    /// Writes an integer. Negative numbers take ten bytes, as protobuf requires for `int32`.
    fn int32(&mut self, field: u8, value: i32) -> &mut Self {
        self.0.push(field << 3);
        self.varint(i64::from(value).cast_unsigned());
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8 & 0x7f) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
