//! The properties of a request that determine the format of an error response.

use std::borrow::Cow;

use http::header::{ACCEPT, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, Uri, Version};

use crate::respond::Negotiated;

/// The properties of a request that determine the format of an error, copied because a handler may
/// consume the request.
#[derive(Debug)]
pub(crate) struct Presentation {
    uri: Uri,
    version: Version,
    accept: Option<HeaderValue>,
    agent: Option<HeaderValue>,
}

impl Presentation {
    /// Copies the properties of this request.
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        Self {
            uri: request.uri().clone(),
            version: request.version(),
            accept: headers.get(ACCEPT).cloned(),
            agent: headers.get(USER_AGENT).cloned(),
        }
    }

    /// Returns path and query as the client sent them.
    pub(crate) fn request_uri(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }

    /// Returns the target as the client sent it.
    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Returns the user agent; empty if there is none.
    pub(crate) fn agent(&self) -> Cow<'_, str> {
        self.agent.as_ref().map_or(Cow::Borrowed(""), |agent| String::from_utf8_lossy(agent.as_bytes()))
    }

    /// Returns the version of HTTP.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Returns the format of a `Status` for this client.
    pub(crate) fn negotiated(&self) -> Negotiated {
        let mut headers = HeaderMap::new();
        for (name, value) in [(ACCEPT, &self.accept), (USER_AGENT, &self.agent)] {
            if let Some(value) = value {
                headers.insert(name, value.clone());
            }
        }
        Negotiated::from_headers(&headers, self.uri.query())
    }
}
