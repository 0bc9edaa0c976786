//! Checks the state that the Concierge reports: its strategies, its conditions, its API, its
//! authenticators.

use pinniped_concierge_api::config::{
    CredentialIssuerStrategy, StrategyReason, StrategyStatus, StrategyType,
};
use pinniped_concierge_domain::admission_report::{ADMISSION_APPLIED, NOT_APPLIED, REFUSED};
use pinniped_concierge_domain::credential_issuer::conditions;
use pinniped_concierge_domain::strategy::certificate_signing_requests::mode::Mode;
use pinniped_kube_types::condition::{Condition, TYPE_READY};

use super::finding::{Check, Checked, Finding};
use super::observed::{Observed, ObservedPod, ReadResult};

/// Checks the pods. An installation that works may run elsewhere.
pub(super) fn check_pods(observed: &Observed) -> Vec<Checked> {
    let what = "the Concierge's pods";
    let all = match &observed.pods {
        ReadResult::Found(all) => all,
        ReadResult::Missing => return Vec::new(),
        ReadResult::Hidden(why) | ReadResult::Failed(why) => {
            return vec![(Check::Pods, Finding::unseen(what, why.clone()))];
        }
    };
    if all.is_empty() {
        let runs = observed.api_trouble.found().is_some_and(String::is_empty);
        let namespace = observed.namespace_or_default();
        return if runs {
            Vec::new()
        } else {
            let what = format!("no pod of the Concierge exists in namespace {namespace}");
            let remedy = format!(
                "see why its Deployment creates none: kubectl describe deployment --namespace {namespace}; or apply \
                 the install files again"
            );
            vec![(Check::Pods, Finding::problem(what, remedy))]
        };
    }
    let unready = |pod: &&ObservedPod| !pod.ready;
    let mut findings: Vec<Checked> = all
        .iter()
        .filter(unready)
        .map(|pod| {
            let why = pod.waiting.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            let restarts =
                if pod.restarts > 0 { format!(", restarts: {}", pod.restarts) } else { String::new() };
            let what = format!("pod {} is not ready{why}{restarts}", pod.name);
            (Check::Pods, Finding::problem(what, format!("see its log: {}", logs(observed))))
        })
        .collect();
    if findings.is_empty() {
        findings.push((Check::Pods, Finding::Fine(format!("{what}: {}, all of them ready", all.len()))));
    }
    let mut images: Vec<&str> = all.iter().flat_map(|pod| &pod.images).map(String::as_str).collect();
    images.sort_unstable();
    images.dedup();
    if !images.is_empty() {
        let own = pinniped_version::VERSION;
        let text = format!("the Concierge's image is {}; this program is {own}", images.join(", "));
        findings.push((Check::Versions, Finding::Fine(text)));
    }
    findings
}

/// Checks the strategies, the API and the authenticators. `used` is the type and the name of the
/// authenticator that the kubeconfig under test names.
pub(super) fn check(observed: &Observed, used: Option<&(String, String)>) -> Vec<Checked> {
    let mut findings = vec![(Check::Api, aggregated_api(observed))];
    authenticators(observed, used, &mut findings);
    let strategies = observed.strategies();
    if strategies.is_empty() {
        findings.push((
            Check::AnyStrategy,
            Finding::problem(
                format!("{} has no status: no Concierge has processed it", observed.issuer_argument),
                format!("see whether its pods run: {}", pods(observed)),
            ),
        ));
        return findings;
    }
    let any_works = strategies.iter().any(works);
    let each =
        strategies.iter().map(|strategy| (Check::Strategies, check_one(observed, strategy, any_works)));
    findings.extend(each);
    if !any_works {
        findings.push((
            Check::AnyStrategy,
            Finding::problem(
                "no strategy works, so users cannot log in",
                "resolve one of the above; if the control plane is not accessible, enable the impersonation proxy: \
                 spec.impersonationProxy.mode: enabled",
            ),
        ));
    }
    findings.extend(issuer_conditions(observed));
    findings
}

fn works(strategy: &CredentialIssuerStrategy) -> bool {
    strategy.status == StrategyStatus::Success
}

fn check_one(observed: &Observed, strategy: &CredentialIssuerStrategy, any_works: bool) -> Finding {
    let CredentialIssuerStrategy { type_, message, reason, .. } = strategy;
    if works(strategy) {
        return Finding::Fine(format!("strategy {type_} works: {message}"));
    }
    if *reason == StrategyReason::Disabled {
        return Finding::Fine(format!("strategy {type_} is disabled: {message}"));
    }
    // On a managed control plane this is expected, as long as another strategy works.
    if any_works && is_tried_automatically(observed, type_) {
        return Finding::Fine(format!("strategy {type_} cannot be used in this cluster: {message}"));
    }
    Finding::problem(format!("strategy {type_} fails: {message}"), remedy(observed, message))
}

