//! Metrics that every server program has: the build, connections, capacity.

use pinniped_http_server::{Capacity, Listeners, Stats};
use pinniped_metrics::definitions::{capacity, connections, program};
use pinniped_metrics::{Definition, Metrics, Samples};

/// Registers the metrics of the build, of all listeners, and of the capacity that they share.
pub fn register(metrics: &Metrics, listeners: &Listeners, capacity: &Capacity) {
    metrics.collect(&program::BUILD_INFO, |samples| samples.push([pinniped_version::VERSION], 1));
    register_connections(metrics, listeners);
    register_capacity(metrics, capacity);
}

fn register_connections(metrics: &Metrics, listeners: &Listeners) {
    type Read = fn(Stats) -> u64;
    let families: [(&'static Definition, Read); 6] = [
        (&connections::OPEN, |stats| stats.open),
        (&connections::ACCEPTED, |stats| stats.accepted),
        (&connections::REFUSED, |stats| stats.refused),
        (&connections::HANDSHAKES_FAILED, |stats| stats.handshakes_failed),
        (&connections::TOO_MANY_RESETS, |stats| stats.too_many_resets),
        (&connections::ACCEPT_FAILURES, |stats| stats.accept_failures),
    ];
    for (definition, value) in families {
        let listeners = listeners.clone();
        metrics.collect(definition, move |samples| {
            for (listener, stats) in listeners.stats() {
                samples.push([listener], value(stats));
            }
        });
    }
}

fn register_capacity(metrics: &Metrics, of: &Capacity) {
    type Read = fn(&Capacity, &mut Samples);
    let families: [(&'static Definition, Read); 9] = [
        (&capacity::CONNECTIONS_LIMIT, |of, samples| samples.push([], of.stats().connections_limit)),
        (&capacity::CONNECTIONS_OPEN, |of, samples| samples.push([], of.stats().connections_open)),
        (&capacity::CONNECTIONS_PROVISIONAL, |of, samples| {
            samples.push([], of.stats().connections_provisional);
        }),
        (&capacity::MEMORY_LIMIT, |of, samples| {
            of.stats().memory_limit.into_iter().for_each(|limit| samples.push([], limit));
        }),
        (&capacity::MEMORY_USED, |of, samples| samples.push([], of.stats().memory_used)),
        (&capacity::BUFFER_LIMIT, |of, samples| samples.push([], of.stats().budget_limit)),
        (&capacity::BUFFER_USED, |of, samples| samples.push([], of.stats().budget_used)),
        (&capacity::CONNECTIONS_DISPLACED, |of, samples| {
            samples.push([], of.stats().connections_displaced);
        }),
        (&capacity::REFUSED, |of, samples| {
            let stats = of.stats();
            let refused = [stats.refused_connections, stats.refused_address, stats.refused_budget];
            for (reason, count) in capacity::REFUSED_REASONS.iter().zip(refused) {
                samples.push([reason], count);
            }
        }),
    ];
    for (definition, read) in families {
        let of = of.clone();
        metrics.collect(definition, move |samples| read(&of, samples));
    }
}

#[cfg(test)]
mod tests {
    use pinniped_metrics::Format;

    use super::*;

    #[test]
    fn connections_capacity_and_version_are_exported() {
        let (metrics, listeners, capacity) = (Metrics::new(), Listeners::default(), Capacity::default());
        register(&metrics, &listeners, &capacity);
        listeners.add("proxy", || Stats { open: 2, accepted: 5, ..Stats::default() });
        listeners.add("api", Stats::default);
        let _open = capacity.connect([192, 0, 2, 1].into()).expect("a permit");
        let text = metrics.encode(Format::Text).expect("encode");
        for line in [
            "pinniped_connections_open{listener=\"proxy\"} 2",
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
        assert!(!text.contains("pinniped_capacity_memory_limit_bytes"), "there is no limit: {text}");
    }
}
