//! The callback listener: an HTTP server on the loopback interface to which the browser brings the
//! authorization code (RFC 8252 §7.3), as a redirect or as a form that a page of the issuer sends.
//!
//! ```text
//! request      the purpose of a request, as data
//! response     the responses, as data
//! page         the HTML page, for issuers that are not a Supervisor
//! ```
//!
//! The code is redeemed before the response, so that the page reports the result of the login. It
//! is redeemed once: a second tab waits for the result of the first.

mod page;
mod request;
mod response;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use url::Url;

pub(super) use self::request::login_failed;
use self::request::{CallbackParams, CallbackRequest};
use self::response::{Body, ResponseParams, empty, not_found, origin};
use crate::printer::Printer;

/// The time in which the request of a connection has to arrive, head and body together.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time in which responses that have begun are completed after the login.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(100);
/// The maximum number of open connections; browsers open some in advance.
const MAX_CONNECTIONS: usize = 32;
/// The advice for a failure that another attempt may repair.
const ADVICE_TRY_AGAIN: &str = "Close this tab, and run your command again to start over.";
/// The advice for a wrong state.
const ADVICE_WRONG_STATE: &str = "This page belongs to another login, which may have ended or may be in \
                                  another tab. Close this tab, and run your command again to start over.";
/// The advice for an error of the provider.
const ADVICE_REFUSED: &str = "Your identity provider refused the login. Run your command again to start over; \
                              if the message stays the same, show it to your administrator.";

/// The result of a login attempt.
#[derive(Debug)]
pub struct Redeemed<T> {
    /// The name of the user, for the page; may be empty.
    pub user: String,
    /// The result.
    pub value: T,
}

/// Receives the result of the browser.
pub trait Redeem: Sync {
    /// The result.
    type Value: Send;

    /// Returns whether the state is that of this login.
    fn is_state(&self, state: &str) -> bool;

    /// Redeems an authorization code. The error is a text for the user.
    fn redeem(&self, code: &str) -> impl Future<Output = Result<Redeemed<Self::Value>, String>> + Send;
}

/// An open listener.
#[derive(Debug)]
pub(super) struct CallbackListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl CallbackListener {
    /// Opens a port of the loopback interface; 0 selects a free one.
    pub(super) async fn bind(port: u16) -> io::Result<Self> {
        let addresses = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()]
            .map(|ip| SocketAddr::new(ip, port));
        let first = TcpListener::bind(addresses[0]).await;
        let listener = match first {
            Ok(listener) => listener,
            // A machine without IPv4. For other errors, the first one is better.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                TcpListener::bind(addresses[1]).await?
            }
            Err(error) => return Err(error),
        };
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// Returns the redirect URI.
    pub(super) fn redirect_uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Serves until the browser has brought a result, and its page has been sent.
    pub(super) async fn serve<R: Redeem>(self, callback: &Callback<'_, R>) -> Result<R::Value, String> {
        let mut connections = FuturesUnordered::new();
        let result = loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                    // A client that closed the connection immediately.
                    let Ok((stream, _)) = accepted else { continue };
                    connections.push(callback.serve_connection(stream));
                }
                Some(()) = connections.next() => {}
                result = callback.result() => break result,
            }
        };
        drop(self.listener);
        // The response of the result is among them.
        let _ =
            tokio::time::timeout(SHUTDOWN_GRACE, async { while connections.next().await.is_some() {} }).await;
        result
    }
}

/// The handler of the requests of one login.
pub struct Callback<'a, R: Redeem> {
    redeem: &'a R,
    params: ResponseParams,
    path: &'static str,
    printer: Printer,
    /// Allows one redemption at a time.
    redemptions: Semaphore,
    state: Mutex<State<R::Value>>,
    /// Has a permit as soon as there is a result.
    result_ready: Semaphore,
}

enum State<T> {
    Waiting,
    /// The result has been decided; later callbacks get the same page.
    Decided(Page, Option<Result<T, String>>),
}

/// The content of the page of a decided login.
#[derive(Clone)]
enum Page {
    Success { user: String },
    Failure { status: StatusCode, error: String, remedy: &'static str },
}

impl<'a, R: Redeem> Callback<'a, R> {
    /// Creates the handler of a login at `issuer`.
    pub fn new(
        redeem: &'a R,
        issuer: &Url,
        client_id: &str,
        is_supervisor: bool,
        path: &'static str,
        printer: Printer,
    ) -> Self {
        let params = ResponseParams {
            origin: origin(issuer),
            is_supervisor,
            issuer: issuer.as_str().trim_end_matches('/').to_owned(),
            client_id: client_id.to_owned(),
        };
        Self {
            redeem,
            params,
            path,
            printer,
            redemptions: Semaphore::new(1),
            state: Mutex::new(State::Waiting),
            result_ready: Semaphore::new(0),
        }
    }

