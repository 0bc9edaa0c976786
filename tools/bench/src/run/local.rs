//! `pinniped proxy` as a path: on the node's loopback interface, as on a user's machine, with the
//! benchmark's own login. The user and group are those that the load has through the impersonation
//! proxy.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_test_support::control_plane::free_port;
use pinniped_test_support::guardian::{Ending, Process};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;

use super::measured_path::{MeasuredPath, Peer, write};
use super::peers::{GROUP, USER};

/// The path and its processes; the world's guardian terminates them.
pub(super) struct Local {
    pub(super) route: MeasuredPath,
    _processes: [Process; 2],
}

/// Starts it in front of the server on `port` of this machine.
pub(super) async fn start(world: &World, program: &Path, port: u16) -> anyhow::Result<Local> {
    let control_plane = world.control_plane();
    let dir = world.dir().join("bench").join(format!("local-{port}"));
    std::fs::create_dir_all(&dir)?;
    let spawn = |name: &str, command: &Command| {
        let log = control_plane.log_file(name);
        control_plane.guardian().spawn(command, Ending::Kill, &log)
    };

    let pair = control_plane.ca().server("bench-login", &[], &[std::net::Ipv4Addr::LOCALHOST.into()])?;
    let login_port = free_port()?;
    let mut command = Command::new(std::env::current_exe().context("could not find this program")?);
    command.args([
        "login-stub",
        "--listen",
        &format!("127.0.0.1:{login_port}"),
        "--user",
        USER,
        "--group",
        GROUP,
    ]);
    command.arg("--cert").arg(write(&dir, "login.crt", &pair.certificate_pem)?);
    command.arg("--key").arg(write(&dir, "login.key", &pair.private_key_pem)?);
    command.arg("--token").arg(world.dir().join("bench").join("token"));
    let login = spawn("bench-login", &command)?;
    wait::until_ok(Duration::from_secs(20), "the login to listen", async || {
        Ok(tokio::net::TcpStream::connect(("127.0.0.1", login_port)).await?)
    })
    .await
    .with_context(|| control_plane.log_tail("bench-login", 20))?;

    let ca = STANDARD.encode(&control_plane.ca().certificate_pem);
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": {
            "server": format!("https://127.0.0.1:{port}"), "certificate-authority-data": ca}}],
        "users": [{"name": "bench", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1", "command": "pinniped", "args": [
                "login", "static", "--enable-concierge", "--concierge-authenticator-name=bench",
                "--concierge-authenticator-type=webhook",
                format!("--concierge-endpoint=https://127.0.0.1:{login_port}"),
                format!("--concierge-ca-bundle-data={ca}"),
                "--concierge-credential-type=service-account-token", "--credential-cache=",
                "--impersonation-delivery=proxy", "--token=bench"]}}}],
    });
    let kubeconfig = write(&dir, "kubeconfig.json", &kubeconfig.to_string())?;
    let output = dir.join("proxy.yaml");
    let mut command = Command::new(program);
    command.arg("proxy").arg("--kubeconfig").arg(kubeconfig).arg("--output").arg(&output).env("HOME", &dir);
    let proxy = spawn("bench-pinniped-proxy", &command)?;
    let text = wait::until_ok(Duration::from_secs(20), "pinniped proxy to serve", async || {
        Ok(std::fs::read_to_string(&output)?)
    })
    .await
    .with_context(|| control_plane.log_tail("bench-pinniped-proxy", 20))?;
    let field = |name: &str| {
        let found = text.lines().find_map(|line| line.trim().strip_prefix(name));
        found.with_context(|| format!("its kubeconfig has no {name}"))
    };
    let address = field("server: https://")?.to_owned();
    let ca = String::from_utf8(STANDARD.decode(field("certificate-authority-data: ")?)?)?;
    let route = MeasuredPath {
        peer: Peer::Local,
        addresses: [address.clone(), address],
        server_name: "127.0.0.1".to_owned(),
        ca: write(&dir, "proxy-ca.crt", &ca)?,
        pid: proxy.id(),
        bearer: Some(write(&dir, "secret", field("token: ")?)?),
    };
    Ok(Local { route, _processes: [login, proxy] })
}
