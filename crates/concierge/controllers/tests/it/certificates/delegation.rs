//! A serving certificate in another namespace: granted, revoked and renewed on a real API server.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pinniped_concierge_api::config::{CredentialIssuerStrategy, StrategyReason};
use pinniped_delegation::api::{DelegationGroup, TlsCertificateDelegation};
use pinniped_pki::{CertificateAuthority, IssuedPair, Validity};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::{Value, json};

use crate::install::{Install, PATIENCE, Pod, bytes};

const MAIN: &str = include_str!("../../../../../../deploy/install-tls-certificate-delegation.yaml");
const LEGACY: &str = include_str!("../../../../../../deploy/install-tls-certificate-delegation-legacy.yaml");

/// The owner of a certificate.
struct Owner {
    client: kube::Client,
    namespace: String,
    authority: CertificateAuthority,
}

impl Owner {
    async fn new(client: &kube::Client, namespace: &str) -> anyhow::Result<Self> {
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        Api::all(client.clone()).create(&PostParams::default(), &object).await?;
        let validity = Validity::starting(jiff::Timestamp::now(), PATIENCE * 1000);
        let authority = CertificateAuthority::generate("owner", &validity)?;
        Ok(Self { client: client.clone(), namespace: namespace.to_owned(), authority })
    }

    fn issue(&self) -> anyhow::Result<IssuedPair> {
        let validity = Validity::starting(jiff::Timestamp::now(), PATIENCE * 100);
        Ok(self.authority.issue_server(&["*.example.com".to_owned()], &[], &validity)?)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn grants(&self, group: DelegationGroup) -> Api<TlsCertificateDelegation> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &group)
    }

    /// Creates the Secret, or replaces its pair.
    async fn put(&self, pair: &IssuedPair) -> anyhow::Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "wildcard"}, "type": "kubernetes.io/tls",
            "data": {
                "tls.crt": STANDARD.encode(&pair.certificate_pem),
                "tls.key": STANDARD.encode(pair.private_key_pem.as_str()),
                "ca.crt": STANDARD.encode(self.authority.certificate_pem()),
            },
        });
        let apply = PatchParams::apply("owner").force();
        self.secrets().patch("wildcard", &apply, &Patch::Apply(&secret)).await?;
        Ok(())
    }

    /// Creates or changes the only object of this group.
    async fn grant(&self, group: DelegationGroup, secret: &str, targets: &[&str]) -> anyhow::Result<()> {
        let object = json!({
            "apiVersion": format!("{}/{}", group.group(), group.version()),
            "kind": TlsCertificateDelegation::KIND, "metadata": {"name": "grant"},
            "spec": {"delegations": [{"secretName": secret, "targetNamespaces": targets}]},
        });
        let apply = PatchParams::apply("owner").force();
        wait::until_ok(PATIENCE, "the kind to be served", async || {
            Ok(self.grants(group).patch("grant", &apply, &Patch::Apply(&object)).await.map(drop)?)
        })
        .await
    }

    async fn revoke(&self, group: DelegationGroup) -> anyhow::Result<()> {
        self.grants(group).delete("grant", &DeleteParams::default()).await?;
        Ok(())
    }
}

fn serves(pod: &Pod, pair: &IssuedPair) -> bool {
    pod.serving.current().is_some_and(|current| current.certificate_pem() == pair.certificate_pem)
}

async fn await_served(pod: &Pod, pair: &IssuedPair) -> anyhow::Result<()> {
    wait::until(PATIENCE, "the delegated pair to be served", async || serves(pod, pair).then_some(())).await
}

/// Waits until no handshake would succeed.
async fn await_refusal(pod: &Pod) -> anyhow::Result<()> {
    wait::until(PATIENCE, "handshakes to be refused", async || pod.serving.current().is_none().then_some(()))
        .await
}

/// Revokes the permission, and checks that the pod withdraws the certificate before it does
/// anything else: the next change of the store is the refusal, and no handshake succeeds when the
/// status reports the denial.
async fn revoked(
    install: &Install,
    pod: &Pod,
    revocation: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let mut changes = pod.serving.subscribe();
    changes.mark_unchanged();
    revocation.await?;
    tokio::time::timeout(PATIENCE, changes.changed()).await.context("no change of the store")??;
    anyhow::ensure!(pod.serving.current().is_none(), "another certificate is served first");
    install.strategy("a denial", is_denied).await?;
    anyhow::ensure!(pod.serving.current().is_none(), "denied, and served");
    Ok(())
}

fn is_denied(strategy: &CredentialIssuerStrategy) -> bool {
    strategy.reason == StrategyReason::ErrorDuringSetup
        && strategy.message
            == "could not load the externally provided TLS secret for the impersonation proxy: \
                certificate delegation not permitted for Secret \"certs/wildcard\""
}

fn listens(strategy: &CredentialIssuerStrategy) -> bool {
    strategy.reason == StrategyReason::Listening
}

