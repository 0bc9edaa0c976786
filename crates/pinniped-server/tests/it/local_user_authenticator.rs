//! Tests of the local-user-authenticator as deployed: two replicas from the installation manifest,
//! against a real API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use pinniped_local_user_authenticator::{CERTIFICATE_SECRET, NAMESPACE};
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{ALPN_HTTP_1_1, Profile, Roots, client_config};
use pinniped_test_support::world::World;
use pinniped_test_support::{tools, wait};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::PROGRAM;

const NAME: &str = "local-user-authenticator";
const HOST: &str = "local-user-authenticator.local-user-authenticator.svc";
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a TokenReview over a separate connection, so that each call may reach another replica.
async fn review(tls: Arc<rustls::ClientConfig>, token: &str) -> anyhow::Result<(StatusCode, String)> {
    let tcp = TcpStream::connect((HOST, 443)).await.context("could not connect")?;
    let stream = TlsConnector::from(tls).connect(ServerName::try_from(HOST)?, tcp).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let body = serde_json::json!({
        "apiVersion": "authentication.k8s.io/v1beta1", "kind": "TokenReview", "spec": {"token": token},
    });
    let request = Request::post("/authenticate")
        .header("Host", HOST)
        .header("Content-Type", "application/json")
        .header("Accept", "application/json, */*")
        .body(Full::new(Bytes::from(body.to_string())))?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        // Closes the connection, which completes the other future of the join.
        drop(sender);
        anyhow::Ok((status, String::from_utf8(body.to_vec())?))
    };
    let (received, _ended) = tokio::join!(exchange, connection);
    received
}

fn trusting(ca_pem: &[u8]) -> anyhow::Result<Arc<rustls::ClientConfig>> {
    Ok(client_config(Profile::Secure, Roots::Bundle(CaBundle::from_pem(ca_pem)?), &[ALPN_HTTP_1_1])?)
}

/// Returns a client that supports at most TLS 1.2.
fn old_client(ca_pem: &[u8]) -> anyhow::Result<Arc<rustls::ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(CaBundle::from_pem(ca_pem)?.ders().iter().cloned());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn user(name: &str, password: &str, groups: &str) -> anyhow::Result<Secret> {
    let data = [("passwordHash", bcrypt::hash(password, 4)?), ("groups", groups.to_owned())];
    Ok(Secret {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        string_data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
        ..Secret::default()
    })
}

fn data(secret: &Secret) -> &BTreeMap<String, ByteString> {
    static NONE: BTreeMap<String, ByteString> = BTreeMap::new();
    secret.data.as_ref().unwrap_or(&NONE)
}

async fn ca(secrets: &Api<Secret>) -> anyhow::Result<Vec<u8>> {
    let secret = secrets.get(CERTIFICATE_SECRET).await?;
    Ok(data(&secret).get("caCertificate").context("no CA in the Secret")?.0.clone())
}

