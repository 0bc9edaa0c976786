//! Watches and other streams, over both versions of HTTP and over WebSocket.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use pinniped_e2e::walkthrough::EXTERNAL_NAME;
use pinniped_test_support::kubectl::run;
use pinniped_test_support::wire;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{Connection, Lines, Protocol, audited, get, service_account, tls, token_of};
use crate::installed::{self, Credentials, Installed, TIME_LIMIT};

/// Creates a namespace, and a user with the same name who has all permissions for its ConfigMaps.
async fn prepare(installed: &Installed, name: &str) -> Credentials {
    installed.namespace(name).await;
    installed.allow(name, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}])).await;
    installed.certificate(name, None).into()
}

async fn create(installed: &Installed, namespace: &str, name: &str) {
    let maps = Api::<ConfigMap>::namespaced(installed.admin().await, namespace);
    let map = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
}

/// Returns the path of a watch of one ConfigMap's name from now on.
fn watch(namespace: &str, name: &str, more: &str) -> String {
    format!(
        "/api/v1/namespaces/{namespace}/configmaps?watch=true&fieldSelector=metadata.name%3D{name}&resourceVersion=0{more}"
    )
}

fn is_added(event: &Value, name: &str) {
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!(name)));
}

#[tokio::test]
async fn watches_deliver_each_event_at_once_over_both_versions_of_http() {
    let Some(installed) = installed::shared("watches over HTTP").await else { return };
    let user = prepare(&installed, "watch-http").await;
    for (protocol, name) in [(Protocol::Http1, "one"), (Protocol::Http2, "two")] {
        let mut connection = Connection::open(&installed, protocol, &user).await;
        let response = connection.send(get(&watch("watch-http", name, ""))).await;
        if protocol == Protocol::Http1 {
            assert_eq!(response.headers()["transfer-encoding"], "chunked");
        }
        let mut events = Lines::of(response);
        create(&installed, "watch-http", name).await;
        is_added(&events.next_within(Duration::from_secs(2)).await.expect("the event at once"), name);
    }
}

#[tokio::test]
async fn a_watch_has_no_deadline_even_when_its_request_has_a_timeout() {
    let Some(installed) = installed::shared("a watch with a timeout parameter").await else { return };
    let user = prepare(&installed, "watch-deadline").await;
    let mut connection = Connection::open(&installed, Protocol::Http2, &user).await;
    let mut events = Lines::of(connection.send(get(&watch("watch-deadline", "late", "&timeout=1s"))).await);
    assert_eq!(events.next_within(Duration::from_millis(1500)).await, None, "nothing happened yet");
    create(&installed, "watch-deadline", "late").await;
    is_added(&events.next().await, "late");

    // For a short request the parameter is parsed and must be a duration.
    let response =
        connection.send_request(get("/api/v1/namespaces/watch-deadline/configmaps?timeout=abc")).await;
    let wanted = "invalid timeout specified in the request URL - time: invalid duration \"abc\"";
    assert_eq!(response.message(), (400, wanted.to_owned()));
}

#[tokio::test]
async fn many_watches_share_one_connection_of_the_client() {
    const COUNT: usize = 120;
    let Some(installed) = installed::shared("many watches").await else { return };
    let user = prepare(&installed, "watch-many").await;
    let mut connection = Connection::open(&installed, Protocol::Http2, &user).await;
    let mut all = Vec::new();
    // More than the 100 streams per connection of the API server: the proxy needs a second
    // connection.
    for _ in 0..COUNT {
        all.push(Lines::of(connection.send(get(&watch("watch-many", "for-all", ""))).await));
    }
    create(&installed, "watch-many", "for-all").await;
    let mut responses: FuturesUnordered<_> = all.iter_mut().map(Lines::next).collect();
    let mut count = 0;
    while let Some(event) = responses.next().await {
        is_added(&event, "for-all");
        count += 1;
    }
    assert_eq!(count, COUNT);
    drop(responses);
    // Short requests still succeed at the same time.
    assert_eq!(connection.send_request(get("/api/v1/namespaces/watch-many/configmaps")).await.status, 200);
}

/// Returns the payload of the next WebSocket data frame.
async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    loop {
        let head = [stream.read_u8().await.unwrap(), stream.read_u8().await.unwrap()];
        let length = match head[1] & 0x7f {
            126 => u64::from(stream.read_u16().await.unwrap()),
            127 => stream.read_u64().await.unwrap(),
            short => u64::from(short),
        };
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        match head[0] & 0x0f {
            1 | 2 => return payload,
            9 | 10 => {}
            other => panic!("frame of type {other}: {}", String::from_utf8_lossy(&payload)),
        }
    }
}

