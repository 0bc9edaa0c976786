//! The framing of response bodies (RFC 9112, sections 6 and 7).

use bytes::{Buf as _, Bytes};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode, Version};
use httparse::Status;
use pinniped_http_headers::hop_by_hop::has_token;

use super::head::{Fields, Head};
use super::{Http1Error, head};

/// Maximum size of a line with the size of a chunk, and of all trailers, in bytes.
const MAX_META: usize = 16 << 10;
const MAX_TRAILERS: usize = 64;

/// Names that are not allowed as trailers because they concern the message as a whole (RFC 9110,
/// section 6.5.1).
static NEVER_TRAILERS: [HeaderName; 5] = [CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, HOST, TRAILER];

/// The rest of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoder {
    /// The body is complete.
    Done,
    /// This number of bytes follows.
    Length(u64),
    /// Chunks follow.
    Chunked(Chunk),
    /// All bytes until the server closes the connection.
    UntilClose,
}

/// The position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// Before the line with the size of the next chunk.
    Size,
    /// In the data of a chunk, with this number of bytes left.
    Data(u64),
    /// Before the end of line after a chunk.
    End,
    /// After the last chunk.
    Trailers,
}

/// The result of one decoding step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Data(Bytes),
    Trailers(HeaderMap),
    /// The body is complete.
    End,
    /// More bytes are needed.
    More,
}

impl Decoder {
    /// Returns the framing that the head of a response to a request with `method` defines.
    pub(super) fn of(method: &Method, head: &Head) -> Result<Self, Http1Error> {
        let Head { response, special, .. } = head;
        let status = response.status();
        let bodiless = status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || *method == Method::HEAD;
        let headers = response.headers();
        if *special
            && let mut codings = headers.get_all(TRANSFER_ENCODING).iter()
            && let Some(coding) = codings.next()
        {
            // Another coding would have to be decoded here, because the field is not forwarded;
            // HTTP/1.0 has none.
            let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
            return match chunked && response.version() == Version::HTTP_11 {
                _ if bodiless => Ok(Self::Done),
                true => Ok(Self::Chunked(Chunk::Size)),
                false => Err(Http1Error::Coding),
            };
        }
        // Also checked for a response without a body, because the client receives the field.
        Ok(match length(headers)? {
            _ if bodiless => Self::Done,
            Some(0) => Self::Done,
            Some(length) => Self::Length(length),
            None => Self::UntilClose,
        })
    }

    /// Takes the next item from `input`.
    pub(super) fn decode(&mut self, input: &mut Bytes) -> Result<Decoded, Http1Error> {
        loop {
            return match self {
                Self::Done => Ok(Decoded::End),
                Self::UntilClose if input.is_empty() => Ok(Decoded::More),
                Self::UntilClose => Ok(Decoded::Data(std::mem::take(input))),
                Self::Length(left) => {
                    let Some(data) = take(left, input) else { return Ok(Decoded::More) };
                    if *left == 0 {
                        *self = Self::Done;
                    }
                    Ok(Decoded::Data(data))
                }
                Self::Chunked(chunk) => match chunk {
                    Chunk::Size => {
                        let Some(size) = chunk_size(input)? else { return Ok(Decoded::More) };
                        *chunk = if size == 0 { Chunk::Trailers } else { Chunk::Data(size) };
                        continue;
                    }
                    Chunk::Data(left) => {
                        let Some(data) = take(left, input) else { return Ok(Decoded::More) };
                        if *left == 0 {
                            *chunk = Chunk::End;
                        }
                        Ok(Decoded::Data(data))
                    }
                    Chunk::End => {
                        if input.len() < 2 {
                            return Ok(Decoded::More);
                        }
                        if !input.starts_with(b"\r\n") {
                            return Err(Http1Error::Chunk);
                        }
                        input.advance(2);
                        *chunk = Chunk::Size;
                        continue;
                    }
                    Chunk::Trailers => {
                        let Some(trailers) = trailers(input)? else { return Ok(Decoded::More) };
                        *self = Self::Done;
                        Ok(if trailers.is_empty() { Decoded::End } else { Decoded::Trailers(trailers) })
                    }
                },
            };
        }
    }

