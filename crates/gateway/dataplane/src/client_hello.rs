//! A parser for the ClientHello of TLS, which needs no TLS handshake.
//!
//! A gateway needs the server name before it can do anything else: the name selects the
//! certificate, or the backend of a passthrough connection. This module parses a ClientHello (RFC
//! 8446, section 4.1.2; RFC 5246, section 7.4.1.2) from the bytes received so far. The message may
//! span any number of TCP segments, which is common since post-quantum key shares exceed the size
//! of a packet, and any number of TLS records, which is rare but legal.
//!
//! Parsing is a pure function of the bytes and keeps no state: a caller repeats it with more bytes.
//! The parser reads and validates only the fields that it needs; the TLS library or the server
//! behind the gateway validates the rest.

use std::borrow::Cow;

mod reader;

use reader::Reader;

/// The maximum size of a ClientHello in bytes, including record headers. A browser sends about 2
/// KiB; with a large session ticket and an encrypted inner ClientHello about 4 KiB.
pub const LONGEST: usize = 16 << 10;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// The maximum length of a record (RFC 8446, section 5.1).
const LONGEST_RECORD: usize = 1 << 14;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;

const HOST_NAME: u8 = 0;
const LONGEST_NAME: usize = 255;

/// The fields of a ClientHello that routing needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The requested server name, in lower case.
    pub server_name: Option<Box<str>>,
    /// The ALPN protocols, in the client's order of preference.
    pub alpn: Vec<Box<[u8]>>,
    /// The highest supported version of TLS: 0x0303 is 1.2, 0x0304 is 1.3.
    pub highest_version: u16,
}

/// The state of parsing after some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The message is complete.
    Complete(ClientHello),
    /// The bytes so far are valid, and the message has at least this total number of bytes.
    Incomplete(usize),
}

/// The reason why the bytes are not an acceptable ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientHelloError {
    /// An HTTP request without TLS.
    #[error("the client sent an HTTP request to an HTTPS port")]
    PlainHttp,
    /// Not TLS.
    #[error("the first bytes are not TLS")]
    NotTls,
    /// TLS, but not a ClientHello.
    #[error("the first message is not a ClientHello")]
    NotClientHello,
    /// A length that does not fit, or trailing bytes.
    #[error("the ClientHello is malformed")]
    Malformed,
    /// Longer than [`LONGEST`].
    #[error("the ClientHello is over {LONGEST} bytes")]
    TooLong,
    /// The server name is invalid, or there are several.
    #[error("the server name of the ClientHello is not valid")]
    BadServerName,
}

/// Parses the ClientHello at the beginning of `bytes`.
///
/// # Errors
/// Returns an error when no further byte can make the message acceptable.
pub fn parse(bytes: &[u8]) -> Result<Progress, ClientHelloError> {
    if bytes.first().is_some_and(|first| *first != HANDSHAKE) {
        return not_tls(bytes);
    }
    match message(bytes)? {
        Message::Incomplete(wanted) if wanted > LONGEST => Err(ClientHelloError::TooLong),
        Message::Incomplete(wanted) => Ok(Progress::Incomplete(wanted)),
        Message::Complete(body) => Ok(Progress::Complete(hello(&body)?)),
    }
}

/// HTTP methods, and the first word of the HTTP/2 preface.
const METHODS: [&[u8]; 10] = [
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"PATCH ",
    b"OPTIONS ",
    b"CONNECT ",
    b"TRACE ",
    b"PRI * HTTP/2.0",
];

fn not_tls(bytes: &[u8]) -> Result<Progress, ClientHelloError> {
    for method in METHODS {
        if bytes.starts_with(method) {
            return Err(ClientHelloError::PlainHttp);
        }
        if method.starts_with(bytes) {
            return Ok(Progress::Incomplete(method.len()));
        }
    }
    Err(ClientHelloError::NotTls)
}

enum Message<'a> {
    Complete(Cow<'a, [u8]>),
    Incomplete(usize),
}

