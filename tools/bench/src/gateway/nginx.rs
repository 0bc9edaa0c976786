//! nginx, passing connections through by the server name.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::stage::{Origin, PASSED};
use crate::run::haproxy::on_path;

/// The path of the module on Debian.
const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Returns the path of the program.
pub(super) fn find() -> anyhow::Result<PathBuf> {
    const FIX: &str =
        "run `apt-get install nginx-light libnginx-mod-stream` (or leave it out with `--without nginx`)";
    let program = on_path("nginx")
        .with_context(|| format!("nginx, which the measurement compares with, is not installed: {FIX}"))?;
    ensure!(Path::new(MODULE).is_file(), "nginx's module stream is not at {MODULE}: {FIX}");
    Ok(program)
}

/// Returns the configuration: two workers, no log. The user is the one that starts it, because the
/// run's namespace has no other.
pub(super) fn config(listen: SocketAddr, origin: &Origin, dir: &Path) -> String {
    let dir = dir.display();
    let origin = origin.tls;
    format!(
        "load_module {MODULE};
daemon off;
user root;
worker_processes 2;
pid {dir}/nginx.pid;
error_log stderr;
events {{
  worker_connections 8000;
}}
stream {{
  map $ssl_preread_server_name $to {{
    {PASSED} origin;
  }}
  upstream origin {{
    server {origin};
  }}
  server {{
    listen {listen};
    ssl_preread on;
    proxy_pass $to;
  }}
}}
"
    )
}
