//! The metrics of the data plane, except for those of requests and certificates.

use pinniped_gateway_dataplane::GatewayStats;
use pinniped_gateway_metrics::{self as definitions, listeners as names};
use pinniped_http_server::Listeners;
use pinniped_metrics::Metrics;

/// Registers the counters of a gateway, and adds its listeners.
pub(super) fn register(
    metrics: &Metrics,
    listeners: &Listeners,
    read: impl Fn() -> GatewayStats + Clone + Send + Sync + 'static,
) {
    let (tls, plain) = (read.clone(), read.clone());
    listeners.add(names::TLS, move || tls().tls);
    listeners.add(names::PLAIN, move || plain().plain);
    metrics.collect(move |samples| {
        let GatewayStats { counts, tunnels, .. } = read();
        for (reason, count) in [
            ("not_tls", counts.not_tls),
            ("unfinished", counts.client_hello_unfinished),
            ("unknown_name", counts.unknown_name),
            ("unservable", counts.unservable),
        ] {
            samples.push(&definitions::CLIENT_HELLOS_REFUSED, [reason], count);
        }
        samples.push(&definitions::CONNECTIONS_RELAYED, [], counts.relayed);
        samples.push(&definitions::CONNECTIONS_UNCONNECTED, [], counts.unconnected);
        samples.push(&definitions::RELAYED_BYTES, ["from_clients"], counts.relayed_from_clients);
        samples.push(&definitions::RELAYED_BYTES, ["to_clients"], counts.relayed_to_clients);
        samples.push(&definitions::REQUEST_BYTES, ["from_clients"], counts.request_bytes_from_clients);
        samples.push(&definitions::REQUEST_BYTES, ["to_clients"], counts.request_bytes_to_clients);
        for (reason, count) in
            [("not_found", counts.not_found), ("misdirected", counts.misdirected), ("backend", counts.failed)]
        {
            samples.push(&definitions::REQUESTS_UNANSWERED, [reason], count);
        }
        let tunnels = u64::try_from(tunnels).unwrap_or(u64::MAX);
        samples.push(&definitions::UPGRADED_CONNECTIONS_OPEN, [], tunnels);
    });
}

#[cfg(test)]
mod tests {
    use pinniped_http_server::Capacity;

    use super::*;

    #[test]
    fn every_counter_is_exported_once() {
        let (metrics, listeners) = (Metrics::new(), Listeners::default());
        pinniped_program::metrics::register(&metrics, &listeners, &Capacity::default());
        let mut stats = GatewayStats { tunnels: 3, ..GatewayStats::default() };
        stats.tls.accepted = 11;
        stats.plain.refused = 12;
        stats.counts.unknown_name = 13;
        stats.counts.unservable = 14;
        stats.counts.relayed_to_clients = 14;
        stats.counts.request_bytes_to_clients = 17;
        stats.counts.misdirected = 15;
        register(&metrics, &listeners, move || stats);
        let text = metrics.text().unwrap();
        for line in [
            "pinniped_connections_accepted_total{listener=\"tls\"} 11",
            "pinniped_connections_refused_total{listener=\"plain\"} 12",
            "pinniped_gateway_client_hellos_refused_total{reason=\"unknown_name\"} 13",
            "pinniped_gateway_client_hellos_refused_total{reason=\"unservable\"} 14",
            "pinniped_gateway_client_hellos_refused_total{reason=\"not_tls\"} 0",
            "pinniped_gateway_relayed_bytes_total{direction=\"to_clients\"} 14",
            "pinniped_gateway_request_bytes_total{direction=\"from_clients\"} 0",
            "pinniped_gateway_request_bytes_total{direction=\"to_clients\"} 17",
            "pinniped_gateway_requests_unanswered_total{reason=\"misdirected\"} 15",
            "pinniped_gateway_connections_relayed_total 0",
            "pinniped_gateway_connections_unconnected_total 0",
            "pinniped_gateway_upgraded_connections_open 3",
        ] {
            assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}\n{text}");
        }
        for word in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            assert_eq!(text.matches(&format!("# TYPE {word}\n")).count(), 1, "{word}");
        }
    }
}
