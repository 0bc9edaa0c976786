//! The protocol of short reads to the API server, with and without `upstreamHTTP2Only`.

use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_concierge::config::{Config, parse};
use pinniped_test_support::{wait, wire};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::concierge::{concierge, control_plane, token};

const READ: &str = "https://localhost/api/v1/namespaces/default/configmaps?limit=1";
const READS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the configuration with these keys in addition to the required ones.
fn config(keys: &str) -> anyhow::Result<Config> {
    Ok(parse(&format!("{}{keys}\n", include_str!("../../testdata/names.yaml")))?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_reads_use_http1_unless_the_configuration_disables_it() -> anyhow::Result<()> {
    let plane = control_plane().await?;
    let admin = plane.client().await?;
    for (keys, http1) in [("", true), ("upstreamHTTP2Only: true", false)] {
        let limits = config(keys)?.upstream_limits();
        let concierge = concierge(&plane, token(&admin).await?, limits).await?;
        let tcp = TcpStream::connect(concierge.proxy.local_addr()).await?;
        let tls = wire::connect_unverified(tcp, "localhost", &[b"h2"], Some(&concierge.reader)).await?;
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        for _ in 0..READS {
            sender.ready().await?;
            let request = Request::get(READ).body(Empty::<Bytes>::new())?;
            let response = sender.send_request(request).await?;
            ensure!(response.status().is_success(), "{}", response.status());
            response.into_body().collect().await?;
        }
        let open = || concierge.upstream.stats();
        if http1 {
            // A connection is dialled in the background.
            let opened = async || (open().short_reads > 0).then_some(());
            wait::until(PATIENCE, "an HTTP/1.1 connection", opened).await?;
        } else {
            ensure!(open().short_reads == 0 && open().connections > 0, "{:?}", open());
        }
    }
    Ok(())
}
