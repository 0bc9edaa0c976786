//! HAProxy in Debian's version.

use std::path::PathBuf;

use anyhow::Context as _;
use pinniped_test_support::pods::NODE_IP;

use super::peers::{MOUNT, PORT, PORT_H1, PORT_TO_H1};

/// Returns the path of HAProxy's program.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    on_path("haproxy").context(
        "haproxy, which the measurement compares with, is not installed: run `apt-get install haproxy` (or leave it out with \
         `--without haproxy`)",
    )
}

/// Returns the path of a system program.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&dirs)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Returns a configuration that sends the same bytes as the proxy: TLS 1.3 on both sides with the
/// suite that the proxy prefers, verified client certificates, impersonation of the common name
/// with the token of an account that has the permission, and shared keep-alive connections to the
/// server. Both sides use the same version of HTTP; a third port converts HTTP/2 to HTTP/1.1.
pub(super) fn config(port: u16, token: &str) -> String {
    let token = token.trim();
    let bind = format!("ssl crt {MOUNT}/peer.pem ca-file {MOUNT}/ca.crt verify required ssl-min-ver TLSv1.3");
    let server = format!(
        "{NODE_IP}:{port} ssl ca-file {MOUNT}/ca.crt verify required verifyhost kubernetes ssl-min-ver TLSv1.3"
    );
    format!(
        "global
  nbthread 2
  maxconn 8000
  tune.h2.max-concurrent-streams 250
  ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384
  ssl-default-server-ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384

defaults
  mode http
  option http-keep-alive
  http-reuse always
  timeout connect 10s
  timeout client 1h
  timeout server 1h
  timeout tunnel 1h
  timeout http-request 30s

frontend h2
  bind :{PORT} {bind} alpn h2
  http-request set-header Authorization \"Bearer {token}\"
  http-request set-header Impersonate-User %[ssl_c_s_dn(CN)]
  default_backend h2

frontend h1
  bind :{PORT_H1} {bind} alpn http/1.1
  http-request set-header Authorization \"Bearer {token}\"
  http-request set-header Impersonate-User %[ssl_c_s_dn(CN)]
  default_backend h1

frontend h2-to-h1
  bind :{PORT_TO_H1} {bind} alpn h2
  http-request set-header Authorization \"Bearer {token}\"
  http-request set-header Impersonate-User %[ssl_c_s_dn(CN)]
  default_backend h1

backend h2
  server api {server} alpn h2 proto h2

backend h1
  server api {server} alpn http/1.1
"
    )
}