/// Opens a watch as a browser does.
async fn watch_over_websocket(
    installed: &Installed,
    user: &Credentials,
    path: &str,
    more_headers: &str,
) -> wire::RawResponse<TlsStream<TcpStream>> {
    let stream = tls(installed, &[b"http/1.1"], user.certificate.as_ref()).await;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {EXTERNAL_NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Origin: https://{EXTERNAL_NAME}\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more_headers}\r\n"
    );
    wire::raw_request(stream, request.as_bytes()).await.unwrap()
}

#[tokio::test]
async fn a_service_account_may_watch_over_websocket_with_its_token_as_a_subprotocol() {
    let Some(installed) = installed::shared("a token as a WebSocket subprotocol").await else { return };
    let (account, _) = service_account(&installed, "watch-token").await;
    installed
        .allow(&account, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]))
        .await;
    let token = URL_SAFE_NO_PAD.encode(token_of(&installed, "watch-token", json!({})).await);
    let path = watch("watch-token", "framed", "");
    let header = |token: &str, more: &str| {
        format!("Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{token}{more}\r\n")
    };
    let nobody = Credentials::none();
    let more = header(&token, ", mine") + "User-Agent: subprotocol/1\r\n";
    let mut response = watch_over_websocket(&installed, &nobody, &path, &more).await;
    assert_eq!(response.status, 101, "{}", response.head);
    create(&installed, "watch-token", "framed").await;
    let mut bytes = (&response.rest[..]).chain(&mut response.stream);
    let frame = tokio::time::timeout(TIME_LIMIT, read_frame(&mut bytes)).await.unwrap();
    is_added(&serde_json::from_slice(&frame).unwrap(), "framed");
    drop(response);
    let event = audited(&installed, "subprotocol/1").await;
    assert_eq!((&event["user"]["username"], &event["impersonatedUser"]), (&json!(account), &Value::Null));

    let broken = URL_SAFE_NO_PAD.encode("not a token");
    let response = watch_over_websocket(&installed, &nobody, &path, &header(&broken, ", mine")).await;
    assert_eq!(response.status, 401, "{}", response.head);
    // The client must offer a second protocol, because the server selects one besides the token.
    let response = watch_over_websocket(&installed, &nobody, &path, &header(&token, "")).await;
    assert_eq!(response.status, 401, "{}", response.head);
}

#[tokio::test]
async fn a_watch_over_websocket_works() {
    let Some(installed) = installed::shared("a watch over WebSocket").await else { return };
    let user = prepare(&installed, "watch-websocket").await;
    let path = watch("watch-websocket", "framed", "");
    let mut response = watch_over_websocket(&installed, &user, &path, "").await;
    assert_eq!(response.status, 101, "{}", response.head);
    assert!(response.head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "the key's answer: {}", response.head);
    assert!(response.head.to_lowercase().contains("x-content-type-options: nosniff"), "{}", response.head);
    create(&installed, "watch-websocket", "framed").await;
    let mut bytes = (&response.rest[..]).chain(&mut response.stream);
    let frame = tokio::time::timeout(TIME_LIMIT, read_frame(&mut bytes)).await.unwrap();
    is_added(&serde_json::from_slice(&frame).unwrap(), "framed");
}

#[tokio::test]
async fn kubectl_watches_and_uses_server_side_apply() {
    let Some(installed) = installed::shared("kubectl through the proxy").await else { return };
    let user = prepare(&installed, "kubectl-user").await;
    let kubectl = installed.kubectl("kubectl-user", &user);
    let args = ["get", "configmaps", "-n", "kubectl-user", "-o", "name", "--watch-only"];
    let mut watching = tokio::process::Command::from(kubectl.command(&args))
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = tokio::io::BufReader::new(watching.stdout.take().unwrap()).lines();

    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied, namespace: kubectl-user}\n";
    let apply = |color: &str, manager: &str| {
        let manager = format!("--field-manager={manager}");
        let args = ["apply", "--server-side", &manager, "-f", "-"];
        let input = format!("{map}data: {{color: {color}}}\n");
        let command = kubectl.command(&args);
        async move { run(command, Some(&input)).await.unwrap() }
    };
    let first = apply("red", "first").await.success().unwrap();
    assert_eq!(first.stdout, "configmap/applied serverside-applied\n");
    // The conflict is the API server's own text.
    let second = apply("blue", "second").await;
    assert_eq!(second.code, 1);
    assert!(second.stderr.contains("conflict with \"first\": .data.color"), "{}", second.stderr);

    // kubectl may start to watch only after the first write, so the test repeats writes until
    // kubectl prints one.
    let mut seen = false;
    for round in 0..100 {
        let event = tokio::time::timeout(Duration::from_millis(300), lines.next_line());
        if let Ok(line) = event.await {
            assert_eq!(line.unwrap().as_deref(), Some("configmap/applied"));
            seen = true;
            break;
        }
        apply(&format!("red{round}"), "first").await.success().unwrap();
    }
    assert!(seen, "kubectl saw none of 100 changes");
    watching.kill().await.unwrap();
}