/// Returns whether the Concierge tries the strategy without being configured to.
fn is_tried_automatically(observed: &Observed, type_: &StrategyType) -> bool {
    match type_ {
        StrategyType::KubeClusterSigningCertificate => true,
        StrategyType::KubeCertificateSigningRequest => {
            Mode::parse(observed.issuer.spec.as_ref()) == Ok(Mode::Auto)
        }
        StrategyType::ImpersonationProxy | StrategyType::ServiceAccountToken | StrategyType::Other(_) => {
            false
        }
    }
}

/// The remedies for the messages of strategies, by a part of the message.
const REMEDIES: [(&str, &str); 26] = [
    (
        "did not sign a CertificateSigningRequest",
        "the cluster has no such signer: enable the impersonation proxy (spec.impersonationProxy.mode: enabled) or \
         service account tokens, and set spec.certificateSigningRequests.mode to disabled",
    ),
    (
        "ignores the requested lifetime",
        "certificates of this signer would be valid for too long: enable the impersonation proxy \
         (spec.impersonationProxy.mode: enabled) or service account tokens, and set \
         spec.certificateSigningRequests.mode to disabled",
    ),
    (
        "the CertificateSigningRequest was denied",
        "let the approver that denies requests ignore those that the Concierge's service account creates",
    ),
    (
        "could not load CredentialIssuer spec.certificateSigningRequests",
        "set spec.certificateSigningRequests.mode to auto, enabled or disabled",
    ),
    (
        "set discovery.url in the Concierge's configuration",
        "follow the message; the Concierge reads the new address without a restart, within about two minutes",
    ),
    (
        "certificate delegation not permitted",
        "the owner of the Secret has to permit it with a TLSCertificateDelegation in the Secret's namespace",
    ),
    (
        "could not read Secret",
        "the owner of the Secret has to let the Concierge's service account get, list and watch it: a Role with \
         resourceNames, and a RoleBinding",
    ),
    ("malformed secretName", "write spec.impersonationProxy.tls.secretName as name or namespace/name"),
    (
        "must provide impersonationSpec.TLS.secretName",
        "name a Secret in spec.impersonationProxy.tls.secretName, or remove the tls block",
    ),
    (
        "must not be the name of the Secret managed by this controller",
        "put your certificate into a Secret with a name of its own",
    ),
    ("unexpected IsCA=true", "put a server certificate into tls.crt of the Secret, not a CA's"),
    (
        "could not parse TLS cert PEM data from Secret",
        "put the certificate chain into tls.crt of the Secret and its key into tls.key, both as PEM",
    ),
    ("unable to read provided ca.crt", "put a PEM bundle into ca.crt of the Secret, or remove that key"),
    (
        "could not decode impersonationSpec.TLS.certificateAuthorityData",
        "write the base64 of a PEM bundle into spec.impersonationProxy.tls.certificateAuthorityData, as printed by base64 -w0",
    ),
    (
        "could not validate the externally provided TLS secret",
        "issue a certificate that clients can use, or set spec.impersonationProxy.tls.validation to Warn",
    ),
    (
        "could not load the externally provided TLS secret",
        "create the Secret, or correct spec.impersonationProxy.tls.secretName",
    ),
    ("does not allow an empty certificateAuthorityData", "follow the message"),
    (
        "waiting for load balancer Service",
        "wait for the Service's address; a cluster without load balancers requires spec.impersonationProxy.service.type \
         ClusterIP or None, and an externalEndpoint",
    ),
    (
        "could not find valid IP addresses or hostnames",
        "correct the status of the load balancer Service, or set spec.impersonationProxy.externalEndpoint",
    ),
    (
        "invalid ExternalEndpoint",
        "write spec.impersonationProxy.externalEndpoint as host or host:port, without https://",
    ),
    ("externalEndpoint must be set", "set spec.impersonationProxy.externalEndpoint"),
    ("invalid LoadBalancerIP", "write an IP address into spec.impersonationProxy.service.loadBalancerIP"),
    ("apply install-pinniped-concierge-", "follow the message, with kubectl apply -f"),
    ("spec.impersonationProxy is nil", "add spec.impersonationProxy with a mode"),
    (
        "could not load CA",
        "delete the Secret whose name ends in -impersonation-proxy-ca-certificate: a new CA is made, and kubeconfigs \
         must be distributed again",
    ),
    (
        "could not load the impersonator's credential signing secret",
        "wait a moment: the Concierge makes the Secret itself",
    ),
];

fn remedy(observed: &Observed, message: &str) -> String {
    let known = REMEDIES.iter().find(|(part, _)| message.contains(part));
    known.map_or_else(
        || format!("see the Concierge's log: {}", logs(observed)),
        |(_, text)| (*text).to_owned(),
    )
}

/// Returns `kubectl` commands that show the pods.
fn pods(observed: &Observed) -> String {
    format!("kubectl get pods --namespace {}", observed.namespace_or_default())
}

fn logs(observed: &Observed) -> String {
    format!(
        "kubectl logs --namespace {} --selector deployment.pinniped.dev=concierge",
        observed.namespace_or_default()
    )
}

