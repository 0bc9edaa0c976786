//! The size of a request's head, and the kind of connection that may carry it.
//!
//! A server written in Go returns 431 for a header list over its limit, but closes the whole
//! connection, with every stream of every other user, when it would have to parse much more than
//! that (`readMetaFrame` in golang.org/x/net/http2):
//!
//! * when a frame of a head is more than twice as long as the rest of the limit. [`h2`] encodes
//!   every string with the Huffman code, which makes some bytes longer, and does not consider the
//!   server's limit;
//! * when one encoded string is longer than the limit;
//! * when a head contains a field that Go considers invalid, and another frame of the head or the
//!   stream follows: Go does not register such a stream, and frames on an unknown stream are an
//!   error of the connection. [`h2`] accepts quotation marks in names;
//! * when trailers arrive for a stream that it has closed, because it had responded before the end
//!   of the body (`processHeaders`: the number of the stream is not higher than the last one). The
//!   client cannot prevent that, because the end of the stream may be on its way. A handler written
//!   in Go receives only the trailers that the request announces in the header `Trailer`. So a
//!   request that announces trailers gets a connection of its own, and other trailers are not sent.
//!
//! Therefore the size of a head is computed before the head goes to a connection that other users
//! share, and a head is refused if the server might close that connection. A head with large fields
//! of the client gets a connection of its own in any case: these rules describe servers written in
//! Go, and with another server an error would not affect other users there.

use http::header::TRAILER;
use http::{HeaderMap, Request};
use pinniped_http_headers::precomputed::{FIELD_OVERHEAD, PrecomputedHeaders, field_size};

use super::UpstreamError;

/// Heads whose own fields count more than this use a connection of their own. Typical clients send
/// a few kilobytes, most of it a token.
pub(super) const LARGE_HEAD: usize = 64 << 10;
/// An encoded head of this size fits into one frame of HTTP/2's smallest maximum (16,384 bytes):
/// each byte takes at most 30 bits.
const ONE_FRAME: usize = 4 << 10;
/// Heads up to this size, or up to a quarter of the limit if that is smaller, need no check of
/// their encoded size, because each byte takes at most 30 bits.
const NEVER_TOO_LONG: usize = 256 << 10;

/// The kind of connection that may carry a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// A connection with streams of other users.
    Shared,
    /// A connection of its own.
    Unshared,
}

/// Measures a head together with precomputed headers, for a server that accepts
/// header lists of `limit` bytes.
///
/// # Errors
/// Returns [`UpstreamError::HeadTooLarge`] or [`UpstreamError::FieldName`].
pub(super) fn measure<B>(
    request: &Request<B>,
    precomputed: &[&PrecomputedHeaders],
    limit: usize,
) -> Result<Sharing, UpstreamError> {
    let own = pseudo_size(request) + list_size(request.headers());
    let size = own + precomputed.iter().map(|fields| fields.list_size()).sum::<usize>();
    let sharing = if own > LARGE_HEAD || announces_trailers(request.headers()) {
        Sharing::Unshared
    } else {
        Sharing::Shared
    };
    check_names(request.headers())?;
    if size <= ONE_FRAME {
        return Ok(sharing);
    }
    let too_large = || UpstreamError::HeadTooLarge { size, limit };
    if size > limit {
        return Err(too_large());
    }
    if size > NEVER_TOO_LONG.min(limit / 4) && !fits_coded(request, precomputed, size, limit) {
        return Err(too_large());
    }
    Ok(sharing)
}

/// Returns whether a request announces trailers (RFC 9110, section 6.6.2).
pub(super) fn announces_trailers(headers: &HeaderMap) -> bool {
    headers.contains_key(TRAILER)
}

/// Checks trailers, which must use the same connection as their request.
///
/// # Errors
/// Returns [`UpstreamError::HeadTooLarge`] or [`UpstreamError::FieldName`].
pub(super) fn check_trailers(trailers: &HeaderMap) -> Result<(), UpstreamError> {
    let size = list_size(trailers);
    if size > LARGE_HEAD {
        return Err(UpstreamError::HeadTooLarge { size, limit: LARGE_HEAD });
    }
    check_names(trailers)
}

/// Returns the size of the fields in a header list.
pub(super) fn list_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| field_size(name, value)).sum()
}

/// Returns the size of `:method`, `:scheme`, `:authority` and `:path`.
fn pseudo_size<B>(request: &Request<B>) -> usize {
    const NAMES_AND_SCHEME: usize = ":method:scheme:authority:pathhttps".len() + 4 * FIELD_OVERHEAD;
    NAMES_AND_SCHEME + pseudo_values(request).iter().map(|value| value.len()).sum::<usize>()
}

