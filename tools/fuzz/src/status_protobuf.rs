//! Parses the Kubernetes protobuf of a `Status` strictly: input that the encoder would never write
//! is an error.

use pinniped_kube_types::protobuf::MAGIC;
use pinniped_kube_types::status::{Status, StatusCause, StatusDetails};

/// Returns the status in this body, or `None` when a part of it is invalid.
pub fn decode(body: &[u8]) -> Option<Status> {
    let mut status = Status::default();
    let mut raw = None;
    for (field, value) in fields(body.strip_prefix(&MAGIC)?)? {
        match (field, value) {
            (1, Value::Bytes(meta)) => {
                for (field, value) in fields(meta)? {
                    match field {
                        1 => status.api_version = value.text()?,
                        2 => status.kind = value.text()?,
                        _ => return None,
                    }
                }
            }
            (2, Value::Bytes(bytes)) => raw = Some(bytes),
            (3 | 4, Value::Bytes(b"")) => {}
            _ => return None,
        }
    }
    for (field, value) in fields(raw?)? {
        match (field, value) {
            // Empty metadata of a list.
            (1, Value::Bytes([10, 0, 18, 0, 26, 0])) => {}
            (2, value) => status.status = value.text()?,
            (3, value) => status.message = value.text()?,
            (4, value) => status.reason = value.text()?,
            (5, Value::Bytes(bytes)) => status.details = Some(details(bytes)?),
            (6, Value::Number(code)) => status.code = i32::try_from(code).ok()?,
            _ => return None,
        }
    }
    Some(status)
}

fn details(bytes: &[u8]) -> Option<StatusDetails> {
    let mut details = StatusDetails::default();
    for (field, value) in fields(bytes)? {
        match (field, value) {
            (1, value) => details.name = value.text()?,
            (2, value) => details.group = value.text()?,
            (3, value) => details.kind = value.text()?,
            (4, Value::Bytes(bytes)) => details.causes.push(cause(bytes)?),
            (5, Value::Number(seconds)) => details.retry_after_seconds = i32::try_from(seconds).ok()?,
            (6, value) => details.uid = value.text()?,
            _ => return None,
        }
    }
    Some(details)
}

fn cause(bytes: &[u8]) -> Option<StatusCause> {
    let mut cause = StatusCause::default();
    for (field, value) in fields(bytes)? {
        match field {
            1 => cause.reason = value.text()?,
            2 => cause.message = value.text()?,
            3 => cause.field = value.text()?,
            _ => return None,
        }
    }
    Some(cause)
}

enum Value<'a> {
    Bytes(&'a [u8]),
    Number(i64),
}

impl Value<'_> {
    fn text(&self) -> Option<String> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok().map(str::to_owned),
            Self::Number(_) => None,
        }
    }
}

/// Returns the fields of a message, which must be in ascending order of their numbers.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Value<'_>)>> {
    let mut fields: Vec<(u64, Value<'_>)> = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut bytes)?.cast_signed()),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Value::Bytes(value)
            }
            _ => return None,
        };
        if fields.last().is_some_and(|(last, _)| *last > key >> 3) {
            return None;
        }
        fields.push((key >> 3, value));
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
