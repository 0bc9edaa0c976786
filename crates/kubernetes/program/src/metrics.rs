//! Metrics that the Concierge and the gateway have: the build, connections, capacity; and the
//! response to a scrape.

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use pinniped_http_server::{Body, Capacity, Listeners, body, layers};
use pinniped_kube_metrics::{capacity, connections, program};
use pinniped_metrics::{Format, Metrics, ScrapeError};

/// Seconds after which a scraper tries again when there are too many scrapes.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("5");

/// Responds to a scrape with these request headers, in the format that it accepts.
pub async fn respond(metrics: &Metrics, headers: &HeaderMap) -> Response<Body> {
    let format = Format::of(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    match metrics.scrape(format).await {
        Ok(text) => {
            let mut response = Response::new(body::full(text));
            let content_type = HeaderValue::from_static(format.content_type());
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            response
        }
        Err(error @ ScrapeError::Busy) => {
            let mut response = layers::plain_error(StatusCode::SERVICE_UNAVAILABLE, &error.to_string());
            response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
            response
        }
        Err(error @ (ScrapeError::Encode(_) | ScrapeError::Interrupted(_))) => {
            layers::plain_error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
        }
    }
}

/// Registers the metrics of the build, of all listeners, and of the capacity that they share.
pub fn register(metrics: &Metrics, listeners: &Listeners, capacity: &Capacity) {
    metrics.collect(|samples| {
        samples.push(&program::BUILD_INFO, [pinniped_version::VERSION], 1);
    });
    let listeners = listeners.clone();
    metrics.collect(move |samples| {
        for (listener, stats) in listeners.stats() {
            let on_workers = stats.open_by_worker().iter().enumerate();
            for (worker, open) in on_workers {
                samples.push(&connections::OPEN, [listener, &worker.to_string()], *open);
            }
            if stats.workers == 0 {
                samples.push(&connections::OPEN, [listener, connections::NO_WORKER], stats.open);
            }
            for (family, value) in [
                (&connections::ACCEPTED, stats.accepted),
                (&connections::REFUSED, stats.refused),
                (&connections::HANDSHAKES_FAILED, stats.handshakes_failed),
                (&connections::TOO_MANY_RESETS, stats.too_many_resets),
                (&connections::ACCEPT_FAILURES, stats.accept_failures),
            ] {
                samples.push(family, [listener], value);
            }
        }
    });
    let capacity = capacity.clone();
    metrics.collect(move |samples| {
        let stats = capacity.stats();
        for (family, value) in [
            (&capacity::CONNECTIONS_LIMIT, stats.connections_limit),
            (&capacity::CONNECTIONS_OPEN, stats.connections_open),
            (&capacity::CONNECTIONS_PROVISIONAL, stats.connections_provisional),
            (&capacity::CONNECTIONS_DISPLACED, stats.connections_displaced),
            (&capacity::MEMORY_USED, stats.memory_used),
            (&capacity::BUFFER_LIMIT, stats.budget_limit),
            (&capacity::BUFFER_USED, stats.budget_used),
            (&capacity::IN_TRANSIT_LIMIT, stats.in_transit_limit),
            (&capacity::IN_TRANSIT, stats.in_transit),
            (&capacity::CONNECTIONS_EVICTED, stats.connections_evicted),
        ] {
            samples.push(family, [], value);
        }
        if let Some(limit) = stats.memory_limit {
            samples.push(&capacity::MEMORY_LIMIT, [], limit);
        }
        let refused = [stats.refused_connections, stats.refused_address, stats.refused_budget];
        for ((reason, _), count) in capacity::REFUSED_REASONS.iter().zip(refused) {
            samples.push(&capacity::REFUSED, [reason], count);
        }
    });
}

#[cfg(test)]
mod tests {
    use pinniped_http_server::Stats;
    use pinniped_metrics::SCRAPE_TIMEOUT;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_scrape_that_waits_too_long_is_refused_with_the_time_of_the_next_attempt() {
        let metrics = Metrics::new();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = std::sync::Mutex::new(released);
        metrics.collect(move |samples| {
            let _ = released.lock().map(|released| released.recv());
            samples.push(&program::LEADER, [], 1);
        });
        let scrape = |metrics: Metrics| async move {
            let response = respond(&metrics, &HeaderMap::new()).await;
            let header =
                |name| response.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
            (response.status().as_u16(), header(CONTENT_TYPE), header(RETRY_AFTER))
        };
        let (first, second) = (tokio::spawn(scrape(metrics.clone())), tokio::spawn(scrape(metrics)));
        tokio::task::yield_now().await;
        tokio::time::advance(SCRAPE_TIMEOUT).await;
        let (status, _, retry_after) = second.await.expect("a response");
        assert_eq!((status, retry_after.as_deref()), (503, Some("5")));
        drop(release);
        let (status, content_type, _) = first.await.expect("a response");
        assert_eq!((status, content_type.as_deref()), (200, Some(Format::Text.content_type())));
    }

    #[test]
    fn connections_capacity_and_version_are_exported() {
        let (metrics, listeners, capacity) = (Metrics::new(), Listeners::default(), Capacity::default());
        register(&metrics, &listeners, &capacity);
        let mut open_on_worker = Stats::default().open_on_worker;
        open_on_worker[..3].copy_from_slice(&[0, 2, 7]);
        let proxy = Stats { accepted: 5, workers: 2, open_on_worker, ..Stats::default() };
        listeners.add("proxy", move || proxy);
        listeners.add("api", || Stats { open: 3, ..Stats::default() });
        let _open = capacity.connect([192, 0, 2, 1].into()).expect("a permit");
        let text = metrics.text().expect("encode");
        for line in [
            "pinniped_connections_open{listener=\"proxy\",worker=\"0\"} 0",
            "pinniped_connections_open{listener=\"proxy\",worker=\"1\"} 2",
            "pinniped_connections_open{listener=\"api\",worker=\"none\"} 3",
            "pinniped_connections_accepted_total{listener=\"proxy\"} 5",
            "pinniped_connections_accepted_total{listener=\"api\"} 0",
            "pinniped_capacity_connections_open 1",
            "pinniped_capacity_connections_provisional 1",
            "pinniped_capacity_buffer_limit_bytes 268435456",
            "pinniped_capacity_memory_used_bytes 65536",
            "pinniped_capacity_buffer_used_bytes 0",
            "pinniped_capacity_refused_total{reason=\"address\"} 0",
            &format!("pinniped_build_info{{version=\"{}\"}} 1", pinniped_version::VERSION),
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} is not in {text}");
        }
        assert_eq!(text.matches("pinniped_connections_open{").count(), 3, "{text}");
        assert!(!text.contains("pinniped_capacity_memory_limit_bytes"), "there is no limit: {text}");
    }
}
