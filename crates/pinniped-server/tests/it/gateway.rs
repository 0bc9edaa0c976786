//! Start failures of `pinniped-gateway`.

use std::net::TcpListener;
use std::path::Path;

/// Runs the program, which must fail, and returns its standard error.
fn refusal(podinfo: &Path, args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = crate::command(folder.path(), "pinniped-gateway")
        .args(args)
        .arg(format!("--downward-api-path={}", podinfo.display()))
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn podinfo() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("namespace"), "gateway").unwrap();
    std::fs::write(directory.path().join("name"), "gateway-1").unwrap();
    directory
}

#[test]
fn unknown_flags_are_reported_in_one_line() {
    let podinfo = podinfo();
    assert_eq!(
        refusal(podinfo.path(), &["--use-proxy-protocol"]),
        "Error: unknown flag: --use-proxy-protocol\n"
    );
    let contour = refusal(podinfo.path(), &["serve"]);
    assert_eq!(contour, "Error: unknown command \"serve\" for \"pinniped-gateway\"\n");
}

#[test]
fn missing_configuration_is_logged_in_one_line() {
    let podinfo = podinfo();
    let nowhere = refusal(Path::new("/nowhere"), &["--http-port=0"]);
    assert!(
        nowhere.contains("could not read pod metadata: could not load namespace: open /nowhere/namespace")
    );
    // The test does not run in a cluster.
    let outside = refusal(podinfo.path(), &["--http-port=0"]);
    assert!(
        outside.contains("could not create a client: unable to load in-cluster configuration"),
        "{outside}"
    );

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let port = format!("--http-port={}", address.port());
    let busy = refusal(podinfo.path(), &["--http-address=127.0.0.1", &port]);
    let wanted = format!("could not listen for health and metrics on {address}: ");
    assert!(busy.contains(&wanted), "{busy}");
    for log in [nowhere, outside, busy] {
        assert_eq!(log.lines().count(), 1, "{log}");
        let line: serde_json::Value = serde_json::from_str(&log).unwrap();
        assert_eq!(line["level"], "error");
    }
}
