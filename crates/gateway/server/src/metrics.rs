//! The metrics of the data plane.

use std::fmt;

use pinniped_gateway_dataplane::GatewayStats;
use pinniped_http_server::metrics::Metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Registers all counters of a gateway under `pinniped_gateway_...`.
pub(super) fn register(metrics: &Metrics, read: impl Fn() -> GatewayStats + Clone + Send + Sync + 'static) {
    let (tls, plain) = (read.clone(), read.clone());
    metrics.register_server("pinniped_gateway_tls", move || tls().tls);
    metrics.register_server("pinniped_gateway_plain", move || plain().plain);
    let collector = Box::new(GatewayCollector { read: Box::new(read) });
    metrics.register(|registry| registry.register_collector(collector));
}

struct GatewayCollector {
    read: Box<dyn Fn() -> GatewayStats + Send + Sync>,
}

impl fmt::Debug for GatewayCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayCollector").finish_non_exhaustive()
    }
}

/// The values of one label, each with its count.
type Labelled<'a> = (&'a str, &'a [(&'a str, u64)]);

impl Collector for GatewayCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let GatewayStats { counts, tunnels, .. } = (self.read)();
        let mut counter = |name: &str, help: &str, (label, values): Labelled<'_>| {
            let name = format!("pinniped_gateway_{name}");
            let kind = ConstCounter::new(0_u64).metric_type();
            let mut family = encoder.encode_descriptor(&name, help, None, kind)?;
            for (value, count) in values {
                let counter = ConstCounter::new(*count);
                counter.encode(family.encode_family(&[(label, *value)])?)?;
            }
            Ok(())
        };
        counter(
            "client_hellos_refused",
            "Connections of the port for TLS that were closed before any handshake",
            (
                "reason",
                &[
                    ("not_tls", counts.not_tls),
                    ("unfinished", counts.client_hello_unfinished),
                    ("unknown_name", counts.unknown_name),
                    ("unservable", counts.unservable),
                ],
            ),
        )?;
        counter(
            "relayed_bytes",
            "Bytes of connections that are relayed as bytes",
            (
                "direction",
                &[("from_clients", counts.relayed_from_clients), ("to_clients", counts.relayed_to_clients)],
            ),
        )?;
        counter(
            "requests_unanswered",
            "Requests that received an error response of the gateway itself",
            (
                "reason",
                &[
                    ("not_found", counts.not_found),
                    ("misdirected", counts.misdirected),
                    ("backend", counts.failed),
                ],
            ),
        )?;
        let singles = [
            ("connections_relayed", "Connections that went on as bytes", counts.relayed),
            ("connections_unconnected", "Connections that no endpoint took", counts.unconnected),
            ("requests", "Requests", counts.requests),
        ];
        for (name, help, count) in singles {
            let counter = ConstCounter::new(count);
            let name = format!("pinniped_gateway_{name}");
            counter.encode(encoder.encode_descriptor(&name, help, None, counter.metric_type())?)?;
        }
        let open = ConstGauge::new(i64::try_from(tunnels).unwrap_or(i64::MAX));
        open.encode(encoder.encode_descriptor(
            "pinniped_gateway_upgraded_connections_open",
            "Upgraded connections that are open",
            None,
            open.metric_type(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_exported_once() {
        let metrics = Metrics::new();
        let mut stats = GatewayStats { tunnels: 3, ..GatewayStats::default() };
        stats.tls.accepted = 11;
        stats.plain.refused = 12;
        stats.counts.unknown_name = 13;
        stats.counts.unservable = 14;
        stats.counts.relayed_to_clients = 14;
        stats.counts.misdirected = 15;
        stats.counts.requests = 16;
        register(&metrics, move || stats);
        let text = metrics.encode().unwrap();
        for line in [
            "pinniped_gateway_tls_connections_accepted_total 11",
            "pinniped_gateway_plain_connections_refused_total 12",
            "pinniped_gateway_client_hellos_refused_total{reason=\"unknown_name\"} 13",
            "pinniped_gateway_client_hellos_refused_total{reason=\"unservable\"} 14",
            "pinniped_gateway_client_hellos_refused_total{reason=\"not_tls\"} 0",
            "pinniped_gateway_relayed_bytes_total{direction=\"to_clients\"} 14",
            "pinniped_gateway_requests_unanswered_total{reason=\"misdirected\"} 15",
            "pinniped_gateway_requests_total 16",
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
