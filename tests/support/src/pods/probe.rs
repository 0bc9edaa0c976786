//! Readiness probes as kubelet does them: a TCP connection, or an HTTP(S) GET without verification
//! of the certificate.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

use crate::wire;

/// Whether the probe succeeds now. Unsupported kinds (exec, grpc) count as success.
pub(super) async fn succeeds(probe: &Probe, container: &Container, ip: IpAddr) -> bool {
    let limit = Duration::from_secs(u64::try_from(probe.timeout_seconds.unwrap_or(1)).unwrap_or(1));
    tokio::time::timeout(limit, attempt(probe, container, ip))
        .await
        .is_ok_and(|response| response.unwrap_or(false))
}

async fn attempt(probe: &Probe, container: &Container, ip: IpAddr) -> anyhow::Result<bool> {
    if let Some(get) = &probe.http_get {
        let address = SocketAddr::new(ip, port(&get.port, container));
        let tcp = TcpStream::connect(address).await?;
        let path = get.path.as_deref().unwrap_or("/");
        let status = if get.scheme.as_deref() == Some("HTTPS") {
            let tls = wire::connect_unverified(tcp, "pod.invalid", &[b"http/1.1"], None).await?;
            status_of(TokioIo::new(tls), path, address).await?
        } else {
            status_of(TokioIo::new(tcp), path, address).await?
        };
        Ok((200..400).contains(&status))
    } else if let Some(socket) = &probe.tcp_socket {
        TcpStream::connect(SocketAddr::new(ip, port(&socket.port, container))).await?;
        Ok(true)
    } else {
        Ok(true)
    }
}

async fn status_of<T>(io: T, path: &str, address: SocketAddr) -> anyhow::Result<u16>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let request = http::Request::get(path)
        .header(http::header::HOST, address.to_string())
        .header(http::header::USER_AGENT, "kube-probe/1.36")
        .body(Empty::<Bytes>::new())?;
    tokio::select! {
        ended = connection => {
            ended?;
            anyhow::bail!("the connection closed before the response")
        }
        response = sender.send_request(request) => Ok(response?.status().as_u16()),
    }
}

fn port(port: &IntOrString, container: &Container) -> u16 {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|p| p.name.as_deref() == Some(name))
            .map_or(0, |p| p.container_port),
    };
    u16::try_from(number).unwrap_or(0)
}
