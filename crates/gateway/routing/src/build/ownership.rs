//! The ownership of hosts by namespaces.
//!
//! The oldest object that claims a host owns it, regardless of its kind. The host then belongs to
//! the object's namespace, on both ports and for all kinds. The owner keeps the host even if it
//! cannot be served: a temporarily missing certificate does not give the host to another namespace.
//! A wildcard also owns the names below it, unless they have an older owner.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{HostOwnership, Kind, Name, Objects, Settings, table::HostPattern};

use super::{http_proxy, ingress, ingress_route};

/// The claim of an object to a host.
pub(super) struct Claim {
    host: HostPattern,
    /// The creation time of the object, its name and its kind, which determine the order of claims.
    order: (Option<Timestamp>, Name, Kind),
}

impl Claim {
    pub(super) fn new(host: &str, kind: Kind, metadata: &ObjectMeta) -> Self {
        let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
        Self { host: key(&HostPattern::parse(host)), order: (created, Name::of(metadata), kind) }
    }
}

/// The object that owns a host.
pub(super) struct Owner {
    kind: Kind,
    name: Name,
}

/// The owners of hosts.
#[derive(Default)]
pub(super) struct Owners(HashMap<HostPattern, Owner>);

impl Owners {
    /// Determines the owners of all hosts that objects of the configured classes claim. Empty if
    /// namespaces share hosts.
    pub(super) fn of(objects: &Objects, settings: &Settings) -> Self {
        if settings.host_ownership == HostOwnership::Shared {
            return Self::default();
        }
        let mut claims: Vec<Claim> = ingress::claims(&objects.ingresses, settings)
            .chain(ingress_route::claims(&objects.ingress_routes, settings))
            .chain(http_proxy::claims(&objects.http_proxies, settings))
            .collect();
        claims.sort_by(|one, other| one.order.cmp(&other.order));
        let mut owners = Self::default();
        for Claim { host, order: (_, name, kind) } in claims {
            // The claims are processed from the oldest to the youngest: existing owners of the host
            // or of a wildcard above it are older.
            if owners.find(&host).is_none_or(|(_, owner)| owner.name.namespace == name.namespace) {
                owners.0.entry(host).or_insert(Owner { kind, name });
            }
        }
        owners
    }

    /// Returns the reason why a namespace may not have a host; `None` if it may.
    pub(super) fn refusal(&self, host: &HostPattern, namespace: &str) -> Option<String> {
        let (owned, Owner { kind, name }) = self.find(&key(host))?;
        if name.namespace == namespace {
            return None;
        }
        let by = if *owned == key(host) { String::new() } else { format!(" with host \"{owned}\"") };
        Some(format!(
            "host \"{host}\" belongs to namespace \"{}\": {kind} {name}{by} is older",
            name.namespace
        ))
    }

    /// Returns the owner of a host: of the host itself, otherwise of the longest wildcard above it.
    fn find(&self, host: &HostPattern) -> Option<(&HostPattern, &Owner)> {
        if let Some(own) = self.0.get_key_value(host) {
            return Some(own);
        }
        let (HostPattern::Exact(name) | HostPattern::Wildcard(name)) = host else { return None };
        let mut rest = &**name;
        while let Some((_, after)) = rest.split_once('.') {
            if let Some(above) = self.0.get_key_value(&HostPattern::Wildcard(after.into())) {
                return Some(above);
            }
            rest = after;
        }
        None
    }
}

/// Normalizes a host for comparison: a trailing dot is removed.
fn key(host: &HostPattern) -> HostPattern {
    let bare = |name: &str| name.trim_end_matches('.').into();
    match host {
        HostPattern::Exact(name) => HostPattern::Exact(bare(name)),
        HostPattern::Wildcard(name) => HostPattern::Wildcard(bare(name)),
        HostPattern::Any => HostPattern::Any,
    }
}