fn issuer_conditions(observed: &Observed) -> Vec<Checked> {
    let conditions = observed.issuer.status.as_ref().map_or(&[][..], |status| &status.conditions);
    // If `Ready` is not true, the findings about the strategies have the reason.
    let is_repetition = |condition: &Condition| condition.type_ == TYPE_READY && condition.status != "True";
    let conditions = conditions.iter().filter(|condition| !is_repetition(condition));
    conditions.map(|condition| issuer_condition(observed, condition)).collect()
}

fn issuer_condition(observed: &Observed, condition: &Condition) -> Checked {
    let Condition { type_, status, reason, message, .. } = condition;
    let remedy = || condition_remedy(observed, condition);
    let text = || format!("{type_} is {status}: {message}");
    match (type_.as_str(), status.as_str(), reason.as_str()) {
        (_, "True", _) => (Check::Strategies, Finding::Fine(format!("{type_}: {message}"))),
        // The API refuses requests, so this explains a login that fails.
        (ADMISSION_APPLIED, _, REFUSED) => (Check::Api, Finding::problem(text(), remedy())),
        // The API serves the requests.
        (ADMISSION_APPLIED, "False", NOT_APPLIED) => (Check::Strategies, Finding::warning(text(), remedy())),
        (_, "False", _) => (Check::Strategies, Finding::problem(text(), remedy())),
        _ => (Check::Strategies, Finding::unseen(type_.clone(), message.clone())),
    }
}

fn condition_remedy(observed: &Observed, condition: &Condition) -> String {
    match (condition.type_.as_str(), condition.reason.as_str()) {
        (conditions::SERVING_CERTIFICATE_VALID, _) => {
            "issue a certificate that clients can use; they refuse this one".to_owned()
        }
        (ADMISSION_APPLIED, REFUSED) => format!(
            "{EXCLUDE_FROM_ADMISSION}; or set aggregatedAPIServerUnappliedAdmission to report, so that requests \
             are served without admission"
        ),
        (ADMISSION_APPLIED, _) => EXCLUDE_FROM_ADMISSION.to_owned(),
        _ => format!("see the Concierge's log: {}", logs(observed)),
    }
}

/// The remedy for admission objects that match the Concierge's API.
const EXCLUDE_FROM_ADMISSION: &str = "exclude the Concierge's API groups from the rules of these objects, or list the \
                                      plug-in in aggregatedAPIServerDisableAdmissionPlugins";

fn aggregated_api(observed: &Observed) -> Finding {
    let api = "the API for logins (APIService v1alpha1.login.concierge)";
    match &observed.api_trouble {
        ReadResult::Found(trouble) if trouble.is_empty() => Finding::Fine(format!("{api} is available")),
        ReadResult::Found(trouble) => Finding::problem(
            format!("{api} is not available: {trouble}"),
            format!("see whether the Concierge's pods are ready: {}", pods(observed)),
        ),
        ReadResult::Missing => Finding::problem(
            format!("{api} does not exist"),
            "apply the install files again: kubectl apply -f install-pinniped-concierge-resources.yaml",
        ),
        ReadResult::Hidden(why) | ReadResult::Failed(why) => Finding::unseen(api, why.clone()),
    }
}

fn authenticators(observed: &Observed, used: Option<&(String, String)>, findings: &mut Vec<Checked>) {
    let found = match &observed.authenticators {
        ReadResult::Found(found) => found,
        ReadResult::Missing => return,
        ReadResult::Hidden(why) | ReadResult::Failed(why) => {
            findings.push((Check::Authenticator, Finding::unseen("authenticators", why.clone())));
            return;
        }
    };
    if found.names.is_empty() {
        findings.push((
            Check::Authenticator,
            Finding::problem(
                "there is no authenticator, so users cannot log in",
                "create a WebhookAuthenticator or a JWTAuthenticator",
            ),
        ));
        return;
    }
    let is_used = |name: &str| {
        used.is_some_and(|(kind, used)| {
            name.starts_with(&format!("{kind}authenticator.")) && name.ends_with(&format!("/{used}"))
        })
    };
    if let Some((kind, used)) = used
        && !found.names.iter().any(|name| is_used(name))
    {
        findings.push((
            Check::Authenticator,
            Finding::problem(
                format!("the kubeconfig logs in with {kind} authenticator {used}, which does not exist"),
                format!("create it, or create the kubeconfig again with one of {}", found.names.join(", ")),
            ),
        ));
    }
    if found.unready.is_empty() {
        let count = found.names.len();
        let text = format!("authenticators: {count}, all of them ready");
        findings.push((Check::OtherAuthenticators, Finding::Fine(text)));
    }
    findings.extend(found.unready.iter().map(|(name, why)| {
        let check = if is_used(name) { Check::Authenticator } else { Check::OtherAuthenticators };
        let finding = Finding::problem(
            format!("{name} is not ready: {why}"),
            format!("its conditions say more: kubectl describe {name}"),
        );
        (check, finding)
    }));
}

#[cfg(test)]
mod tests;
