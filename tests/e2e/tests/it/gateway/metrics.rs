//! `/metrics` of the gateway: a real scrape, which the tool of Prometheus checks and the
//! definitions describe.

use pinniped_gateway_metrics::of_the_program;
use pinniped_test_support::{tools, wait};
use serde_json::json;

use super::backend::Backend;
use super::environment;
use crate::installed::TIME_LIMIT;
use crate::metrics::{agrees_with_definitions, is_bounded, lint};

#[tokio::test]
async fn a_real_scrape_passes_the_checks_of_prometheus_and_names_no_host_and_no_secret() {
    let Some(promtool) = tools::promtool("metrics of the gateway") else { return };
    let Some(environment) = environment::shared("scraped").await else { return };
    let host = environment.host("web");
    let web = Backend::plain("web").await;
    let mut objects = environment.service("web", web.address);
    objects.push(environment.secret("cert", &environment.serving("shown", &host)));
    objects.push(environment.proxy(
        "web",
        json!({"virtualhost": {"fqdn": host, "tls": {"secretName": "cert"}},
            "routes": [{"services": [{"name": "web", "port": 80}]}]}),
    ));
    environment.apply(&objects).await;
    environment.await_served(&host, "shown", "web to nobody about /").await;
    for door in environment.doors() {
        // Other tests may send requests at the same time, which end, too.
        let idle = wait::until(TIME_LIMIT, "a moment without requests", async || {
            (environment.metric(door, "pinniped_gateway_requests_in_flight").await == 0).then_some(())
        });
        environment.check(idle.await);
        let text = environment.scrape(door).await;
        lint(&promtool, &text).unwrap();
        is_bounded(&text, of_the_program());
        agrees_with_definitions(&text, of_the_program());
        for sample in [
            "pinniped_gateway_requests_total{method=\"GET\",code_class=\"2xx\"} ",
            "pinniped_gateway_request_duration_seconds_count{method=\"GET\"} ",
            "pinniped_gateway_certificate_expiry_timestamp_seconds ",
            "pinniped_gateway_certificates{remaining=\"longer\"} ",
        ] {
            let value = text.lines().find_map(|line| line.strip_prefix(sample)?.parse::<u64>().ok());
            assert!(value.is_some_and(|value| value > 0), "{sample} is missing in\n{text}");
        }
        for name in [&host, &environment.namespace] {
            assert!(!text.contains(name.as_str()), "a metric contains a name");
        }
    }
}
