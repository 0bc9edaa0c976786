//! Tests with a server that simulates an API server without WebSocket support or permission.

use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;

use super::*;

type Io = TokioIo<Upgraded>;
type Refusal = Response<Full<Bytes>>;

const FORBIDDEN_GET: &str = "pods \"agent-1\" is forbidden: User \"system:serviceaccount:ns:c\" cannot get resource \
                             \"pods/exec\" in API group \"\" in the namespace \"ns\"";
const FORBIDDEN_POST: &str = "pods \"agent-1\" is forbidden: User \"system:serviceaccount:ns:c\" cannot create resource \
                              \"pods/exec\" in API group \"\" in the namespace \"ns\"";

fn refusal(code: u16, reason: &str, message: &str) -> Refusal {
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code,
    });
    Response::builder().status(code).body(Full::from(body.to_string())).unwrap()
}

fn forbidden_get() -> Refusal {
    refusal(403, "Forbidden", FORBIDDEN_GET)
}

/// Returns the response that upgrades to SPDY, as an API server sends it.
fn upgraded() -> Response<Full<Bytes>> {
    let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
    let response = response.header("connection", "Upgrade").header("upgrade", "SPDY/3.1");
    response.header("x-stream-protocol-version", "v4.channel.k8s.io").body(Full::default()).unwrap()
}

/// The received requests, and the result of the command.
struct Seen {
    methods: Vec<Method>,
    output: Result<Zeroizing<Vec<u8>>, ExecError>,
}

/// Runs the command against a server that responds to the GET and the POST with these refusals, and
/// handles the upgraded connection with `play`.
async fn run<F: Future<Output = ()>>(
    get: fn() -> Refusal,
    post: fn() -> Response<Full<Bytes>>,
    play: impl FnOnce(Io) -> F,
) -> Seen {
    pinniped_pki::install_crypto_provider();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = kube::Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
    let exec =
        ApiServerExec { client: kube::Client::try_from(config).unwrap(), deadline: Duration::from_secs(20) };
    let agent = AgentPod { namespace: "ns".to_owned(), name: "agent-1".to_owned(), uid: "u".to_owned() };
    let methods = Arc::new(Mutex::new(Vec::new()));
    let (to_play, upgrade) = oneshot::channel();
    let to_play = Arc::new(Mutex::new(Some(to_play)));
    let service = {
        let methods = methods.clone();
        service_fn(move |mut request: Request<Incoming>| {
            methods.lock().unwrap().push(request.method().clone());
            let response = if request.method() == Method::GET {
                get()
            } else {
                check(&request);
                post()
            };
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                let _played = to_play.lock().unwrap().take().unwrap().send(hyper::upgrade::on(&mut request));
            }
            async { Ok::<_, std::convert::Infallible>(response) }
        })
    };
    let serve = async {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let http = hyper::server::conn::http1::Builder::new();
            connections.spawn(http.serve_connection(TokioIo::new(stream), service.clone()).with_upgrades());
        }
    };
    let play = async {
        if let Ok(upgrade) = upgrade.await {
            play(TokioIo::new(upgrade.await.unwrap())).await;
        }
        std::future::pending::<()>().await;
    };
    let output = tokio::select! {
        output = exec.print(&agent) => output,
        () = play => unreachable!("pending"),
        () = serve => unreachable!("endless"),
    };
    Seen { methods: methods.lock().unwrap().clone(), output }
}

fn check(request: &Request<Incoming>) {
    assert_eq!(request.uri().path(), "/api/v1/namespaces/ns/pods/agent-1/exec");
    let mut query: Vec<&str> = request.uri().query().unwrap().split('&').filter(|s| !s.is_empty()).collect();
    query.sort_unstable();
    let command = "command=pinniped-concierge-kube-cert-agent";
    assert_eq!(query, [command, "command=print", "container=sleeper", "stdout=true"]);
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "SPDY/3.1"),
        ("x-stream-protocol-version", "v4.channel.k8s.io"),
    ] {
        assert_eq!(request.headers()[name], value);
    }
}

