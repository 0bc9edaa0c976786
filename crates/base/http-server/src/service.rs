//! The service that responds to requests, and its link to a connection.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Map};
use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use pin_project_lite::pin_project;
use pinniped_http_core::{Body, Incoming, body, delivery};
use tokio::time::Instant;

use crate::activity::{Activity, CountedBody, Running};
use crate::capacity::Refusal;
use crate::connection::Connection;
use crate::in_transit::Upload;
use crate::layers;

/// Time in which a client must read that its request was refused.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The response to one request. It is dropped when the client no longer waits for it. Boxed,
/// because it moves with its stream.
pub type ResponseFuture = BoxFuture<'static, Response<Body>>;

/// Responds to requests. The service is cloned for each connection, so a clone should be cheap.
///
/// A closure that takes a connection and a request implements this trait.
pub trait Service: Clone + Send + 'static {
    /// Starts the response to a request that arrived on `connection`.
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> ResponseFuture;

    /// Returns whether the service recognizes the client of a new connection by its certificate.
    /// Such a connection is [confirmed](crate::ConnectionPermit::confirm) before its first request
    /// and has the larger limits.
    fn recognizes_client(&self, _connection: &Connection) -> bool {
        false
    }
}

impl<F, A> Service for F
where
    F: Fn(&Arc<Connection>, Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> ResponseFuture {
        Box::pin(self(connection, request))
    }
}

/// A service behind a trait object. The code that serves a connection is the largest part of a
/// small server. Without a type parameter it exists once for all servers of a program, and is
/// compiled with the optimization settings of this crate.
pub(crate) type AnyService = Box<dyn Erased>;

/// Boxes a service as an [`AnyService`].
pub(crate) fn any(service: impl Service) -> AnyService {
    Box::new(service)
}

/// The object-safe part of [`Service`], without `Clone`.
pub(crate) trait Erased: Send {
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> ResponseFuture;
    fn recognizes_client(&self, connection: &Connection) -> bool;
}

impl<S: Service> Erased for S {
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> ResponseFuture {
        Service::call(self, connection, request)
    }

    fn recognizes_client(&self, connection: &Connection) -> bool {
        Service::recognizes_client(self, connection)
    }
}

/// Passes the connection to each request, and counts the request.
pub(crate) struct PerConnection {
    pub(crate) inner: AnyService,
    pub(crate) connection: Arc<Connection>,
    pub(crate) activity: Arc<Activity>,
}

impl PerConnection {
    /// Starts the response to a request.
    ///
    /// # Errors
    /// Returns an error when there is no memory for the request; see [`Self::refuse`].
    pub(crate) fn respond(&self, request: Request<Incoming>) -> Result<PendingResponse, Refusal> {
        let headers = request.headers();
        // The map's capacity does not include further values of an existing name; they are in a
        // list that doubles as it grows.
        let running = self.activity.request(headers.capacity() + 2 * (headers.len() - headers.keys_len()))?;
        let is_head = *request.method() == Method::HEAD;
        let response = self.inner.call(&self.connection, request);
        Ok(PendingResponse { response, running: Some(running), is_head })
    }

    /// Returns the response to a request that there is no memory for.
    pub(crate) fn refuse(&self, why: Refusal) -> PendingResponse {
        tracing::debug!(%why, client = %self.connection.peer_addr, "a request was refused");
        let mut response = layers::plain_error(
            StatusCode::SERVICE_UNAVAILABLE,
            "the server is overloaded, please try again later",
        );
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        let response = response.map(|body| body.with_deadline(Instant::now() + REFUSAL_TIMEOUT));
        PendingResponse {
            response: Box::pin(ready(response)),
            running: Some(Running::refused(&self.activity)),
            is_head: false,
        }
    }
}

/// The service that hyper expects for HTTP/1.1.
impl hyper::service::Service<Request<hyper::body::Incoming>> for PerConnection {
    type Response = Response<CountedBody>;
    type Error = Infallible;
    type Future = Map<PendingResponse, fn(Response<CountedBody>) -> Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<hyper::body::Incoming>) -> Self::Future {
        let request = request
            .map(|body| Incoming::from(body).with_observer(|| (Upload::map(&self.connection.permit), None)));
        let pending = self.respond(request).unwrap_or_else(|why| self.refuse(why));
        pending.map(Ok)
    }
}

pin_project! {
    /// A response that is being computed.
    pub(crate) struct PendingResponse {
        #[pin]
        response: ResponseFuture,
        running: Option<Running>,
        is_head: bool,
    }
}

impl PendingResponse {
    /// Records that the client cancelled the request.
    pub(crate) fn reset(&self) {
        if let Some(running) = &self.running {
            running.reset();
        }
    }
}

impl Future for PendingResponse {
    type Output = Response<CountedBody>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = task::ready!(this.response.poll(cx));
        // The task that polls this enforces the deadline: the stream's task, or the connection's
        // task for HTTP/1.1.
        if let Some(deadline) = response.body().deadline() {
            delivery::set_deadline(deadline);
        }
        if *this.is_head {
            drop_body(&mut response);
        }
        let mut running = this.running.take().expect("a future is not polled after its end");
        running.begins_response();
        Poll::Ready(response.map(|body| CountedBody::new(body, running)))
    }
}

/// Removes the body from the response to a `HEAD` and keeps its length. hyper does this for
/// HTTP/1.1; over HTTP/2 nothing else does, and a client that receives a body resets the stream.
fn drop_body(response: &mut Response<Body>) {
    let length = response.body().size_hint().exact();
    if let Some(length) = length.filter(|length| *length > 0)
        && !response.headers().contains_key(CONTENT_LENGTH)
    {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    *response.body_mut() = body::empty();
}
