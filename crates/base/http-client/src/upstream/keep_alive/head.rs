//! Serialization and parsing of message heads (RFC 9112, sections 2 to 5).

use std::fmt;
use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, InvalidHeaderValue, TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use httparse::{ParserConfig, Status};
use pinniped_http_headers::precomputed::{PrecomputedHeaders, write_field};

use super::Http1Error;
use crate::upstream::RequestBody;

/// Maximum number of header fields of a response.
const MAX_FIELDS: usize = 2000;
/// Space for the fields that are added to a response later.
const ADDED_FIELDS: usize = 10;
/// Number of fields that are parsed without a heap allocation.
const USUAL_FIELDS: usize = 64;
/// Longer names and values are not cached.
const USUAL_LENGTH: usize = 64;

/// The framing by which the server detects the end of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// There is no body.
    None,
    /// By its length.
    Known(u64),
    /// By its last chunk.
    Chunked,
}

/// Writes the head of a request. The fields that define the end of the body come from `length`
/// alone, because two contradictory definitions allow request smuggling. The host is that of the
/// URI if no field contains it. Precomputed headers follow the request's own fields.
pub(super) fn write(
    request: &Request<RequestBody>,
    precomputed: &[&PrecomputedHeaders],
    length: Length,
    out: &mut Vec<u8>,
) {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let fields: usize =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>()
            + precomputed.iter().map(|fields| fields.as_http1().len()).sum::<usize>();
    out.reserve(request.method().as_str().len() + target.len() + fields + 64);
    out.extend_from_slice(request.method().as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if let Some(host) = request.uri().authority()
        && !request.headers().contains_key(HOST)
    {
        out.extend_from_slice(b"host: ");
        out.extend_from_slice(host.as_str().as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    for (name, value) in request.headers() {
        if *name == CONTENT_LENGTH || *name == TRANSFER_ENCODING {
            continue;
        }
        write_field(name, value, out);
    }
    precomputed.iter().for_each(|fields| out.extend_from_slice(fields.as_http1()));
    match length {
        // RFC 9110, section 8.6: a request whose method allows a body states that there is none.
        Length::None if matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH) => {
            out.extend_from_slice(b"content-length: 0\r\n");
        }
        Length::None => {}
        Length::Known(bytes) => {
            out.extend_from_slice(b"content-length: ");
            out.extend_from_slice(bytes.to_string().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Length::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
}

/// The head of a response.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) response: Response<()>,
    /// The size of the head in bytes.
    pub(super) length: usize,
    /// Whether the head has fields about its framing, other than one content length, or about its
    /// connection. Each field is visited in any case, and most heads have none of them.
    pub(super) special: bool,
}

/// The fields of a connection's last heads, as raw bytes and parsed. A server sends the same fields
/// in the same order again and again, mostly with the same values. Looking up a name or validating
/// a value byte by byte costs several times as much as a comparison with the previous one.
#[derive(Default)]
pub(super) struct Fields(Vec<Field>);

struct Field {
    raw: Box<[u8]>,
    name: HeaderName,
    /// A copy, because the value would otherwise keep the read buffer alive.
    value: HeaderValue,
    /// Number of consecutive changes of the value.
    changes: u8,
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No values: they belong to a user's response.
        f.debug_struct("Fields").field("known", &self.0.len()).finish_non_exhaustive()
    }
}

impl Fields {
    /// Returns the field at this position.
    fn known(
        &mut self,
        position: usize,
        bytes: &Bytes,
        field: &httparse::Header<'_>,
    ) -> Result<(HeaderName, HeaderValue), http::Error> {
        let raw = field.name.as_bytes();
        if let Some(known) = self.0.get_mut(position)
            && *known.raw == *raw
        {
            return Ok((known.name.clone(), known.value(bytes, field.value)?));
        }
        let name = HeaderName::from_bytes(raw)?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value))?;
        if raw.len() <= USUAL_LENGTH && position < USUAL_FIELDS && position <= self.0.len() {
            self.0.truncate(position);
            let empty = HeaderValue::from_static("");
            self.0.push(Field { raw: raw.into(), name: name.clone(), value: empty, changes: 0 });
        }
        Ok((name, value))
    }
}

impl Field {
    fn value(&mut self, bytes: &Bytes, raw: &[u8]) -> Result<HeaderValue, InvalidHeaderValue> {
        if self.value.as_bytes() == raw {
            self.changes = 0;
            return Ok(self.value.clone());
        }
        self.changes = self.changes.wrapping_add(1);
        // A value that changes every time is not cached every time.
        if raw.len() <= USUAL_LENGTH && (self.changes < 4 || self.changes.is_multiple_of(64)) {
            self.value = HeaderValue::from_bytes(raw)?;
        }
        HeaderValue::from_maybe_shared(bytes.slice_ref(raw))
    }
}

/// Parses the head of a response at the beginning of `bytes`; returns `None` while it is
/// incomplete.
pub(super) fn read(bytes: &Bytes, known: &mut Fields) -> Result<Option<Head>, Http1Error> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut fields = [const { MaybeUninit::uninit() }; USUAL_FIELDS];
    match read_with(bytes, &mut fields, known) {
        Err(Http1Error::Head(httparse::Error::TooManyHeaders)) => {
            let mut fields = vec![MaybeUninit::uninit(); MAX_FIELDS];
            read_with(bytes, &mut fields, known)
        }
        read => read,
    }
}