    /// Skips framing at the beginning of `input`, so that an end that has already arrived is
    /// detected.
    pub(super) fn skip_to_data(&mut self, input: &mut Bytes) -> Result<(), Http1Error> {
        if *self == Self::Chunked(Chunk::End) && input.starts_with(b"\r\n") {
            input.advance(2);
            *self = Self::Chunked(Chunk::Size);
        }
        // Trailers remain for the next call.
        if *self == Self::Chunked(Chunk::Size) && input.starts_with(b"0\r\n\r\n") {
            let _end = self.decode(input)?;
        }
        Ok(())
    }

    /// Returns whether the body may end here by the end of the connection.
    pub(super) fn may_end(&self) -> bool {
        matches!(self, Self::Done | Self::UntilClose)
    }

    /// Returns the rest of the body's length, if it is known.
    pub(super) fn left(&self) -> Option<u64> {
        match self {
            Self::Done => Some(0),
            Self::Length(left) => Some(*left),
            Self::Chunked(_) | Self::UntilClose => None,
        }
    }
}

/// Returns whether a connection may serve another request after a response whose end is marked in
/// the response.
pub(super) fn allows_reuse(head: &Head) -> bool {
    let has = |token| head.special && has_token(head.response.headers(), &CONNECTION, token);
    match head.response.version() {
        Version::HTTP_11 => !has("close"),
        _ => has("keep-alive") && !has("close"),
    }
}

/// Returns the value of `Content-Length`, which may occur several times with the same value (RFC
/// 9110, section 8.6).
pub(super) fn length(headers: &HeaderMap) -> Result<Option<u64>, Http1Error> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        for length_value in value.as_bytes().split(|byte| *byte == b',') {
            let length_value = digits(length_value.trim_ascii()).ok_or(Http1Error::Length)?;
            if *length.get_or_insert(length_value) != length_value {
                return Err(Http1Error::Length);
            }
        }
    }
    Ok(length)
}

fn digits(text: &[u8]) -> Option<u64> {
    // `parse` would also accept a sign.
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn take(left: &mut u64, input: &mut Bytes) -> Option<Bytes> {
    if input.is_empty() {
        return None;
    }
    let most = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
    *left -= most as u64;
    Some(input.split_to(most))
}

fn chunk_size(input: &mut Bytes) -> Result<Option<u64>, Http1Error> {
    if input.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) {
        return Err(Http1Error::Chunk);
    }
    let parsed = httparse::parse_chunk_size(input).map_err(|_| Http1Error::Chunk)?;
    // httparse accepts anything in a chunk extension. Some parsers accept a line end with only one
    // of its two characters. If two parsers disagree about lines, one of them finds a response that
    // the other does not.
    let line = match parsed {
        Status::Complete((length, _)) => &input[..length - b"\r\n".len()],
        Status::Partial => input.strip_suffix(b"\r").unwrap_or(input),
    };
    if line.len() > MAX_META || line.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        return Err(Http1Error::Chunk);
    }
    Ok(match parsed {
        Status::Complete((length, size)) => {
            input.advance(length);
            Some(size)
        }
        Status::Partial => None,
    })
}

fn trailers(input: &mut Bytes) -> Result<Option<HeaderMap>, Http1Error> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_TRAILERS];
    match httparse::parse_headers(input, &mut fields).map_err(Http1Error::Trailers)? {
        // As in the line of a size: the next response begins here.
        Status::Complete((length, _)) if !ends_whole_lines(&input[..length]) => Err(Http1Error::Chunk),
        Status::Complete((length, fields)) => {
            let (mut map, _) = head::map(input, fields, &mut Fields::default())?;
            for name in &NEVER_TRAILERS {
                map.remove(name);
            }
            input.advance(length);
            Ok(Some(map))
        }
        Status::Partial if input.len() > MAX_META => {
            Err(Http1Error::Trailers(httparse::Error::TooManyHeaders))
        }
        Status::Partial => Ok(None),
    }
}

