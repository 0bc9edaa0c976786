//! Kubernetes protobuf, as far as a `Status` needs it.
//!
//! A client that accepts only `application/vnd.kubernetes.protobuf` must be able to read why it was refused. That takes
//! two messages, so they are written by hand: `runtime.Unknown` as the envelope, `meta.v1.Status` within. Go's generated
//! code writes strings and numbers that are not optional even when they are empty; so does this, and the bytes are equal.

use super::{Status, StatusCause, StatusDetails};

/// First bytes of every Kubernetes protobuf body.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// Media type of such a body.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The body for a status.
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

/// A message while it is written, field by field in the order of their numbers.
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

    /// Negative numbers take ten bytes, as protobuf wants it for `int32`.
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
