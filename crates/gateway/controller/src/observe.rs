//! The watches and the mirrors that they fill.

mod mirror_updater;

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{LoadBalancerStatus, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use kube::Api;
use kube::runtime::watcher;
use pinniped_delegation::api::{DelegationGroup, TlsCertificateDelegation};
use pinniped_gateway_api::{HttpProxy, IngressRoute};
use pinniped_gateway_routing::{Name, Objects, Settings, addresses, addresses_of_service};
use pinniped_tasks::{TaskGroup, TaskMonitor};
use tokio::sync::watch;

use self::mirror_updater::{MirrorUpdater, WatchLog};
use super::StatusAddresses;
use super::changes::Changes;
use super::kinds::Mirrored;
use super::mirror::Mirror;
use pinniped_controller::follow::{Change, follow, follow_slim};
use pinniped_controller::runtime::Trigger;

/// Excludes Helm's release Secrets, which are numerous and large, on the server side.
const SECRETS: &str = "type!=helm.sh/release.v1";

/// The mirrors of all watches of a kind.
#[derive(Debug)]
pub(super) struct Mirrors<K>(Vec<Arc<Mirror<K>>>);

impl<K> Default for Mirrors<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Mirrored> Mirrors<K> {
    /// Returns all objects, in no particular order.
    pub(super) fn all(&self) -> Vec<Arc<K>> {
        match self.0.as_slice() {
            [one] => one.all(),
            many => many.iter().flat_map(|mirror| mirror.all()).collect(),
        }
    }

    #[cfg(test)]
    pub(super) fn of(objects: Vec<K>) -> Self {
        let mirror = Mirror::default();
        mirror.replace_all(objects);
        Self(vec![Arc::new(mirror)])
    }

    #[cfg(test)]
    pub(super) fn set(&self, object: K) {
        self.0[0].set(object);
    }

    /// Returns an object.
    pub(super) fn get(&self, name: &Name) -> Option<Arc<K>> {
        self.0.iter().find_map(|mirror| mirror.get(name))
    }
}

/// The known objects of the cluster.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) http_proxies: Mirrors<HttpProxy>,
    pub(super) ingress_routes: Mirrors<IngressRoute>,
    pub(super) ingresses: Mirrors<Ingress>,
    delegations: Mirrors<TlsCertificateDelegation>,
    secrets: Mirrors<Secret>,
    services: Mirrors<Service>,
    endpoint_slices: Mirrors<EndpointSlice>,
}

impl Observed {
    /// Returns the input for a build.
    pub(super) fn objects(&self) -> Objects {
        Objects {
            http_proxies: self.http_proxies.all(),
            ingress_routes: self.ingress_routes.all(),
            ingresses: self.ingresses.all(),
            delegations: self.delegations.all(),
            secrets: self.secrets.all(),
            services: self.services.all(),
            endpoint_slices: self.endpoint_slices.all(),
        }
    }
}

/// The running watches. Dropping this value stops them.
pub(super) struct Watching {
    pub(super) observed: Arc<Observed>,
    /// The addresses of the gateway; empty while they are unknown.
    pub(super) addresses: watch::Receiver<LoadBalancerStatus>,
    responded: Vec<watch::Receiver<bool>>,
    _tasks: TaskGroup,
}

impl Watching {
    /// Resolves when each kind has been listed once, or its list has been refused.
    pub(super) async fn responded(&mut self) {
        for responded in &mut self.responded {
            // The channel closes only when all watches stop.
            let _terminated = responded.wait_for(|responded| *responded).await;
        }
    }
}

/// The receivers of changes.
#[derive(Clone)]
pub(super) struct Listeners {
    /// Receives the changes that are relevant for the table.
    pub(super) changes: Arc<Changes>,
    /// Triggered by any change of an object whose status the gateway writes, including a change of
    /// its status only.
    pub(super) statuses: Trigger,
}

/// Starts all watches.
pub(super) fn start(
    client: &kube::Client,
    settings: &Settings,
    namespaces: &[String],
    addresses: &StatusAddresses,
    listeners: &Listeners,
    monitor: &TaskMonitor,
) -> Watching {
    let mut starter = Starter { client, listeners, tasks: TaskGroup::new(monitor), responded: Vec::new() };
    let everywhere = Scope::of(namespaces);
    let observed = Observed {
        http_proxies: starter.kind(&everywhere, &()),
        ingress_routes: starter.kind(&everywhere, &()),
        ingresses: starter.kind(&everywhere, &()),
        delegations: Mirrors(
            DelegationGroup::ALL
                .into_iter()
                .flat_map(|group| starter.dynamic_kind(&grants_scope(settings, namespaces), group).0)
                .collect(),
        ),
        secrets: starter.kind(&secrets_scope(settings, namespaces), &()),
        services: starter.kind(&everywhere, &()),
        endpoint_slices: starter.kind(&everywhere, &()),
    };
    let addresses = starter.addresses(addresses);
    Watching { observed: Arc::new(observed), addresses, responded: starter.responded, _tasks: starter.tasks }
}

