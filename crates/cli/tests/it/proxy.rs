//! `pinniped proxy` as a process, between clients of several kinds and a scripted API server.

use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::Home;

mod api_server;
mod oidc;
mod running;

use api_server::{ApiServer, Script};
use running::{Protocol, Running, kubeconfig};

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_request_of_any_client_is_forwarded_as_the_logged_in_user() {
    let server = ApiServer::start(Script::default()).await;
    let home = Home::new();
    let running = Running::start(&home, &kubeconfig(&server, "/base/")).await;
    for protocol in BOTH {
        let request = running
            .request("/api/v1/namespaces/a%2Fb/secrets?limit=5")
            .header("accept", "application/json")
            .header("proxy-authorization", "x");
        let response = running.send_request(protocol, request.body(String::new()).unwrap()).await;
        assert_eq!(response.status(), 200, "{response:?}");
        assert_eq!(response.headers()["x-from"], "the API server");
        assert_eq!(response.headers().get("warning"), None);
        assert_eq!(response.body(), "hello");
        let seen = server.take_last();
        assert_eq!(seen.path, "/base/api/v1/namespaces/a%2Fb/secrets?limit=5");
        assert_eq!(seen.version, http::Version::HTTP_2);
        assert_eq!(
            seen.headers,
            [
                "accept: application/json",
                "authorization: Bearer token-0",
                "impersonate-extra-example.com%2fk: v",
                "impersonate-group: a",
                "impersonate-group: b",
                "impersonate-uid: u-1",
                "impersonate-user: pinny",
            ],
            "{protocol:?}"
        );
    }
    assert_eq!(server.logins(), 1);
}

#[tokio::test]
async fn a_client_cannot_impersonate_and_gets_a_warning() {
    let server = ApiServer::start(Script::default()).await;
    let home = Home::new();
    let running = Running::start(&home, &kubeconfig(&server, "")).await;
    for protocol in BOTH {
        let request = running
            .request("/x")
            .header("impersonate-user", "admin")
            .header("impersonate-group", "system:masters")
            .header("impersonate-uid", "0")
            .header("impersonate-extra-scopes", "all")
            .header("impersonate-yet-unknown", "x")
            .body(String::new())
            .unwrap();
        let response = running.send_request(protocol, request).await;
        let warning = response.headers()["warning"].to_str().unwrap();
        assert!(warning.starts_with("299 - \"pinniped proxy ignores impersonation"), "{warning}");
        let seen = server.take_last();
        let about: Vec<&String> =
            seen.headers.iter().filter(|line| line.starts_with("impersonate-")).collect();
        assert_eq!(
            about,
            [
                "impersonate-extra-example.com%2fk: v",
                "impersonate-group: a",
                "impersonate-group: b",
                "impersonate-uid: u-1",
                "impersonate-user: pinny",
            ]
        );
    }
    // Naming the proxy's headers as hop-by-hop headers has no effect either.
    let request = running.request("/x").header("connection", "impersonate-user, authorization");
    running.send_request(Protocol::Http1, request.body(String::new()).unwrap()).await;
    let seen = server.take_last();
    assert!(seen.headers.iter().any(|line| line == "impersonate-user: pinny"), "{seen:?}");
    assert!(seen.headers.iter().any(|line| line == "authorization: Bearer token-0"), "{seen:?}");
}

#[tokio::test]
async fn a_client_without_the_secret_or_with_another_host_is_refused() {
    let server = ApiServer::start(Script::default()).await;
    let home = Home::new();
    let running = Running::start(&home, &kubeconfig(&server, "")).await;
    let secret = running.secret.as_str();
    let host = running.address.to_string();
    for protocol in BOTH {
        for (host, authorization, code) in [
            (host.as_str(), None, 401),
            (host.as_str(), Some("Bearer x".to_owned()), 401),
            (host.as_str(), Some(format!("Bearer {secret}0")), 401),
            (host.as_str(), Some(format!("Basic {secret}")), 401),
            // A page whose name resolves to this machine.
            ("evil.example", Some(format!("Bearer {secret}")), 421),
            ("192.0.2.1:1", Some(format!("Bearer {secret}")), 421),
        ] {
            let mut request = Request::get(format!("https://{host}/api")).body(String::new()).unwrap();
            if let Some(value) = &authorization {
                request.headers_mut().insert("authorization", value.parse().unwrap());
            }
            let response = running.send_request(protocol, request).await;
            assert_eq!(response.status(), code, "{protocol:?} {host} {authorization:?}");
            assert!(!response.body().contains("hello") && !response.body().contains(secret), "{response:?}");
        }
    }
    assert_eq!(server.requests(), 0, "only the login reached the API server");
    let stranger = running
        .send_request(
            Protocol::Http2,
            Request::get(format!("https://{host}/api")).body(String::new()).unwrap(),
        )
        .await;
    let status: serde_json::Value = serde_json::from_str(stranger.body()).unwrap();
    assert_eq!(status["reason"], "Unauthorized");
}

