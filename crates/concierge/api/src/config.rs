//! The `config.concierge.<suffix>/v1alpha1` API: the `CredentialIssuer`.
//!
//! Strings in the spec stay as they were written; `pinniped-concierge-domain` validates them.
//! Fields that upstream Pinniped does not have are optional, and their documentation says so.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use pinniped_kube_types::resource::{cluster_resource, null_as_default, open_enum};
use pinniped_kube_types::suffix::GroupSuffix;

/// The configuration of how the Concierge issues credentials for its cluster, and the observed
/// result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialIssuer {
    /// Always `CredentialIssuer`.
    #[serde(default)]
    pub kind: String,
    /// Group and version of the installation.
    #[serde(default)]
    pub api_version: String,
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The desired configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<CredentialIssuerSpec>,
    /// The observed state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<CredentialIssuerStatus>,
}

cluster_resource!(CredentialIssuer, group: crate::names::GROUP_CONFIG, kind: "CredentialIssuer", plural: "credentialissuers");

impl CredentialIssuer {
    /// Returns an object that has a name and nothing else.
    pub fn new(suffix: &GroupSuffix, name: impl Into<String>) -> Self {
        Self {
            kind: Self::KIND.to_owned(),
            api_version: Self::group_version(suffix),
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            spec: None,
            status: None,
        }
    }
}

/// The desired configuration of a `CredentialIssuer`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialIssuerSpec {
    /// The impersonation proxy. The schema requires it; objects that are older than that rule may
    /// lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impersonation_proxy: Option<ImpersonationProxySpec>,
    /// Credentials that are signed through the cluster's certificate API. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_signing_requests: Option<CertificateSigningRequestsSpec>,
    /// Credentials that are service account tokens. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_tokens: Option<ServiceAccountTokensSpec>,
}

/// The configuration of the impersonation proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImpersonationProxySpec {
    /// `auto`, `enabled` or `disabled`.
    pub mode: String,
    /// The Service in front of the proxy.
    #[serde(default)]
    pub service: ImpersonationProxyServiceSpec,
    /// `host` or `host:port` at which clients reach the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_endpoint: Option<String>,
    /// An externally provided serving certificate; if absent, the Concierge generates one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ImpersonationProxyTlsSpec>,
}

/// The Service in front of the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImpersonationProxyServiceSpec {
    /// `LoadBalancer` (also when absent), `ClusterIP` or `None`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// The IP address to request from the load balancer.
    #[serde(rename = "loadBalancerIP", default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_ip: Option<String>,
    /// Annotations to set on the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub annotations: BTreeMap<String, String>,
    /// The load balancer implementation that is to handle the Service. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_class: Option<String>,
    /// The client address ranges that the load balancer allows; if empty, all are allowed. Not in
    /// upstream Pinniped.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub load_balancer_source_ranges: Vec<String>,
    /// `Cluster` or `Local`. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<String>,
    /// `SingleStack`, `PreferDualStack` or `RequireDualStack`. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<String>,
}

/// An externally provided serving certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImpersonationProxyTlsSpec {
    /// The PEM bundle to advertise, encoded as base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_authority_data: Option<String>,
    /// Name of the Secret with the certificate and its private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
    /// `Warn` (also when absent), `Enforce` or `Off`. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<String>,
}

/// Configuration of credentials that are signed through the cluster's certificate API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSigningRequestsSpec {
    /// `auto` (also when absent), `enabled` or `disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// Configuration of credentials that are service account tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountTokensSpec {
    /// `disabled` (also when absent) or `enabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Namespace of the service accounts; if absent, the Concierge's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Lifetime of a credential in seconds; if absent, 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_lifetime_seconds: Option<i64>,
    /// Time in seconds after which the objects of an unused identity are deleted; if absent, 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<i64>,
    /// `disabled` (also when absent) or `auto`, which uses constrained impersonation if the API
    /// server supports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constrained_impersonation: Option<String>,
}

