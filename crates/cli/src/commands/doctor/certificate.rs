//! Checks the Secret that the spec names, and the certificate that the endpoint presents.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use pinniped_concierge_api::config::ImpersonationProxyInfo;
use pinniped_concierge_domain::strategy::certificate_validation::covers;
use pinniped_delegation::grants::{Grants, inert_wildcards};
use pinniped_go_compat::base64::{self as gobase64, CorruptInput};
use pinniped_http_client::https::host_of;
use pinniped_pki::chain::{self, ChainError};
use pinniped_pki::tls::PresentedTls;
use pinniped_pki::{BundleError, CaBundle, Certificate, CertificatePair, PairError};
use url::Url;

use super::finding::Finding;
use super::observed::{EndpointProbe, Observed, ObservedSecret, ReadResult};
use super::observed_client::is_about_proxy;

/// An expiration within this time is reported.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Checks the Secret.
pub(super) fn check_secret(observed: &Observed) -> Vec<Finding> {
    let Some(read) = &observed.secret else { return Vec::new() };
    let mut findings = Vec::new();
    let name = format!("secret {}", read.reference);
    if read.reference.is_malformed() {
        // The strategy reports this problem.
        return findings;
    }
    delegation(observed, read, &mut findings);
    match &read.secret {
        ReadResult::Found(secret) => findings.push(match pair(secret) {
            Ok(_) => Finding::Fine(format!("{name} holds a certificate and its key")),
            Err(why) => Finding::problem(
                format!("{name} cannot be served: {why}"),
                "put the certificate chain into tls.crt and its key into tls.key, both as PEM",
            ),
        }),
        ReadResult::Missing => findings.push(Finding::problem(
            format!("{name} does not exist"),
            "create it (type kubernetes.io/tls), or correct spec.impersonationProxy.tls.secretName",
        )),
        ReadResult::Hidden(why) | ReadResult::Failed(why) => {
            findings.push(Finding::unseen(name, why.clone()));
        }
    }
    findings
}

/// A Secret whose certificate cannot be served.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error(transparent)]
    Pair(#[from] PairError),
    #[error("the certificate is a CA's")]
    Ca,
}

fn pair(secret: &Secret) -> Result<CertificatePair, SecretError> {
    let bytes =
        |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map_or(&[][..], |value| &value.0);
    let pair = CertificatePair::parse(bytes("tls.crt"), bytes("tls.key"))?;
    if pair.leaf().is_ca { Err(SecretError::Ca) } else { Ok(pair) }
}

fn delegation(observed: &Observed, read: &ObservedSecret, findings: &mut Vec<Finding>) {
    let Some(delegations) = &read.delegations else { return };
    let secret = &read.reference;
    let what = format!("the delegation of secret {secret}");
    let objects = match delegations {
        ReadResult::Found(objects) => objects.as_slice(),
        ReadResult::Missing => {
            findings.push(Finding::problem(
                "this cluster does not serve the kind TLSCertificateDelegation",
                "kubectl apply -f install-tls-certificate-delegation.yaml",
            ));
            return;
        }
        ReadResult::Hidden(why) | ReadResult::Failed(why) => {
            findings.push(Finding::unseen(what, why.clone()));
            return;
        }
    };
    let Some(target) = observed.namespace.found() else {
        findings.push(Finding::unseen(what, "the Concierge's namespace is not known"));
        return;
    };
    let mut grants = Grants::default();
    for object in objects {
        grants.add(&secret.namespace, &object.spec.delegations);
    }
    if grants.permit(secret, target) {
        findings.push(Finding::Fine(format!("{what} to namespace {target} is there")));
        return;
    }
    let inert = objects
        .iter()
        .any(|object| inert_wildcards(&object.spec.delegations).any(|name| name == secret.name));
    let hint = if inert { ": a \"*\" beside other names does nothing" } else { "" };
    findings.push(Finding::problem(
        format!("{what} to namespace {target} is missing{hint}"),
        format!(
            "its owner creates a TLSCertificateDelegation in namespace {} with secretName {} and targetNamespaces [{target}]",
            secret.namespace, secret.name
        ),
    ));
}

/// Checks the endpoint.
pub(super) fn check_endpoint(observed: &Observed, now: Timestamp) -> Vec<Finding> {
    let info = observed
        .proxy_strategy()
        .and_then(|strategy| strategy.frontend.as_ref()?.impersonation_proxy_info.as_ref());
    let (Some(info), Some(read)) = (info, &observed.endpoint) else { return Vec::new() };
    let url = &info.endpoint;
    match read {
        EndpointProbe::Malformed(why) => vec![Finding::problem(
            format!("the endpoint {url} is no URL that clients can use: {why}"),
            "correct spec.impersonationProxy.externalEndpoint",
        )],
        EndpointProbe::Unreachable(why) if is_about_proxy(why) => {
            vec![Finding::unseen(format!("the endpoint {url}"), why.clone())]
        }
        EndpointProbe::Unreachable(why) => vec![Finding::problem(
            format!("no server responds at {url} from here: {why}"),
            "see that the name resolves to the load balancer, ingress or Service in front of the proxy, and that no \
             firewall is in between",
        )],
        EndpointProbe::NoCertificate(why) => vec![Finding::problem(
            format!("{url} responds, but presents no certificate: {why}"),
            "either the proxy has no certificate (its strategy has the reason), or a server in front of it does not serve this name",
        )],
        EndpointProbe::Connected { shown, system } => {
            check_presented(observed, info, shown, system.as_deref(), now)
        }
    }
}

