//! The size of a request's head, and which connection may carry it.
//!
//! A Go server answers 431 to a header list over its limit, but closes the whole connection, with every stream of every
//! other user, when it would have to parse much more than that (`readMetaFrame` in golang.org/x/net/http2):
//!
//! * when a frame of a head is more than twice as long as what is left of the limit. [`h2`] codes every string in
//!   Huffman's code, which makes some bytes longer, and does not ask for the server's limit;
//! * when one string is coded longer than the limit;
//! * when a head of several frames holds a field that is invalid in Go's eyes. [`h2`] lets quotation marks through in names.
//!
//! So a head is counted before it goes to a connection that other users share, and refused where the server might close that
//! connection. A head for which the client itself brings a lot gets a connection of its own all the same: what is said here
//! about servers is true of Go's, and a mistake would harm no other user there.

use http::{HeaderMap, Request};
use pinniped_http_headers::precomputed::{FIELD_OVERHEAD, PrecomputedHeaders, field_size};

use super::UpstreamError;

/// Heads whose own fields count more than this go over a connection that nothing else uses. Clients of Kubernetes send a
/// few kilobytes, most of it a token.
pub(super) const LARGE_HEAD: usize = 64 << 10;
/// A coded head of this size fits into one frame of HTTP/2's smallest maximum (16,384 bytes): each byte makes at most 30
/// bits.
const ONE_FRAME: usize = 4 << 10;
/// No coding makes a head up to this size too long for a limit of twice that: 30 bits for each byte.
const NEVER_TOO_LONG: usize = 256 << 10;

/// Which connection a head may go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// One with streams of other users.
    Shared,
    /// One of its own.
    Unshared,
}

/// Counts a head with what is `ready` to go with it, for a server which takes header lists of `limit` bytes.
///
/// # Errors
/// [`UpstreamError::HeadTooLarge`] and [`UpstreamError::FieldName`].
pub(super) fn measure<B>(
    request: &Request<B>,
    ready: &[&PrecomputedHeaders],
    limit: usize,
) -> Result<Sharing, UpstreamError> {
    let own = pseudo_size(request) + list_size(request.headers());
    let size = own + ready.iter().map(|ready| ready.list_size()).sum::<usize>();
    if size <= ONE_FRAME {
        return Ok(Sharing::Shared);
    }
    let too_large = || UpstreamError::HeadTooLarge { size, limit };
    if size > limit {
        return Err(too_large());
    }
    check_names(request.headers())?;
    if size > NEVER_TOO_LONG.min(limit / 4) && !fits_coded(request, ready, size, limit) {
        return Err(too_large());
    }
    Ok(if own > LARGE_HEAD { Sharing::Unshared } else { Sharing::Shared })
}

/// The same for trailers, which have to go over the connection that their request took.
///
/// # Errors
/// [`UpstreamError::HeadTooLarge`] and [`UpstreamError::FieldName`].
pub(super) fn check_trailers(trailers: &HeaderMap) -> Result<(), UpstreamError> {
    let size = list_size(trailers);
    if size > LARGE_HEAD {
        return Err(UpstreamError::HeadTooLarge { size, limit: LARGE_HEAD });
    }
    check_names(trailers)
}

/// The size of fields in a header list.
pub(super) fn list_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| field_size(name, value)).sum()
}

/// The size of `:method`, `:scheme`, `:authority` and `:path`.
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

/// [`http::HeaderName`] takes over from HTTP/2 what is no token (RFC 9110, section 5.6.2).
fn check_names(headers: &HeaderMap) -> Result<(), UpstreamError> {
    if headers.keys().any(|name| name.as_str().contains('"')) {
        return Err(UpstreamError::FieldName);
    }
    Ok(())
}

/// Whether a Go server surely takes this head as it is coded.
///
/// What is left of its limit before a frame is at least `limit - size` and what the fields from there on count. The coded
/// fields may be twice as long. Only [heavy](is_heavy) bytes get longer than two bytes, at most by 1.75 bytes each, so
/// their number may be `limit - size`.
fn fits_coded<B>(request: &Request<B>, ready: &[&PrecomputedHeaders], size: usize, limit: usize) -> bool {
    let fields = request.headers().iter();
    let fields = fields.flat_map(|(name, value)| [name.as_str().as_bytes(), value.as_bytes()]);
    let pseudo = pseudo_values(request).map(str::as_bytes).into_iter();
    let ready = ready.iter().flat_map(|ready| ready.fields());
    let ready = ready.flat_map(|(name, value)| [name.as_str().as_bytes(), value.as_bytes()]);
    let mut heavy = 0;
    for text in fields.chain(pseudo).chain(ready) {
        if coded_len(text) > limit {
            return false;
        }
        heavy += text.iter().filter(|byte| is_heavy(**byte)).count();
    }
    heavy <= limit - size
}

