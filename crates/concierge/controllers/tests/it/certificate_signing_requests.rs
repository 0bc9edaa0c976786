//! Certificates of the cluster's signer, on a real API server and a real kube-controller-manager.

use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use pinniped_concierge_api::config::{
    CredentialIssuerStrategy, StrategyReason, StrategyStatus, StrategyType,
};
use pinniped_concierge_controllers::api_server_address::DiscoveryUrl;
use pinniped_pki::{ClientSubject, IssuedPair};
use pinniped_test_support::control_plane::{ControlPlane, ControlPlaneParams};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::{Value, json};

use crate::install::{Install, PATIENCE, Pod};

const TYPE: StrategyType = StrategyType::KubeCertificateSigningRequest;

impl Install {
    /// Changes `spec.certificateSigningRequests`.
    async fn configure_requests(&self, mode: &str) -> anyhow::Result<()> {
        let patch = json!({"spec": {"certificateSigningRequests": {"mode": mode}}});
        self.issuers().patch("concierge-config", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Returns the names of all requests of this installation.
    async fn requests(&self) -> anyhow::Result<Vec<String>> {
        let selector = format!("concierge.pinniped.dev/certificate-signing-request={}", self.namespace);
        let requests: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let list = requests.list_metadata(&ListParams::default().labels(&selector)).await?;
        Ok(list.items.into_iter().filter_map(|item| item.metadata.name).collect())
    }

    async fn await_switch(&self, pod: &Pod, on: bool) -> anyhow::Result<()> {
        wait::until(PATIENCE, format!("the switch to be {on}"), async || {
            (pod.signing.is_on() == on).then_some(())
        })
        .await
    }
}

fn url() -> DiscoveryUrl {
    DiscoveryUrl::new(Some("https://api.example.com".to_owned()))
}

fn subject(username: &str, groups: &[&str]) -> ClientSubject {
    let groups = groups.iter().map(|&group| group.to_owned()).collect();
    let extra = [("example.com/k".to_owned(), vec!["a".to_owned(), "b".to_owned()])].into();
    ClientSubject { username: username.to_owned(), groups, extra }
}

/// Returns the user that the API server authenticates for this certificate.
async fn who_is(plane: &ControlPlane, pair: &IssuedPair) -> anyhow::Result<Value> {
    let mut kubeconfig = Kubeconfig::read_from(plane.admin_kubeconfig())?;
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(AuthInfo {
            client_certificate_data: Some(STANDARD.encode(&pair.certificate_pem)),
            client_key_data: Some(STANDARD.encode(pair.private_key_pem.as_str()).into()),
            ..AuthInfo::default()
        });
    }
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let reviews: Api<SelfSubjectReview> = Api::all(kube::Client::try_from(config)?);
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    Ok(serde_json::to_value(review)?["status"]["userInfo"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clusters_signer_signs_certificates_that_the_api_server_accepts() -> anyhow::Result<()> {
    let plane = World::shared()?.control_plane();
    let install = Install::new("signing", json!({"mode": "disabled", "service": {"type": "None"}})).await?;
    let discovery_url = url();
    let pod = install.pod_with_url("pod-1", discovery_url.clone());
    wait::until(PATIENCE, "a leader", async || pod.controllers.leadership().is_leader().then_some(()))
        .await?;
    assert!(!pod.signing.is_on());

    install.configure_requests("enabled").await?;
    let entry =
        install.strategy_of(&TYPE, "Success", |entry| entry.status == StrategyStatus::Success).await?;
    assert_eq!(entry.reason, StrategyReason::Listening);
    assert_eq!(entry.message, "client certificates are signed through the cluster's certificate API");
    assert_eq!(
        serde_json::to_value(&entry.frontend)?,
        json!({
            "type": "TokenCredentialRequestAPI",
            "tokenCredentialRequestInfo":
                {"server": "https://api.example.com", "certificateAuthorityData": "Y2E="},
        })
    );
    // Each strategy is written by its own controller.
    let wanted = [StrategyType::KubeClusterSigningCertificate, TYPE, StrategyType::ImpersonationProxy];
    wait::until_ok(PATIENCE, "all strategies in their order", async || {
        let types: Vec<_> = install.strategies().await?.into_iter().map(|entry| entry.type_).collect();
        anyhow::ensure!(types == wanted, "{types:?}");
        Ok(())
    })
    .await?;
    // A changed URL is published at once.
    discovery_url.set(Some("https://new.example.com".to_owned()));
    let published = |entry: &CredentialIssuerStrategy| {
        let frontend = serde_json::to_value(&entry.frontend).unwrap_or_default();
        frontend["tokenCredentialRequestInfo"]["server"] == "https://new.example.com"
    };
    install.strategy_of(&TYPE, "the new URL", published).await?;
    // Every replica serves, not only the leader.
    let follower = install.pod_with_url("pod-2", url());
    for pod in [&pod, &follower] {
        install.await_switch(pod, true).await?;
    }

    let before = Timestamp::now();
    let signing = install.signing();
    let pair = signing.sign(&subject("jörg", &["b", "a", "b"]), Duration::from_secs(300)).await?;
    let lifetime = pair.validity.not_after.duration_since(before).as_secs();
    assert!((598..=620).contains(&lifetime), "{lifetime}");
    let user = who_is(plane, &pair).await?;
    assert_eq!(user["username"], "jörg");
    assert_eq!(user["groups"], json!(["a", "b", "b", "system:authenticated"]));
    let hour = signing.sign(&subject("hour", &[]), Duration::from_secs(3600)).await?;
    let lifetime = hour.validity.not_after.duration_since(before).as_secs();
    assert!((3598..=3620).contains(&lifetime), "{lifetime}");
    assert_eq!(install.requests().await?, Vec::<String>::new(), "no request is left");

    // No request is created for the group with all permissions.
    let refused = signing.sign(&subject("u", &["system:masters"]), Duration::from_secs(300)).await;
    let refused = refused.err().context("a certificate")?.to_string();
    assert_eq!(refused, "group \"system:masters\" is not allowed");

    install.configure_requests("disabled").await?;
    wait::until_ok(PATIENCE, "no entry", async || {
        let strategies = install.strategies().await?;
        anyhow::ensure!(strategies.iter().all(|entry| entry.type_ != TYPE), "{strategies:?}");
        Ok(())
    })
    .await?;
    for pod in [&pod, &follower] {
        install.await_switch(pod, false).await?;
    }
    follower.controllers.shutdown().await;
    pod.controllers.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_signer_does_not_respond_is_reported() -> anyhow::Result<()> {
    let plane = ControlPlane::start(ControlPlaneParams {
        extra_controller_manager_args: vec![
            "--controllers=-certificatesigningrequest-signing-controller".to_owned(),
        ],
        ..ControlPlaneParams::default()
    })
    .await?;
    let install =
        Install::on(&plane, "no-signer", json!({"mode": "disabled", "service": {"type": "None"}})).await?;
    let pod = install.pod_with_url("pod-1", url());
    install.configure_requests("enabled").await?;
    let entry = install.strategy_of(&TYPE, "an error", |_| true).await?;
    assert_eq!((entry.status, entry.reason), (StrategyStatus::Error, StrategyReason::ErrorDuringSetup));
    assert_eq!(
        entry.message,
        "the signer kubernetes.io/kube-apiserver-client did not sign a CertificateSigningRequest within 15 seconds"
    );
    assert_eq!(entry.frontend, None);
    assert!(!pod.signing.is_on());
    assert_eq!(install.requests().await?, Vec::<String>::new(), "no request is left");
    pod.controllers.shutdown().await;
    Ok(())
}