/// Waits until the responses on several consecutive connections contain the expected text.
async fn assert_review(tls: &Arc<rustls::ClientConfig>, token: &str, expected: &str) -> anyhow::Result<()> {
    wait::until_ok(PATIENCE, format!("every replica to respond with {expected}"), async || {
        for _ in 0..8 {
            let (status, body) = review(Arc::clone(tls), token).await?;
            ensure!(status == StatusCode::OK && body.contains(expected), "{status} {body}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn two_replicas_share_a_certificate_and_follow_their_secrets() -> anyhow::Result<()> {
    let world = World::shared()?;
    let Some(pods) = world.pods("two replicas of the local-user-authenticator") else { return Ok(()) };
    pods.register(NAME, PROGRAM.into());
    let manifest =
        std::fs::read_to_string(tools::repository().join("deploy/install-local-user-authenticator.yaml"))?;
    // Both replicas start at the same time and compete for the certificate.
    world.kubectl().apply(&manifest.replace("replicas: 1", "replicas: 2")).await?;
    let rollout =
        ["rollout", "status", "deployment/local-user-authenticator", "-n", NAMESPACE, "--timeout=60s"];
    world.kubectl().output(&rollout).await.with_context(|| pods.log_tails(NAMESPACE, 30))?;

    let secrets: Api<Secret> = Api::namespaced(world.client().await?, NAMESPACE);
    let first_ca = wait::until_ok(PATIENCE, "the certificate", async || ca(&secrets).await)
        .await
        .with_context(|| pods.log_tails(NAMESPACE, 30))?;
    let tls = trusting(&first_ca)?;
    let nobody = r#""status":{"user":{}}"#;
    assert_review(&tls, "ryan:hunter2", nobody).await.with_context(|| pods.log_tails(NAMESPACE, 30))?;

    // A user is added and changed without a restart.
    secrets.create(&PostParams::default(), &user("ryan", "hunter2", "group1, group2")?).await?;
    assert_review(&tls, "ryan:hunter2", r#""user":{"username":"ryan","groups":["group1","group2"]}"#).await?;
    assert_review(&tls, "ryan:wrong", nobody).await?;
    let change = serde_json::json!({"stringData": {"groups": "group3"}});
    secrets.patch("ryan", &PatchParams::default(), &Patch::Merge(&change)).await?;
    assert_review(&tls, "ryan:hunter2", r#""user":{"username":"ryan","groups":["group3"]}"#).await?;
    // The certificate's own Secret is a user without a password.
    assert_review(&tls, &format!("{CERTIFICATE_SECRET}:"), nobody).await?;

    let refused =
        review(old_client(&first_ca)?, "ryan:hunter2").await.err().context("TLS 1.2 was accepted")?;
    assert!(format!("{refused:#}").contains("ProtocolVersion"), "{refused:#}");

    // After its Secret is deleted there is a new CA, which both replicas serve from then on.
    let uid = secrets.get(CERTIFICATE_SECRET).await?.uid();
    secrets.delete(CERTIFICATE_SECRET, &DeleteParams::default()).await?;
    let second_ca = wait::until_ok(PATIENCE, "another certificate", async || {
        let secret = secrets.get(CERTIFICATE_SECRET).await?;
        ensure!(secret.uid() != uid, "still the old one");
        ca(&secrets).await
    })
    .await?;
    assert_ne!(first_ca, second_ca);
    assert_review(&trusting(&second_ca)?, "ryan:hunter2", r#""username":"ryan""#).await?;
    review(tls, "ryan:hunter2").await.err().context("the old CA is still good")?;

    // SIGTERM terminates a container with status 0, and the next container serves requests.
    pods.signal(NAMESPACE, rustix::process::Signal::TERM);
    wait::until(Duration::from_secs(5), "both containers to exit with 0", async || {
        (pods.logs(NAMESPACE).matches("container ended: exit status: 0").count() == 2).then_some(())
    })
    .await
    .with_context(|| pods.log_tails(NAMESPACE, 30))?;
    assert_review(&trusting(&second_ca)?, "ryan:hunter2", r#""username":"ryan""#).await?;

    // SIGTERM is sufficient to terminate both, long before the pods' termination grace period ends.
    let scale = ["scale", "deployment/local-user-authenticator", "-n", NAMESPACE, "--replicas=0"];
    world.kubectl().output(&scale).await?;
    wait::until(Duration::from_secs(15), "both pods to end", async || {
        pods.list(NAMESPACE).iter().all(|(_, pod)| pod.pid.is_none()).then_some(())
    })
    .await?;
    let logs = pods.logs(NAMESPACE);
    assert_eq!(logs.matches(r#""signal":"terminated""#).count(), 4, "{logs}");
    assert!(!logs.contains("hunter2") && !logs.contains("ryan"), "{logs}");
    world.kubectl().output(&["delete", "namespace", NAMESPACE, "--timeout=60s"]).await?;
    Ok(())
}
