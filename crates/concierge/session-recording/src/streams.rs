//! The streams of a session: standard input, output, errors, and the size of the terminal.

use http::HeaderMap;
use pinniped_kube_types::status::Status;
use pinniped_reverse_proxy::Direction;

pub mod spdy;
pub mod websocket;

use spdy::{SpdyError, SpdyStreams};
use websocket::{WebSocketError, WebSocketStreams};

const SEC_WEBSOCKET_PROTOCOL: &str = "sec-websocket-protocol";
const SEC_WEBSOCKET_EXTENSIONS: &str = "sec-websocket-extensions";
const STREAM_PROTOCOL: &str = "x-stream-protocol-version";

/// The subprotocols of WebSockets whose messages are a channel and its bytes. The API server uses
/// the empty one for a client that names none.
const BINARY: [&str; 4] = ["v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io", ""];

/// The protocols in which the error stream has a `Status` as JSON; in older ones it has text.
const WITH_STATUS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// Subprotocols whose messages are text.
const TEXT: [&str; 2] = ["v4.base64.channel.k8s.io", "base64.channel.k8s.io"];

/// Maximum length in bytes of a client's text in an error.
const MAX_NAME: usize = 64;

/// A stream of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard input.
    Stdin,
    /// Standard output.
    Stdout,
    /// Standard error, which a terminal does not have.
    Stderr,
    /// The result of the session.
    Error,
    /// Sizes of the terminal.
    Resize,
}

impl Stream {
    /// Returns the direction in which the stream is sent.
    pub fn direction(self) -> Direction {
        match self {
            Self::Stdin | Self::Resize => Direction::FromClient,
            Self::Stdout | Self::Stderr | Self::Error => Direction::ToClient,
        }
    }
}

/// The protocol of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// SPDY/3.1.
    Spdy,
    /// A WebSocket.
    WebSocket,
}

