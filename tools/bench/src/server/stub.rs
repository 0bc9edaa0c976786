//! The stub: an API server that serves the measured requests from memory, and forwards all others
//! to the real one.
//!
//! The Concierge needs a complete API server to start, which the real one provides. The measured
//! objects are in the namespaces [`NAMESPACE`] and [`LIST_NAMESPACE`], and all reviews are allowed
//! without evaluation, so that the server's work is small and constant.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{CONNECTION, HeaderName, HeaderValue, UPGRADE};
use http::{Method, StatusCode};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response, Version};
use tokio::task::JoinSet;

use super::upstream::{Upstream, UpstreamOptions};
use super::{Handler, Listen, responses, tunnel};

/// The namespace of small objects.
pub(crate) const NAMESPACE: &str = "bench";
/// The namespace whose ConfigMaps have eight megabytes in total.
pub(crate) const LIST_NAMESPACE: &str = "bench-list";

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// Flags of the stub.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StubOptions {
    #[command(flatten)]
    listen: Listen,
    #[command(flatten)]
    upstream: UpstreamOptions,
}

/// Runs the stub until the process is terminated.
pub(crate) async fn stub(options: &StubOptions) -> anyhow::Result<()> {
    let stub = Stub {
        upstream: Upstream::new(&options.upstream)?,
        small: responses::config_map("bench").into(),
        small_list: responses::config_maps(1, 16).into(),
        large_list: responses::config_maps(8, 1_000_000).into(),
        event: responses::event().into(),
        tunnels: Mutex::default(),
    };
    super::serve(&options.listen, Arc::new(stub)).await
}

struct Stub {
    upstream: Upstream,
    small: Bytes,
    small_list: Bytes,
    large_list: Bytes,
    event: Bytes,
    tunnels: Mutex<JoinSet<()>>,
}

/// The kind of a measured request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Review,
    Small,
    SmallList,
    LargeList,
    Watch,
    Tunnel,
}

fn kind(method: &Method, path: &str, query: &str) -> Option<RequestKind> {
    if path == REVIEWS && method == Method::POST {
        return Some(RequestKind::Review);
    }
    let (namespace, rest) = path.strip_prefix("/api/v1/namespaces/")?.split_once('/')?;
    let get = method == Method::GET;
    match (namespace, rest) {
        (LIST_NAMESPACE, "configmaps") if get => Some(RequestKind::LargeList),
        (NAMESPACE, "configmaps") if get && query.contains("watch=true") => Some(RequestKind::Watch),
        (NAMESPACE, "configmaps") if get => Some(RequestKind::SmallList),
        (NAMESPACE, _) if get && rest.starts_with("configmaps/") => Some(RequestKind::Small),
        (NAMESPACE, _) if rest.starts_with("pods/") && rest.ends_with("/exec") => Some(RequestKind::Tunnel),
        _ => None,
    }
}

impl Stub {
    fn respond(&self, kind: RequestKind, mut request: Request<Incoming>) -> Response<StubBody> {
        let whole = |bytes: &Bytes| StubBody::Whole(bytes.clone());
        let mut status = StatusCode::OK;
        let body = match kind {
            RequestKind::Review => {
                status = StatusCode::CREATED;
                StubBody::Whole(Bytes::from_static(responses::ALLOWED))
            }
            RequestKind::Small => whole(&self.small),
            RequestKind::SmallList => whole(&self.small_list),
            RequestKind::LargeList => whole(&self.large_list),
            RequestKind::Watch => StubBody::Watch(Some(self.event.clone())),
            RequestKind::Tunnel => {
                let query = request.uri().query().unwrap_or_default().to_owned();
                let upgrade = hyper::upgrade::on(&mut request);
                let mut tunnels = self.tunnels.lock().unwrap_or_else(PoisonError::into_inner);
                while tunnels.try_join_next().is_some() {}
                tunnels.spawn(tunnel::run(upgrade, query));
                return switching();
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        responses::add_headers(response.headers_mut());
        // As the API server does.
        if let Some(id) = request.headers_mut().remove(AUDIT_ID) {
            response.headers_mut().insert(AUDIT_ID, id);
        }
        response
    }
}

fn switching() -> Response<StubBody> {
    let mut response = Response::new(StubBody::Whole(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert("x-stream-protocol-version", HeaderValue::from_static("v4.channel.k8s.io"));
    response
}

impl Handler for Arc<Stub> {
    type Body = StubBody;

    fn connection(
        &self,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<StubBody>,
        Error = anyhow::Error,
        Future: Send + 'static,
    > + Send
    + 'static {
        Connection(Arc::clone(self))
    }
}

struct Connection(Arc<Stub>);

impl Service<Request<Incoming>> for Connection {
    type Response = Response<StubBody>;
    type Error = anyhow::Error;
    type Future = BoxFuture<'static, anyhow::Result<Response<StubBody>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let uri = request.uri();
        if let Some(kind) = kind(request.method(), uri.path(), uri.query().unwrap_or_default()) {
            let received = self.0.respond(kind, request);
            return Box::pin(std::future::ready(Ok(received)));
        }
        let stub = Arc::clone(&self.0);
        Box::pin(async move {
            let response = if request.version() == Version::HTTP_2 {
                stub.upstream.h2().await?.send_request(request).await?
            } else {
                stub.upstream.h1().await?.send_request(request).await?
            };
            Ok(response.map(StubBody::Forwarded))
        })
    }
}

/// Bodies of the stub.
enum StubBody {
    /// A body from the real server.
    Forwarded(Incoming),
    /// A body from memory.
    Whole(Bytes),
    /// One event, and an open stream after it.
    Watch(Option<Bytes>),
}

impl Body for StubBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Forwarded(body) => Pin::new(body).poll_frame(cx),
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Watch(event) => match event.take() {
                Some(event) => Poll::Ready(Some(Ok(Frame::data(event)))),
                // No wake-up is needed: the stream ends when the client resets it, which hyper
                // detects itself.
                None => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Forwarded(body) => body.is_end_stream(),
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Watch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Forwarded(body) => body.size_hint(),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Watch(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_measured_requests_are_answered_from_memory() {
        let table = [
            ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "", Some(RequestKind::Review)),
            ("GET", "/api/v1/namespaces/bench/configmaps/a", "", Some(RequestKind::Small)),
            ("GET", "/api/v1/namespaces/bench/configmaps", "limit=1", Some(RequestKind::SmallList)),
            ("GET", "/api/v1/namespaces/bench/configmaps", "watch=true", Some(RequestKind::Watch)),
            ("GET", "/api/v1/namespaces/bench-list/configmaps", "", Some(RequestKind::LargeList)),
            ("POST", "/api/v1/namespaces/bench/pods/p/exec", "command=down", Some(RequestKind::Tunnel)),
            // The Concierge's own requests.
            ("GET", "/api/v1/namespaces/pinniped-concierge/configmaps", "watch=true", None),
            ("GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", "", None),
            ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "", None),
            ("POST", "/api/v1/namespaces/bench/configmaps", "", None),
        ];
        for (method, path, query, wanted) in table {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(kind(&method, path, query), wanted, "{method} {path}?{query}");
        }
    }
}
