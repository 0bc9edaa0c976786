//! Checks the state that the Concierge reports: its strategies, its conditions, its API, its
//! authenticators.

use pinniped_concierge_api::config::{
    CredentialIssuerStrategy, StrategyReason, StrategyStatus, StrategyType,
};
use pinniped_concierge_domain::admission_report::{ADMISSION_APPLIED, NOT_APPLIED, REFUSED};
use pinniped_concierge_domain::strategy::certificate_signing_requests::mode::Mode;
use pinniped_kube_types::condition::{Condition, TYPE_READY};

use super::finding::{Check, Checked, Finding};
use super::observed::{
    Observed, ObservedPod, ReadResult, ServiceState, UnreadyAuthenticator, UnservedAuthenticator,
};
use crate::explanations::client_errors::NO_AUTHENTICATOR;
use crate::explanations::{self, Explanation, status, strategy_messages};

/// Returns whether pods that are not ready explain that something else does not work: no pod is
/// ready, or the API is not available.
pub(super) fn pods_explain(observed: &Observed) -> bool {
    let any_ready = observed.pods.found().is_some_and(|all| all.iter().any(|pod| pod.ready));
    let available = observed.api_trouble.found().is_some_and(String::is_empty);
    !any_ready || !available
}

/// Checks the pods. An installation that works may run elsewhere.
pub(super) fn check_pods(observed: &Observed) -> Vec<Checked> {
    let what = "the Concierge's pods";
    let all = match &observed.pods {
        ReadResult::Found(all) => all,
        ReadResult::Missing => return Vec::new(),
        ReadResult::Hidden(why) | ReadResult::Failed(why) => {
            let what = format!("{what} and their version");
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
    findings.extend(images.into_iter().map(|image| (Check::Versions, version(image))));
    findings
}

/// Compares the version in the tag of an image with that of this program.
fn version(image: &str) -> Finding {
    let own = pinniped_version::VERSION;
    match tag(image).and_then(pinniped_version::numbers_of) {
        None => Finding::unseen("the version of the Concierge", format!("its image {image} names none")),
        Some(numbers) if numbers == pinniped_version::numbers() => {
            Finding::Fine(format!("the Concierge's image is {image}; this program is {own}"))
        }
        Some(_) => Finding::warning(
            format!("the Concierge's image is {image}, but this program is {own}"),
            "use the same release of both: they may not know each other's settings",
        ),
    }
}

/// Returns the tag of an image, which may also have a registry with a port and a digest.
fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next().unwrap_or_default();
    let last = name.rsplit('/').next().unwrap_or_default();
    last.split_once(':').map(|(_, tag)| tag)
}

/// Checks the strategies, the API and the authenticators. `used` is the type and the name of the
/// authenticator that the kubeconfig under test names.
pub(super) fn check(observed: &Observed, used: Option<&(String, String)>) -> Vec<Checked> {
    let mut findings = vec![(Check::Api, aggregated_api(observed))];
    authenticators(observed, used, &mut findings);
    if let Some(why) = &observed.hidden {
        findings.push((Check::Installation, Finding::unseen("the CredentialIssuer", why.clone())));
        return findings;
    }
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

fn remedy(observed: &Observed, message: &str) -> String {
    explanations::of_message(strategy_messages::ALL, message)
        .map_or_else(|| format!("see the Concierge's log: {}", logs(observed)), |row| row.remedy.to_owned())
}

/// Returns `kubectl` commands that show the pods.
fn pods(observed: &Observed) -> String {
    format!("kubectl get pods --namespace {}", observed.namespace_or_default())
}

fn logs(observed: &Observed) -> String {
    format!(
        "kubectl logs --namespace {} --selector deployment.pinniped.dev=concierge --tail=-1",
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
    let known = [status::REFUSED, status::SERVING_CERTIFICATE_VALID, status::ADMISSION_APPLIED];
    let is_known = |row: &&Explanation| [&*condition.reason, &*condition.type_].contains(&row.topic);
    known
        .iter()
        .find(is_known)
        .map_or_else(|| format!("see the Concierge's log: {}", logs(observed)), |row| row.remedy.to_owned())
}

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

/// The reason of an authenticator whose webhook the Concierge cannot reach.
const UNABLE_TO_DIAL: &str = "UnableToDialServer";

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
            Finding::problem("there is no authenticator, so users cannot log in", NO_AUTHENTICATOR.remedy),
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
    let is_down = |unserved: &&UnservedAuthenticator| !matches!(unserved.state, ServiceState::Unread(_));
    if found.unready.is_empty() && !found.unserved.iter().any(|unserved| is_down(&unserved)) {
        let count = found.names.len();
        let text = format!("authenticators: {count}, all of them ready");
        findings.push((Check::OtherAuthenticators, Finding::Fine(text)));
    }
    // The Concierge cannot reach a webhook that no pod serves.
    let is_unserved = |unready: &&UnreadyAuthenticator| {
        unready.reason == UNABLE_TO_DIAL
            && found.unserved.iter().filter(is_down).any(|unserved| unserved.name == unready.name)
    };
    let unready = found.unready.iter().filter(|unready| !is_unserved(unready));
    findings.extend(unready.map(|UnreadyAuthenticator { name, why, reason }| {
        let check = if is_used(name) { Check::Authenticator } else { Check::OtherAuthenticators };
        let known = explanations::of_topic(reason).filter(|row| !row.remedy.is_empty());
        let remedy = known.map_or_else(
            || format!("its conditions say more: kubectl describe {name}"),
            |row| row.remedy.to_owned(),
        );
        (check, Finding::problem(format!("{name} is not ready: {why}"), remedy))
    }));
    findings.extend(found.unserved.iter().map(|unserved| {
        let UnservedAuthenticator { name, namespace, service, state } = unserved;
        let check = if is_used(name) { Check::Webhook } else { Check::OtherAuthenticators };
        let finding = match state {
            ServiceState::NoEndpoint => Finding::problem(
                format!(
                    "the webhook of {name} does not respond: Service {namespace}/{service} has no ready pod"
                ),
                format!("see why none of its pods is ready: kubectl get pods --namespace {namespace}"),
            ),
            ServiceState::Missing => Finding::problem(
                format!("the webhook of {name} does not exist: there is no Service {namespace}/{service}"),
                "install the webhook, or correct spec.endpoint of the authenticator",
            ),
            ServiceState::Unread(why) => Finding::unseen(format!("the webhook of {name}"), why.clone()),
        };
        (check, finding)
    }));
}

#[cfg(test)]
mod tests;