/// Waits for the two streams and accepts them: 1 is the status, 3 is the output.
async fn accept(io: &mut Io) {
    let (mut streams, mut window_updates) = (Vec::new(), 0);
    // All data from the client must be read: closing a socket with unread data resets the
    // connection.
    while streams.len() < 2 || window_updates < 4 {
        let mut head = [0; 8];
        io.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[6]) << 8 | usize::from(head[7])];
        io.read_exact(&mut payload).await.unwrap();
        if head[..4] == [0x80, 3, 0, 1] {
            let types = ["error", "stdout"];
            let of_type = |kind: &&str| payload.windows(kind.len()).any(|window| window == kind.as_bytes());
            streams.push((payload[3], types.into_iter().find(of_type).unwrap()));
        } else {
            assert_eq!(head[..4], [0x80, 3, 0, 9]);
            window_updates += 1;
        }
    }
    assert_eq!(streams, [(1, "error"), (3, "stdout")]);
    for (stream, _) in streams {
        io.write_all(&[0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, stream]).await.unwrap();
    }
}

async fn send(io: &mut Io, stream: u8, last: bool, data: &[u8]) {
    let length = (data.len() as u32).to_be_bytes();
    let head = [0, 0, 0, stream, u8::from(last), length[1], length[2], length[3]];
    // The client may have closed the connection intentionally.
    let _sent = io.write_all(&[&head[..], data].concat()).await;
}

/// Resets a stream as Go's servers do.
async fn reset(io: &mut Io, stream: u8) {
    let _sent = io.write_all(&[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, stream, 0, 0, 0, 5]).await;
}

async fn complete(mut io: Io) {
    accept(&mut io).await;
    send(&mut io, 3, false, b"first ").await;
    send(&mut io, 3, true, b"second").await;
    send(&mut io, 1, false, SUCCESS).await;
    reset(&mut io, 1).await;
}

#[tokio::test]
async fn the_command_runs_over_spdy_if_only_the_post_is_allowed() {
    let result = run(forbidden_get, upgraded, complete).await;
    assert_eq!(result.output.unwrap().as_slice(), b"first second");
    assert_eq!(result.methods, [Method::GET, Method::POST]);
}

#[tokio::test]
async fn the_command_runs_over_spdy_if_no_web_socket_is_upgraded() {
    let refusals: [fn() -> Refusal; 4] = [
        || refusal(400, "BadRequest", "unable to upgrade: missing upgrade headers in request"),
        || Response::builder().status(426).body(Full::default()).unwrap(),
        || Response::new(Full::from("<html>")),
        || Response::builder().status(403).body(Full::from("forbidden by a proxy")).unwrap(),
    ];
    for refusal in refusals {
        let result = run(refusal, upgraded, complete).await;
        assert_eq!(result.output.unwrap().as_slice(), b"first second");
        assert_eq!(result.methods, [Method::GET, Method::POST]);
    }
}

#[tokio::test]
async fn an_error_of_the_pod_is_not_retried_over_spdy() {
    for code in [401, 404, 500] {
        let get: fn() -> Refusal = match code {
            401 => || refusal(401, "Unauthorized", "Unauthorized"),
            404 => || refusal(404, "NotFound", "pods \"agent-1\" not found"),
            _ => || refusal(500, "InternalError", "Internal error occurred: error dialing backend"),
        };
        let result = run(get, upgraded, complete).await;
        assert!(matches!(result.output, Err(ExecError::Api(_))), "{code}");
        assert_eq!(result.methods, [Method::GET], "{code}");
    }
}

#[tokio::test]
async fn without_permissions_the_error_names_the_verb_create() {
    let result = run(forbidden_get, || refusal(403, "Forbidden", FORBIDDEN_POST), complete).await;
    let error = result.output.unwrap_err();
    assert!(error.is_forbidden());
    assert_eq!(error.to_string(), FORBIDDEN_POST);
}

