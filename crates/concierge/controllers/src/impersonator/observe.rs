//! Takes an observation from caches and memory; makes no decisions.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Resource;
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_concierge_domain::strategy::impersonator::{
    CaSecret, Delegated, ExternalSecret, Nodes, ObjectId, Observed, Permission, ServingContent,
    ServingSecret, external_reference, needs_nodes,
};
use pinniped_pki::{CaBundle, Certificate, CertificateAuthority, CertificatePair, chain, pem};

use super::ImpersonatorController;
use super::certificate_inspection;
use super::certificates::{CA_CERTIFICATE, CA_KEY, TLS_CERTIFICATE, TLS_KEY};
use crate::api_certs::bytes;
use pinniped_controller::watch::get_named;

/// The objects behind an [`Observed`], for the steps that need their content.
pub(super) struct Sources {
    pub(super) tls: Option<Arc<Secret>>,
    pub(super) ca: Option<CertificateAuthority>,
    pub(super) signer: Option<Arc<Secret>>,
    pub(super) external: Option<Arc<Secret>>,
    /// Generation of the observed `CredentialIssuer`.
    pub(super) generation: Option<i64>,
}

/// Returns the identity of this state of the object.
pub(super) fn id_of<K: Resource>(object: &K) -> ObjectId {
    let meta = object.meta();
    ObjectId {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
    }
}

impl ImpersonatorController {
    pub(super) async fn observe(&mut self) -> (Observed, Sources) {
        let issuer = self.issuers.get();
        let spec = issuer.as_ref().map(|issuer| issuer.spec.clone());
        let nodes = if spec.as_ref().is_some_and(|spec| needs_nodes(spec.as_ref())) {
            self.nodes.get().await
        } else {
            self.nodes.pause();
            Nodes::Unknown
        };
        if let Some(spec) = &spec {
            self.reference = external_reference(spec.as_ref(), &self.settings.namespace);
        }
        let (delegated, external) = self.external().await;
        if self.params.serving.current().is_none() {
            // Another task refused handshakes when a permission ended.
            self.loaded.serving = None;
        }
        let advertised = issuer
            .as_ref()
            .and_then(|issuer| issuer.spec.as_ref()?.impersonation_proxy.as_ref()?.tls.as_ref())
            .and_then(|tls| tls.certificate_authority_data.as_deref())
            .unwrap_or_default();
        let settings = &self.settings;
        let ca_secret = self.secret(&settings.ca_secret);
        let tls = self.secret(&settings.tls_secret);
        let signer = self.secret(&settings.signer_secret);
        let (ca, authority) = read_ca(ca_secret.as_deref());
        let observed = Observed {
            settings: Arc::clone(settings),
            credential_issuer: spec,
            nodes,
            proxy: self.proxy_runner.state(),
            load_balancer: self.service(&settings.load_balancer_service),
            cluster_ip: self.service(&settings.cluster_ip_service),
            ca,
            serving: tls.as_deref().map_or(ServingSecret::Missing, |secret| {
                ServingSecret::Present(
                    id_of(secret),
                    read_serving(secret, authority.as_ref(), Timestamp::now()),
                )
            }),
            external: external.as_deref().map(|secret| ExternalSecret {
                id: id_of(secret),
                ca_crt: bytes(secret, CA_CERTIFICATE).to_vec(),
                certificate: certificate_inspection::read(secret, advertised, Timestamp::now()),
            }),
            delegated,
            signer: signer.as_deref().map(id_of),
            loaded: self.loaded.clone(),
        };
        let generation = issuer.and_then(|issuer| issuer.metadata.generation);
        (observed, Sources { tls, ca: authority, signer, external, generation })
    }

    /// Returns the Secret that the spec names, and its permission if it is in another namespace.
    async fn external(&self) -> (Option<Delegated>, Option<Arc<Secret>>) {
        let Some(secret) = self.reference.clone() else {
            self.delegated.stop_following();
            return (None, None);
        };
        if secret.is_malformed() {
            self.delegated.stop_following();
            return (Some(Delegated { secret, permission: Permission::Malformed }), None);
        }
        if secret.namespace == self.settings.namespace {
            self.delegated.stop_following();
            return (None, self.secret(&secret.name));
        }
        let access = self.delegated.follow(&secret).await;
        (Some(Delegated { secret, permission: access.permission }), access.secret)
    }

    pub(super) fn secret(&self, name: &str) -> Option<Arc<Secret>> {
        get_named(self.secrets.store(), (), Some(&self.settings.namespace), name)
    }

    pub(super) fn service(&self, name: &str) -> Option<Arc<Service>> {
        get_named(self.services.store(), (), Some(&self.settings.namespace), name)
    }
}

