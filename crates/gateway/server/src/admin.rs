//! The third port: health for the kubelet and metrics for a scraper, over plain HTTP as in Contour.
//! It serves nothing secret, and the program has no permission to authenticate clients.

use std::sync::Arc;
use std::time::Duration;

use http::header::ALLOW;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use pinniped_http_server::Incoming;
use pinniped_http_server::connection;
use pinniped_http_server::{
    Body, Connection, ConnectionError, Handler, Limits, Listener, Listeners, Peer, ResponseFuture,
    ServerHandle, Service, Shared, layers, serve_with,
};
use tokio::net::TcpStream;
use tokio::time::Instant;

use pinniped_apiserver::health::Health;
use pinniped_gateway_metrics::listeners as names;
use pinniped_metrics::Metrics;

/// The timeout for a client that reads its response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves until the handle is dropped.
pub(super) fn serve(
    listener: Listener,
    health: Health,
    metrics: &Metrics,
    listeners: &Listeners,
) -> ServerHandle {
    let port = AdminPort(Arc::new(Admin { health, metrics: metrics.clone() }));
    let handle = serve_with(None, listener, port, limits());
    listeners.add(names::ADMIN, handle.stats_source());
    handle
}

/// Returns small limits, because a kubelet and a few scrapers are the only expected clients.
fn limits() -> Limits {
    Limits {
        header_bytes: 16 << 10,
        header_fields: 100,
        header_read_timeout: Duration::from_secs(10),
        connections: 128,
        ..Limits::default()
    }
}

#[derive(Clone)]
struct AdminPort(Arc<Admin>);

struct Admin {
    health: Health,
    metrics: Metrics,
}

impl Handler for AdminPort {
    async fn run(self, shared: Arc<Shared>, stream: TcpStream, peer: Peer) -> Result<(), ConnectionError> {
        connection::http(&shared.limits, &shared.draining, self, stream, peer).await
    }
}

impl Service for AdminPort {
    fn call(&self, _: &Arc<Connection>, request: Request<Incoming>) -> ResponseFuture {
        let (admin, (parts, _)) = (Arc::clone(&self.0), request.into_parts());
        Box::pin(async move {
            let response = admin.respond(&parts).await;
            response.map(|body| body.with_deadline(Instant::now() + RESPONSE_TIMEOUT))
        })
    }
}

impl Admin {
    async fn respond(&self, request: &Parts) -> Response<Body> {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            let mut response = layers::plain_error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let path = request.uri.path().trim_matches('/');
        let (endpoint, rest) = match path.split_once('/') {
            Some((endpoint, rest)) => (endpoint, Some(rest)),
            None => (path, None),
        };
        let response = match (endpoint, rest) {
            ("metrics", None) => {
                Some(pinniped_program::metrics::respond(&self.metrics, &request.headers).await)
            }
            ("healthz" | "livez" | "readyz", check) => {
                self.health.respond(endpoint, check, request.uri.query().unwrap_or_default())
            }
            _ => None,
        };
        response.unwrap_or_else(|| layers::plain_error(StatusCode::NOT_FOUND, "404 page not found"))
    }
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT;
    use http_body_util::BodyExt as _;

    use super::*;

    async fn send_request(admin: &Admin, method: Method, path: &str) -> (u16, String) {
        let request =
            Request::builder().method(method).uri(path).header(ACCEPT, "application/openmetrics-text");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let response = admin.respond(&parts).await;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn the_pod_is_live_from_the_start_and_ready_from_the_first_table_until_shutdown() {
        let mut health = Health::of_program();
        let table = health.ready_step("routing-table");
        let admin = Admin { health, metrics: Metrics::new() };
        assert_eq!(send_request(&admin, Method::GET, "/healthz").await, (200, "ok".to_owned()));
        let (status, report) = send_request(&admin, Method::GET, "/readyz").await;
        assert_eq!(status, 500);
        assert!(report.contains("[-]routing-table failed"), "{report}");
        table.done();
        assert_eq!(send_request(&admin, Method::GET, "/readyz").await, (200, "ok".to_owned()));
        assert_eq!(send_request(&admin, Method::GET, "/readyz/routing-table").await.0, 200);
        admin.health.stopping().begin();
        assert_eq!(send_request(&admin, Method::GET, "/readyz").await.0, 500);
        assert_eq!(send_request(&admin, Method::GET, "/livez").await.0, 200);
    }

    #[tokio::test]
    async fn other_paths_and_methods_are_refused() {
        let admin = Admin { health: Health::of_program(), metrics: Metrics::new() };
        let (status, text) = send_request(&admin, Method::GET, "/metrics").await;
        assert_eq!((status, text.as_str()), (200, "# EOF\n"));
        for path in ["/", "/metrics/x", "/healthz/x", "/debug/pprof", "//"] {
            assert_eq!(send_request(&admin, Method::GET, path).await.0, 404, "{path}");
        }
        assert_eq!(send_request(&admin, Method::POST, "/healthz").await.0, 405);
    }
}
