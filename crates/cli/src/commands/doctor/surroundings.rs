//! Checks the environment of the proxy: its Services, and the kubeconfigs that refer to it.

use pinniped_concierge_api::config::StrategyReason;
use pinniped_go_compat::base64 as gobase64;
use pinniped_pki::CaBundle;

use super::finding::Finding;
use super::observed::{KubeconfigEntry, Observed, ReadResult};

/// Checks the Services.
pub(super) fn check_services(observed: &Observed) -> Vec<Finding> {
    let wanted = match observed.proxy().map(|proxy| proxy.service.type_.as_deref().unwrap_or_default()) {
        Some("None") | None => return Vec::new(),
        Some("ClusterIP") => "ClusterIP",
        Some(_) => "LoadBalancer",
    };
    let off = |strategy: &pinniped_concierge_api::config::CredentialIssuerStrategy| {
        strategy.reason == StrategyReason::Disabled
    };
    if observed.proxy_strategy().is_none_or(off) {
        return Vec::new();
    }
    let what = format!("the proxy's Service of type {wanted}");
    let services = match &observed.services {
        ReadResult::Found(services) => services,
        ReadResult::Missing => return Vec::new(),
        ReadResult::Hidden(why) | ReadResult::Failed(why) => return vec![Finding::unseen(what, why.clone())],
    };
    let of_type = |type_: Option<&str>| type_.unwrap_or("ClusterIP") == wanted;
    let found = services.iter().find(|observed_service| {
        observed_service.service.spec.as_ref().is_some_and(|spec| of_type(spec.type_.as_deref()))
    });
    let Some(observed_service) = found else {
        return vec![Finding::problem(
            format!("{what} does not exist"),
            "the Concierge creates it: its strategy or its log has the reason for the failure",
        )];
    };
    let name = observed_service.service.metadata.name.as_deref().unwrap_or_default();
    vec![match &observed_service.ready {
        ReadResult::Found(0) | ReadResult::Missing => Finding::problem(
            format!("no ready endpoint exists for service {name}"),
            format!(
                "see whether the Concierge's pods are ready: kubectl get pods --namespace {}",
                observed.namespace_or_default()
            ),
        ),
        ReadResult::Found(count) => Finding::Fine(format!("service {name} leads to ready pods: {count}")),
        ReadResult::Hidden(why) | ReadResult::Failed(why) => {
            Finding::unseen(format!("the pods behind service {name}"), why.clone())
        }
    }]
}

/// Checks the kubeconfigs.
pub(super) fn check_kubeconfigs(observed: &Observed) -> Vec<Finding> {
    let info = observed
        .proxy_strategy()
        .and_then(|strategy| strategy.frontend.as_ref()?.impersonation_proxy_info.as_ref());
    let Some(info) = info else { return Vec::new() };
    let mut findings = Vec::new();
    let advertised = gobase64::decode(info.certificate_authority_data.as_bytes()).unwrap_or_default();
    for entry in &observed.entries {
        let KubeconfigEntry { file, checked, cluster, server, ca } = entry;
        let name = format!("cluster {cluster} of kubeconfig {file}");
        if !same_url(server, &info.endpoint) {
            if *checked {
                findings.push(Finding::problem(
                    format!("{name} leads to {server}, but the proxy is at {}", info.endpoint),
                    REGENERATE,
                ));
            }
            continue;
        }
        match ca {
            Err(why) => {
                findings
                    .push(Finding::problem(format!("the CA of {name} cannot be read: {why}"), REGENERATE));
            }
            Ok(pem) if same_bundle(pem, &advertised) => {
                findings.push(Finding::Fine(format!("{name} trusts what the proxy advertises")));
            }
            Ok(_) => findings.push(Finding::problem(
                format!("{name} trusts another CA than the proxy advertises"),
                REGENERATE,
            )),
        }
    }
    findings
}

/// Returns whether a server is the impersonation proxy.
pub(super) fn leads_to_proxy(observed: &Observed, server: &str) -> bool {
    let strategy = observed.proxy_strategy();
    let info = strategy.and_then(|strategy| strategy.frontend.as_ref()?.impersonation_proxy_info.as_ref());
    info.is_some_and(|info| same_url(server, &info.endpoint))
}

const REGENERATE: &str = "create and distribute it again: pinniped get kubeconfig";

fn same_url(a: &str, b: &str) -> bool {
    let parse = |text: &str| url::Url::parse(text).ok();
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => {
            a.host_str() == b.host_str() && a.port_or_known_default() == b.port_or_known_default()
        }
        _ => a == b,
    }
}

/// Returns whether both contain the same certificates, regardless of the encoding.
fn same_bundle(a: &[u8], b: &[u8]) -> bool {
    let parse = |pem: &[u8]| CaBundle::from_pem(pem).map(|bundle| bundle.sha256()).ok();
    a == b || (parse(a).is_some() && parse(a) == parse(b))
}

#[cfg(test)]
mod tests;
