//! `config.concierge.<suffix>/v1alpha1`: the CredentialIssuer.
//!
//! Strings in the spec stay as they were written: which of them make sense together is decided elsewhere. Fields that
//! upstream Pinniped does not have are optional and say so.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use pinniped_kube_types::resource::{cluster_resource, null_as_default, open_enum};
use pinniped_kube_types::suffix::GroupSuffix;

/// How the Concierge of a cluster issues credentials: what was asked for, and what became of it.
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
    /// What was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<CredentialIssuerSpec>,
    /// What became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<CredentialIssuerStatus>,
}

cluster_resource!(CredentialIssuer, group: crate::names::GROUP_CONFIG, kind: "CredentialIssuer", plural: "credentialissuers");

impl CredentialIssuer {
    /// An object with a name and nothing else.
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

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialIssuerSpec {
    /// The impersonation proxy. The schema requires it, objects written before that rule may lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impersonation_proxy: Option<ImpersonationProxySpec>,
    /// Credentials signed through the cluster's certificate API. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_signing_requests: Option<CertificateSigningRequestsSpec>,
    /// Credentials that are service account tokens. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_tokens: Option<ServiceAccountTokensSpec>,
}

/// How the impersonation proxy is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImpersonationProxySpec {
    /// `auto`, `enabled` or `disabled`.
    pub mode: String,
    /// The Service in front of the proxy.
    #[serde(default)]
    pub service: ImpersonationProxyServiceSpec,
    /// `host` or `host:port` at which clients find the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_endpoint: Option<String>,
    /// Present when the serving certificate comes from outside.
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
    /// Address to ask the load balancer for.
    #[serde(rename = "loadBalancerIP", default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_ip: Option<String>,
    /// Annotations to put on the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub annotations: BTreeMap<String, String>,
    /// Which load balancer implementation is to take the Service. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_class: Option<String>,
    /// The only client addresses that the load balancer is to let through. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub load_balancer_source_ranges: Vec<String>,
    /// `Cluster` or `Local`. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<String>,
    /// `SingleStack`, `PreferDualStack` or `RequireDualStack`. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<String>,
}

/// A serving certificate from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImpersonationProxyTlsSpec {
    /// Base64 of the PEM bundle to advertise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_authority_data: Option<String>,
    /// Secret with the certificate and its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
    /// `Warn` (also when absent), `Enforce` or `Off`. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<String>,
}

/// Credentials signed through the cluster's certificate API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSigningRequestsSpec {
    /// `auto` (also when absent), `enabled` or `disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// Credentials that are service account tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountTokensSpec {
    /// `disabled` (also when absent) or `enabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Namespace of the service accounts; absent means the Concierge's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Lifetime of a credential in seconds; absent means 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_lifetime_seconds: Option<i64>,
    /// Seconds after which the objects of an unused identity are removed; absent means 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<i64>,
    /// `disabled` (also when absent), or `auto`: where the API server has constrained impersonation it is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constrained_impersonation: Option<String>,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialIssuerStatus {
    /// One entry for every way of issuing credentials that was tried, best first.
    #[serde(default, deserialize_with = "null_as_default")]
    pub strategies: Vec<CredentialIssuerStrategy>,
    /// Observations beside the strategies. Not in upstream Pinniped, and absent while there is nothing to say.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
}

/// One way of issuing credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialIssuerStrategy {
    /// Which way.
    #[serde(rename = "type")]
    pub type_: StrategyType,
    /// Whether it works.
    pub status: StrategyStatus,
    /// Why, for programs.
    pub reason: StrategyReason,
    /// Why, for people. Never empty.
    pub message: String,
    /// When the entry last changed.
    pub last_update_time: Time,
    /// How clients use it, when it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<CredentialIssuerFrontend>,
}

open_enum! {
    /// A way of issuing credentials.
    StrategyType {
        /// Certificates signed with the cluster's own key.
        KubeClusterSigningCertificate = "KubeClusterSigningCertificate",
        /// Certificates signed through the cluster's certificate API. Not in upstream Pinniped.
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
        /// It does.
        Success = "Success",
        /// It does not, which may be by intent.
        Error = "Error",
    }
}

open_enum! {
    /// Why a strategy is as it is.
    StrategyReason {
        /// The impersonation proxy serves.
        Listening = "Listening",
        /// The impersonation proxy waits for something.
        Pending = "Pending",
        /// Switched off, by configuration or automatically.
        Disabled = "Disabled",
        /// Something failed on the way up.
        ErrorDuringSetup = "ErrorDuringSetup",
        /// The cluster's signing key could not be read.
        CouldNotFetchKey = "CouldNotFetchKey",
        /// The cluster's public information could not be read.
        CouldNotGetClusterInfo = "CouldNotGetClusterInfo",
        /// The cluster's signing key is at hand.
        FetchedKey = "FetchedKey",
    }
}

open_enum! {
    /// How clients reach a strategy.
    FrontendType {
        /// `TokenCredentialRequest` at the Kubernetes API server.
        TokenCredentialRequestApi = "TokenCredentialRequestAPI",
        /// The impersonation proxy.
        ImpersonationProxy = "ImpersonationProxy",
        /// Service account tokens at the Kubernetes API server. Not in upstream Pinniped.
        ServiceAccountToken = "ServiceAccountToken",
    }
}

/// How clients use a strategy: the type, and the one member that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialIssuerFrontend {
    /// Which of the members is meant.
    #[serde(rename = "type")]
    pub type_: FrontendType,
    /// For [`FrontendType::TokenCredentialRequestApi`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_credential_request_info: Option<TokenCredentialRequestApiInfo>,
    /// For [`FrontendType::ImpersonationProxy`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impersonation_proxy_info: Option<ImpersonationProxyInfo>,
    /// For [`FrontendType::ServiceAccountToken`]. Not in upstream Pinniped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_token_info: Option<ServiceAccountTokenInfo>,
}

impl CredentialIssuerFrontend {
    /// The frontend of a strategy whose clients ask the Kubernetes API server.
    pub fn token_credential_request_api(info: TokenCredentialRequestApiInfo) -> Self {
        Self {
            type_: FrontendType::TokenCredentialRequestApi,
            token_credential_request_info: Some(info),
            impersonation_proxy_info: None,
            service_account_token_info: None,
        }
    }

    /// The frontend of the impersonation proxy.
    pub fn impersonation_proxy(info: ImpersonationProxyInfo) -> Self {
        Self {
            type_: FrontendType::ImpersonationProxy,
            token_credential_request_info: None,
            impersonation_proxy_info: Some(info),
            service_account_token_info: None,
        }
    }

    /// The frontend of service account tokens.
    pub fn service_account_token(info: ServiceAccountTokenInfo) -> Self {
        Self {
            type_: FrontendType::ServiceAccountToken,
            token_credential_request_info: None,
            impersonation_proxy_info: None,
            service_account_token_info: Some(info),
        }
    }
}

/// Where the Kubernetes API server is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenCredentialRequestApiInfo {
    /// Its URL.
    pub server: String,
    /// Base64 of its PEM bundle.
    pub certificate_authority_data: String,
}

/// Where the impersonation proxy is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImpersonationProxyInfo {
    /// Its URL.
    pub endpoint: String,
    /// Base64 of its PEM bundle. Empty when clients are to use their system's roots, which upstream's schema refuses.
    pub certificate_authority_data: String,
}

/// Where the API server that takes the service account tokens is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountTokenInfo {
    /// Its URL.
    pub server: String,
    /// Base64 of its PEM bundle.
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
