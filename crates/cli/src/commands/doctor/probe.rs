//! Probes the endpoint as a client would: name resolution, connection, handshake.

use pinniped_pki::tls::{ALPN_HTTP, Probe, Profile, Roots};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use url::Url;

use super::observed::EndpointLook;
use super::read::LOOK_LIMIT;
use crate::dial::Dialer;
use crate::https::{HttpsClient, tls_text};

/// Probes the endpoint. With `system`, also checks whether the system roots trust the certificate.
pub(super) async fn look(dialer: &Dialer, endpoint: &str, system: bool) -> EndpointLook {
    let target = Url::parse(endpoint).map_err(|err| err.to_string()).and_then(|url| {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|err| err.to_string())?;
        Ok((url, host, name))
    });
    let (url, host, name) = match target {
        Ok(target) => target,
        Err(why) => return EndpointLook::Malformed(why),
    };
    let port = url.port_or_known_default().unwrap_or(443);
    let stream = match tokio::time::timeout(LOOK_LIMIT, dialer.dial(&host, port, true)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(why)) => return EndpointLook::Unreachable(why.to_string()),
        Err(_) => return EndpointLook::Unreachable("no answer in time".to_owned()),
    };
    let probe = Probe::new(ALPN_HTTP);
    let handshake = TlsConnector::from(probe.config()).connect(name, stream);
    let outcome = match tokio::time::timeout(LOOK_LIMIT, handshake).await {
        Ok(outcome) => outcome.map(drop).map_err(|err| tls_text(&err)),
        Err(_) => Err("no answer in time".to_owned()),
    };
    let shown = probe.shown();
    if shown.chain.is_empty() {
        return EndpointLook::NoCertificate(outcome.err().unwrap_or_default());
    }
    let system = if system { vouched(dialer, &url).await.err() } else { None };
    EndpointLook::Shown { shown, system }
}

/// Sends a request that is verified with the system roots; any response is a success.
async fn vouched(dialer: &Dialer, url: &Url) -> Result<(), String> {
    let client = HttpsClient::new(dialer.clone(), Profile::Default, Roots::System)?;
    match tokio::time::timeout(LOOK_LIMIT, client.get(url)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(why)) => Err(why.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}
