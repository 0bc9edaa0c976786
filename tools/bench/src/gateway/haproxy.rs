//! HAProxy with the functions of the gateway.

use std::net::SocketAddr;
use std::path::Path;

use super::stage::{ENDED, Origin, PASSED};

/// The listeners.
pub(super) struct Ports {
    /// TCP mode.
    pub(super) tcp: SocketAddr,
    /// TCP mode, with bytes spliced in the kernel.
    pub(super) splice: SocketAddr,
    /// HTTP mode.
    pub(super) http: SocketAddr,
}

/// Returns the configuration. In TCP mode the server name of the ClientHello selects the backend.
/// In HTTP mode TLS is terminated with the suites that the gateway prefers, the backend receives
/// the same headers about the client as from the gateway, and connections to it are kept alive and
/// shared. Sessions are not resumed in either mode.
pub(super) fn config(ports: &Ports, origin: &Origin, certificate: &Path) -> String {
    let Ports { tcp, splice, http } = ports;
    let Origin { tls, plain } = origin;
    let certificate = certificate.display();
    format!(
        "global
  nbthread 2
  maxconn 4000
  tune.h2.max-concurrent-streams 100
  tune.ssl.cachesize 0
  ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384
  ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets

defaults
  timeout connect 10s
  timeout client 1h
  timeout server 1h
  timeout http-request 30s

frontend tcp
  mode tcp
  bind {tcp}
  tcp-request inspect-delay 10s
  tcp-request content accept if {{ req_ssl_hello_type 1 }}
  use_backend passed if {{ req_ssl_sni -i {PASSED} }}

frontend splice
  mode tcp
  option splice-auto
  bind {splice}
  tcp-request inspect-delay 10s
  tcp-request content accept if {{ req_ssl_hello_type 1 }}
  use_backend spliced if {{ req_ssl_sni -i {PASSED} }}

backend passed
  mode tcp
  server origin {tls}

backend spliced
  mode tcp
  option splice-auto
  server origin {tls}

frontend http
  mode http
  option http-keep-alive
  option forwardfor
  unique-id-format %[uuid]
  unique-id-header X-Request-Id
  bind {http} ssl crt {certificate} alpn h2,http/1.1
  http-request set-header X-Forwarded-Proto https
  use_backend ended if {{ hdr(host),host_only -i {ENDED} }}

backend ended
  mode http
  http-reuse always
  server origin {plain}
"
    )
}