    /// Serves a connection until it is closed.
    pub async fn serve_connection(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let service = service_fn(move |request: Request<Incoming>| async move {
            Ok::<_, Infallible>(self.respond(request, deadline).await)
        });
        // One request on each connection, so that an idle one does not use the grace period.
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_TIMEOUT)
            .keep_alive(false)
            // A tab that is closed before it has its page does not cancel the redemption of the
            // code, which cannot be repeated.
            .half_close(true)
            .serve_connection(TokioIo::new(stream), service);
        // Errors are those of the client.
        let _ = served.await;
    }

    /// Waits for the result, which is returned once. The error is a text for the user.
    ///
    /// # Errors
    ///
    /// Returns the reason why the browser brought no tokens.
    pub async fn result(&self) -> Result<R::Value, String> {
        loop {
            // The semaphore is never closed.
            if let Ok(permit) = self.result_ready.acquire().await {
                permit.forget();
            }
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let State::Decided(_, result) = &mut *state
                && let Some(result) = result.take()
            {
                return result;
            }
        }
    }

    async fn respond(&self, request: Request<Incoming>, deadline: Instant) -> Response<Body> {
        if request.uri().path() != self.path {
            return not_found();
        }
        // A client that does not complete its request neither ends the login nor keeps its
        // connection, of which there are few.
        let Ok(request) = timeout_at(deadline, request::read(request)).await else {
            self.printer.debug("Pinniped: Got incomplete request on callback listener", &[]);
            return empty(StatusCode::REQUEST_TIMEOUT);
        };
        match request {
            CallbackRequest::PreflightWithoutOrigin => {
                self.printer.debug("Pinniped: Got OPTIONS request without origin header", &[]);
                empty(StatusCode::BAD_REQUEST)
            }
            CallbackRequest::Preflight { origin, headers } => {
                self.printer
                    .debug("Pinniped: Got CORS preflight request from browser", &[("origin", json!(origin))]);
                self.params.preflight(&headers)
            }
            CallbackRequest::OtherMethod(method) => {
                self.printer.debug(
                    "Pinniped: Got unexpected request on callback listener",
                    &[("method", json!(method.as_str()))],
                );
                empty(StatusCode::METHOD_NOT_ALLOWED)
            }
            CallbackRequest::InvalidForm(error) => self
                .fail(StatusCode::BAD_REQUEST, format!("invalid form: {error}"), ADVICE_TRY_AGAIN)
                .response(&self.params),
            CallbackRequest::Callback(params) => self.callback(params).await.response(&self.params),
        }
    }

    async fn callback(&self, params: CallbackParams) -> Page {
        if !self.redeem.is_state(&params.state) {
            let error = "missing or invalid state parameter".to_owned();
            return self.fail(StatusCode::FORBIDDEN, error, ADVICE_WRONG_STATE);
        }
        if let Some(error) = params.error {
            return self.fail(StatusCode::BAD_REQUEST, error, ADVICE_REFUSED);
        }
        // The semaphore is never closed.
        let _permit = self.redemptions.acquire().await.ok();
        if let Some(page) = self.decided() {
            return page;
        }
        match self.redeem.redeem(&params.code).await {
            Ok(redeemed) => self.decide(Page::Success { user: redeemed.user }, Ok(redeemed.value)),
            Err(error) => {
                let error = format!("could not complete authorization code exchange: {error}");
                self.fail(StatusCode::BAD_REQUEST, error, ADVICE_TRY_AGAIN)
            }
        }
    }

    fn decided(&self) -> Option<Page> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Decided(page, _) => Some(page.clone()),
            State::Waiting => None,
        }
    }

    fn fail(&self, status: StatusCode, error: String, remedy: &'static str) -> Page {
        let page = Page::Failure { status, error: error.clone(), remedy };
        // The page reports this request, even if an earlier one decided the result.
        self.decide(page.clone(), Err(error));
        page
    }

    /// Records the result, unless there is one, and returns the page of the first.
    fn decide(&self, page: Page, result: Result<R::Value, String>) -> Page {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Decided(earlier, _) = &*state {
            return earlier.clone();
        }
        *state = State::Decided(page.clone(), Some(result));
        self.result_ready.add_permits(1);
        page
    }
}

impl Page {
    fn response(&self, params: &ResponseParams) -> Response<Body> {
        match self {
            Self::Success { user } => params.success(user),
            Self::Failure { status, error, remedy } => params.failure(*status, error, remedy),
        }
    }
}

#[cfg(test)]
mod tests;
