//! Fields that are not implemented.
//!
//! Ignoring a field that could restrict access or change a request would be unsafe: the object is
//! refused. The same applies to a field that this version does not define, because it could be of
//! that kind. A few fields are known to affect convenience only: they are ignored with a warning.

use pinniped_gateway_api::{
    Others,
    http_proxy::{HttpProxySpec, LoadBalancerPolicy, MatchCondition, Service, VirtualHost},
    is_void,
};

use super::{Index, Proxies, Refused};
use crate::status::{Finding, Part};

/// The paths of fields that can be ignored with a warning.
const COMFORT: [&str; 8] = [
    "Spec.Routes.retryPolicy",
    "Spec.Routes.healthCheckPolicy",
    "Spec.Routes.internalRedirectPolicy",
    "Spec.Routes.LoadBalancerPolicy.requestHashPolicies",
    "Spec.Services.healthPort",
    "Spec.Services.slowStartPolicy",
    "Spec.TCPProxy.healthCheckPolicy",
    "Spec.TCPProxy.LoadBalancerPolicy.requestHashPolicies",
];

impl Proxies<'_, '_, '_> {
    /// Refuses an object with fields that are not implemented, and adds warnings for the ignored
    /// ones.
    pub(super) fn check_support(&mut self, index: Index) -> Result<(), Refused> {
        let Some(spec) = self.list[index].spec else { return Err(Refused) };
        let validation = &mut self.validations[index];
        let mut supported = true;
        each_other_field(spec, &mut |path, field| {
            let name = format!("{path}.{field}");
            if COMFORT.contains(&name.as_str()) {
                let message = format!("ignoring field \"{name}\"; it is not supported");
                validation.warn(Finding::new(Part::Spec, "IgnoredField", message));
            } else {
                let message = format!("field \"{name}\" is not supported");
                validation.error(Finding::new(Part::Spec, "UnsupportedFeature", message));
                supported = false;
            }
        });
        if skips_client_validation(spec.virtualhost.as_ref()) {
            // The field delegates the decision to an authorization server, which is not
            // implemented.
            let message =
                "field \"Spec.VirtualHost.TLS.ClientValidation.skipClientCertValidation\" is not supported";
            validation.error(Finding::new(Part::Spec, "UnsupportedFeature", message));
            supported = false;
        }
        if supported { Ok(()) } else { Err(Refused) }
    }
}

fn skips_client_validation(host: Option<&VirtualHost>) -> bool {
    let validation = host.and_then(|host| host.tls.as_ref()?.client_validation.as_ref());
    validation.is_some_and(|validation| validation.skip_client_cert_validation)
}

/// Calls `tell` for each non-empty field without a type, with its path.
fn each_other_field(spec: &HttpProxySpec, tell: &mut impl FnMut(&str, &str)) {
    let mut others = |path: &str, others: &Others| {
        others.iter().filter(|(_, value)| !is_void(value)).for_each(|(name, _)| tell(path, name));
    };
    others("Spec", &spec.others);
    if let Some(host) = &spec.virtualhost {
        others("Spec.VirtualHost", &host.others);
        if let Some(tls) = &host.tls {
            others("Spec.VirtualHost.TLS", &tls.others);
            if let Some(validation) = &tls.client_validation {
                others("Spec.VirtualHost.TLS.ClientValidation", &validation.others);
            }
        }
    }
    for include in &spec.includes {
        others("Spec.Includes", &include.others);
        conditions("Spec.Includes", &include.conditions, &mut others);
    }
    for route in &spec.routes {
        others("Spec.Routes", &route.others);
        conditions("Spec.Routes", &route.conditions, &mut others);
        services(&route.services, &mut others);
        balance("Spec.Routes", route.load_balancer_policy.as_ref(), &mut others);
        if let Some(policy) = &route.timeout_policy {
            others("Spec.Routes.TimeoutPolicy", &policy.others);
        }
        if let Some(policy) = &route.path_rewrite_policy {
            others("Spec.Routes.PathRewritePolicy", &policy.others);
        }
        if let Some(policy) = &route.request_redirect_policy {
            others("Spec.Routes.RequestRedirectPolicy", &policy.others);
        }
        if let Some(policy) = &route.direct_response_policy {
            others("Spec.Routes.DirectResponsePolicy", &policy.others);
        }
    }
    if let Some(tcp) = &spec.tcpproxy {
        others("Spec.TCPProxy", &tcp.others);
        services(&tcp.services, &mut others);
        balance("Spec.TCPProxy", tcp.load_balancer_policy.as_ref(), &mut others);
    }
}

fn conditions(path: &str, conditions: &[MatchCondition], others: &mut impl FnMut(&str, &Others)) {
    for condition in conditions {
        let all = [
            Some(&condition.others),
            condition.header.as_ref().map(|header| &header.others),
            condition.query_parameter.as_ref().map(|query| &query.others),
        ];
        for unknown in all.into_iter().flatten().filter(|unknown| !unknown.is_empty()) {
            others(&format!("{path}.Conditions"), unknown);
        }
    }
}

fn services(services: &[Service], others: &mut impl FnMut(&str, &Others)) {
    for service in services {
        others("Spec.Services", &service.others);
        if let Some(validation) = &service.validation {
            others("Spec.Services.Validation", &validation.others);
        }
    }
}

fn balance(path: &str, policy: Option<&LoadBalancerPolicy>, others: &mut impl FnMut(&str, &Others)) {
    if let Some(policy) = policy.filter(|policy| !policy.others.is_empty()) {
        others(&format!("{path}.LoadBalancerPolicy"), &policy.others);
    }
}
