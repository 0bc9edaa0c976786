//! Parsing of one response from bytes, without a connection.

use bytes::Bytes;
use http::{HeaderMap, Method, Response};

use super::framing::{Decoded, Decoder, allows_reuse};
use super::{Http1Error, head, normalize_length};

/// A complete response.
#[derive(Debug)]
pub struct ParsedResponse {
    /// The head as it is forwarded, but with hop-by-hop headers.
    pub head: Response<()>,
    /// The whole body.
    pub body: Vec<u8>,
    /// The trailers, if there are any.
    pub trailers: Option<HeaderMap>,
    /// Whether the connection would serve another request.
    pub reusable: bool,
}

/// Parses the response to a request with `method` from pieces of bytes, with the rules of a
/// connection to a backend; useful for tests and fuzzing. Interim responses are skipped; the end of
/// `pieces` means that the server closes the connection.
///
/// # Errors
/// Returns the [`Http1Error`] with which a connection would end.
pub fn parse_response(
    method: &Method,
    pieces: impl IntoIterator<Item = Bytes>,
) -> Result<ParsedResponse, Http1Error> {
    let mut pieces = pieces.into_iter();
    let mut input = Bytes::new();
    let mut more = |input: &mut Bytes| match pieces.next() {
        Some(piece) => {
            *input = [&input[..], &piece].concat().into();
            true
        }
        None => false,
    };
    let mut known = head::Fields::default();
    let mut head = loop {
        match head::read(&input, &mut known)? {
            Some(head) => {
                let _read = input.split_to(head.length);
                let status = head.response.status();
                if !status.is_informational() || status == http::StatusCode::SWITCHING_PROTOCOLS {
                    break head;
                }
            }
            None if more(&mut input) => {}
            None => return Err(Http1Error::Closed),
        }
    };
    let mut decoder = Decoder::of(method, &head)?;
    let reusable = normalize_length(&mut head)? && allows_reuse(&head);
    let reusable = reusable && head.response.status() != http::StatusCode::SWITCHING_PROTOCOLS;
    let (mut body, mut trailers) = (Vec::new(), None);
    let mut closed = false;
    while decoder != Decoder::Done {
        match decoder.decode(&mut input)? {
            Decoded::Data(data) => {
                body.extend_from_slice(&data);
                decoder.skip_to_data(&mut input)?;
            }
            Decoded::Trailers(found) => trailers = Some(found),
            Decoded::End => {}
            Decoded::More if more(&mut input) => {}
            Decoded::More if decoder.may_end() => {
                closed = true;
                break;
            }
            Decoded::More => return Err(Http1Error::Closed),
        }
    }
    // Bytes after a response were not requested.
    let behind = !input.is_empty() || more(&mut input);
    Ok(ParsedResponse { head: head.response, body, trailers, reusable: reusable && !closed && !behind })
}
