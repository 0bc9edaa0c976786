//! What answers requests, and the way from a connection to it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Map};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request, Response};
use http_body::Body as _;
use pin_project_lite::pin_project;

use crate::activity::{Activity, CountedBody, Running};
use crate::body::Body;
use crate::connection::Connection;
use crate::delivery::EndBy;
use crate::incoming::Incoming;

/// The answer to one request. Dropped when nobody waits for it any more. In a box, since it travels with its stream.
pub type Answer = BoxFuture<'static, Response<Body>>;

/// What answers requests. It is cloned once a connection, so it should be cheap to clone.
///
/// A closure that takes a connection and a request is one.
pub trait Service: Clone + Send + 'static {
    /// Begins to answer a request which came over `connection`.
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> Answer;
}

impl<F, A> Service for F
where
    F: Fn(&Arc<Connection>, Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> Answer {
        Box::pin(self(connection, request))
    }
}

/// A service whose type is forgotten. What serves a connection is the larger part of a small server's code: without a
/// type in it there is one of it for all servers of a program, and it is built as this crate is, for speed.
pub(crate) type AnyService = Box<dyn Fn(&Arc<Connection>, Request<Incoming>) -> Answer + Send>;

/// As [`AnyService`].
pub(crate) fn any(service: impl Service) -> AnyService {
    Box::new(move |connection, request| service.call(connection, request))
}

/// Hands the connection's facts to each request and counts it.
pub(crate) struct PerConnection {
    pub(crate) inner: AnyService,
    pub(crate) connection: Arc<Connection>,
    pub(crate) activity: Arc<Activity>,
}

impl PerConnection {
    /// The answer to a request.
    pub(crate) fn answer(&self, request: Request<Incoming>) -> Answering {
        let running = Some(self.activity.request());
        let is_head = *request.method() == Method::HEAD;
        Answering { answer: (self.inner)(&self.connection, request), running, is_head }
    }
}

/// As hyper wants it, for HTTP/1.1.
impl hyper::service::Service<Request<hyper::body::Incoming>> for PerConnection {
    type Response = Response<CountedBody>;
    type Error = Infallible;
    type Future = Map<Answering, fn(Response<CountedBody>) -> Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<hyper::body::Incoming>) -> Self::Future {
        self.answer(request.map(Incoming::Http1)).map(Ok)
    }
}

pin_project! {
    /// An answer on its way.
    pub(crate) struct Answering {
        #[pin]
        answer: Answer,
        running: Option<Running>,
        is_head: bool,
    }
}

impl Answering {
    /// The client took the request back.
    pub(crate) fn reset(&self) {
        if let Some(running) = &self.running {
            running.reset();
        }
    }
}

impl Future for Answering {
    type Output = Response<CountedBody>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.answer.poll(cx));
        if *this.is_head {
            drop_body(&mut response);
        }
        // Known to whoever polls this: the stream's task, or the connection's where there are no streams.
        if let Some(end_by) = response.extensions().get::<EndBy>() {
            end_by.set();
        }
        let running = this.running.take().expect("a future is not polled after its end");
        Poll::Ready(response.map(|body| CountedBody::new(body, running)))
    }
}

/// What answers a `HEAD`: the length that a body would have had, and no body. Over HTTP/1.1 hyper sees to it, over HTTP/2
/// nobody else does, and a client that gets one breaks off.
fn drop_body(response: &mut Response<Body>) {
    let length = response.body().size_hint().exact();
    if let Some(length) = length.filter(|length| *length > 0)
        && !response.headers().contains_key(CONTENT_LENGTH)
    {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    *response.body_mut() = crate::body::empty();
}
