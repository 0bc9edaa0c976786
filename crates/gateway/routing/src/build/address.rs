//! The addresses of the gateway, for the status of routing objects.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Service};

/// Parses a comma-separated list of IP addresses and host names, as an administrator configures it.
pub fn addresses(list: &str) -> LoadBalancerStatus {
    let places = list.split(',').map(str::trim).filter(|path| !path.is_empty()).map(|path| {
        let mut ingress = LoadBalancerIngress::default();
        match path.parse::<IpAddr>() {
            Ok(address) => ingress.ip = Some(address.to_string()),
            Err(_) => ingress.hostname = Some(path.to_owned()),
        }
        ingress
    });
    status(places.collect())
}

/// Returns the load balancer addresses of the gateway's Service.
pub fn addresses_of_service(service: &Service) -> LoadBalancerStatus {
    let places = service.status.as_ref().and_then(|status| status.load_balancer.as_ref()?.ingress.clone());
    status(places.unwrap_or_default())
}

fn status(places: Vec<LoadBalancerIngress>) -> LoadBalancerStatus {
    LoadBalancerStatus { ingress: (!places.is_empty()).then_some(places) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_entry_is_an_address_or_a_host_name() {
        let read = addresses(" 10.0.0.1,::1, lb.example.com,,");
        let places: Vec<_> = read.ingress.unwrap().into_iter().map(|path| (path.ip, path.hostname)).collect();
        assert_eq!(
            places,
            [
                (Some("10.0.0.1".to_owned()), None),
                (Some("::1".to_owned()), None),
                (None, Some("lb.example.com".to_owned())),
            ]
        );
        assert_eq!(addresses(""), LoadBalancerStatus::default());
    }

    #[test]
    fn a_service_has_the_addresses_of_its_load_balancer() {
        let mut service = Service::default();
        assert_eq!(addresses_of_service(&service), LoadBalancerStatus::default());
        let given = addresses("10.0.0.1");
        service.status.get_or_insert_default().load_balancer = Some(given.clone());
        assert_eq!(addresses_of_service(&service), given);
    }
}
