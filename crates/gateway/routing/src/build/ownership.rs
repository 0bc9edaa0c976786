//! Which namespace has which host.
//!
//! The oldest object that claims a host owns it, whatever kind it is; its namespace has the host then, on both ports and
//! for all kinds. Whether the owner can be served does not matter: a host whose certificate is gone for a moment is
//! nobody else's. A wildcard also owns the names below it, unless they have an older owner.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{HostOwnership, Kind, Name, Objects, Settings, table::HostPattern};

use super::{http_proxy, ingress, ingress_route};

/// An object that wants a host.
pub(super) struct Claim {
    host: HostPattern,
    /// When the object was made, its name, and its kind: what decides, in this order.
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
    /// Of all hosts that objects of our classes claim; none where hosts are shared.
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
            // From the oldest on: whatever is known of the host or above it was there before.
            if owners.find(&host).is_none_or(|(_, owner)| owner.name.namespace == name.namespace) {
                owners.0.entry(host).or_insert(Owner { kind, name });
            }
        }
        owners
    }

    /// Why a namespace may not have a host, if it may not.
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

    /// The owner of a host: its own, else that of the longest wildcard above it.
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

/// A host as it is compared: with a dot at the end it is the same one.
fn key(host: &HostPattern) -> HostPattern {
    let bare = |name: &str| name.trim_end_matches('.').into();
    match host {
        HostPattern::Exact(name) => HostPattern::Exact(bare(name)),
        HostPattern::Wildcard(name) => HostPattern::Wildcard(bare(name)),
        HostPattern::Any => HostPattern::Any,
    }
}