/// Whether a byte may be longer than 16 bits in HPACK's Huffman code (RFC 7541, appendix B).
fn is_heavy(byte: u8) -> bool {
    byte == b'\\' || !(b' '..=b'~').contains(&byte)
}

/// How long a text may be in that code, at most.
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

    /// What kube-apiserver announces.
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
    fn a_head_is_counted_as_http2_counts_it() {
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
    fn a_modest_head_is_shared_and_a_large_one_is_not() {
        assert_eq!(measured(&request(10, 100, b'a')), Ok(Sharing::Shared));
        assert_eq!(measured(&request(10, 6_000, b'\\')), Ok(Sharing::Shared));
        assert_eq!(measured(&request(10, 7_000, b'a')), Ok(Sharing::Unshared));
        assert_eq!(measured(&request(13, 80_000, b'a')), Ok(Sharing::Unshared));
        assert_eq!(measured(&request(14, 80_000, b'a')), Err("too large"));
    }

    #[test]
    fn what_grows_when_it_is_coded_is_too_large_earlier() {
        // 1,040,000 bytes of either.
        for (byte, outcome) in
            [(b'a', Ok(Sharing::Unshared)), (b'\\', Err("too large")), (0xf9, Err("too large"))]
        {
            assert_eq!(measured(&request(13, 80_000, byte)), outcome, "{byte}");
        }
        // Half of it is never too large, unless it is one string.
        assert_eq!(measured(&request(5, 100_000, b'\\')), Ok(Sharing::Unshared));
        assert_eq!(measured(&request(1, 500_000, b'\\')), Err("too large"));
        assert_eq!(measured(&request(1, 1_000_000, b'a')), Ok(Sharing::Unshared));
    }

    #[test]
    fn only_what_the_client_brings_makes_a_head_unshared() {
        let group = (
            HeaderName::from_static("impersonate-group"),
            HeaderValue::from_static("a-group-of-a-directory"),
        );
        let ready = PrecomputedHeaders::new(vec![group; 2_000]);
        assert!(ready.list_size() > 2 * LARGE_HEAD);
        assert_eq!(measure(&request(1, 10, b'a'), &[&ready], LIMIT).ok(), Some(Sharing::Shared));
        assert!(measure(&request(1, 10, b'a'), &[&ready], LIMIT / 10).is_err());
        // Its bytes count when the whole is coded.
        let value = HeaderValue::from_bytes(&[0xf9; 600_000]).unwrap();
        let odd = PrecomputedHeaders::new(vec![(HeaderName::from_static("x"), value)]);
        assert!(measure(&request(1, 10, b'a'), &[&odd], LIMIT).is_err());
    }

    #[test]
    fn a_name_that_is_no_token_goes_nowhere_in_a_head_of_several_frames() {
        for (more, outcome) in [(1, Ok(Sharing::Shared)), (5_000, Err("a name")), (70_000, Err("a name"))] {
            let mut request = request(1, more, b'a');
            let name = HeaderName::from_lowercase(b"x\"y").unwrap();
            request.headers_mut().insert(name, HeaderValue::from_static("z"));
            assert_eq!(measured(&request), outcome, "{more}");
        }
    }

    #[test]
    fn trailers_are_modest() {
        assert!(check_trailers(request(10, 6_000, b'\\').headers()).is_ok());
        assert!(check_trailers(request(10, 7_000, b'a').headers()).is_err());
        let name = HeaderName::from_lowercase(b"x\"y").unwrap();
        assert!(check_trailers(&HeaderMap::from_iter([(name, HeaderValue::from_static("z"))])).is_err());
    }

    #[test]
    fn no_byte_is_longer_than_thought() {
        // RFC 7541, appendix B, in the words of h2: what it codes a text of one byte, repeated, to.
        for byte in (b'\t'..=b'\t').chain(b' '..=b'~').chain(0x80..=0xff) {
            let text = vec![byte; 8];
            let coded = huffman_bits(byte);
            assert!(coded_len(&text) >= coded, "{byte}");
            assert!(is_heavy(byte) || coded <= 16, "{byte}");
            assert!(coded <= 30, "{byte}");
        }
    }

    /// Bits of a byte's code.
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