#[tokio::test]
async fn an_expiring_login_is_replaced_before_it_is_used() {
    // The lifetime is shorter than the safety margin: each request logs in.
    let server = ApiServer::start(Script { lifetime: 3 }).await;
    let home = Home::new();
    let running = Running::start(&home, &kubeconfig(&server, "")).await;
    for number in 1..4 {
        running.send_request(Protocol::Http2, running.request("/x").body(String::new()).unwrap()).await;
        let authorization = format!("authorization: Bearer token-{number}");
        assert!(server.take_last().headers.contains(&authorization), "{number}");
    }
    server.refuse_logins();
    let response =
        running.send_request(Protocol::Http2, running.request("/x").body(String::new()).unwrap()).await;
    assert_eq!(response.status(), 503);
    assert!(response.body().contains("pinniped proxy could not log in: "), "{response:?}");
    assert!(response.body().contains("authentication failed"), "{response:?}");
}

#[tokio::test]
async fn concurrent_requests_share_one_login() {
    let server = ApiServer::start(Script { lifetime: 300 }).await;
    let home = Home::new();
    let running = Running::start(&home, &kubeconfig(&server, "")).await;
    let all = (0..30)
        .map(|_| running.send_request(Protocol::Http2, running.request("/x").body(String::new()).unwrap()));
    let responses = futures::future::join_all(all).await;
    assert!(responses.iter().all(|response| response.status() == 200));
    assert_eq!((server.logins(), server.requests()), (1, 30));
    // Another run finds the login in the cache.
    drop(running);
    let running = Running::start(&home, &kubeconfig(&server, "")).await;
    running.send_request(Protocol::Http2, running.request("/x").body(String::new()).unwrap()).await;
    assert_eq!(server.logins(), 1);
}

#[tokio::test]
async fn watches_are_streamed_beyond_the_stream_limit_of_one_connection() {
    let server = ApiServer::start(Script::default()).await;
    let home = Home::new();
    let running = Running::start(&home, &kubeconfig(&server, "")).await;
    let mut client = running.connect(Protocol::Http2).await;
    let mut watches = Vec::new();
    for _ in 0..150 {
        let request = running.request("/api/v1/pods?watch=true").body(String::new()).unwrap();
        let response = tokio::time::timeout(PATIENCE, client.send(request)).await.unwrap();
        watches.push(response.into_body());
    }
    for round in 0..2 {
        server.notify_watchers();
        for watch in &mut watches {
            let frame = tokio::time::timeout(PATIENCE, watch.frame()).await.expect("at once").unwrap();
            assert_eq!(frame.unwrap().into_data().unwrap(), "event\n", "{round}");
        }
    }
}

#[tokio::test]
async fn an_upgraded_connection_transfers_bytes_in_both_directions() {
    let server = ApiServer::start(Script::default()).await;
    let home = Home::new();
    let running = Running::start(&home, &kubeconfig(&server, "")).await;
    let mut client = running.connect(Protocol::Http1).await;
    let request = running
        .request("/api/v1/namespaces/n/pods/p/exec?command=cat")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.dG9rZW4, v5.channel.k8s.io")
        .body(String::new())
        .unwrap();
    let response = client.send(request).await;
    assert_eq!(response.status(), 101, "{response:?}");
    let seen = server.take_last();
    assert_eq!(seen.version, http::Version::HTTP_11);
    for line in [
        "authorization: Bearer token-0",
        "impersonate-user: pinny",
        "sec-websocket-protocol: v5.channel.k8s.io",
    ] {
        assert!(seen.headers.iter().any(|seen| seen == line), "{line}: {seen:?}");
    }
    let mut tunnel = hyper_util::rt::TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    tunnel.write_all(b"there and back").await.unwrap();
    tunnel.shutdown().await.unwrap();
    let mut back = String::new();
    tokio::time::timeout(PATIENCE, tunnel.read_to_string(&mut back)).await.unwrap().unwrap();
    assert_eq!(back, "there and back");
}

#[tokio::test]
async fn an_unreachable_api_server_is_reported() {
    let server = ApiServer::start(Script::default()).await;
    let home = Home::new();
    let running = Running::start(&home, &kubeconfig(&server, "")).await;
    drop(server);
    let response =
        running.send_request(Protocol::Http2, running.request("/x").body(String::new()).unwrap()).await;
    assert_eq!(response.status(), 503);
    let status: serde_json::Value = serde_json::from_str(response.body()).unwrap();
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("pinniped proxy received no response: could not connect to the API server: "),
        "{message}"
    );
    assert!(message.ends_with("connect: connection refused"), "{message}");
}

