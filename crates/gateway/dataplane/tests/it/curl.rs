//! Requests of `curl`, an independent client.

use std::net::SocketAddr;

use crate::world::{Backend, CA, Table, all_to, gateway, pair, prefix, to};
use pinniped_gateway_routing::table::{Action, Protocol};
use pinniped_test_support::tools;

/// Returns the output of `curl`; `None` if it is not installed.
async fn curl(tls: SocketAddr, plain: SocketAddr, arguments: &[&str]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    tokio::fs::write(&ca, &CA.certificate_pem).await.unwrap();
    let (tls, plain) = (tls.port(), plain.port());
    let mut command = tokio::process::Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*", "--cacert"]).arg(ca);
    for (name, port, to) in [("a.local", 443, tls), ("a.local", 80, plain), ("b.local", 443, tls)] {
        command.arg("--connect-to").arg(format!("{name}:{port}:127.0.0.1:{to}"));
    }
    let output = match command.args(arguments).output().await {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{error}"),
    };
    Some(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
}

#[tokio::test]
async fn curl_uses_both_http_versions_and_is_redirected_from_port_80() {
    let backend = Backend::http("backend").await;
    let through = Backend::https("through", &pair(&["b.local"]), b"http/1.1").await;
    let gateway = gateway();
    let mut only_tls = prefix(
        "/",
        Action::Respond(pinniped_gateway_routing::table::Response {
            status: http::StatusCode::OK,
            body: "".into(),
        }),
    );
    only_tls.upgrade_to_https = true;
    Table::new()
        .https("a.local", &pair(&["a.local"]), all_to(to(&[backend.address])))
        .passthrough("b.local", crate::world::one(crate::world::upstream(Protocol::Tls, &[through.address])))
        .plain("a.local", vec![only_tls])
        .serve(&gateway);
    let send_request =
        async |arguments: &[&str]| curl(gateway.tls_addr(), gateway.plain_addr(), arguments).await;
    let Some(version) = send_request(&["--version"]).await else {
        return tools::skip("requests of curl", "the program curl is not in PATH (package curl)");
    };
    if version.contains("HTTP2") {
        let report =
            send_request(&["--http2", "--write-out", "%{http_version}", "https://a.local/x"]).await.unwrap();
        assert!(report.starts_with("backend\nGET /x HTTP/1.1\n") && report.ends_with('2'), "{report}");
    }
    let report = send_request(&["--http1.1", "--data", "some", "https://a.local/x"]).await.unwrap();
    assert!(report.starts_with("backend\nPOST /x HTTP/1.1\n") && report.ends_with("\n\nsome"), "{report}");
    let report = send_request(&["https://b.local/through"]).await.unwrap();
    assert!(report.starts_with("through\nGET /through HTTP/1.1\n"), "{report}");
    let report = send_request(&["--location", "http://a.local/from"]).await.unwrap();
    assert!(report.starts_with("backend\nGET /from HTTP/1.1\n"), "{report}");
    let report =
        send_request(&["--header", "Host: other.local", "--write-out", "%{http_code}", "https://a.local/"])
            .await;
    assert_eq!(report.unwrap(), "421");
}
