//! The pool as the transport of a `kube::Client`.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, HeaderValue, USER_AGENT};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use pinniped_http_headers::hop_by_hop;
use pinniped_http_server::BoxError;
use pinniped_reverse_proxy::bearer;
use pinniped_secret::TokenSource;
use tower::Service;

use super::{RequestBody, ResponseBody, Upstream, UpstreamError};

/// Names us to the API server; anonymous-access probes of upstream are recognised by the word `kubernetes`.
pub const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("pinniped-concierge/v", env!("CARGO_PKG_VERSION"), " kubernetes/v1.36"));

/// Sends the requests of a Kubernetes client with the token of the moment.
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
    type Error = UpstreamError;
    type Future = BoxFuture<'static, Result<Self::Response, UpstreamError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), UpstreamError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let mut request = request.map(|body| RequestBody::Boxed(body.map_err(BoxError::from).boxed_unsync()));
        let token = self.tokens.token();
        // Without a token the request is the anonymous user's, and the API server says so.
        if let Some(value) = token.as_ref().and_then(|token| bearer(token.expose())) {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        request.headers_mut().entry(USER_AGENT).or_insert(AGENT);
        let (upstream, tokens) = (self.upstream.clone(), Arc::clone(&self.tokens));
        Box::pin(async move {
            let http1 = hop_by_hop::wants_http1(request.headers());
            let answer = async {
                if http1 { upstream.send_http1(request).await } else { upstream.send(request).await }
            };
            // Whoever asks seldom sets a deadline, and a controller that waits for ever is a dead one.
            let response = tokio::time::timeout(upstream.answer_timeout(), answer)
                .await
                .map_err(|_| UpstreamError::Silent)??;
            if response.status() == StatusCode::UNAUTHORIZED
                && let Some(token) = &token
            {
                tokens.refused(token);
            }
            Ok(response)
        })
    }
}