fn read_ca(secret: Option<&Secret>) -> (CaSecret, Option<CertificateAuthority>) {
    let Some(secret) = secret else { return (CaSecret::Missing, None) };
    match CertificateAuthority::load(bytes(secret, CA_CERTIFICATE), bytes(secret, CA_KEY)) {
        Ok(authority) => (CaSecret::Usable, Some(authority)),
        Err(error) => (CaSecret::Broken(StatusText::of(&error)), None),
    }
}

fn read_serving(secret: &Secret, ca: Option<&CertificateAuthority>, now: Timestamp) -> ServingContent {
    let text = bytes(secret, TLS_CERTIFICATE);
    let Some(block) = pem::first(text) else { return ServingContent::NotPem };
    let leaf = match Certificate::parse_der(&block.contents) {
        Ok(leaf) => leaf,
        Err(error) => return ServingContent::NotX509(error.to_string()),
    };
    if let Err(error) = CertificatePair::parse(text, bytes(secret, TLS_KEY)) {
        return ServingContent::BadKey(error.to_string());
    }
    if let Some(ca) = ca {
        let roots = CaBundle::from_ders(vec![ca.certificate_der().clone()]);
        if let Err(error) = chain::verify_server(&leaf.der, &[], &roots, now) {
            return ServingContent::Untrusted(error.to_string());
        }
    }
    ServingContent::Leaf {
        ips: leaf.ip_addresses,
        dns_names: leaf.dns_names,
        not_before: leaf.not_before,
        not_after: leaf.not_after,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pinniped_pki::{IssuedPair, Validity};

    use super::*;
    use crate::api_certs::data;

    fn now() -> Timestamp {
        Timestamp::from_second(1_900_000_000).unwrap()
    }

    fn authority() -> CertificateAuthority {
        CertificateAuthority::generate("x", &Validity::starting(now(), Duration::from_secs(1000))).unwrap()
    }

    fn secret(cert: &str, key: &str) -> Secret {
        let data = data([(TLS_CERTIFICATE, cert.as_bytes()), (TLS_KEY, key.as_bytes())]);
        Secret { data, ..Secret::default() }
    }

    fn issue(ca: &CertificateAuthority) -> IssuedPair {
        let validity = Validity::starting(now(), Duration::from_secs(1000));
        ca.issue_server(&["a.example.com".to_owned()], &["1.2.3.4".parse().unwrap()], &validity).unwrap()
    }

    #[test]
    fn each_kind_of_serving_secret_is_recognized() {
        let (ca, other) = (authority(), authority());
        let (leaf, foreign) = (issue(&ca), issue(&other));
        let read = |cert: &str, key: &str| read_serving(&secret(cert, key), Some(&ca), now());
        let key = leaf.private_key_pem.as_str();

        assert_eq!(read("", key), ServingContent::NotPem);
        assert_eq!(read("garbage", key), ServingContent::NotPem);
        let no_certificate = "-----BEGIN CERTIFICATE-----\naGkh\n-----END CERTIFICATE-----\n";
        assert!(matches!(read(no_certificate, key), ServingContent::NotX509(_)));
        assert!(matches!(read(&leaf.certificate_pem, ""), ServingContent::BadKey(_)));
        assert!(matches!(
            read(&leaf.certificate_pem, foreign.private_key_pem.as_str()),
            ServingContent::BadKey(_)
        ));
        assert!(matches!(
            read(&foreign.certificate_pem, foreign.private_key_pem.as_str()),
            ServingContent::Untrusted(_)
        ));
        assert_eq!(
            read(&leaf.certificate_pem, key),
            ServingContent::Leaf {
                ips: vec!["1.2.3.4".parse().unwrap()],
                dns_names: vec!["a.example.com".to_owned()],
                not_before: now() - Duration::from_secs(300),
                not_after: now() + Duration::from_secs(1000),
            }
        );
        let later = now() + Duration::from_secs(1001);
        let expired = read_serving(&secret(&leaf.certificate_pem, key), Some(&ca), later);
        assert!(matches!(expired, ServingContent::Untrusted(_)), "{expired:?}");
    }

    #[test]
    fn each_kind_of_ca_secret_is_recognized() {
        let ca = authority();
        let of = |cert: &str, key: &str| {
            let data = data([(CA_CERTIFICATE, cert.as_bytes()), (CA_KEY, key.as_bytes())]);
            read_ca(Some(&Secret { data, ..Secret::default() })).0
        };
        assert_eq!(read_ca(None).0, CaSecret::Missing);
        assert_eq!(of(ca.certificate_pem(), ca.private_key_pem().as_str()), CaSecret::Usable);
        let text = "could not load CA: tls: failed to find any PEM data in certificate input";
        assert_eq!(of("", ""), CaSecret::Broken(text.into()));
        let leaf = issue(&ca);
        let text = "invalid CA certificate: passed in key pair is not a CA";
        assert_eq!(of(&leaf.certificate_pem, leaf.private_key_pem.as_str()), CaSecret::Broken(text.into()));
    }
}
