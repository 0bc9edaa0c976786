//! Compares the types of the gateway's kinds with the definitions that we install.

use pinniped_gateway_api::{HttpProxy, IngressRoute, Others};
use serde_json::{Value, json};

use crate::{
    crds, documents,
    samples::{Extent, sample},
};

/// Creates an object with every field of its schema.
fn full(definition: &Value) -> Value {
    let mut object = sample(&crds::schema(definition), Extent::Everything);
    object["metadata"] = json!({"name": "x", "namespace": "y"});
    object
}

fn names(others: &Others) -> Vec<&str> {
    others.keys().map(String::as_str).collect()
}

fn definition(file: &str, kind: &str) -> Value {
    let documents = documents::all(file);
    let found = documents.into_iter().find(|document| document["spec"]["names"]["kind"] == kind);
    found.unwrap_or_else(|| panic!("{file} has no {kind}"))
}

#[test]
fn of_a_full_http_proxy_only_what_is_not_implemented_has_no_type() {
    let object = full(&definition("deploy/install-gateway-crds.yaml", HttpProxy::KIND));
    let typed: HttpProxy = serde_json::from_value(object.clone()).unwrap();
    let spec = typed.spec.read().unwrap();
    let host = spec.virtualhost.as_ref().unwrap();
    let tls = host.tls.as_ref().unwrap();
    let route = &spec.routes[0];
    let service = &route.services[0];
    let tcp = spec.tcpproxy.as_ref().unwrap();
    let of_services = [
        "cookieRewritePolicies",
        "healthPort",
        "requestHeadersPolicy",
        "responseHeadersPolicy",
        "slowStartPolicy",
    ];
    let nothing: &[&str] = &[];
    for (place, others, wanted) in [
        ("spec", &spec.others, nothing),
        (
            "virtualhost",
            &host.others,
            &[
                "authorization",
                "corsPolicy",
                "ipAllowPolicy",
                "ipDenyPolicy",
                "jwtProviders",
                "rateLimitPolicy",
            ],
        ),
        ("tls", &tls.others, nothing),
        ("clientValidation", &tls.client_validation.as_ref().unwrap().others, nothing),
        ("includes", &spec.includes[0].others, nothing),
        ("conditions", &spec.includes[0].conditions[0].others, nothing),
        ("header", &route.conditions[0].header.as_ref().unwrap().others, nothing),
        ("queryParameter", &route.conditions[0].query_parameter.as_ref().unwrap().others, nothing),
        (
            "routes",
            &route.others,
            &[
                "authPolicy",
                "cookieRewritePolicies",
                "healthCheckPolicy",
                "internalRedirectPolicy",
                "ipAllowPolicy",
                "ipDenyPolicy",
                "jwtVerificationPolicy",
                "rateLimitPolicy",
                "requestHeadersPolicy",
                "responseHeadersPolicy",
                "retryPolicy",
            ],
        ),
        ("timeoutPolicy", &route.timeout_policy.as_ref().unwrap().others, nothing),
        ("pathRewritePolicy", &route.path_rewrite_policy.as_ref().unwrap().others, nothing),
        (
            "loadBalancerPolicy",
            &route.load_balancer_policy.as_ref().unwrap().others,
            &["requestHashPolicies"],
        ),
        ("requestRedirectPolicy", &route.request_redirect_policy.as_ref().unwrap().others, nothing),
        ("directResponsePolicy", &route.direct_response_policy.as_ref().unwrap().others, nothing),
        ("services", &service.others, &of_services),
        ("validation", &service.validation.as_ref().unwrap().others, nothing),
        ("tcpproxy", &tcp.others, &["healthCheckPolicy"]),
        ("tcpproxy services", &tcp.services[0].others, &of_services),
    ] {
        assert_eq!(names(others), wanted, "{place}");
    }
    // The fields that our types write are those of the schema.
    assert_eq!(serde_json::to_value(&typed.status).unwrap(), object["status"]);
}

#[test]
fn of_a_full_ingress_route_only_what_is_not_implemented_has_no_type() {
    let file = "deploy/install-tls-certificate-delegation-legacy.yaml";
    let definition = definition(file, IngressRoute::KIND);
    let version = &definition["spec"]["versions"][0];
    assert_eq!(
        (&definition["spec"]["group"], &version["name"], &definition["spec"]["names"]["plural"]),
        (&json!(IngressRoute::GROUP), &json!(IngressRoute::VERSION), &json!(IngressRoute::PLURAL))
    );
    assert!(version["subresources"].is_null(), "its status is written on the object itself");
    let object = full(&definition);
    let typed: IngressRoute = serde_json::from_value(object.clone()).unwrap();
    let spec = typed.spec.read().unwrap();
    let host = spec.virtualhost.as_ref().unwrap();
    let route = &spec.routes[0];
    let tcp = spec.tcpproxy.as_ref().unwrap();
    let nothing: &[&str] = &[];
    for (place, others, wanted) in [
        ("spec", &spec.others, nothing),
        ("virtualhost", &host.others, nothing),
        ("tls", &host.tls.as_ref().unwrap().others, nothing),
        ("routes", &route.others, &["retryPolicy"]),
        ("services", &route.services[0].others, &["healthCheck"]),
        ("validation", &route.services[0].validation.as_ref().unwrap().others, nothing),
        ("tcpproxy", &tcp.others, nothing),
    ] {
        assert_eq!(names(others), wanted, "{place}");
    }
    assert!(route.delegate.is_some() && tcp.delegate.is_some());
    assert_eq!(serde_json::to_value(&typed.status).unwrap(), object["status"]);
}