fn check_presented(
    observed: &Observed,
    info: &ImpersonationProxyInfo,
    shown: &PresentedTls,
    system: Option<&str>,
    now: Timestamp,
) -> Vec<Finding> {
    let url = &info.endpoint;
    let mut findings = Vec::new();
    let leaf = match shown.chain.first().map(|leaf| Certificate::parse_der(leaf)) {
        Some(Ok(leaf)) => leaf,
        Some(Err(why)) => {
            return vec![Finding::problem(format!("{url} presents no usable certificate: {why}"), REPLACE)];
        }
        None => return Vec::new(),
    };
    let host = Url::parse(url).map(|url| host_of(&url)).unwrap_or_default();
    if !is_for(&leaf, &host) {
        findings.push(Finding::problem(
            format!("the certificate at {url} is for [{}], not for {host}", names(&leaf)),
            REPLACE,
        ));
    }
    if now < leaf.not_before {
        findings.push(Finding::problem(
            format!("the certificate at {url} is not valid before {}", leaf.not_before),
            "compare the clocks of this machine and of the issuer, or issue the certificate again",
        ));
    } else if now > leaf.not_after {
        findings
            .push(Finding::problem(format!("the certificate at {url} expired at {}", leaf.not_after), RENEW));
    } else if leaf.not_after.duration_since(now) <= EXPIRY_WARNING {
        findings
            .push(Finding::problem(format!("the certificate at {url} expires at {}", leaf.not_after), RENEW));
    }
    let advertised = gobase64::decode(info.certificate_authority_data.as_bytes()).map_err(TrustError::Base64);
    if let Err(why) = advertised.and_then(|pem| trusted(&leaf, shown, &pem, system, now)) {
        findings.push(Finding::problem(
            format!("the certificate at {url} does not verify with the advertised CA bundle: {why}"),
            "advertise the CA that signed it in spec.impersonationProxy.tls.certificateAuthorityData (or ca.crt of the \
             Secret), then distribute new kubeconfigs; if it is not the proxy's certificate, check that the server in \
             front of the proxy passes TLS through",
        ));
    }
    let served =
        observed.secret.as_ref().and_then(|read| read.secret.found()).and_then(|secret| pair(secret).ok());
    if served.is_some_and(|pair| pair.leaf().der != leaf.der) {
        findings.push(Finding::problem(
            format!("the certificate at {url} is another one than that of the Secret which the spec names"),
            "the strategy reports whether the Secret was loaded; if it was, another server listens at this address",
        ));
    }
    if !shown.requests_client_certificate {
        findings.push(Finding::problem(
            format!(
                "{url} does not request a client certificate: a server in front of the proxy terminates TLS, and every \
                     user would be anonymous"
            ),
            "let the ingress pass TLS through, as virtualhost.tls.passthrough of an HTTPProxy does",
        ));
    }
    if findings.is_empty() {
        let until = leaf.not_after;
        findings
            .push(Finding::Fine(format!("{url} presents a certificate that clients accept, until {until}")));
    }
    findings
}

const REPLACE: &str =
    "issue a certificate for the name that clients use, or correct spec.impersonationProxy.externalEndpoint";
const RENEW: &str = "renew it: a new certificate in the same Secret is served without a restart";

/// Returns the names in a certificate, separated by commas.
pub(super) fn names(leaf: &Certificate) -> String {
    let addresses = leaf.ip_addresses.iter().map(ToString::to_string);
    leaf.dns_names.iter().cloned().chain(addresses).collect::<Vec<_>>().join(", ")
}

pub(super) fn is_for(leaf: &Certificate, host: &str) -> bool {
    match host.parse() {
        Ok(ip) => leaf.ip_addresses.contains(&ip),
        Err(_) => leaf.dns_names.iter().any(|name| covers(name, host)),
    }
}

/// The reason why a client does not trust a certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrustError {
    /// The system roots do not verify it.
    #[error("{0}")]
    System(String),
    #[error("the bundle is not base64: {0}")]
    Base64(#[source] CorruptInput),
    #[error("{0}")]
    Bundle(#[source] BundleError),
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// Verifies a certificate with the certificates of `pem`. If it is empty, `system` is the reason
/// why the system roots do not trust the certificate.
pub(super) fn trusted(
    leaf: &Certificate,
    shown: &PresentedTls,
    pem: &[u8],
    system: Option<&str>,
    now: Timestamp,
) -> Result<(), TrustError> {
    if pem.is_empty() {
        return system.map_or(Ok(()), |why| Err(TrustError::System(why.to_owned())));
    }
    let roots = CaBundle::from_pem(pem).map_err(TrustError::Bundle)?;
    // The validity period is checked separately.
    let time = now.clamp(leaf.not_before, leaf.not_after.max(leaf.not_before));
    if roots.ders().contains(&leaf.der) {
        return Ok(chain::verify_trusted_server(&leaf.der, time)?);
    }
    let intermediates = shown.chain.get(1..).unwrap_or_default();
    Ok(chain::verify_server(&leaf.der, intermediates, &roots, time)?)
}

#[cfg(test)]
mod tests;
