//! The metrics of a proxy that starts and stops.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};

use crate::api_server::Script;
use crate::world::{World, eventually};

/// The families that only a running proxy has.
const OF_A_RUNNING_PROXY: [&str; 6] = [
    "pinniped_impersonation_proxy_upgraded_connections_open 0",
    "pinniped_impersonation_proxy_upstream_connections 1",
    "pinniped_impersonation_proxy_upstream_streams 1",
    "pinniped_impersonation_proxy_upstream_http1_connections 0",
    r#"pinniped_requests_in_flight{server="impersonation_proxy",limit="long_running"} 1"#,
    r#"pinniped_requests_in_flight_limit{server="impersonation_proxy",limit="long_running"} 20000"#,
];

#[tokio::test]
async fn a_proxy_that_has_stopped_keeps_its_counters_and_has_no_gauges() {
    let script = Script { handler: Arc::new(|_| Box::pin(std::future::pending())), ..Script::default() };
    let world = World::start(script).await;
    let mut sender = world.certificate("u", &[]).h2().await;
    let request = Request::get("https://h/api/v1/pods?watch=1");
    let request = request.body(http_body_util::Empty::<Bytes>::new()).unwrap();
    let open = tokio::spawn(sender.send_request(request));
    eventually("the watch arrives", || !world.api.seen().is_empty()).await;
    let (metrics, listeners) = (world.metrics.clone(), world.listeners.clone());
    let has = |line: &str| metrics.text().unwrap().lines().any(|found| found == line);
    for line in OF_A_RUNNING_PROXY {
        assert!(has(line), "{line} is not in {}", metrics.text().unwrap());
    }
    assert_eq!(listeners.stats().len(), 1);

    world.proxy.stop(Duration::from_millis(100)).await;
    assert!(open.await.unwrap().is_err());
    let abandoned = r#"pinniped_impersonation_proxy_requests_total{result="abandoned"} 1"#;
    eventually("the request is counted", || has(abandoned)).await;
    eventually("the gauges are absent", || {
        let text = metrics.text().unwrap();
        let mut names = OF_A_RUNNING_PROXY.iter().filter_map(|line| line.split(['{', ' ']).next());
        names.all(|name| !text.contains(name))
    })
    .await;
    assert!(listeners.stats().is_empty());
}

#[tokio::test]
async fn the_bytes_of_a_request_and_of_its_response_are_counted() {
    let world = World::start(Script::default()).await;
    let mut sender = world.certificate("u", &[]).h2().await;
    let request = Request::post("https://h/api/v1/namespaces").header("content-length", 5);
    let request = request.body(Full::new(Bytes::from_static(b"12345"))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(!body.is_empty());
    for (direction, count) in [("from_clients", 5), ("to_clients", body.len())] {
        let line = format!("pinniped_impersonation_proxy_bytes_total{{direction=\"{direction}\"}} {count}");
        let text = world.metrics.text().unwrap();
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
}
