//! The expiry of the certificates in use, as metrics.

use pinniped_concierge_metrics::{CERTIFICATE_EXPIRY, CERTIFICATE_USES};
use pinniped_metrics::Metrics;
use pinniped_pki::CertificateStore;

/// Registers the expiry of serving certificates and of signers. A store without a certificate has
/// no value.
pub(crate) fn register(metrics: &Metrics, serving: Vec<CertificateStore>, signing: Vec<CertificateStore>) {
    metrics.collect(move |samples| {
        for ((usage, _), stores) in CERTIFICATE_USES.iter().zip([&serving, &signing]) {
            for store in stores {
                let Some(pair) = store.current() else { continue };
                let expiry = pair.leaf().not_after.as_second();
                let expiry = u64::try_from(expiry).unwrap_or_default();
                samples.push(&CERTIFICATE_EXPIRY, [store.name(), usage], expiry);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use pinniped_concierge_api::names::{
        STORE_API_SERVING, STORE_IMPERSONATION_SERVING, STORE_IMPERSONATION_SIGNER, STORE_KUBE_SIGNER,
    };
    use pinniped_concierge_metrics::CERTIFICATES;
    use pinniped_pki::{CertificateAuthority, Validity};

    use super::*;

    #[test]
    fn the_values_of_the_label_are_the_names_of_the_stores() {
        let values: Vec<&str> = CERTIFICATES.iter().map(|(value, _)| *value).collect();
        let stores =
            [STORE_API_SERVING, STORE_IMPERSONATION_SERVING, STORE_KUBE_SIGNER, STORE_IMPERSONATION_SIGNER];
        assert_eq!(values, stores);
    }

    #[test]
    fn the_expiry_of_each_certificate_is_exported_once_there_is_one() {
        let metrics = Metrics::new();
        let (serving, signer) = (CertificateStore::serving("serving"), CertificateStore::signer("signer"));
        register(&metrics, vec![serving], vec![signer.clone()]);
        assert_eq!(metrics.text().unwrap(), "");
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let ca =
            CertificateAuthority::generate("ca", &Validity::starting(now, Duration::from_secs(60))).unwrap();
        signer.set(ca.certificate_pem().as_bytes(), ca.private_key_pem().as_bytes()).unwrap();
        let text = metrics.text().unwrap();
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expiry = now.as_second() + 60;
        let expected = format!(
            "pinniped_certificate_expiry_timestamp_seconds{{certificate=\"signer\",use=\"signing\"}} {expiry}"
        );
        assert_eq!(values, [expected]);
    }
}
