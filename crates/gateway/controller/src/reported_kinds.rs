//! The kinds whose statuses the gateway writes, and the request that writes each of them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::LoadBalancerStatus;
use k8s_openapi::api::networking::v1::Ingress;
use kube::core::NamespaceResourceScope;
use pinniped_gateway_api::{HttpProxy, IngressRoute};
use pinniped_gateway_routing::{Kind, Name};
use serde::Serialize;
use serde_json::Value;

use super::kinds::Mirrored;
use super::rebuild::ValidationResults;
use super::statuses;

/// The request that writes a status.
#[derive(Clone, Copy, Debug)]
pub(super) enum StatusRequest {
    /// The status subresource, which ignores all other fields.
    Subresource,
    /// The status subresource, which also accepts labels and annotations: the request contains the
    /// whole object.
    WholeSubresource,
    /// The object itself, which has no status subresource.
    Object,
}

/// A kind whose status the gateway writes.
pub(super) trait ReportedKind:
    Mirrored + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
{
    /// The kind.
    const KIND: Kind;
    /// The request that writes its status.
    const REQUEST: StatusRequest;

    /// Returns the new status, or `None` if it is up to date. For an Ingress: the load balancer
    /// part.
    fn wanted(
        &self,
        name: &Name,
        results: &ValidationResults,
        addresses: &LoadBalancerStatus,
    ) -> Option<Value>;
}

impl ReportedKind for HttpProxy {
    const KIND: Kind = Kind::HttpProxy;
    const REQUEST: StatusRequest = StatusRequest::Subresource;

    fn wanted(
        &self,
        name: &Name,
        results: &ValidationResults,
        addresses: &LoadBalancerStatus,
    ) -> Option<Value> {
        let validation = results.http_proxies.get(name)?;
        value(statuses::http_proxy(self, validation, addresses, Timestamp::now())?)
    }
}

impl ReportedKind for IngressRoute {
    const KIND: Kind = Kind::IngressRoute;
    const REQUEST: StatusRequest = StatusRequest::Object;

    fn wanted(&self, name: &Name, results: &ValidationResults, _: &LoadBalancerStatus) -> Option<Value> {
        value(statuses::ingress_route(self, results.ingress_routes.get(name)?)?)
    }
}

impl ReportedKind for Ingress {
    const KIND: Kind = Kind::Ingress;
    const REQUEST: StatusRequest = StatusRequest::WholeSubresource;

    fn wanted(&self, _: &Name, _: &ValidationResults, addresses: &LoadBalancerStatus) -> Option<Value> {
        value(statuses::ingress(self, addresses)?)
    }
}

fn value(status: impl Serialize) -> Option<Value> {
    // All keys of a status are strings, so that serialization cannot fail.
    serde_json::to_value(status).ok()
}