fn pseudo_values<B>(request: &Request<B>) -> [&str; 3] {
    let uri = request.uri();
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    [request.method().as_str(), authority, path]
}

/// Checks the names: [`http::HeaderName`] accepts names from HTTP/2 that are not tokens (RFC 9110,
/// section 5.6.2).
fn check_names(headers: &HeaderMap) -> Result<(), UpstreamError> {
    if headers.keys().any(|name| name.as_str().contains('"')) {
        return Err(UpstreamError::FieldName);
    }
    Ok(())
}

/// Returns whether a server written in Go certainly accepts the encoded head.
///
/// Before a frame, the rest of the server's limit is at least `limit - size` plus the size of the
/// fields from there on. The encoded fields may be twice as long. Only [heavy](is_heavy) bytes
/// become longer than two bytes, each by at most 1.75 bytes, so their number may be up to `limit -
/// size`.
fn fits_coded<B>(
    request: &Request<B>,
    precomputed: &[&PrecomputedHeaders],
    size: usize,
    limit: usize,
) -> bool {
    let fields = request.headers().iter();
    let fields = fields.flat_map(|(name, value)| [name.as_str().as_bytes(), value.as_bytes()]);
    let pseudo = pseudo_values(request).map(str::as_bytes).into_iter();
    let precomputed = precomputed.iter().flat_map(|fields| fields.fields());
    let precomputed = precomputed.flat_map(|(name, value)| [name.as_str().as_bytes(), value.as_bytes()]);
    let mut heavy = 0;
    for text in fields.chain(pseudo).chain(precomputed) {
        if coded_len(text) > limit {
            return false;
        }
        heavy += text.iter().filter(|byte| is_heavy(**byte)).count();
    }
    heavy <= limit - size
}

/// Returns whether a byte may be longer than 16 bits in HPACK's Huffman code (RFC 7541, appendix
/// B).
fn is_heavy(byte: u8) -> bool {
    byte == b'\\' || !(b' '..=b'~').contains(&byte)
}

/// Returns the maximum length of a text in that code.
fn coded_len(text: &[u8]) -> usize {
    let bits = |byte: &u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => 8,
        b' ' | b'%' | b'&' | b'*' | b',' | b'-' | b'.' | b'/' | b':' | b';' | b'=' | b'_' => 8,
        heavy if is_heavy(*heavy) => 30,
        _ => 15,
    };
    text.iter().map(bits).sum::<usize>().div_ceil(8)
}

#[cfg(test)]
mod tests {
    use http::header::{HeaderName, HeaderValue};

    use super::*;

    /// The limit that a server written in Go announces.
    const LIMIT: usize = (1 << 20) + 320;

    fn request(fields: usize, each: usize, byte: u8) -> Request<()> {
        let mut request = Request::get("https://a/b").body(()).unwrap();
        for number in 0..fields {
            let name = HeaderName::try_from(format!("x-{number:04}")).unwrap();
            let value = HeaderValue::from_bytes(&vec![byte; each]).unwrap();
            request.headers_mut().insert(name, value);
        }
        request
    }

