//! Invalid input gets a clear response and harms no other client.

use pinniped_e2e::walkthrough::EXTERNAL_NAME;
use pinniped_test_support::certs::{Authority, Pair};
use pinniped_test_support::wire;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::whoami::UNAUTHORIZED;
use super::{
    Connection, LOGIN, Protocol, get, post, send_request, service_account, signed, tls, token_of, who_am_i,
    with,
};
use crate::installed::{self, Credentials, Installed};

/// Issues an expired certificate of the cluster's CA.
fn expired(installed: &Installed) -> Pair {
    signed(installed, "expired-user", |params| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 2);
    })
}

#[tokio::test]
async fn a_bad_certificate_is_401_everywhere_unless_a_good_token_comes_with_it() {
    let Some(installed) = installed::shared("bad certificates").await else { return };
    let (name, _) = service_account(&installed, "bad-certificates").await;
    let token = token_of(&installed, "bad-certificates", json!({})).await;
    let foreign =
        Authority::new("kubernetes-ca").unwrap().client("intruder", Some("system:masters")).unwrap();
    for pair in [expired(&installed), foreign] {
        let mut connection = Connection::open(&installed, Protocol::Http2, &pair.clone().into()).await;
        // Also where anonymous requests are allowed.
        for request in [get("/healthz"), get("/api/v1/namespaces"), post(LOGIN, &json!({}))] {
            let response = connection.send_request(request).await;
            assert_eq!((response.status, response.body.as_str()), (401, UNAUTHORIZED));
        }
        let both = Credentials { certificate: Some(pair), token: Some(token.clone()) };
        let response = send_request(&installed, &both, who_am_i()).await;
        assert_eq!(response.status, 201, "{response:?}");
        assert_eq!(response.json()["status"]["kubernetesUserInfo"]["user"]["username"], json!(name));
    }
    // In the opposite case the certificate takes precedence.
    let pair = installed.certificate("good-certificate", None);
    let both = Credentials { certificate: Some(pair), token: Some("nonsense".to_owned()) };
    let response = send_request(&installed, &both, who_am_i()).await;
    assert_eq!(response.json()["status"]["kubernetesUserInfo"]["user"]["username"], "good-certificate");
}

#[tokio::test]
async fn old_versions_of_tls_and_weak_suites_end_with_an_alert() {
    let Some(installed) = installed::shared("old TLS").await else { return };
    let address = format!("{}:443", installed.address);
    let cases = [
        (["-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0"], "protocol version"),
        (["-tls1", "-cipher", "DEFAULT:@SECLEVEL=0"], "protocol version"),
        (["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"], "handshake failure"),
    ];
    for (flags, alert) in cases {
        let mut command = std::process::Command::new("openssl");
        command.args(["s_client", "-connect", &address, "-servername", EXTERNAL_NAME]).args(flags);
        let output = pinniped_test_support::kubectl::run(command, None).await.unwrap();
        assert_eq!(output.code, 1, "{output:?}");
        assert!(output.stderr.contains(&format!("alert {alert}")), "{flags:?}: {}", output.stderr);
    }
    assert_eq!(send_request(&installed, &Credentials::none(), get("/healthz")).await.status, 200);
}

#[tokio::test]
async fn headers_over_the_limit_are_refused_and_large_ones_below_it_are_not() {
    let Some(installed) = installed::shared("headers over the limit").await else { return };
    let pair = installed.certificate("large-headers", None);
    let credentials = Credentials::from(pair.clone());
    let large = "x".repeat(100 << 10);
    let mut below: Vec<(&str, &str)> = Vec::new();
    for name in ["a", "b", "c", "d"] {
        below.push((name, &large));
    }
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let mut connection = Connection::open(&installed, protocol, &credentials).await;
        let response = connection.send_request(with(get("/version"), &below)).await;
        assert_eq!(response.status, 200, "{protocol:?}: 400 KiB of headers: {}", response.body);
    }

    let stream = tls(&installed, &[b"http/1.1"], Some(&pair)).await;
    let (read, mut write) = tokio::io::split(stream);
    let head = format!("GET /version HTTP/1.1\r\nHost: {EXTERNAL_NAME}\r\nX-Large: ");
    let flood = async {
        write.write_all(head.as_bytes()).await?;
        for _ in 0..20 {
            write.write_all(large.as_bytes()).await?;
        }
        write.write_all(b"\r\n\r\n").await
    };
    let response = wire::raw_request(tokio::io::join(read, tokio::io::sink()), b"");
    // The server may close the connection before it has read all of it.
    let (_, response) = tokio::join!(flood, response);
    assert_eq!(response.unwrap().status, 431);

    let mut connection = Connection::open(&installed, Protocol::Http2, &credentials).await;
    let over = vec![("x-large", large.as_str()); 11];
    assert_eq!(connection.send_request(with(get("/version"), &over)).await.status, 431);
    assert_eq!(connection.send_request(get("/version")).await.status, 200, "the connection is still good");
}

#[tokio::test]
async fn unparsable_paths_are_refused_and_unusual_ones_reach_the_api_server_unchanged() {
    let Some(installed) = installed::shared("odd paths").await else { return };
    let pair = installed.certificate("odd-paths", Some("system:masters"));
    for (target, status) in [
        ("/api/v1/namespaces/%zz", 400),
        ("/api/v1/namespaces/%", 400),
        ("/api/v1/watch", 500),
        ("/api/v1/namespaces/default%2Fconfigmaps?limit=1&x=%zz", 200),
    ] {
        let stream = tls(&installed, &[b"http/1.1"], Some(&pair)).await;
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: {EXTERNAL_NAME}\r\nUser-Agent: odd{target}\r\n\r\n");
        let response = wire::raw_request(stream, request.as_bytes()).await.unwrap();
        assert_eq!(response.status, status, "{target}: {}", response.head);
        if status == 200 {
            let event = super::audited(&installed, &format!("odd{target}")).await;
            assert_eq!(event["requestURI"], target);
        }
    }
}
