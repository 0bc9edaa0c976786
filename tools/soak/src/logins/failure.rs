//! The failures of logins, and the decision whether the kill of a replica explains one.

use std::io;

use super::target::Route;

/// The beginning of the API server's response when the connection to an aggregated API fails.
const NOT_REACHED: &str = "error trying to reach service";

/// A failure of a login, or of the use of its credential.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The connection was refused, or it ended before the response.
    #[error("the connection failed: {0:#}")]
    Connection(anyhow::Error),
    /// The server or the client did not accept the other's certificate, or violated the protocol.
    #[error("the TLS connection failed: {0:#}")]
    Tls(anyhow::Error),
    /// No response in time.
    #[error("no response in time")]
    Timeout,
    /// Another response than the expected one.
    #[error("unexpected response {status}: {text}")]
    Response { status: u16, text: String },
    /// A credential with which no connection can be opened.
    #[error("unusable credential: {0:#}")]
    Unusable(anyhow::Error),
    /// A credential of another user.
    #[error("wrong identity: expected {expected}, got {got}")]
    Identity { expected: String, got: String },
}

impl Failure {
    /// Returns the failure for an error of a connection.
    pub(super) fn of_connection(error: anyhow::Error) -> Self {
        // tokio-rustls reports the errors of TLS with this kind, and those of the socket unchanged.
        let is_tls = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
        };
        if error.chain().any(is_tls) { Self::Tls(error) } else { Self::Connection(error) }
    }
}

/// The meaning of a failure for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The request was on a connection to a replica that was killed.
    OnKilled,
    /// A credential has the wrong identity.
    WrongIdentity,
    /// A failure that nothing explains.
    Other,
}

/// Decides from the route of the request and from the replicas that were down at any time between
/// its beginning and its end.
///
/// The API server is never killed, so a connection to it may not fail. It reports in its response
/// that a connection to a replica failed, without the replica's name. The impersonation proxy
/// forwards such a response.
pub(super) fn classify(failure: &Failure, route: Route, down: &[usize]) -> Class {
    let is_explained = match (failure, route) {
        (Failure::Identity { .. }, _) => return Class::WrongIdentity,
        (Failure::Connection(_), Route::Service) => !down.is_empty(),
        (Failure::Connection(_), Route::Replica(replica)) => down.contains(&replica),
        (Failure::Response { status: 503, text }, _) => text.starts_with(NOT_REACHED) && !down.is_empty(),
        _ => false,
    };
    if is_explained { Class::OnKilled } else { Class::Other }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_kill_explains_failures_of_connections_to_that_replica_only() {
        let aborted = || Failure::of_connection(io::Error::from(io::ErrorKind::ConnectionReset).into());
        let tls = || Failure::of_connection(io::Error::new(io::ErrorKind::InvalidData, "alert").into());
        let response = |status, text: &str| Failure::Response { status, text: text.to_owned() };
        let unreached = || response(503, "error trying to reach service: EOF");
        let identity = || Failure::Identity { expected: "a".to_owned(), got: "b".to_owned() };
        let (api_server, service, replica) = (Route::ApiServer, Route::Service, Route::Replica(1));
        use Class::{OnKilled, Other, WrongIdentity};
        for (name, failure, route, down, wanted) in [
            ("that replica", aborted(), replica, &[0, 1][..], OnKilled),
            ("another replica", aborted(), replica, &[0, 2], Other),
            ("any replica behind the Service", aborted(), service, &[2], OnKilled),
            ("the Service without a kill", aborted(), service, &[], Other),
            ("the API server itself", aborted(), api_server, &[0, 1, 2], Other),
            ("reported by the API server", unreached(), api_server, &[0], OnKilled),
            ("reported through another replica", unreached(), replica, &[0], OnKilled),
            ("reported without a kill", unreached(), api_server, &[], Other),
            ("another 503", response(503, "service unavailable"), api_server, &[0], Other),
            ("another code", response(500, "error trying to reach service: EOF"), api_server, &[0], Other),
            ("refused", response(201, "authentication failed"), service, &[0], Other),
            ("TLS", tls(), replica, &[1], Other),
            ("late", Failure::Timeout, replica, &[1], Other),
            ("unusable", Failure::Unusable(anyhow!("key")), replica, &[1], Other),
            ("another user", identity(), replica, &[1], WrongIdentity),
            ("another user without a kill", identity(), service, &[], WrongIdentity),
        ] {
            assert_eq!(classify(&failure, route, down), wanted, "{name}");
        }
    }
}