    fn measured(request: &Request<()>) -> Result<Sharing, &'static str> {
        measure(request, &[], LIMIT).map_err(|error| match error {
            UpstreamError::HeadTooLarge { .. } => "too large",
            UpstreamError::FieldName => "a name",
            _ => "another",
        })
    }

    #[test]
    fn a_head_has_the_size_that_http2_counts() {
        let mut request = Request::get("https://host/path?q").body(()).unwrap();
        request.headers_mut().insert("accept", HeaderValue::from_static("x"));
        let list = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "host"),
            (":path", "/path?q"),
            ("accept", "x"),
        ];
        let wanted: usize = list.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
        assert_eq!(pseudo_size(&request) + list_size(request.headers()), wanted);
    }

    #[test]
    fn a_small_head_shares_a_connection_and_a_large_one_does_not() {
        assert_eq!(measured(&request(10, 100, b'a')), Ok(Sharing::Shared));
        assert_eq!(measured(&request(10, 6_000, b'\\')), Ok(Sharing::Shared));
        assert_eq!(measured(&request(10, 7_000, b'a')), Ok(Sharing::Unshared));
        assert_eq!(measured(&request(13, 80_000, b'a')), Ok(Sharing::Unshared));
        assert_eq!(measured(&request(14, 80_000, b'a')), Err("too large"));
    }

    #[test]
    fn a_head_that_grows_when_encoded_has_a_lower_limit() {
        // 1,040,000 bytes of each.
        for (byte, expected) in
            [(b'a', Ok(Sharing::Unshared)), (b'\\', Err("too large")), (0xf9, Err("too large"))]
        {
            assert_eq!(measured(&request(13, 80_000, byte)), expected, "{byte}");
        }
        // Half of that is never too large, unless it is one string.
        assert_eq!(measured(&request(5, 100_000, b'\\')), Ok(Sharing::Unshared));
        assert_eq!(measured(&request(1, 500_000, b'\\')), Err("too large"));
        assert_eq!(measured(&request(1, 1_000_000, b'a')), Ok(Sharing::Unshared));
    }

    #[test]
    fn only_headers_of_the_client_make_a_head_unshared() {
        let group = (
            HeaderName::from_static("impersonate-group"),
            HeaderValue::from_static("a-group-of-a-directory"),
        );
        let precomputed = PrecomputedHeaders::new(vec![group; 2_000]);
        assert!(precomputed.list_size() > 2 * LARGE_HEAD);
        assert_eq!(measure(&request(1, 10, b'a'), &[&precomputed], LIMIT).ok(), Some(Sharing::Shared));
        assert!(measure(&request(1, 10, b'a'), &[&precomputed], LIMIT / 10).is_err());
        // These bytes count when the whole head is encoded.
        let value = HeaderValue::from_bytes(&[0xf9; 600_000]).unwrap();
        let odd = PrecomputedHeaders::new(vec![(HeaderName::from_static("x"), value)]);
        assert!(measure(&request(1, 10, b'a'), &[&odd], LIMIT).is_err());
    }

    #[test]
    fn a_name_that_is_not_a_token_is_refused() {
        for more in [1, 5_000, 70_000] {
            let mut request = request(1, more, b'a');
            let name = HeaderName::from_lowercase(b"x\"y").unwrap();
            request.headers_mut().insert(name, HeaderValue::from_static("z"));
            assert_eq!(measured(&request), Err("a name"), "{more}");
        }
    }

    #[test]
    fn a_request_that_announces_trailers_gets_a_connection_of_its_own() {
        for (fields, each) in [(0, 0), (10, 1_000)] {
            let mut request = request(fields, each, b'a');
            assert_eq!(measured(&request), Ok(Sharing::Shared));
            request.headers_mut().insert(TRAILER, HeaderValue::from_static("x-sum"));
            assert_eq!(measured(&request), Ok(Sharing::Unshared));
        }
    }

    #[test]
    fn trailers_have_a_size_limit() {
        assert!(check_trailers(request(10, 6_000, b'\\').headers()).is_ok());
        assert!(check_trailers(request(10, 7_000, b'a').headers()).is_err());
        let name = HeaderName::from_lowercase(b"x\"y").unwrap();
        assert!(check_trailers(&HeaderMap::from_iter([(name, HeaderValue::from_static("z"))])).is_err());
    }

    #[test]
    fn no_byte_has_a_longer_code_than_assumed() {
        // Measures RFC 7541, appendix B, through h2: the length of a text that repeats one byte.
        for byte in (b'\t'..=b'\t').chain(b' '..=b'~').chain(0x80..=0xff) {
            let text = vec![byte; 8];
            let coded = huffman_bits(byte);
            assert!(coded_len(&text) >= coded, "{byte}");
            assert!(is_heavy(byte) || coded <= 16, "{byte}");
            assert!(coded <= 30, "{byte}");
        }
    }

    /// Returns the number of bits of a byte's code.
    fn huffman_bits(byte: u8) -> usize {
        match byte {
            b'0' | b'1' | b'2' | b'a' | b'c' | b'e' | b'i' | b'o' | b's' | b't' => 5,
            b' ' | b'%' | b'-' | b'.' | b'/' | b'3'..=b'9' | b'=' | b'A' | b'_' => 6,
            b'b' | b'd' | b'f' | b'g' | b'h' | b'l' | b'm' | b'n' | b'p' | b'r' | b'u' => 6,
            b':' | b'B'..=b'W' | b'Y' | b'j' | b'k' | b'q' | b'v'..=b'z' => 7,
            b'&' | b'*' | b',' | b';' | b'X' | b'Z' => 8,
            b'!' | b'"' | b'(' | b')' | b'?' => 10,
            b'\'' | b'+' | b'|' => 11,
            b'#' | b'>' => 12,
            b'\0' | b'$' | b'@' | b'[' | b']' | b'~' => 13,
            b'^' | b'}' => 14,
            b'<' | b'`' | b'{' => 15,
            b'\\' => 19,
            b'\t' => 24,
            // The longest of these is 0xf9.
            0x80..=0xff => 28,
            _ => 30,
        }
    }
}
