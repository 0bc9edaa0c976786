//! Probes the endpoint as a client would: name resolution, connection, handshake.

use std::time::Duration;

use pinniped_error::chain;
use pinniped_go_compat::network as go_network;
use pinniped_http_client::https::{SendError, host_of};
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_pki::tls::{ALPN_HTTP, Probe, Profile, Roots, TlsError};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use url::Url;

use super::observed::EndpointProbe;
use crate::https;

/// Probes the endpoint; `limit` is the timeout of each of its requests. With `system`, also checks
/// whether the system roots trust the certificate.
pub(super) async fn probe_endpoint(
    dialer: &TcpDialer,
    endpoint: &str,
    system: bool,
    limit: Duration,
) -> EndpointProbe {
    let target = Url::parse(endpoint).map_err(|err| err.to_string()).and_then(|url| {
        let host = host_of(&url);
        let name = ServerName::try_from(host.clone()).map_err(|err| err.to_string())?;
        Ok((url, host, name))
    });
    let (url, host, name) = match target {
        Ok(target) => target,
        Err(why) => return EndpointProbe::Malformed(why),
    };
    let port = url.port_or_known_default().unwrap_or(443);
    let stream = match tokio::time::timeout(limit, dialer.dial(&host, port, true)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(why)) => return EndpointProbe::Unreachable(why.to_string()),
        Err(_) => return EndpointProbe::Unreachable("no response in time".to_owned()),
    };
    let probe = Probe::new(ALPN_HTTP);
    let handshake = TlsConnector::from(probe.config()).connect(name, stream);
    let result = match tokio::time::timeout(limit, handshake).await {
        Ok(result) => result.map(drop).map_err(|err| go_network::handshake(&err, &host)),
        Err(_) => Err("no response in time".to_owned()),
    };
    let shown = probe.presented();
    if shown.chain.is_empty() {
        return EndpointProbe::NoCertificate(result.err().unwrap_or_default());
    }
    let system = if system { vouched(dialer, &url, limit).await.err() } else { None };
    let system = system.map(|error| chain(&error).to_string());
    EndpointProbe::Connected { shown, system }
}

/// The reason why the system roots do not verify a server.
#[derive(Debug, thiserror::Error)]
enum VouchError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("no response in time")]
    Timeout,
}

/// Sends a request that is verified with the system roots; any response is a success.
async fn vouched(dialer: &TcpDialer, url: &Url, limit: Duration) -> Result<(), VouchError> {
    let client = https::client(dialer.clone(), Profile::Default, Roots::System)?;
    tokio::time::timeout(limit, client.get(url)).await.map_err(|_| VouchError::Timeout)??;
    Ok(())
}