fn named(secret_name: &str) -> Value {
    json!({"tls": {"secretName": secret_name}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_namespace_is_served_while_its_owner_permits_it() -> anyhow::Result<()> {
    let world = World::shared()?.control_plane();
    let endpoint = json!({
        "mode": "enabled", "externalEndpoint": "proxy.example.com", "service": {"type": "None"},
    });
    let install = Install::new("delegation", endpoint).await?;
    let pod = install.pod("pod-1");
    install.strategy("Listening with a generated certificate", listens).await?;
    let generated = install.secret("concierge-tls", |_| true).await?;
    let owner = Owner::new(&install.client, "certs").await?;
    let (first, second) = (owner.issue()?, owner.issue()?);
    let current = DelegationGroup::ProjectContour;
    let namespace = install.namespace.clone();

    // Without the definition the use is denied, whether or not the Secret exists, and no generated
    // certificate is served.
    install.configure(named("certs/wildcard")).await?;
    install.strategy("a denial", is_denied).await?;
    await_refusal(&pod).await?;
    owner.put(&first).await?;
    install.strategy("a denial, still", is_denied).await?;
    assert_eq!(install.secret("concierge-tls", |_| true).await?.metadata.uid, generated.metadata.uid);

    // The definition is installed later, without a restart.
    world.kubectl().apply(MAIN).await?;
    owner.grant(current, "wildcard", &[&namespace]).await?;
    let ready = install.strategy("Listening", listens).await?;
    let info = ready.frontend.and_then(|frontend| frontend.impersonation_proxy_info).unwrap();
    assert_eq!(
        STANDARD.decode(info.certificate_authority_data)?,
        owner.authority.certificate_pem().as_bytes()
    );
    await_served(&pod, &first).await?;
    install.secret_gone("concierge-tls").await?;

    // Renewed without an edit or a restart.
    owner.put(&second).await?;
    await_served(&pod, &second).await?;

    // Granted for another namespace, another Secret, no namespace, or a wildcard beside another
    // name: each is refused immediately.
    let rows: [(&str, &[&str]); 4] = [
        ("wildcard", &["other"]),
        ("different", &[&namespace]),
        ("wildcard", &[]),
        ("wildcard", &["*", "other"]),
    ];
    for (secret, targets) in rows {
        let revocation = owner.grant(current, secret, targets);
        revoked(&install, &pod, revocation).await.with_context(|| format!("{secret} {targets:?}"))?;
        owner.grant(current, "wildcard", &["*"]).await?;
        await_served(&pod, &second).await?;
        install.strategy("Listening again", listens).await?;
    }

    // A deleted grant is refused; an object of an old group grants while the current group has
    // none.
    revoked(&install, &pod, owner.revoke(current)).await?;
    world.kubectl().apply(LEGACY).await?;
    for group in [DelegationGroup::Heptio, DelegationGroup::Vmware] {
        owner.grant(group, "wildcard", &[&namespace]).await?;
        await_served(&pod, &second).await?;
        owner.revoke(group).await?;
        await_refusal(&pod).await?;
    }

    // An object in the Concierge's own namespace grants nothing.
    let own =
        Owner { client: install.client.clone(), namespace: namespace.clone(), authority: owner.authority };
    own.grant(current, "wildcard", &[&namespace]).await?;
    let owner = Owner { namespace: "certs".to_owned(), ..own };
    install.strategy("a denial", is_denied).await?;

    // With a grant, a missing Secret is reported as missing, and its creation is noticed.
    owner.grant(current, "wildcard", &[&namespace]).await?;
    await_served(&pod, &second).await?;
    owner.secrets().delete("wildcard", &DeleteParams::default()).await?;
    await_refusal(&pod).await?;
    let prefix = "could not load the externally provided TLS secret for the impersonation proxy: ";
    let missing = format!("{prefix}secret \"wildcard\" not found");
    install.strategy("a missing Secret", |entry| entry.message == missing).await?;
    owner.put(&first).await?;
    await_served(&pod, &first).await?;

    // An invalid Secret: the previous content is not kept.
    let patch = Patch::Merge(json!({"data": {"tls.crt": STANDARD.encode("garbage")}}));
    owner.secrets().patch("wildcard", &PatchParams::default(), &patch).await?;
    await_refusal(&pod).await?;
    let broken = format!("{prefix}could not parse TLS cert PEM data from Secret: ");
    install.strategy("a broken Secret", |entry| entry.message.starts_with(&broken)).await?;
    owner.put(&second).await?;
    await_served(&pod, &second).await?;

    // Malformed names are refused without a request; names in the own namespace need no grant.
    for (name, quoted) in [("certs/a/b", "certs/a/b"), ("certs/", "certs/")] {
        install.configure(named(name)).await?;
        let wrong =
            format!("{prefix}malformed secretName \"{quoted}\" (expected \"name\" or \"namespace/name\")");
        install.strategy("a malformed name", |entry| entry.message == wrong).await?;
        await_refusal(&pod).await?;
    }
    let copy = owner.secrets().get("wildcard").await?;
    let copy = Secret { metadata: Default::default(), ..copy };
    let copy = Secret { metadata: serde_json::from_value(json!({"name": "copy"}))?, ..copy };
    install.secrets().create(&PostParams::default(), &copy).await?;
    for name in ["/copy".to_owned(), format!("{namespace}/copy")] {
        install.configure(named(&name)).await?;
        install.strategy("Listening", listens).await?;
        await_served(&pod, &second).await?;
        install.configure(named("certs/none")).await?;
        await_refusal(&pod).await?;
    }

    // Back to a generated certificate with the original CA.
    install.configure(json!({"tls": null})).await?;
    install.strategy("Listening", listens).await?;
    let ca = install.secret("concierge-ca", |_| true).await?;
    assert!(!bytes(&ca, "ca.crt").is_empty());
    pod.controllers.shutdown().await;
    Ok(())
}