/// The observed state of a `CredentialIssuer`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialIssuerStatus {
    /// One entry per strategy that was tried, the preferred one first.
    #[serde(default, deserialize_with = "null_as_default")]
    pub strategies: Vec<CredentialIssuerStrategy>,
    /// Observations that do not belong to a strategy. Not in upstream Pinniped, and absent when
    /// empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
    /// The serving certificate of the impersonation proxy, while it has one. Not in upstream
    /// Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving_certificate: Option<ServingCertificateStatus>,
}

/// The observed serving certificate of the impersonation proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServingCertificateStatus {
    /// The time at which the certificate expires.
    pub not_after: Time,
}

/// The observed state of one strategy for issuing credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialIssuerStrategy {
    /// The strategy.
    #[serde(rename = "type")]
    pub type_: StrategyType,
    /// Whether the strategy works.
    pub status: StrategyStatus,
    /// Machine-readable reason of the status.
    pub reason: StrategyReason,
    /// Human-readable reason of the status. Never empty.
    pub message: String,
    /// Time of the last change of the entry.
    pub last_update_time: Time,
    /// How clients use the strategy; present only if the strategy works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<CredentialIssuerFrontend>,
}

open_enum! {
    /// A strategy for issuing credentials.
    StrategyType {
        /// Certificates that are signed with the cluster's signing key.
        KubeClusterSigningCertificate = "KubeClusterSigningCertificate",
        /// Certificates that are signed through the cluster's certificate API. Not in upstream
        /// Pinniped.
        KubeCertificateSigningRequest = "KubeCertificateSigningRequest",
        /// Certificates that the impersonation proxy accepts.
        ImpersonationProxy = "ImpersonationProxy",
        /// Service account tokens. Not in upstream Pinniped.
        ServiceAccountToken = "ServiceAccountToken",
    }
}

open_enum! {
    /// Whether a strategy works.
    StrategyStatus {
        /// The strategy works.
        Success = "Success",
        /// The strategy does not work, which may be intended.
        Error = "Error",
    }
}

open_enum! {
    /// Machine-readable reason of a strategy's status.
    StrategyReason {
        /// The impersonation proxy serves requests.
        Listening = "Listening",
        /// The impersonation proxy waits for a prerequisite, such as the address of its Service.
        Pending = "Pending",
        /// The strategy is switched off, by configuration or automatically.
        Disabled = "Disabled",
        /// An error occurred while the strategy was set up.
        ErrorDuringSetup = "ErrorDuringSetup",
        /// The cluster's signing key could not be read.
        CouldNotFetchKey = "CouldNotFetchKey",
        /// The cluster's public information could not be read.
        CouldNotGetClusterInfo = "CouldNotGetClusterInfo",
        /// The cluster's signing key was read.
        FetchedKey = "FetchedKey",
    }
}

open_enum! {
    /// The API through which clients use a strategy.
    FrontendType {
        /// `TokenCredentialRequest` at the Kubernetes API server.
        TokenCredentialRequestApi = "TokenCredentialRequestAPI",
        /// The impersonation proxy.
        ImpersonationProxy = "ImpersonationProxy",
        /// Service account tokens at the Kubernetes API server. Not in upstream Pinniped.
        ServiceAccountToken = "ServiceAccountToken",
    }
}

/// How clients use a strategy: the type, and the one member that belongs to the type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialIssuerFrontend {
    /// Selects the member that is set.
    #[serde(rename = "type")]
    pub type_: FrontendType,
    /// Set for [`FrontendType::TokenCredentialRequestApi`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_credential_request_info: Option<TokenCredentialRequestApiInfo>,
    /// Set for [`FrontendType::ImpersonationProxy`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impersonation_proxy_info: Option<ImpersonationProxyInfo>,
    /// Set for [`FrontendType::ServiceAccountToken`]. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_token_info: Option<ServiceAccountTokenInfo>,
}

impl CredentialIssuerFrontend {
    /// Returns the frontend of a strategy whose clients send requests to the Kubernetes API server.
    pub fn token_credential_request_api(info: TokenCredentialRequestApiInfo) -> Self {
        Self {
            type_: FrontendType::TokenCredentialRequestApi,
            token_credential_request_info: Some(info),
            impersonation_proxy_info: None,
            service_account_token_info: None,
        }
    }