#[tokio::test]
async fn signals_stop_the_proxy_gracefully_and_its_file_is_removed() {
    for signal in ["INT", "TERM"] {
        let server = ApiServer::start(Script::default()).await;
        let home = Home::new();
        let mut running = Running::start(&home, &kubeconfig(&server, "")).await;
        let file = running.file.clone();
        assert!(file.exists());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        // A request that would never end by itself.
        let mut client = running.connect(Protocol::Http2).await;
        let request = running.request("/api/v1/pods?watch=true").body(String::new()).unwrap();
        let mut watch = client.send(request).await.into_body();
        running.signal(signal);
        let ended = tokio::time::timeout(PATIENCE, running.wait()).await.expect("it ends");
        assert_eq!(ended.code, Some(0), "{signal}: {}", ended.stderr);
        assert!(!file.exists(), "{signal}");
        assert!(tokio::net::TcpStream::connect(running.address).await.is_err(), "the port is closed");
        let cut = tokio::time::timeout(PATIENCE, watch.frame()).await.expect("an end of it");
        assert!(cut.is_none_or(|frame| frame.is_err()));
        assert!(
            !ended.stderr.contains(&running.secret) && !ended.stderr.contains("token-"),
            "{}",
            ended.stderr
        );
        let printed = format!(
            "Serving {} as \"pinny\" at https://{}, until interrupted",
            server.url(),
            running.address
        );
        assert!(ended.stderr.contains(&printed), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn without_a_file_the_kubeconfig_is_printed_and_the_port_may_be_chosen() {
    let server = ApiServer::start(Script::default()).await;
    let home = Home::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let running = Running::printing(&home, &kubeconfig(&server, ""), port).await;
    assert_eq!(running.address.port(), port);
    assert_eq!(
        running
            .send_request(Protocol::Http2, running.request("/x").body(String::new()).unwrap())
            .await
            .status(),
        200
    );
    let args = std::fs::read(format!("/proc/{}/cmdline", running.pid())).unwrap_or_default();
    assert!(!String::from_utf8_lossy(&args).contains(&running.secret));
    // The running proxy occupies the port, so that a second one fails.
    let port = format!("--port={port}");
    let config = home.write("other.yaml", &kubeconfig(&server, ""));
    let run = home.run(&["proxy", "--kubeconfig", config.to_str().unwrap(), &port]);
    let error = run.last_error().unwrap();
    assert!(error.starts_with(&format!("could not listen on {}: ", running.address)), "{run:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_kubeconfigs_are_refused_with_a_remedy() {
    let server = ApiServer::start(Script::default()).await;
    let home = Home::new();
    let good = kubeconfig(&server, "");
    let plain = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url()}}],
        "users": [{"name": "u", "user": {"token": "t"}}]});
    let remedy = "create a kubeconfig with `pinniped get kubeconfig --concierge-mode ServiceAccountToken --impersonation-delivery proxy`";
    for (config, error) in [
        (
            plain.to_string(),
            format!("user \"u\" of context \"a\" does not log in with a service account token: {remedy}"),
        ),
        (
            good.replace(
                "--concierge-credential-type=service-account-token",
                "--concierge-credential-type=client-certificate",
            ),
            format!(
                "user \"user\" of context \"context\" does not log in with a service account token: {remedy}"
            ),
        ),
        (
            good.replace("current-context: context", "current-context: nope"),
            "could not use the kubeconfig: no such context \"nope\"".to_owned(),
        ),
        (
            good.replace("--token=right", "--token=wrong"),
            "could not complete Concierge credential exchange: login failed: authentication failed"
                .to_owned(),
        ),
    ] {
        let path = home.write("bad.yaml", &config);
        let run =
            tokio::task::block_in_place(|| home.run(&["proxy", "--kubeconfig", path.to_str().unwrap()]));
        let printed = run.last_error().unwrap();
        assert!(printed.starts_with(&error), "{printed}\n{error}");
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
    }
    let (config, precious) = (home.write("good.yaml", &good), home.write("precious.yaml", "apiVersion: v1"));
    let args = ["proxy", "--kubeconfig", config.to_str().unwrap(), "--output", precious.to_str().unwrap()];
    let run = tokio::task::block_in_place(|| home.run(&args));
    assert!(run.last_error().unwrap().contains("was not made by `pinniped proxy`"), "{run:?}");
    assert_eq!(std::fs::read_to_string(precious).unwrap(), "apiVersion: v1");
}