/// Returns the body of the first handshake message, without a copy if it is in one record.
fn message(bytes: &[u8]) -> Result<Message<'_>, ClientHelloError> {
    let mut at = 0;
    let mut message: Cow<'_, [u8]> = Cow::Borrowed(&[]);
    loop {
        let Some(length) = record(&bytes[at..])? else {
            // At least a header and one byte after it.
            return Ok(Message::Incomplete(at + RECORD_HEADER + 1));
        };
        let start = at + RECORD_HEADER;
        let end = start + length;
        let fragment = &bytes[start..end.min(bytes.len())];
        if message.is_empty() {
            message = Cow::Borrowed(fragment);
        } else {
            message.to_mut().extend_from_slice(fragment);
        }
        let wanted = wanted(&message)?;
        if let Some(body) = wanted.and_then(|wanted| message.len().checked_sub(wanted)) {
            let length = message.len() - body;
            return Ok(Message::Complete(match message {
                Cow::Borrowed(whole) => Cow::Borrowed(&whole[MESSAGE_HEADER..length]),
                Cow::Owned(mut whole) => {
                    whole.truncate(length);
                    whole.drain(..MESSAGE_HEADER);
                    Cow::Owned(whole)
                }
            }));
        }
        if end > bytes.len() {
            let missing = wanted.unwrap_or(MESSAGE_HEADER) - message.len();
            return Ok(Message::Incomplete(end.min(bytes.len() + missing)));
        }
        at = end;
        if at > LONGEST {
            return Err(ClientHelloError::TooLong);
        }
    }
}

/// Returns the length of the record at the beginning of `bytes`, as soon as its header is complete.
/// Validates each byte of the header as soon as it is available.
fn record(bytes: &[u8]) -> Result<Option<usize>, ClientHelloError> {
    if bytes.first().is_some_and(|kind| *kind != HANDSHAKE) {
        return Err(ClientHelloError::NotClientHello);
    }
    if bytes.get(1).is_some_and(|major| *major != 3) {
        return Err(ClientHelloError::NotTls);
    }
    let Some([_, _, _, high, low]) = bytes.first_chunk() else { return Ok(None) };
    match usize::from(u16::from_be_bytes([*high, *low])) {
        // RFC 8446, section 5.1, forbids empty handshake records; a client could send them without
        // end.
        0 => Err(ClientHelloError::Malformed),
        length if length > LONGEST_RECORD => Err(ClientHelloError::Malformed),
        length => Ok(Some(length)),
    }
}

/// Returns the length of the handshake message at the beginning of `message`, including its header.
fn wanted(message: &[u8]) -> Result<Option<usize>, ClientHelloError> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(ClientHelloError::NotClientHello);
    }
    let Some([_, high, middle, low]) = message.first_chunk() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes([0, *high, *middle, *low])).unwrap_or(usize::MAX);
    if length > LONGEST {
        return Err(ClientHelloError::TooLong);
    }
    Ok(Some(MESSAGE_HEADER + length))
}

fn hello(body: &[u8]) -> Result<ClientHello, ClientHelloError> {
    let mut body = Reader::new(body);
    let legacy_version = body.u16()?;
    body.bytes(32)?;
    body.vector8()?;
    body.vector16()?;
    body.vector8()?;
    let mut hello = ClientHello { highest_version: legacy_version, ..ClientHello::default() };
    // In TLS 1.2 the message may end here, without extensions.
    if body.is_empty() {
        return Ok(hello);
    }
    let mut extensions = Reader::new(body.vector16()?);
    body.end()?;
    let (mut named, mut spoken) = (false, false);
    while !extensions.is_empty() {
        let kind = extensions.u16()?;
        let mut content = Reader::new(extensions.vector16()?);
        match kind {
            SERVER_NAME if std::mem::replace(&mut named, true) => {
                return Err(ClientHelloError::BadServerName);
            }
            SERVER_NAME => hello.server_name = server_name(&mut content)?,
            ALPN if std::mem::replace(&mut spoken, true) => return Err(ClientHelloError::Malformed),
            ALPN => {
                let mut names = Reader::new(content.vector16()?);
                while !names.is_empty() {
                    hello.alpn.push(names.vector8()?.into());
                }
                content.end()?;
            }
            SUPPORTED_VERSIONS => {
                let mut versions = Reader::new(content.vector8()?);
                while !versions.is_empty() {
                    let version = versions.u16()?;
                    // GREASE values (RFC 8701) are not versions.
                    if version >> 8 == 3 {
                        hello.highest_version = hello.highest_version.max(version);
                    }
                }
                content.end()?;
            }
            _ => {}
        }
    }
    Ok(hello)
}

/// Returns the host name of the server name extension (RFC 6066, section 3).
fn server_name(extension: &mut Reader<'_>) -> Result<Option<Box<str>>, ClientHelloError> {
    let mut list = Reader::new(extension.vector16()?);
    extension.end()?;
    let mut found = None;
    while !list.is_empty() {
        let kind = list.u8()?;
        let name = list.vector16()?;
        if kind != HOST_NAME {
            continue;
        }
        if found.is_some() || name.is_empty() || name.len() > LONGEST_NAME {
            return Err(ClientHelloError::BadServerName);
        }
        let name = std::str::from_utf8(name).map_err(|_| ClientHelloError::BadServerName)?;
        if !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ClientHelloError::BadServerName);
        }
        found = Some(name.to_ascii_lowercase().into_boxed_str());
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
