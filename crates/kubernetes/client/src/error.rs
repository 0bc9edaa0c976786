//! The errors of connections to the API server. The crates below call it "the server".

use std::error::Error;
use std::fmt;

use pinniped_http_client::upstream::{UpstreamConfigError, UpstreamError};
use pinniped_reverse_proxy::ForwardError;

/// The reason why a request to the API server has no response.
#[derive(Debug)]
pub enum ApiServerError {
    /// The response did not begin in time.
    Timeout,
    /// The request was not sent, or there is no response that can be forwarded.
    Forward(ForwardError),
}

impl From<UpstreamError> for ApiServerError {
    fn from(error: UpstreamError) -> Self {
        Self::Forward(error.into())
    }
}

impl From<ForwardError> for ApiServerError {
    fn from(error: ForwardError) -> Self {
        Self::Forward(error)
    }
}

/// Clients of the proxies receive these texts, so they stay the same.
impl fmt::Display for ApiServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = match self {
            Self::Timeout => return f.write_str("the API server did not respond in time"),
            Self::Forward(ForwardError::UnrequestedSwitch) => {
                return f
                    .write_str("the API server switched protocols, although the client did not request it");
            }
            Self::Forward(ForwardError::OtherProtocol) => {
                return f.write_str("API server switched to another protocol than the client requested");
            }
            Self::Forward(ForwardError::Upstream(error)) => error,
        };
        match error {
            UpstreamError::Dial(_) => f.write_str("could not connect to the API server"),
            UpstreamError::Full(connections) => {
                write!(f, "all {connections} connections to the API server are full")
            }
            UpstreamError::UnsharedFull(connections) => write!(
                f,
                "all {connections} connections to the API server for requests with large heads are in use"
            ),
            UpstreamError::Http(_) | UpstreamError::Http1(_) | UpstreamError::Http2(_) => {
                f.write_str("request to the API server failed")
            }
            UpstreamError::HeadTooLarge { size, limit } => write!(
                f,
                "the head of the request counts {size} bytes, which may be too much for the limit of {limit}"
            ),
            UpstreamError::FieldName => f.write_str("the name of a header field holds a quotation mark"),
            UpstreamError::Fields(_) => f.write_str("the request has too many header fields"),
        }
    }
}

impl Error for ApiServerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Timeout => None,
            Self::Forward(error) => error.source(),
        }
    }
}

/// The error for parameters with which the API server cannot be reached.
#[derive(Debug)]
pub struct ApiServerConfigError(UpstreamConfigError);

impl From<UpstreamConfigError> for ApiServerConfigError {
    fn from(error: UpstreamConfigError) -> Self {
        Self(error)
    }
}

impl fmt::Display for ApiServerConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            UpstreamConfigError::Server(server) => {
                write!(f, "could not use {server} as the address of the API server")
            }
            UpstreamConfigError::Tls(_) => {
                f.write_str("could not create the TLS configuration for the API server")
            }
            UpstreamConfigError::Proxy(error) => error.fmt(f),
        }
    }
}

impl Error for ApiServerConfigError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use pinniped_http_client::upstream::DialError;

    use super::*;

    #[test]
    fn errors_name_the_api_server_and_keep_their_causes() {
        let dial = DialError::Handshake(io::Error::other("no"));
        let error = ApiServerError::from(UpstreamError::Dial(Arc::new(dial)));
        assert_eq!(error.to_string(), "could not connect to the API server");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("TLS handshake failed: no"));
        for (error, text) in [
            (UpstreamError::Full(7).into(), "all 7 connections to the API server are full"),
            (
                ForwardError::OtherProtocol.into(),
                "API server switched to another protocol than the client requested",
            ),
            (ApiServerError::Timeout, "the API server did not respond in time"),
        ] {
            assert_eq!(error.to_string(), text);
            assert!(error.source().is_none(), "{text}");
        }
        let error = ApiServerConfigError(UpstreamConfigError::Server("http://a".parse().unwrap()));
        assert_eq!(error.to_string(), "could not use http://a/ as the address of the API server");
    }
}
