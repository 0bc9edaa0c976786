//! The kinds that are told what has become of them, and how each is written to.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::LoadBalancerStatus;
use k8s_openapi::api::networking::v1::Ingress;
use kube::core::NamespaceResourceScope;
use pinniped_gateway_api::{HttpProxy, IngressRoute};
use pinniped_gateway_routing::{Kind, Name};
use serde::Serialize;
use serde_json::Value;

use super::kinds::Mirrored;
use super::rebuild::Verdicts;
use super::statuses;

/// How a status is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// To the status subresource, of which nothing else is taken.
    Subresource,
    /// To the status subresource, which takes labels and annotations, too: with all of the object.
    WholeSubresource,
    /// To the object, which has no subresource.
    Object,
}

/// A kind whose objects are told.
pub(super) trait Told:
    Mirrored + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
{
    /// The kind.
    const KIND: Kind;
    /// How.
    const WAY: Way;

    /// What its status should become, or `None` if it is as it should be. Of an Ingress, the load balancer.
    fn wanted(&self, name: &Name, verdicts: &Verdicts, addresses: &LoadBalancerStatus) -> Option<Value>;
}

impl Told for HttpProxy {
    const KIND: Kind = Kind::HttpProxy;
    const WAY: Way = Way::Subresource;

    fn wanted(&self, name: &Name, verdicts: &Verdicts, addresses: &LoadBalancerStatus) -> Option<Value> {
        let verdict = verdicts.http_proxies.get(name)?;
        value(statuses::http_proxy(self, verdict, addresses, Timestamp::now())?)
    }
}

impl Told for IngressRoute {
    const KIND: Kind = Kind::IngressRoute;
    const WAY: Way = Way::Object;

    fn wanted(&self, name: &Name, verdicts: &Verdicts, _: &LoadBalancerStatus) -> Option<Value> {
        value(statuses::ingress_route(self, verdicts.ingress_routes.get(name)?)?)
    }
}

impl Told for Ingress {
    const KIND: Kind = Kind::Ingress;
    const WAY: Way = Way::WholeSubresource;

    fn wanted(&self, _: &Name, _: &Verdicts, addresses: &LoadBalancerStatus) -> Option<Value> {
        value(statuses::ingress(self, addresses)?)
    }
}

fn value(status: impl Serialize) -> Option<Value> {
    // None of them has keys that are not text.
    serde_json::to_value(status).ok()
}
