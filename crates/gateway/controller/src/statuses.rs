//! Computes the statuses of objects. The functions are pure, so that a writer can repeat them after
//! a conflict.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus};
use k8s_openapi::api::networking::v1::{Ingress, IngressLoadBalancerIngress, IngressLoadBalancerStatus};
use pinniped_gateway_api::http_proxy::HttpProxyStatus;
use pinniped_gateway_api::ingress_route::IngressRouteStatus;
use pinniped_gateway_api::{HttpProxy, IngressRoute};
use pinniped_gateway_routing::status::{HttpProxyValidation, IngressRouteValidation};

/// Returns the status of an `HTTPProxy`, or `None` if it is up to date, or if the validation result
/// is for another generation: a result for this generation follows.
pub(super) fn http_proxy(
    object: &HttpProxy,
    validation: &HttpProxyValidation,
    addresses: &LoadBalancerStatus,
    now: Timestamp,
) -> Option<HttpProxyStatus> {
    if object.metadata.generation != validation.generation {
        return None;
    }
    let status = validation.status(object.status.as_ref(), now);
    let known = status.as_ref().or(object.status.as_ref())?;
    let reachable = known.load_balancer.as_ref().and_then(|known| known.ingress.as_deref());
    let reachable = reachable.unwrap_or_default();
    let wanted = addresses_only(addresses);
    let is_there = wanted.len() == reachable.len()
        && wanted
            .iter()
            .zip(reachable)
            .all(|(one, other)| (&one.ip, &one.hostname) == (&other.ip, &other.hostname));
    if wanted.is_empty() || is_there {
        return status;
    }
    let mut status = known.clone();
    status.load_balancer = Some(LoadBalancerStatus { ingress: Some(wanted) });
    Some(status)
}

/// Returns the status of an `IngressRoute`, or `None` if it is up to date.
pub(super) fn ingress_route(
    object: &IngressRoute,
    validation: &IngressRouteValidation,
) -> Option<IngressRouteStatus> {
    validation.status(object.status.as_ref())
}

/// Returns the load balancer status of an `Ingress`, or `None` if it is up to date.
pub(super) fn ingress(object: &Ingress, addresses: &LoadBalancerStatus) -> Option<IngressLoadBalancerStatus> {
    let known = object.status.as_ref().and_then(|status| status.load_balancer.as_ref()?.ingress.as_deref());
    let known = known.unwrap_or_default();
    let wanted = addresses_only(addresses);
    let is_there = wanted.len() == known.len()
        && wanted
            .iter()
            .zip(known)
            .all(|(one, other)| (&one.ip, &one.hostname) == (&other.ip, &other.hostname));
    let convert =
        |LoadBalancerIngress { ip, hostname, .. }| IngressLoadBalancerIngress { ip, hostname, ports: None };
    (!wanted.is_empty() && !is_there)
        .then(|| IngressLoadBalancerStatus { ingress: Some(wanted.into_iter().map(convert).collect()) })
}

/// Returns the addresses and host names only: not every CRD has fields for the other properties of
/// a load balancer.
fn addresses_only(addresses: &LoadBalancerStatus) -> Vec<LoadBalancerIngress> {
    let all = addresses.ingress.iter().flatten();
    all.map(|address| LoadBalancerIngress {
        ip: address.ip.clone(),
        hostname: address.hostname.clone(),
        ..LoadBalancerIngress::default()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use pinniped_gateway_routing::addresses;
    use serde_json::{Value, json};

    use super::*;

    fn proxy(generation: i64, status: &Value) -> HttpProxy {
        let metadata = json!({"namespace": "ns", "name": "p", "generation": generation});
        serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).unwrap()
    }

    fn validation(generation: i64) -> HttpProxyValidation {
        HttpProxyValidation { generation: Some(generation), ..HttpProxyValidation::default() }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(9).unwrap()
    }

    fn value(status: Option<HttpProxyStatus>) -> Value {
        serde_json::to_value(status).unwrap()
    }

    #[test]
    fn the_status_and_addresses_of_a_proxy_are_one_write() {
        let (none, one, two) = (addresses(""), addresses("10.0.0.1"), addresses("10.0.0.1,lb.example"));
        let first = value(http_proxy(&proxy(1, &Value::Null), &validation(1), &none, now()));
        assert_eq!((&first["currentStatus"], &first["loadBalancer"]), (&json!("valid"), &Value::Null));
        assert_eq!(http_proxy(&proxy(1, &first), &validation(1), &none, now()), None, "nothing changes");

        let both = value(http_proxy(&proxy(1, &Value::Null), &validation(1), &one, now()));
        assert_eq!(both["conditions"][0]["reason"], "Valid");
        assert_eq!(both["loadBalancer"], json!({"ingress": [{"ip": "10.0.0.1"}]}));
        assert_eq!(http_proxy(&proxy(1, &both), &validation(1), &one, now()), None, "nothing changes");
        assert_eq!(
            http_proxy(&proxy(1, &both), &validation(1), &none, now()),
            None,
            "an address is not removed"
        );

        let later = value(http_proxy(&proxy(1, &both), &validation(1), &two, now()));
        assert_eq!(
            later["loadBalancer"],
            json!({"ingress": [{"ip": "10.0.0.1"}, {"hostname": "lb.example"}]})
        );
        assert_eq!(later["conditions"], both["conditions"]);
    }

    #[test]
    fn a_result_for_another_generation_is_not_written() {
        for generation in [1, 3] {
            let status = http_proxy(&proxy(2, &Value::Null), &validation(generation), &addresses("h"), now());
            assert_eq!(status, None, "{generation}");
        }
    }

    #[test]
    fn fields_that_some_definitions_drop_are_not_written() {
        let mut of_service = addresses("10.0.0.1");
        of_service.ingress.as_mut().unwrap()[0].ip_mode = Some("VIP".to_owned());
        let status = value(http_proxy(&proxy(1, &Value::Null), &validation(1), &of_service, now()));
        assert_eq!(status["loadBalancer"], json!({"ingress": [{"ip": "10.0.0.1"}]}));
    }

    #[test]
    fn an_ingress_status_contains_only_addresses() {
        let object = |status: Value| -> Ingress {
            serde_json::from_value(json!({"metadata": {"name": "i"}, "status": status})).unwrap()
        };
        let known = |list: &str| json!({"loadBalancer": serde_json::to_value(addresses(list)).unwrap()});
        for (current, wanted, written) in [
            (Value::Null, "", false),
            (Value::Null, "10.0.0.1,h", true),
            (known("10.0.0.1,h"), "10.0.0.1,h", false),
            (known("10.0.0.1,h"), "", false),
            (known("10.0.0.1"), "h", true),
        ] {
            let status = ingress(&object(current.clone()), &addresses(wanted));
            assert_eq!(status.is_some(), written, "{current} {wanted}");
            if let Some(status) = status {
                assert_eq!(serde_json::to_value(status).unwrap(), known(wanted)["loadBalancer"]);
            }
        }
    }

    #[test]
    fn the_status_of_a_route_is_its_validation_result() {
        let object = |status: Value| -> IngressRoute {
            serde_json::from_value(json!({"metadata": {}, "spec": {}, "status": status})).unwrap()
        };
        let status = ingress_route(&object(Value::Null), &IngressRouteValidation::Valid).unwrap();
        assert_eq!(status.current_status, "valid");
        let status = object(serde_json::to_value(status).unwrap());
        assert_eq!(ingress_route(&status, &IngressRouteValidation::Valid), None);
    }
}