fn read_with<'b>(
    bytes: &'b Bytes,
    fields: &mut [MaybeUninit<httparse::Header<'b>>],
    known: &mut Fields,
) -> Result<Option<Head>, Http1Error> {
    let mut head = httparse::Response::new(&mut []);
    let parsed = ParserConfig::default().parse_response_with_uninit_headers(&mut head, bytes, fields);
    let Status::Complete(length) = parsed.map_err(Http1Error::Head)? else { return Ok(None) };
    let mut response = Response::new(());
    let code = head.code.and_then(|code| StatusCode::from_u16(code).ok());
    *response.status_mut() = code.ok_or(Http1Error::Head(httparse::Error::Status))?;
    *response.version_mut() = if head.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let (headers, special) = map(bytes, head.headers, known)?;
    *response.headers_mut() = headers;
    Ok(Some(Head { response, length, special }))
}

/// Returns the fields as a map, with values that share the buffer, and whether there are
/// [special](Head::special) ones.
pub(super) fn map(
    bytes: &Bytes,
    fields: &[httparse::Header<'_>],
    known: &mut Fields,
) -> Result<(HeaderMap, bool), Http1Error> {
    // A proxy adds fields to the response.
    let mut map = HeaderMap::with_capacity(fields.len() + ADDED_FIELDS);
    let mut special = false;
    for (position, field) in fields.iter().enumerate() {
        let known = known.known(position, bytes, field);
        let (name, value) = known.map_err(|_| Http1Error::Head(httparse::Error::HeaderValue))?;
        special |= name == TRANSFER_ENCODING
            || name == CONNECTION
            || name == CONTENT_LENGTH && field.value.contains(&b',');
        special |= map.append(name, value);
    }
    Ok((map, special))
}

#[cfg(test)]
mod tests {
    use pinniped_http_headers::precomputed::NO_FIELDS;

    use super::*;

    fn written(method: &str, target: &str, length: Length) -> String {
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header("host", "a.local")
            .header("content-length", "7")
            .header("transfer-encoding", "chunked")
            .header("x-one", "1")
            .header("x-one", "2");
        let mut out = Vec::new();
        write(&request.body(RequestBody::Empty).unwrap(), &[], length, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_request_states_the_length_of_its_body_once_and_correctly() {
        let cases = [
            ("GET", Length::None, ""),
            ("DELETE", Length::None, ""),
            ("POST", Length::None, "content-length: 0\r\n"),
            ("POST", Length::Known(12), "content-length: 12\r\n"),
            ("GET", Length::Known(1), "content-length: 1\r\n"),
            ("PUT", Length::Chunked, "transfer-encoding: chunked\r\n"),
        ];
        for (method, length, expected) in cases {
            let wanted = format!(
                "{method} /a?b=%zz HTTP/1.1\r\nhost: a.local\r\nx-one: 1\r\nx-one: 2\r\n{expected}\r\n"
            );
            assert_eq!(written(method, "/a?b=%zz", length), wanted);
        }
        assert!(written("OPTIONS", "*", Length::None).starts_with("OPTIONS * HTTP/1.1\r\n"));
        assert!(written("GET", "http://a.local", Length::None).starts_with("GET / HTTP/1.1\r\n"));
    }

    #[test]
    fn precomputed_headers_follow_the_requests_own_fields() {
        let precomputed = |name, value| {
            PrecomputedHeaders::new(vec![(HeaderName::from_static(name), HeaderValue::from_static(value))])
        };
        let request = Request::get("/a").header("own", "0").body(RequestBody::Empty).unwrap();
        let mut out = Vec::new();
        write(
            &request,
            &[&precomputed("b", "1"), &NO_FIELDS, &precomputed("a", "2")],
            Length::None,
            &mut out,
        );
        assert_eq!(out, b"GET /a HTTP/1.1\r\nown: 0\r\nb: 1\r\na: 2\r\n\r\n");
    }

    #[test]
    fn a_head_is_read_when_it_is_complete() {
        let whole = "HTTP/1.1 200 OK\r\nX-One: 1\r\nx-one:2\r\nEmpty:\r\n\r\nbody";
        let end = whole.len() - "body".len();
        for cut in 0..end {
            let part = Bytes::copy_from_slice(&whole.as_bytes()[..cut]);
            assert!(read(&part, &mut Fields::default()).unwrap().is_none(), "{cut}");
        }
        let head = read(&Bytes::from(whole), &mut Fields::default()).unwrap().unwrap();
        assert!(head.special, "a name is there twice");
        let (head, length) = (head.response, head.length);
        assert_eq!((head.status().as_u16(), head.version(), length), (200, Version::HTTP_11, end));
        let values: Vec<_> = head.headers().get_all("x-one").iter().collect();
        assert_eq!(values, ["1", "2"]);
        assert_eq!(head.headers()["empty"], "");
    }

    #[test]
    fn fields_about_the_framing_or_the_connection_are_detected() {
        for (fields, special) in [
            ("", false),
            ("content-length: 2\r\ndate: x\r\n", false),
            ("content-length: 2\r\nContent-Length: 2\r\n", true),
            ("content-length: 2, 2\r\n", true),
            ("Transfer-Encoding: chunked\r\n", true),
            ("connection: close\r\n", true),
        ] {
            let head = read(&Bytes::from(format!("HTTP/1.1 200 OK\r\n{fields}\r\n")), &mut Fields::default())
                .unwrap()
                .unwrap();
            assert_eq!(head.special, special, "{fields}");
        }
    }

    #[test]
    fn more_than_the_usual_number_of_fields_is_accepted_up_to_the_limit() {
        for (fields, readable) in [(USUAL_FIELDS + 1, true), (MAX_FIELDS, true), (MAX_FIELDS + 1, false)] {
            let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(fields));
            let read = read(&Bytes::from(head), &mut Fields::default());
            assert_eq!(read.is_ok(), readable, "{fields}: {read:?}");
            if let Ok(Some(head)) = read {
                assert_eq!(head.response.headers().len(), fields);
            }
        }
    }

    #[test]
    fn cached_fields_do_not_change_a_response() {
        let long = "n".repeat(USUAL_LENGTH + 1);
        let heads = [
            "a: 1\r\nContent-Type: x\r\n".to_owned(),
            "a: 2\r\nContent-Type: y\r\n".to_owned(),
            format!("a: {long}\r\nContent-Type:\r\n"),
            "a: 2\r\nContent-Type: y\r\n".to_owned(),
            "Content-Type: z\r\na: 3\r\nb: 4\r\n".to_owned(),
            "content-type: z\r\nA: 3\r\n".to_owned(),
            format!("{long}: 5\r\na: 6\r\n"),
            String::new(),
            format!("a: 7\r\n{long}: 8\r\nc: 9\r\nd: 10\r\n"),
            "a: b\r\n".repeat(USUAL_FIELDS + 2),
        ];
        let mut known = Fields::default();
        for fields in heads.iter().chain(heads.iter().rev()) {
            let head = Bytes::from(format!("HTTP/1.1 200 OK\r\n{fields}\r\n"));
            let read =
                |known: &mut Fields| super::read(&head, known).unwrap().unwrap().response.into_parts().0;
            assert_eq!(read(&mut known).headers, read(&mut Fields::default()).headers, "{fields}");
            assert!(known.0.len() <= USUAL_FIELDS, "{fields}");
        }
        let bad = Bytes::from("HTTP/1.1 200 OK\r\nname with space: x\r\n\r\n");
        assert!(super::read(&bad, &mut known).is_err());
    }

    #[test]
    fn values_are_cached_without_their_buffer_and_rarely_if_each_is_new() {
        let mut known = Fields::default();
        let mut copies = 0;
        for round in 0..200 {
            let head = Bytes::from(format!("HTTP/1.1 200 OK\r\nsame: s\r\nother: {round}\r\n\r\n"));
            let before = known.0.get(1).map(|field| field.value.clone());
            let response = super::read(&head, &mut known).unwrap().unwrap().response;
            assert_eq!(response.headers()["same"], "s");
            assert_eq!(response.headers()["other"], round.to_string());
            copies += usize::from(before != Some(known.0[1].value.clone()));
            drop(response);
            assert!(head.is_unique(), "{round}");
        }
        assert_eq!(known.0[0].value, "s");
        assert!((3..10).contains(&copies), "{copies}");
    }

    #[test]
    fn a_malformed_http1_head_is_refused() {
        for head in [
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 99 Low\r\n\r\n",
            "HTTP/1.1 2OO OK\r\n\r\n",
            "SSH-2.0-OpenSSH_9.2\r\n",
            "HTTP/1.1 200 OK\r\nname with space: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nname : x\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\r\n folded: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\u{0}c\r\n\r\n",
        ] {
            assert!(read(&Bytes::from(head), &mut Fields::default()).is_err(), "{head:?}");
        }
    }
}
