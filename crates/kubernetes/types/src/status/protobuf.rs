//! The Kubernetes protobuf encoding of a `Status`: `meta.v1.Status` in the envelope.
//!
//! A client that accepts only `application/vnd.kubernetes.protobuf` must be able to read an error
//! response.

use super::{Status, StatusCause, StatusDetails};
use crate::protobuf::{Envelope, Message};

/// Encodes a status as a response body.
pub(super) fn encode(status: &Status) -> Vec<u8> {
    Envelope::encode(&status.api_version, &status.kind, &message(status))
}

fn message(status: &Status) -> Message {
    let mut list_meta = Message::default();
    list_meta.string(1, "").string(2, "").string(3, "");
    let mut out = Message::default();
    out.message(1, &list_meta).string(2, &status.status).string(3, &status.message).string(4, &status.reason);
    if let Some(of) = &status.details {
        out.message(5, &details(of));
    }
    out.number(6, status.code);
    out
}

fn details(of: &StatusDetails) -> Message {
    let mut out = Message::default();
    out.string(1, &of.name).string(2, &of.group).string(3, &of.kind);
    for one in &of.causes {
        out.message(4, &cause(one));
    }
    out.number(5, of.retry_after_seconds).string(6, &of.uid);
    out
}

fn cause(of: &StatusCause) -> Message {
    let mut out = Message::default();
    out.string(1, &of.reason).string(2, &of.message).string(3, &of.field);
    out
}
