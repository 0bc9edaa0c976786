//! The contexts of a kubeconfig with their entries, for commands about all of them.

use kube::config::{AuthInfo, Cluster, Kubeconfig};

/// A context with its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContextEntries<'a> {
    pub(super) name: &'a str,
    pub(super) cluster_name: &'a str,
    /// `None` if the kubeconfig does not have the cluster.
    pub(super) cluster: Option<&'a Cluster>,
    pub(super) user_name: &'a str,
    /// `None` if the kubeconfig does not have the user.
    pub(super) user: Option<&'a AuthInfo>,
}

/// Returns the contexts in the order of the kubeconfig.
pub(super) fn of(config: &Kubeconfig) -> Vec<ContextEntries<'_>> {
    let contexts = config.contexts.iter().filter_map(|named| Some((named, named.context.as_ref()?)));
    contexts
        .map(|(named, context)| {
            let user_name = context.user.as_deref().unwrap_or_default();
            let cluster = config.clusters.iter().find(|named| named.name == context.cluster);
            let user = config.auth_infos.iter().find(|named| named.name == user_name);
            ContextEntries {
                name: &named.name,
                cluster_name: &context.cluster,
                cluster: cluster.and_then(|named| named.cluster.as_ref()),
                user_name,
                user: user.and_then(|named| named.auth_info.as_ref()),
            }
        })
        .collect()
}