/// Returns whether each line ends with both characters of the line end.
fn ends_whole_lines(text: &[u8]) -> bool {
    text.split_inclusive(|byte| *byte == b'\n').all(|line| line.ends_with(b"\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(version: Version, status: u16, fields: &[(&str, &str)]) -> Head {
        let mut text = format!("{version:?} {status} .\r\n");
        for (name, value) in fields {
            text += &format!("{name}: {value}\r\n");
        }
        head::read(&Bytes::from(text + "\r\n"), &mut Fields::default()).unwrap().expect("a whole head")
    }

    /// Returns everything that a decoder finds in input that is split into pieces of this size.
    fn decoded(
        mut decoder: Decoder,
        bytes: &str,
        pieces: usize,
    ) -> Result<(String, Option<HeaderMap>), Http1Error> {
        let (mut data, mut trailers) = (Vec::new(), None);
        let mut input = Bytes::new();
        let mut rest = bytes.as_bytes().chunks(pieces);
        loop {
            match decoder.decode(&mut input)? {
                Decoded::Data(found) => {
                    data.extend_from_slice(&found);
                    decoder.skip_to_data(&mut input)?;
                }
                Decoded::Trailers(found) => trailers = Some(found),
                Decoded::End => break,
                Decoded::More => match rest.next() {
                    Some(piece) => input = [&input[..], piece].concat().into(),
                    None if decoder.may_end() => break,
                    None => return Err(Http1Error::Closed),
                },
            }
        }
        assert!(input.is_empty(), "{input:?} was left");
        Ok((String::from_utf8(data).unwrap(), trailers))
    }

    #[test]
    fn the_head_defines_the_end_of_the_body() {
        let v1 = Version::HTTP_11;
        let length = |text: &'static str| ("content-length", text);
        let coding = |text: &'static str| ("transfer-encoding", text);
        let cases: &[(&str, Head, Option<Decoder>)] = &[
            ("GET", head(v1, 200, &[length("5")]), Some(Decoder::Length(5))),
            ("GET", head(v1, 200, &[length("0")]), Some(Decoder::Done)),
            ("GET", head(v1, 200, &[length("5"), length("5")]), Some(Decoder::Length(5))),
            ("GET", head(v1, 200, &[length("5, 5")]), Some(Decoder::Length(5))),
            ("GET", head(v1, 200, &[length("5"), length("6")]), None),
            ("GET", head(v1, 200, &[length("+5")]), None),
            ("GET", head(v1, 200, &[length("5x")]), None),
            ("GET", head(v1, 200, &[length("")]), None),
            ("GET", head(v1, 200, &[length("18446744073709551616")]), None),
            ("GET", head(v1, 200, &[coding("chunked")]), Some(Decoder::Chunked(Chunk::Size))),
            ("GET", head(v1, 200, &[coding("Chunked"), length("5")]), Some(Decoder::Chunked(Chunk::Size))),
            ("GET", head(v1, 200, &[coding("gzip, chunked")]), None),
            ("GET", head(v1, 200, &[coding("chunked"), coding("chunked")]), None),
            ("GET", head(v1, 200, &[coding("identity")]), None),
            ("GET", head(Version::HTTP_10, 200, &[coding("chunked")]), None),
            ("GET", head(v1, 200, &[]), Some(Decoder::UntilClose)),
            ("HEAD", head(v1, 200, &[length("5")]), Some(Decoder::Done)),
            ("HEAD", head(v1, 200, &[length("5x")]), None),
            ("HEAD", head(v1, 200, &[coding("gzip, chunked")]), Some(Decoder::Done)),
            ("GET", head(v1, 204, &[length("5")]), Some(Decoder::Done)),
            ("GET", head(v1, 304, &[coding("chunked")]), Some(Decoder::Done)),
            ("GET", head(v1, 103, &[]), Some(Decoder::Done)),
        ];
        for (method, head, wanted) in cases {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(Decoder::of(&method, head).ok(), *wanted, "{method} {head:?}");
        }
    }

    #[test]
    fn version_and_connection_header_decide_about_keep_alive() {
        let (old, new) = (Version::HTTP_10, Version::HTTP_11);
        let connection = |text: &'static str| [("connection", text)];
        assert!(allows_reuse(&head(new, 200, &[])));
        assert!(!allows_reuse(&head(new, 200, &connection("x, Close"))));
        assert!(!allows_reuse(&head(old, 200, &[])));
        assert!(allows_reuse(&head(old, 200, &connection("Keep-Alive"))));
        assert!(!allows_reuse(&head(old, 200, &connection("keep-alive, close"))));
    }

    #[test]
    fn chunks_are_decoded_independently_of_how_the_input_is_split() {
        let chunked = Decoder::Chunked(Chunk::Size);
        let body = "3\r\none\r\nA;name=\"value\"\r\n0123456789\r\n000\r\nX-Sum: 7\r\nHost: evil\r\n\r\n";
        for pieces in 1..=body.len() {
            let (data, trailers) = decoded(chunked, body, pieces).unwrap();
            assert_eq!(data, "one0123456789");
            let trailers = trailers.unwrap();
            assert_eq!((trailers.len(), &trailers["x-sum"]), (1, &"7".parse().unwrap()), "{pieces}");
        }
        for body in ["0\r\n\r\n", "2\r\nab\r\n0\r\n\r\n"] {
            for pieces in 1..=body.len() {
                assert_eq!(decoded(chunked, body, pieces).unwrap().1, None);
            }
        }
    }

    #[test]
    fn malformed_chunks_are_errors_and_never_an_end() {
        let long = format!("1;{}\r\nx\r\n0\r\n\r\n", "x".repeat(MAX_META));
        for body in [
            "",
            "\r\n",
            "\r\n\r\n",
            " 1\r\nx\r\n0\r\n\r\n",
            "-1\r\n",
            "0x1\r\nx\r\n",
            "1\nx\n0\n\n",
            "1\r\nxy\r\n0\r\n\r\n",
            "1\r\nx0\r\n\r\n",
            "11111111111111111\r\n",
            "2\r\nx\r\n",
            "1\r\nx\r\n",
            "1\r\nx\r\n0\r\n",
            "g\r\n",
            &long,
            "0\r\nbad name: x\r\n\r\n",
            "0;a\nb\r\n\r\n",
            "0\r\n\n",
            "0\r\na: b\n\r\n",
            "0;a\rb\r\n\r\n",
            "1;\n\r\nx\r\n0\r\n\r\n",
        ] {
            for pieces in [1, 7, 1 << 20] {
                let found = decoded(Decoder::Chunked(Chunk::Size), body, pieces);
                assert!(found.is_err(), "{body:?}: {found:?}");
            }
        }
    }

    #[test]
    fn a_body_ends_at_its_length_or_with_the_connection() {
        for pieces in 1..6 {
            assert_eq!(decoded(Decoder::Length(5), "12345", pieces).unwrap().0, "12345");
            assert!(matches!(decoded(Decoder::Length(6), "12345", pieces), Err(Http1Error::Closed)));
            assert_eq!(decoded(Decoder::UntilClose, "12345", pieces).unwrap().0, "12345");
        }
        // The bytes after the body stay in the input.
        let mut input = Bytes::from_static(b"12345HTTP/1.1");
        assert_eq!(
            Decoder::Length(5).decode(&mut input).unwrap(),
            Decoded::Data(Bytes::from_static(b"12345"))
        );
        assert_eq!(input, "HTTP/1.1");
    }

    #[test]
    fn the_end_of_a_body_is_detected_with_its_last_data() {
        let mut input = Bytes::from_static(b"2\r\nab\r\n0\r\n\r\n");
        let mut decoder = Decoder::Chunked(Chunk::Size);
        assert_eq!(decoder.decode(&mut input).unwrap(), Decoded::Data(Bytes::from_static(b"ab")));
        decoder.skip_to_data(&mut input).unwrap();
        assert_eq!((decoder, input.len()), (Decoder::Done, 0));
    }
}
