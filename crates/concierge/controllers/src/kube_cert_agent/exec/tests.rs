//! Tests with a server that simulates the API server's part of a remote command.

use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};

use super::web_socket::{STATUS, STDOUT};
use super::*;

mod over_spdy;

const SUCCESS: &[u8] = br#"{"metadata":{},"status":"Success"}"#;
const EXIT_1: &[u8] = br#"{"metadata":{},"status":"Failure","reason":"NonZeroExitCode",
    "message":"command terminated with non-zero exit code: command terminated with exit code 1",
    "details":{"causes":[{"reason":"ExitCode","message":"1"}]}}"#;
const GONE: &[u8] = br#"{"metadata":{},"status":"Failure","reason":"InternalError","code":500,
    "message":"Internal error occurred: container not found (\"sleeper\")"}"#;

type Socket = WebSocketStream<TcpStream>;

/// Runs the command against a server that handles its only connection with `play`.
async fn run<T, F: Future<Output = T>>(
    play: impl FnOnce(TcpStream) -> F,
) -> Result<Zeroizing<Vec<u8>>, ExecError> {
    run_with_deadline(Duration::from_secs(20), play).await
}

async fn run_with_deadline<T, F: Future<Output = T>>(
    deadline: Duration,
    play: impl FnOnce(TcpStream) -> F,
) -> Result<Zeroizing<Vec<u8>>, ExecError> {
    pinniped_pki::install_crypto_provider();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = kube::Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
    let exec = ApiServerExec { client: kube::Client::try_from(config).unwrap(), deadline };
    let agent = AgentPod { namespace: "ns".to_owned(), name: "agent-1".to_owned(), uid: "u".to_owned() };
    let server = async {
        let _kept_open = play(listener.accept().await.unwrap().0).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = exec.print(&agent) => result,
        () = server => unreachable!("the server waits indefinitely"),
    }
}

/// Upgrades the connection as an API server does, after checking the request.
async fn upgrade(stream: TcpStream, protocol: &'static str) -> Socket {
    #[expect(clippy::result_large_err, reason = "the library's signature")]
    let check = |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
        assert_eq!(request.uri().path(), "/api/v1/namespaces/ns/pods/agent-1/exec");
        let mut query: Vec<&str> =
            request.uri().query().unwrap().split('&').filter(|s| !s.is_empty()).collect();
        query.sort_unstable();
        assert_eq!(
            query,
            [
                "command=pinniped-concierge-kube-cert-agent",
                "command=print",
                "container=sleeper",
                "stdout=true"
            ]
        );
        assert_eq!(request.headers()["sec-websocket-protocol"], "v5.channel.k8s.io, v4.channel.k8s.io");
        response.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        Ok(response)
    };
    tokio_tungstenite::accept_hdr_async(stream, check).await.unwrap()
}

async fn send(socket: &mut Socket, channel: u8, data: &[u8]) {
    let message = [&[channel], data].concat();
    // The client may have closed the connection intentionally.
    let _sent = socket.send(Message::binary(message)).await;
}

#[tokio::test]
async fn output_is_joined_until_the_status_arrives() {
    for protocol in ["v4.channel.k8s.io", "v5.channel.k8s.io"] {
        let result = run(|stream| async move {
            let mut socket = upgrade(stream, protocol).await;
            for channel in [STDOUT, 2, STATUS] {
                send(&mut socket, channel, b"").await;
            }
            send(&mut socket, STDOUT, b"first ").await;
            socket.send(Message::Ping("x".into())).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::Pong("x".into()));
            send(&mut socket, 2, b"a warning").await;
            send(&mut socket, STDOUT, b"second").await;
            send(&mut socket, STATUS, SUCCESS).await;
        });
        assert_eq!(result.await.unwrap().as_slice(), b"first second", "{protocol}");
    }
}

#[tokio::test]
async fn a_failed_command_has_the_error_text_of_kubernetes() {
    for (status, wanted) in [
        (EXIT_1, "command terminated with exit code 1"),
        (GONE, "Internal error occurred: container not found (\"sleeper\")"),
        (b"{}", "command failed"),
    ] {
        let result = run(|stream| async move {
            let mut socket = upgrade(stream, "v5.channel.k8s.io").await;
            send(&mut socket, STDOUT, b"half of a sec").await;
            send(&mut socket, STATUS, status).await;
        });
        assert_eq!(result.await.unwrap_err().to_string(), wanted);
    }
}

#[tokio::test]
async fn an_unreadable_status_is_an_error() {
    let result = run(|stream| async {
        let mut socket = upgrade(stream, "v4.channel.k8s.io").await;
        send(&mut socket, STATUS, b"secret").await;
    });
    assert_eq!(result.await.unwrap_err().to_string(), "result of the command could not be read");
}

#[tokio::test]
async fn a_pod_deleted_during_the_command_is_an_error() {
    let closed = run(|stream| async {
        let mut socket = upgrade(stream, "v5.channel.k8s.io").await;
        send(&mut socket, STDOUT, b"{").await;
        socket.close(None).await.unwrap();
    });
    assert_eq!(
        closed.await.unwrap_err().to_string(),
        "connection to the pod closed before the command terminated"
    );
    let cut = run(|stream| async {
        let mut socket = upgrade(stream, "v5.channel.k8s.io").await;
        send(&mut socket, STDOUT, b"{").await;
        drop(socket);
    });
    let error = cut.await.unwrap_err().to_string();
    assert!(error.starts_with("connection to the pod failed: "), "{error}");
}

#[tokio::test]
async fn an_endless_output_is_cut_off() {
    let result = run(|stream| async {
        let mut socket = upgrade(stream, "v5.channel.k8s.io").await;
        let piece = vec![b'x'; 32 << 10];
        for _ in 0..=MAX_OUTPUT / piece.len() {
            send(&mut socket, STDOUT, &piece).await;
        }
    });
    assert_eq!(result.await.unwrap_err().to_string(), "output of the command is larger than 1048576 bytes");
}

#[tokio::test]
async fn a_silent_agent_does_not_block_the_controller() {
    let result = run_with_deadline(Duration::from_secs(1), |stream| upgrade(stream, "v5.channel.k8s.io"));
    assert_eq!(result.await.unwrap_err().to_string(), "command did not terminate within 1 seconds");
    let result = run_with_deadline(Duration::from_secs(1), |stream| async { stream });
    assert_eq!(result.await.unwrap_err().to_string(), "command did not terminate within 1 seconds");
}

#[tokio::test]
async fn a_refusal_has_the_error_text_of_the_api_server() {
    let error = run(|mut stream: TcpStream| async move {
        let mut request = vec![0; 4096];
        let _length = stream.read(&mut request).await.unwrap();
        let body = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "pods \"agent-1\" not found",
        })
        .to_string();
        let head = format!(
            "HTTP/1.1 404 x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
    });
    let error = error.await.unwrap_err();
    assert!(!error.is_forbidden());
    assert_eq!(error.to_string(), "pods \"agent-1\" not found");
}
