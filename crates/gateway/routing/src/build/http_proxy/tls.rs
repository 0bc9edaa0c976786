//! The TLS block of a root.

use std::sync::Arc;

use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_api::http_proxy::{ClientValidation as UpstreamSettings, Tls};
use pinniped_go_compat::json::quote;
use pinniped_pki::CertificatePair;

use super::{TerminationParams, World};
use crate::{
    build::secrets::Refusal,
    status::{Finding, Part},
    table::{ClientValidation, ForwardedCertificate},
};

/// The TLS configuration of a root.
pub(super) enum RootTls {
    /// No TLS.
    Plain,
    /// Connections are passed through.
    Passthrough,
    /// TLS is terminated.
    Terminate {
        /// The parameters of the termination.
        terms: TerminationParams,
        /// The certificate for clients without a known server name.
        fallback: Option<Arc<CertificatePair>>,
    },
}

fn fault(reason: &'static str, message: impl Into<Arc<str>>) -> Finding {
    Finding::new(Part::Tls, reason, message)
}

/// Returns the TLS configuration of a root in `namespace`, or the errors in it.
pub(super) fn root_tls(
    tls: Option<&Tls>,
    namespace: &str,
    world: &mut World<'_>,
) -> Result<RootTls, Vec<Finding>> {
    let Some(tls) = tls else { return Ok(RootTls::Plain) };
    check_consistency(tls)?;
    if tls.passthrough {
        return Ok(RootTls::Passthrough);
    }
    terminate(tls, namespace, world)
}

fn check_consistency(tls: &Tls) -> Result<(), Vec<Finding>> {
    let mut faults = Vec::new();
    let has_secret = !tls.secret_name.trim().is_empty();
    if tls.passthrough && tls.enable_fallback_certificate {
        let message = "Spec.VirtualHost.TLS: both Passthrough and enableFallbackCertificate were specified";
        faults.push(fault("TLSIncompatibleFeatures", message));
    }
    if has_secret && tls.passthrough {
        let message = "Spec.VirtualHost.TLS: both Passthrough and SecretName were specified";
        faults.push(fault("TLSConfigNotValid", message));
    } else if !has_secret && !tls.passthrough {
        let message = "Spec.VirtualHost.TLS: neither Passthrough nor SecretName were specified";
        faults.push(fault("TLSConfigNotValid", message));
    } else if tls.passthrough && tls.client_validation.is_some() {
        let message = "Spec.VirtualHost.TLS passthrough cannot be combined with tls.clientValidation";
        faults.push(fault("TLSIncompatibleFeatures", message));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

fn terminate(tls: &Tls, namespace: &str, world: &mut World<'_>) -> Result<RootTls, Vec<Finding>> {
    let one = |finding| vec![finding];
    let written = quote(&tls.secret_name);
    let reference = SecretReference::parse(&tls.secret_name, namespace);
    let certificate = world.secrets.serving(&reference, namespace).map_err(|refusal| {
        one(match refusal {
            Refusal::NotPermitted => fault(
                "DelegationNotPermitted",
                format!("Spec.VirtualHost.TLS Secret {written} certificate delegation not permitted"),
            ),
            Refusal::Invalid(why) => {
                fault("SecretNotValid", format!("Spec.VirtualHost.TLS Secret {written} is invalid: {why}"))
            }
        })
    })?;
    let versions =
        world.versions(&tls.minimum_protocol_version, &tls.maximum_protocol_version).ok_or_else(|| {
            one(fault(
                "TLSConfigNotValid",
                "Spec.Virtualhost.TLS the minimum protocol version is greater than the maximum protocol version",
            ))
        })?;
    if tls.enable_fallback_certificate && tls.client_validation.is_some() {
        let message = "Spec.Virtualhost.TLS fallback & client validation are incompatible";
        return Err(one(fault("TLSIncompatibleFeatures", message)));
    }
    let fallback = match tls.enable_fallback_certificate {
        true => Some(fallback_certificate(namespace, world).map_err(one)?),
        false => None,
    };
    let client_validation = match &tls.client_validation {
        Some(wanted) => Some(Arc::new(client_validation(wanted, namespace, world)?)),
        None => None,
    };
    let terms = TerminationParams { certificate, secret: reference, versions, client_validation };
    Ok(RootTls::Terminate { terms, fallback })
}

fn fallback_certificate(namespace: &str, world: &mut World<'_>) -> Result<Arc<CertificatePair>, Finding> {
    let Some(reference) = &world.settings.fallback_certificate else {
        return Err(fault(
            "FallbackNotPresent",
            "Spec.Virtualhost.TLS enabled fallback but the fallback Certificate Secret is not configured in Contour \
             configuration file",
        ));
    };
    let name = quote(&reference.to_string());
    world.secrets.serving(reference, namespace).map_err(|refusal| match refusal {
        Refusal::NotPermitted => fault(
            "FallbackNotDelegated",
            format!("Spec.VirtualHost.TLS Secret {name} is not configured for certificate delegation"),
        ),
        Refusal::Invalid(why) => fault(
            "FallbackNotValid",
            format!("Spec.Virtualhost.TLS Secret {name} fallback certificate is invalid: {why}"),
        ),
    })
}

fn client_validation(
    wanted: &UpstreamSettings,
    namespace: &str,
    world: &mut World<'_>,
) -> Result<ClientValidation, Vec<Finding>> {
    let refused = |kind: &str, written: &str, reference: &SecretReference, refusal| match refusal {
        Refusal::NotPermitted => fault(
            "DelegationNotPermitted",
            format!(
                "Spec.VirtualHost.TLS {kind} Secret {} is invalid: certificate delegation not permitted",
                quote(written)
            ),
        ),
        Refusal::Invalid(why) => fault(
            "ClientValidationInvalid",
            format!(
                "Spec.VirtualHost.TLS client validation is invalid: invalid {kind} Secret {}: {why}",
                quote(&reference.to_string())
            ),
        ),
    };
    let ca = if wanted.ca_secret.is_empty() {
        // Without a CA there is nothing to verify with. Contour continues to serve the host; this
        // is unsafe for a host that requires validation, so the host is refused.
        let message = "Spec.VirtualHost.TLS client validation is invalid: CA Secret must be specified";
        Err(fault("ClientValidationInvalid", message))
    } else {
        let reference = SecretReference::parse(&wanted.ca_secret, namespace);
        let ca = world.secrets.ca(&reference, namespace);
        // Revocation lists are read only if there is a CA.
        Ok(ca.map_err(|refusal| vec![refused("CA", &wanted.ca_secret, &reference, refusal)])?)
    };
    let revocations = if wanted.crl_secret.is_empty() {
        Ok(None)
    } else {
        let reference = SecretReference::parse(&wanted.crl_secret, namespace);
        let lists = world.secrets.revocations(&reference, namespace);
        lists.map(Some).map_err(|refusal| refused("CRL", &wanted.crl_secret, &reference, refusal))
    };
    match (ca, revocations) {
        (Ok(ca), Ok(revocations)) => Ok(ClientValidation {
            ca,
            revocations,
            revocations_of_leaf_only: wanted.crl_only_verify_leaf_cert,
            optional: wanted.optional_client_certificate,
            forward: wanted.forward_client_certificate.map(|forward| ForwardedCertificate {
                subject: forward.subject,
                certificate: forward.cert,
                chain: forward.chain,
                dns_names: forward.dns,
                uri_names: forward.uri,
            }),
        }),
        (ca, revocations) => Err(ca.err().into_iter().chain(revocations.err()).collect()),
    }
}
