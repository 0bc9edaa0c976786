//! The transport of a `kube::Client` over the connection pool.

use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, HeaderValue, USER_AGENT};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use pinniped_http_core::BoxError;
use pinniped_http_headers::hop_by_hop;
use pinniped_reverse_proxy::bearer;
use pinniped_secret::TokenSource;
use tower::Service;

use super::{ApiServerError, RequestBody, ResponseBody, Upstream};

/// The user agent of our requests.
pub static AGENT: LazyLock<HeaderValue> = LazyLock::new(|| user_agent(NAME));

/// The program whose requests have no other user agent.
const NAME: &str = "pinniped-concierge";

/// Returns the user agent of a program of this project.
pub fn user_agent(program: &'static str) -> HeaderValue {
    // A version with other characters cannot be sent.
    HeaderValue::try_from(pinniped_version::user_agent(program)).unwrap_or(HeaderValue::from_static(program))
}

/// Sends the requests of a Kubernetes client with the current token.
#[derive(Clone)]
pub(super) struct KubeService {
    upstream: Upstream,
    tokens: Arc<dyn TokenSource>,
}

impl KubeService {
    pub(super) fn new(upstream: Upstream, tokens: Arc<dyn TokenSource>) -> Self {
        Self { upstream, tokens }
    }
}

impl Service<Request<kube::client::Body>> for KubeService {
    type Response = Response<ResponseBody>;
    type Error = ApiServerError;
    type Future = BoxFuture<'static, Result<Self::Response, ApiServerError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), ApiServerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let mut request = request.map(|body| RequestBody::Boxed(body.map_err(BoxError::from).boxed_unsync()));
        let token = self.tokens.token();
        // Without a token, the request is anonymous, and the API server responds accordingly.
        if let Some(value) = token.as_ref().and_then(|token| bearer(token.expose())) {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        request.headers_mut().entry(USER_AGENT).or_insert_with(|| AGENT.clone());
        let (upstream, tokens) = (self.upstream.clone(), Arc::clone(&self.tokens));
        Box::pin(async move {
            let http1 = hop_by_hop::wants_http1(request.headers());
            let response = async {
                if http1 { upstream.send_http1(request).await } else { upstream.send(request).await }
            };
            // Callers rarely set a deadline, and without one a lost response would block a
            // controller indefinitely.
            let response = tokio::time::timeout(upstream.response_timeout(), response)
                .await
                .map_err(|_| ApiServerError::Timeout)??;
            if response.status() == StatusCode::UNAUTHORIZED
                && let Some(token) = &token
            {
                tokens.refused(token);
            }
            Ok(response)
        })
    }
}