    /// Returns the frontend of the impersonation proxy.
    pub fn impersonation_proxy(info: ImpersonationProxyInfo) -> Self {
        Self {
            type_: FrontendType::ImpersonationProxy,
            token_credential_request_info: None,
            impersonation_proxy_info: Some(info),
            service_account_token_info: None,
        }
    }

    /// Returns the frontend of service account tokens.
    pub fn service_account_token(info: ServiceAccountTokenInfo) -> Self {
        Self {
            type_: FrontendType::ServiceAccountToken,
            token_credential_request_info: None,
            impersonation_proxy_info: None,
            service_account_token_info: Some(info),
        }
    }
}

/// Address and CA bundle of the Kubernetes API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenCredentialRequestApiInfo {
    /// URL of the API server.
    pub server: String,
    /// PEM bundle of the API server, encoded as base64.
    pub certificate_authority_data: String,
}

/// Address and CA bundle of the impersonation proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImpersonationProxyInfo {
    /// URL of the proxy.
    pub endpoint: String,
    /// PEM bundle of the proxy, encoded as base64. Empty if clients use their system's roots, which
    /// upstream's schema rejects.
    pub certificate_authority_data: String,
}

/// Address and CA bundle of the API server that accepts the service account tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountTokenInfo {
    /// URL of the API server.
    pub server: String,
    /// PEM bundle of the API server, encoded as base64.
    pub certificate_authority_data: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_enum_values_survive_a_round_trip() {
        let strategy = json!({
            "type": "FromTheFuture", "status": "Maybe", "reason": "BecauseOfReasons", "message": "m",
            "lastUpdateTime": "2026-11-21T10:00:00Z", "frontend": {"type": "ProtocolPolicy Pigeon"}
        });
        let parsed: CredentialIssuerStrategy = serde_json::from_value(strategy.clone()).unwrap();
        assert_eq!(parsed.type_, StrategyType::Other("FromTheFuture".into()));
        assert_eq!(parsed.type_.to_string(), "FromTheFuture");
        assert_eq!(serde_json::to_value(&parsed).unwrap(), strategy);
        assert_eq!(StrategyReason::from("FetchedKey"), StrategyReason::FetchedKey);
        assert_eq!(StrategyReason::from("x"), StrategyReason::Other("x".into()));
    }

    #[test]
    fn known_enum_values_are_the_wire_strings() {
        for known in FrontendType::KNOWN {
            assert_eq!(serde_json::to_value(known).unwrap(), json!(known.as_str()));
            assert_eq!(&serde_json::from_value::<FrontendType>(json!(known.as_str())).unwrap(), known);
        }
        assert_eq!(FrontendType::TokenCredentialRequestApi.as_str(), "TokenCredentialRequestAPI");
    }

    #[test]
    fn sparse_and_null_members_are_read() {
        let issuer: CredentialIssuer = serde_json::from_value(json!({
            "metadata": {"name": "x"},
            "spec": {"impersonationProxy": {"mode": "auto", "service": {"annotations": null}, "tls": {}}},
            "status": {"strategies": null}
        }))
        .unwrap();
        let spec = issuer.spec.unwrap().impersonation_proxy.unwrap();
        assert_eq!(spec.tls, Some(ImpersonationProxyTlsSpec::default()));
        assert_eq!(spec.service, ImpersonationProxyServiceSpec::default());
        assert!(issuer.status.unwrap().strategies.is_empty());
    }

    #[test]
    fn the_group_follows_the_suffix() {
        let suffix = GroupSuffix::parse("tuna.io").unwrap();
        assert_eq!(
            <CredentialIssuer as kube_core::Resource>::url_path(&suffix, None),
            "/apis/config.concierge.tuna.io/v1alpha1/credentialissuers"
        );
        let issuer = CredentialIssuer::new(&suffix, "c");
        assert_eq!(
            pinniped_go_compat::json::to_string(&issuer),
            r#"{"kind":"CredentialIssuer","apiVersion":"config.concierge.tuna.io/v1alpha1","metadata":{"name":"c"}}"#
        );
    }
}