#[tokio::test]
async fn a_response_without_the_upgrade_is_an_error() {
    type Respond = fn() -> Response<Full<Bytes>>;
    let responses: [(Respond, &str); 4] = [
        (|| Response::new(Full::from("<html>")), "200 OK"),
        (
            || Response::builder().status(502).body(Full::from(vec![b'x'; 1 << 20])).unwrap(),
            "502 Bad Gateway",
        ),
        (
            || {
                let mut response = upgraded();
                response.headers_mut().insert("upgrade", "websocket".parse().unwrap());
                response
            },
            "response is not for SPDY/3.1",
        ),
        (
            || {
                let mut response = upgraded();
                response.headers_mut().remove("x-stream-protocol-version");
                response
            },
            "response is not for v4.channel.k8s.io",
        ),
    ];
    for (post, reason) in responses {
        let error = run(forbidden_get, post, complete).await.output.unwrap_err();
        assert_eq!(error.to_string(), format!("upgrade to SPDY was refused: {reason}"));
    }
}

#[tokio::test]
async fn a_failed_command_over_spdy_has_the_error_text_of_kubernetes() {
    for (status, wanted) in [
        (EXIT_1, "command terminated with exit code 1"),
        (GONE, "Internal error occurred: container not found (\"sleeper\")"),
        (b"secret", "result of the command could not be read"),
    ] {
        let result = run(forbidden_get, upgraded, |mut io| async move {
            accept(&mut io).await;
            send(&mut io, 3, true, b"half of a sec").await;
            send(&mut io, 1, true, status).await;
        });
        assert_eq!(result.await.output.unwrap_err().to_string(), wanted);
    }
}

#[tokio::test]
async fn a_status_completes_the_command_even_if_the_connection_breaks_afterwards() {
    let result = run(forbidden_get, upgraded, |mut io| async move {
        accept(&mut io).await;
        send(&mut io, 3, false, b"whole").await;
        send(&mut io, 1, false, SUCCESS).await;
        // The first part of a frame.
        io.write_all(&[0, 0, 0]).await.unwrap();
    });
    assert_eq!(result.await.output.unwrap().as_slice(), b"whole");
}

#[tokio::test]
async fn a_connection_that_closes_without_a_status_is_an_error() {
    let ended = run(forbidden_get, upgraded, |mut io| async move {
        accept(&mut io).await;
        send(&mut io, 3, true, b"whole").await;
        reset(&mut io, 1).await;
    });
    let error = ended.await.output.unwrap_err().to_string();
    assert_eq!(error, "connection to the pod closed before the command terminated");
    let cut = run(forbidden_get, upgraded, |mut io| async move {
        accept(&mut io).await;
        send(&mut io, 3, false, b"half").await;
        io.write_all(&[0, 0, 0]).await.unwrap();
    });
    let error = cut.await.output.unwrap_err().to_string();
    assert_eq!(error, "connection to the pod failed: connection closed within a frame");
    let refused = run(forbidden_get, upgraded, |mut io| async move {
        reset(&mut io, 3).await;
        let _until_the_client_closes = io.read_to_end(&mut Vec::new()).await;
    });
    let error = refused.await.output.unwrap_err().to_string();
    assert_eq!(error, "connection to the pod failed: server refused a stream");
}

#[tokio::test]
async fn an_endless_output_and_an_endless_status_are_cut_off() {
    for (stream, wanted) in [
        (3, "output of the command is larger than 1048576 bytes"),
        (1, "result of the command could not be read"),
    ] {
        let result = run(forbidden_get, upgraded, |mut io| async move {
            accept(&mut io).await;
            let part = vec![b'x'; 32 << 10];
            for _ in 0..=MAX_OUTPUT / part.len() {
                send(&mut io, stream, false, &part).await;
            }
        });
        assert_eq!(result.await.output.unwrap_err().to_string(), wanted);
    }
}

#[tokio::test]
async fn a_server_with_another_protocol_is_an_error() {
    let result = run(forbidden_get, upgraded, |mut io| async move {
        io.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let error = result.await.output.unwrap_err().to_string();
    assert!(error.starts_with("connection to the pod failed: "), "{error}");
}