/// The reason why a session cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamsError {
    /// The upgrade is neither SPDY/3.1 nor a WebSocket.
    #[error("the protocol {0:?} cannot be recorded; use SPDY/3.1 or websocket")]
    Upgrade(String),
    /// A subprotocol whose messages are text.
    #[error("the subprotocol {0:?} cannot be recorded; use v5.channel.k8s.io or v4.channel.k8s.io")]
    Subprotocol(&'static str),
    /// An extension, such as compression.
    #[error("WebSockets with extensions cannot be recorded")]
    Extensions,
    /// The bytes are not SPDY/3.1.
    #[error("SPDY: {0}")]
    Spdy(#[from] SpdyError),
    /// The bytes are not those of a WebSocket.
    #[error("WebSocket: {0}")]
    WebSocket(#[from] WebSocketError),
}

impl Upgrade {
    /// Returns the protocol of a request, if each response to it can be recorded.
    ///
    /// # Errors
    /// Returns the first protocol that cannot be recorded.
    pub fn requested(protocol: &[u8], headers: &HeaderMap) -> Result<Self, StreamsError> {
        if protocol.eq_ignore_ascii_case(b"SPDY/3.1") {
            return Ok(Self::Spdy);
        }
        if !protocol.eq_ignore_ascii_case(b"websocket") {
            let name = &protocol[..protocol.len().min(MAX_NAME)];
            return Err(StreamsError::Upgrade(String::from_utf8_lossy(name).into_owned()));
        }
        for value in headers.get_all(SEC_WEBSOCKET_PROTOCOL) {
            for name in String::from_utf8_lossy(value.as_bytes()).split(',').map(str::trim) {
                if !BINARY.contains(&name) {
                    return Err(subprotocol(name));
                }
            }
        }
        Ok(Self::WebSocket)
    }
}

/// Returns the error for a subprotocol. A client can send a token in the place of a name, so only
/// known names are in the text.
fn subprotocol(name: &str) -> StreamsError {
    let known = TEXT.into_iter().find(|known| *known == name);
    StreamsError::Subprotocol(known.unwrap_or("unknown"))
}

/// Reads the streams of a session. Boxed members are large, and exist only in recorded sessions.
#[derive(Debug)]
pub enum Streams {
    /// SPDY/3.1.
    Spdy {
        /// The frames.
        streams: Box<SpdyStreams>,
        /// The error stream has a `Status`.
        with_status: bool,
    },
    /// A WebSocket.
    WebSocket {
        /// The frames.
        streams: Box<WebSocketStreams>,
        /// The error stream has a `Status`.
        with_status: bool,
    },
}

impl Streams {
    /// Returns the streams of an upgrade that the server has accepted with these header fields.
    ///
    /// # Errors
    /// Returns the reason why the agreed protocol cannot be recorded.
    pub fn agreed(upgrade: Upgrade, headers: &HeaderMap) -> Result<Self, StreamsError> {
        let header = |name: &str| {
            let value = headers.get(name).map_or(&b""[..], |value| value.as_bytes());
            String::from_utf8_lossy(value).trim().to_owned()
        };
        match upgrade {
            Upgrade::Spdy => {
                let with_status = WITH_STATUS.contains(&header(STREAM_PROTOCOL).as_str());
                Ok(Self::Spdy { streams: Box::default(), with_status })
            }
            Upgrade::WebSocket => {
                let protocol = header(SEC_WEBSOCKET_PROTOCOL);
                if !BINARY.contains(&protocol.as_str()) {
                    return Err(subprotocol(&protocol));
                }
                if headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
                    return Err(StreamsError::Extensions);
                }
                let with_status = WITH_STATUS.contains(&protocol.as_str());
                Ok(Self::WebSocket { streams: Box::default(), with_status })
            }
        }
    }

    /// Reads bytes of one direction, and calls `each` with the parts of streams.
    ///
    /// # Errors
    /// Returns the first error; further bytes cannot be read.
    pub fn read(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        each: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<(), StreamsError> {
        // Data of a WebSocket in the wrong direction has no effect on the other side.
        let mut each = |stream: Stream, part: &[u8]| {
            if stream.direction() == direction && !part.is_empty() {
                each(stream, part);
            }
        };
        match self {
            Self::Spdy { streams, .. } => Ok(streams.read(direction, bytes, &mut each)?),
            Self::WebSocket { streams, .. } => Ok(streams.read(direction, bytes, &mut each)?),
        }
    }

    /// Returns a lower bound of the bytes after which the current frame of the server ends; 0
    /// between frames.
    pub fn rest_of_server_frame(&self) -> usize {
        match self {
            Self::Spdy { streams, .. } => streams.rest_of_server_frame(),
            Self::WebSocket { streams, .. } => streams.rest_of_server_frame(),
        }
    }

    /// Returns frames that end a session between two frames of the server, with a message that
    /// clients print as the result of the session.
    pub fn closing_frames(&self, message: &str) -> Vec<u8> {
        let (Self::Spdy { with_status, .. } | Self::WebSocket { with_status, .. }) = self;
        let text =
            if *with_status { Status::service_unavailable(message).to_json() } else { message.to_owned() };
        match self {
            Self::Spdy { streams, .. } => streams.closing_frames(text.as_bytes()),
            Self::WebSocket { .. } => websocket::closing_frames(text.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| ((*name).parse().unwrap(), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn requests_whose_response_may_not_be_recorded_are_refused_with_a_remedy() {
        let requested = |protocol: &str, offers: &'static str| {
            Upgrade::requested(protocol.as_bytes(), &headers(&[(SEC_WEBSOCKET_PROTOCOL, offers)]))
                .map_err(|error| error.to_string())
        };
        assert_eq!(requested("spdy/3.1", ""), Ok(Upgrade::Spdy));
        assert_eq!(requested("WebSocket", "v5.channel.k8s.io, v4.channel.k8s.io"), Ok(Upgrade::WebSocket));
        assert_eq!(Upgrade::requested(b"websocket", &HeaderMap::new()), Ok(Upgrade::WebSocket));
        assert_eq!(
            requested("websocket", "v4.channel.k8s.io,base64.channel.k8s.io").unwrap_err(),
            "the subprotocol \"base64.channel.k8s.io\" cannot be recorded; use v5.channel.k8s.io or v4.channel.k8s.io"
        );
        let secret = "base64url.bearer.authorization.k8s.io.U0VDUkVU";
        assert!(requested("websocket", secret).unwrap_err().starts_with("the subprotocol \"unknown\" "));
        assert_eq!(
            requested("tcp", "").unwrap_err(),
            "the protocol \"tcp\" cannot be recorded; use SPDY/3.1 or websocket"
        );
    }

    #[test]
    fn the_agreed_protocol_decides_how_a_session_is_read() {
        let agreed = |fields: &[(&'static str, &'static str)]| {
            Streams::agreed(Upgrade::WebSocket, &headers(fields)).map(|_| ())
        };
        assert_eq!(agreed(&[(SEC_WEBSOCKET_PROTOCOL, "v5.channel.k8s.io")]), Ok(()));
        assert_eq!(agreed(&[]), Ok(()));
        let base64 = TEXT[0];
        assert_eq!(agreed(&[(SEC_WEBSOCKET_PROTOCOL, base64)]), Err(StreamsError::Subprotocol(base64)));
        assert_eq!(
            agreed(&[(SEC_WEBSOCKET_EXTENSIONS, "permessage-deflate")]),
            Err(StreamsError::Extensions)
        );
    }
}