/// The namespaces in which a kind is watched.
#[derive(Debug, PartialEq, Eq)]
enum Scope {
    Everywhere,
    /// These namespaces.
    Namespaces(BTreeSet<String>),
}

impl Scope {
    fn of(namespaces: &[String]) -> Self {
        if namespaces.is_empty() {
            Self::Everywhere
        } else {
            Self::Namespaces(namespaces.iter().cloned().collect())
        }
    }

    /// Adds these namespaces.
    fn and<'a>(self, more: impl IntoIterator<Item = &'a String>) -> Self {
        match self {
            Self::Everywhere => Self::Everywhere,
            Self::Namespaces(mut namespaces) => {
                namespaces.extend(more.into_iter().cloned());
                Self::Namespaces(namespaces)
            }
        }
    }
}

/// Returns the namespaces in which the owners of Secrets can grant their use. Certificates that an
/// administrator configures need no grant.
fn grants_scope(settings: &Settings, namespaces: &[String]) -> Scope {
    Scope::of(namespaces).and(settings.fallback_certificate.iter().map(|secret| &secret.namespace))
}

/// Returns the namespaces in which roots may exist and those of configured certificates. Secrets in
/// other namespaces are not needed.
fn secrets_scope(settings: &Settings, namespaces: &[String]) -> Scope {
    let roots = &settings.root_namespaces;
    let scope = if roots.is_empty() {
        Scope::of(namespaces)
    } else {
        let is_watched = |name: &&String| namespaces.is_empty() || namespaces.contains(name);
        Scope::Namespaces(roots.iter().filter(is_watched).cloned().collect())
    };
    let chosen = settings.fallback_certificate.iter().chain(&settings.client_certificate);
    scope.and(chosen.map(|secret| &secret.namespace))
}

struct Starter<'a> {
    client: &'a kube::Client,
    listeners: &'a Listeners,
    tasks: TaskGroup,
    responded: Vec<watch::Receiver<bool>>,
}

impl Starter<'_> {
    fn kind<K>(&mut self, scope: &Scope, dynamic: &K::DynamicType) -> Mirrors<K>
    where
        K: Mirrored + kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        let config = watcher::Config::default();
        let config = if K::plural(dynamic) == "secrets" { config.fields(SECRETS) } else { config };
        let apis = match scope {
            Scope::Everywhere => vec![Api::all(self.client.clone())],
            Scope::Namespaces(names) => {
                names.iter().map(|name| Api::namespaced(self.client.clone(), name)).collect()
            }
        };
        let name = format!("{}.{}", K::plural(dynamic), K::group(dynamic));
        Mirrors(apis.into_iter().map(|api| self.watch(api, &config, name.trim_end_matches('.'))).collect())
    }

    fn dynamic_kind(&mut self, scope: &Scope, group: DelegationGroup) -> Mirrors<TlsCertificateDelegation> {
        let apis = match scope {
            Scope::Everywhere => vec![Api::all_with(self.client.clone(), &group)],
            Scope::Namespaces(names) => {
                let inside = |name| Api::namespaced_with(self.client.clone(), name, &group);
                names.iter().map(|name| inside(name)).collect()
            }
        };
        let name = format!("{}.{}", TlsCertificateDelegation::PLURAL, group.group());
        Mirrors(apis.into_iter().map(|api| self.watch(api, &watcher::Config::default(), &name)).collect())
    }

    fn watch<K: Mirrored>(&mut self, api: Api<K>, config: &watcher::Config, what: &str) -> Arc<Mirror<K>> {
        let mirror = Arc::new(Mirror::default());
        let (sender, responded) = watch::channel(false);
        self.responded.push(responded);
        let mut updater = MirrorUpdater {
            mirror: Arc::clone(&mirror),
            listeners: self.listeners.clone(),
            log: WatchLog::new(what),
            responded: sender,
        };
        let config = config.clone();
        self.tasks.spawn(format!("watch of {what}"), |_dropped| async move {
            follow_slim(&api, config, None, K::slim, |change| updater.take(change)).await;
        });
        mirror
    }

    fn addresses(&mut self, wanted: &StatusAddresses) -> watch::Receiver<LoadBalancerStatus> {
        let (sender, receiver) = watch::channel(LoadBalancerStatus::default());
        match wanted {
            StatusAddresses::Configured(list) => _ = sender.send_replace(addresses(list)),
            StatusAddresses::OfService { namespace, name } => {
                let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
                let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
                let what = format!("services in namespace {namespace}");
                let mut log = WatchLog::new(&what);
                let name = name.clone();
                self.tasks.spawn(format!("watch of {what}"), |_dropped| async move {
                    follow(&api, config, Some(&name), |change| {
                        let service = match change {
                            Change::All(mut services) => services.pop(),
                            Change::Set(service) => Some(service),
                            Change::Gone(_) => None,
                            Change::Refused(refusal) => return log.refused(&refusal),
                            Change::Failing(error) => return log.failing(&error),
                        };
                        log.recovered();
                        sender.send_replace(
                            service.map_or_else(Default::default, |it| addresses_of_service(&it)),
                        );
                    })
                    .await;
                });
            }
        }
        receiver
    }
}

#[cfg(test)]
mod tests;
