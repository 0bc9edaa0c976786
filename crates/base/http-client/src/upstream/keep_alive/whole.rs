//! One answer from bytes, without a connection.

use bytes::Bytes;
use http::{HeaderMap, Method, Response};

use super::framing::{Decoded, Decoder, is_kept};
use super::{Http1Error, head, tidy};

/// An answer with everything that belongs to it.
#[derive(Debug)]
pub struct WholeAnswer {
    /// As it is passed on, but for hop-by-hop headers.
    pub head: Response<()>,
    /// All of it.
    pub body: Vec<u8>,
    /// Where there are some.
    pub trailers: Option<HeaderMap>,
    /// Whether the connection would serve another request.
    pub reusable: bool,
}

/// Reads the answer to a request with `method` from bytes as they come: the rules of a connection to a backend, for whoever
/// wants to see what they make of something. Interim answers are left out; `pieces` is over when the server closes.
///
/// # Errors
/// [`Http1Error`], where a connection would end with it.
pub fn read_whole(
    method: &Method,
    pieces: impl IntoIterator<Item = Bytes>,
) -> Result<WholeAnswer, Http1Error> {
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
    let kept = tidy(&mut head)? && is_kept(&head);
    let kept = kept && head.response.status() != http::StatusCode::SWITCHING_PROTOCOLS;
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
    // What comes behind an answer is nothing that was asked for.
    let behind = !input.is_empty() || more(&mut input);
    Ok(WholeAnswer { head: head.response, body, trailers, reusable: kept && !closed && !behind })
}
