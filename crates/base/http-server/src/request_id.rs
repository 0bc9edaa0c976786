//! Random identifiers of requests.

use std::cell::RefCell;

use http::HeaderValue;

/// Returns a random UUID as the value of a header field.
pub fn random_id() -> HeaderValue {
    let Some(bytes) = random_bytes() else { return HeaderValue::from_static("unknown") };
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let id = uuid::Builder::from_random_bytes(bytes).into_uuid();
    HeaderValue::from_str(id.hyphenated().encode_lower(&mut text))
        .unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// Returns random bytes for one identifier. The generator is called for many identifiers at once,
/// because one call for each request has a measurable cost.
fn random_bytes() -> Option<[u8; 16]> {
    thread_local! {
        static AHEAD: RefCell<([u8; 1024], usize)> = const { RefCell::new(([0; 1024], 0)) };
    }
    AHEAD.with_borrow_mut(|(bytes, left)| {
        if *left == 0 {
            aws_lc_rs::rand::fill(bytes).ok()?;
            *left = bytes.len() / 16;
        }
        *left -= 1;
        bytes[*left * 16..].first_chunk().copied()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_uuids_and_differ() {
        let id = random_id();
        assert_eq!(id.len(), 36);
        assert_ne!(id, random_id());
    }
}
