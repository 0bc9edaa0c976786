//! The chart with the real Helm on the node, with the commands of
//! `docs/howto/install-with-helm.md`: install, login, upgrade, rollback, the adoption of the
//! objects of upstream's manifests, and uninstall. `tests/e2e/tests/it/helm.rs` has the cases that
//! need no node.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use pinniped_e2e::environment::OnNode;
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::pages::{section_blocks, shell_blocks};
use pinniped_e2e::walkthrough::{CONCIERGE, GATEWAY, LOCAL_USER_AUTHENTICATOR, Walk};
use pinniped_image::{File, Image, Roots};
use pinniped_node::{Node, fixture};
use pinniped_test_support::{tools, wait};

use crate::admin::Admin;
use crate::reader::Reader;
use crate::walkthrough::INSTALL;

const PAGE: &str = "docs/howto/install-with-helm.md";
const TUTORIAL: &str = "docs/tutorials/kind.md";
const TOKENS: &str = "docs/howto/managed-clusters.md";
const UPSTREAM: &str = "testdata/upstream/manifests/upstream-concierge.yaml";
const UPSTREAM_IMAGE: &str = "ghcr.io/vmware/pinniped/pinniped-server:latest";
/// The namespace of the service accounts of users.
const USERS: &str = "pinniped-concierge-users";
/// The namespaces of optional components.
const OPTIONAL: [&str; 3] = [LOCAL_USER_AUTHENTICATOR, GATEWAY, USERS];
/// The default of the value `test.image`.
const TEST_IMAGE: &str = "registry.k8s.io/kubectl:v1.36.0";
/// Another image for `helm test`.
const OTHER_TEST_IMAGE: &str = "registry.example.com/kubectl:node";
/// A line of the output of `helm test`.
const SUCCEEDED: &str = "Phase:          Succeeded";
/// The error for an object that another tool created.
const NOT_OWNED: &str = "invalid ownership metadata";
/// Time limit for the garbage collector on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(180);
/// A part of the names of Secrets in which Helm stores the revisions of a release.
const REVISION: &str = "sh.helm.release";
/// A command of a user that is logged in.
const LIST_PODS: &str = "kubectl --kubeconfig pinny.yaml get pods -A";

/// The objects in the page's table, and those that Kubernetes creates for them: APIServices of the
/// definitions, and two objects in every namespace.
const LEFT: &[&str] = &[
    "CustomResourceDefinition /credentialissuers.config.concierge.pinniped.dev",
    "CustomResourceDefinition /jwtauthenticators.authentication.concierge.pinniped.dev",
    "CustomResourceDefinition /webhookauthenticators.authentication.concierge.pinniped.dev",
    "APIService /v1alpha1.authentication.concierge.pinniped.dev",
    "APIService /v1alpha1.config.concierge.pinniped.dev",
    "Namespace /pinniped-concierge",
    "ConfigMap pinniped-concierge/kube-root-ca.crt",
    "ServiceAccount pinniped-concierge/default",
];

/// The objects of upstream's manifests that the chart does not have.
const ONLY_UPSTREAM: &[&str] = &[
    "Role pinniped-concierge/pinniped-concierge-kube-cert-agent",
    "RoleBinding pinniped-concierge/pinniped-concierge-kube-cert-agent",
];

/// Names of objects with their UIDs.
type Objects = BTreeMap<String, String>;

/// An administrator with Helm.
struct Helm<'p> {
    environment: &'p OnNode<'p>,
    walk: Walk<'p>,
    reader: Reader<'p>,
    /// The objects of the cluster before the first install.
    before: Objects,
}

/// Runs a test with Helm and the images of the node, or records a skip.
async fn run(test: &str, scenario: impl AsyncFn(&Helm<'_>) -> anyhow::Result<()>) {
    let Some(helm) = tools::helm(test) else { return };
    let Some(node) = fixture::shared(test).unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    import_images(node, &folder.path().join("image.tar")).await.unwrap();
    let administrator = Helm {
        environment: &environment,
        walk: Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap(),
        reader: Reader::new(&environment, folder.path()).unwrap().with_link("helm", &helm).unwrap(),
        before: objects(Admin(&environment)).await.unwrap(),
    };
    if let Err(error) = scenario(&administrator).await {
        let output = administrator.admin().existing_objects().await;
        let history = administrator.script("helm history pinniped-concierge -n pinniped-concierge").await;
        let uninstall = "helm uninstall pinniped-concierge -n pinniped-concierge";
        let uninstalled = administrator.script(uninstall).await.is_ok();
        let removed = administrator.walk.remove().await;
        panic!("{output}\n{history:?}\n{error:#}\nuninstalled: {uninstalled}, removed: {removed:?}");
    }
}

/// Imports the product's image, and kubectl under two names.
async fn import_images(node: &Node, archive: &Path) -> anyhow::Result<()> {
    pinniped_image::product(&tools::image_bin_dir()?, archive)?;
    node.import_image(archive).await?;
    for name in [TEST_IMAGE, OTHER_TEST_IMAGE] {
        let image = Image {
            roots: Roots::Absent,
            files: vec![File::program(node.tools().join("kubectl"), "/usr/local/bin/kubectl")],
            ..Image::new(name)
        };
        pinniped_image::build(&image, archive)?;
        node.import_image(archive).await?;
    }
    Ok(())
}

/// Returns all objects of the cluster, except those that Kubernetes creates for others.
async fn objects(admin: Admin<'_>) -> anyhow::Result<Objects> {
    let kinds = admin.lasting_kinds(&[]).await?;
    ensure!(kinds.split(',').any(|kind| kind == "namespaces"), "{kinds}");
    let path = "jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} \
                {.metadata.uid}{\"\\n\"}{end}";
    let args = ["get", &kinds, "--all-namespaces", "--ignore-not-found", "-o", path];
    let lines = admin.kubectl(&args).await?;
    lines
        .lines()
        .map(|line| line.rsplit_once(' ').context("a line has no UID"))
        .map(|pair| pair.map(|(name, uid)| (name.to_owned(), uid.to_owned())))
        .collect()
}

impl Helm<'_> {
    fn admin(&self) -> Admin<'_> {
        Admin(self.environment)
    }

    /// Runs the blocks of a section of the page.
    async fn section(&self, heading: &str) -> anyhow::Result<String> {
        Ok(self.reader.run(&section_blocks(PAGE, heading)?).await?.stdout)
    }

    /// Runs a script, which must succeed.
    async fn script(&self, script: &str) -> anyhow::Result<String> {
        Ok(self.reader.script(script).await?.success()?.stdout)
    }

    /// Runs a script that Helm refuses, because objects belong to another tool.
    async fn refused(&self, script: &str) -> anyhow::Result<()> {
        let output = self.reader.script(script).await?;
        ensure!(output.code != 0 && output.stderr.contains(NOT_OWNED), "{output:?}");
        Ok(())
    }

    /// Returns the objects that did not exist before the first install and belong to the release,
    /// by their names. Other tests use the same node.
    async fn created(&self) -> anyhow::Result<Objects> {
        // Not all kinds can be listed until the API server forwards requests to the Concierge.
        let listed =
            wait::until_ok(TIME_LIMIT, "all kinds to be listed", async || objects(self.admin()).await);
        let mut all = listed.await?;
        let ours = ["pinniped", LOCAL_USER_AUTHENTICATOR, "projectcontour", "heptio"];
        all.retain(|name, _| !self.before.contains_key(name) && ours.iter().any(|part| name.contains(part)));
        Ok(all)
    }

    /// Returns the same objects without the revisions of the release.
    async fn installed(&self) -> anyhow::Result<Objects> {
        let mut all = self.created().await?;
        all.retain(|name, _| !name.contains(REVISION));
        Ok(all)
    }

    /// Waits until exactly these objects exist.
    async fn await_objects(&self, wanted: &[&str]) -> anyhow::Result<()> {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        wait::until_ok(TIME_LIMIT, "the other objects to go", async || {
            let created = self.created().await?;
            let created: Vec<&str> = created.keys().map(String::as_str).collect();
            ensure!(created == wanted, "{created:?}, wanted {wanted:?}");
            Ok(())
        })
        .await
    }

    /// Checks that all objects still exist with their UIDs.
    async fn the_same(&self, earlier: &Objects) -> anyhow::Result<()> {
        let now = self.installed().await?;
        for (name, uid) in earlier {
            ensure!(now.get(name) == Some(uid), "{name} {uid} is {:?}", now.get(name));
        }
        Ok(())
    }

    /// Uninstalls as the page does, and checks that the objects in its table are left, and no
    /// others. Then deletes them as the page does.
    async fn uninstall(&self, more: &[&str]) -> anyhow::Result<()> {
        let blocks = section_blocks(PAGE, "Uninstall")?;
        let (last, before) = blocks.split_last().context("no blocks")?;
        self.reader.run(before).await?;
        self.await_objects(&[LEFT, more].concat()).await?;
        let gone = ["get", "pods,replicasets", "-n", CONCIERGE, "-o", "name"];
        wait::until_ok(TIME_LIMIT, "the pods to go", async || {
            let left = self.admin().kubectl(&gone).await?;
            ensure!(left.is_empty(), "{left}");
            Ok(())
        })
        .await?;
        self.script(last).await?;
        self.await_objects(&[]).await?;
        let left = self.walk.leftovers().await?;
        ensure!(left.is_empty(), "{}", left.join(", "));
        Ok(())
    }

    /// Returns the Concierge's configuration file.
    async fn configuration(&self) -> anyhow::Result<String> {
        let name = "pinniped-concierge-config";
        self.admin().kubectl(&["get", "configmap", name, "-n", CONCIERGE, "-o", "jsonpath={.data}"]).await
    }

    /// Waits until a strategy works.
    async fn await_strategy(&self, name: &str) -> anyhow::Result<()> {
        let path = format!("jsonpath={{.status.strategies[?(@.type==\"{name}\")]['status', 'message']}}");
        let issuer = ["get", "credentialissuer", "pinniped-concierge-config", "-o", &path];
        wait::until_ok(TIME_LIMIT, "a strategy to work", async || {
            let status = self.admin().kubectl(&issuer).await?;
            ensure!(status.starts_with("Success "), "{name}: {status:?}");
            Ok(())
        })
        .await
    }

    /// Waits until the namespaces of optional components are gone.
    async fn await_no_optional_namespace(&self) -> anyhow::Result<()> {
        wait::until_ok(TIME_LIMIT, "the namespaces of optional components to go", async || {
            let names = self.admin().kubectl(&["get", "namespaces", "-o", "name"]).await?;
            let exists = |name: &str| names.lines().any(|line| line == format!("namespace/{name}"));
            ensure!(!OPTIONAL.iter().any(|name| exists(name)), "{names}");
            Ok(())
        })
        .await
    }

    /// Applies upstream's manifests with the image of the node, and waits until logins work.
    /// Returns the objects, and the contents of the Concierge's Secrets.
    async fn install_upstream(&self) -> anyhow::Result<(Objects, String)> {
        let text = std::fs::read_to_string(tools::repository().join(UPSTREAM))?;
        ensure!(text.contains(UPSTREAM_IMAGE), "{UPSTREAM} has another image");
        let text = text.replace(UPSTREAM_IMAGE, pinniped_image::REFERENCE);
        std::fs::write(self.reader.folder().join("installed.yaml"), text)?;
        // The CredentialIssuer is refused until its definition is served.
        wait::until_ok(TIME_LIMIT, "upstream's manifests to be applied", async || {
            self.script("kubectl apply -f installed.yaml").await
        })
        .await?;
        let rollout =
            "kubectl rollout status deployment/pinniped-concierge -n pinniped-concierge --timeout=180s";
        self.script(rollout).await?;
        self.await_strategy("KubeClusterSigningCertificate").await?;
        Ok((self.installed().await?, self.secrets().await?))
    }

    /// Returns the contents of the Concierge's Secrets.
    async fn secrets(&self) -> anyhow::Result<String> {
        let own = "--field-selector=type!=helm.sh/release.v1";
        let path = "jsonpath={range .items[*]}{.metadata.name} {.data}{\"\\n\"}{end}";
        self.admin().kubectl(&["get", "secrets", "-n", CONCIERGE, own, "-o", path]).await
    }
}

fn succeeded(output: &str) -> bool {
    output.lines().any(|line| line.trim() == SUCCEEDED)
}

/// One test, because each step depends on the previous one, as on the page.
#[tokio::test]
async fn a_release_is_installed_logged_in_to_upgraded_rolled_back_and_uninstalled() {
    run("the life of a release with Helm", life).await;
}

async fn life(helm: &Helm<'_>) -> anyhow::Result<()> {
    let tested = helm.section("Install").await?;
    ensure!(succeeded(&tested), "{tested}");
    let first = helm.installed().await?;
    ensure!(first.len() > 30, "{first:?}");

    helm.section("Optional components").await?;
    helm.the_same(&first).await?;
    helm.await_strategy("ServiceAccountToken").await?;
    log_in(helm).await?;
    let complete = helm.installed().await?;
    for namespace in OPTIONAL {
        ensure!(complete.contains_key(&format!("Namespace /{namespace}")), "{complete:?}");
    }

    // The blocks of the section are the upgrade and the rollback without a revision.
    let blocks = section_blocks(PAGE, "Upgrade and roll back")?;
    let [upgrade, rollback] = &blocks[..] else { anyhow::bail!("{blocks:?}") };
    ensure!(!helm.configuration().await?.contains("credentialLifetimeSeconds"));
    helm.script(upgrade).await?;
    ensure!(helm.configuration().await?.contains("credentialLifetimeSeconds: 600"));
    helm.the_same(&complete).await?;
    helm.script(LIST_PODS).await?;
    helm.script(rollback).await?;
    ensure!(!helm.configuration().await?.contains("credentialLifetimeSeconds"));
    helm.the_same(&complete).await?;
    helm.script(LIST_PODS).await?;

    // The first revision has none of the optional components, and keeps the CredentialIssuer.
    let first_revision = rollback.replace("rollback pinniped-concierge", "rollback pinniped-concierge 1");
    ensure!(&first_revision != rollback, "{rollback}");
    helm.script(&first_revision).await?;
    helm.the_same(&first).await?;
    helm.await_no_optional_namespace().await?;
    helm.script(rollback).await?;
    helm.the_same(&first).await?;
    helm.await_strategy("ServiceAccountToken").await?;
    helm.script(&format!("kubectl rollout status deployment/{GATEWAY} -n {GATEWAY} --timeout=120s")).await?;

    helm.script("kubectl delete clusterrolebinding developers").await?;
    helm.uninstall(&[
        "CustomResourceDefinition /httpproxies.projectcontour.io",
        "CustomResourceDefinition /tlscertificatedelegations.projectcontour.io",
        "APIService /v1.projectcontour.io",
        "WebhookAuthenticator /local-user-authenticator",
    ])
    .await
}

/// Logs in as the tutorial does, and then with a token of a service account.
async fn log_in(helm: &Helm<'_>) -> anyhow::Result<()> {
    let tutorial = shell_blocks(TUTORIAL)?;
    let installs = tutorial.iter().position(|block| block.contains("install-local-user-authenticator.yaml"));
    let login = &tutorial[installs.context("the tutorial installs nothing")? + 1..tutorial.len() - 1];
    let printed = helm.reader.run(login).await?.stdout;
    ensure!(printed.contains("no permissions yet"), "{printed}");
    ensure!(printed.contains("Username: pinny\nGroups: developers, system:authenticated\n"), "{printed}");
    ensure!(printed.lines().any(|line| line.starts_with("kube-system ")), "no pods were listed: {printed}");

    let login = section_blocks(TOKENS, "Log in")?;
    let printed = helm.reader.run(&login[..1]).await?.stdout;
    ensure!(printed.lines().any(|line| line.split_whitespace().eq(["Username", "pinny"])), "{printed}");
    Ok(())
}

#[tokio::test]
async fn a_release_adopts_the_objects_of_upstreams_manifests_by_a_flag_or_by_their_marks() {
    run("Helm adopts upstream's objects on a node", adoption).await;
}

async fn adoption(helm: &Helm<'_>) -> anyhow::Result<()> {
    for heading in ["Adopt an existing installation", "Adopt objects by their marks"] {
        let (upstream, secrets) = helm.install_upstream().await.context(heading)?;
        ensure!(upstream.len() > 30 && !secrets.is_empty(), "{upstream:?}");
        let install = section_blocks(PAGE, "Install")?;
        // Neither the flag nor the marks.
        helm.refused(&install[0]).await.context(heading)?;
        helm.section(heading).await?;
        helm.the_same(&upstream).await.context(heading)?;
        ensure!(helm.secrets().await? == secrets, "{heading}: the Secrets have changed");
        // The test, and the wait for logins.
        helm.reader.run(&install[1..]).await?;
        let released = helm.script("helm get manifest pinniped-concierge -n pinniped-concierge").await?;
        let adopted = ["kind: CredentialIssuer\n", "kind: CustomResourceDefinition\n", "kind: Deployment\n"];
        ensure!(adopted.iter().all(|kind| released.contains(kind)), "{released}");
        ensure!(!released.contains("kind: Namespace\n"), "{released}");
        helm.uninstall(ONLY_UPSTREAM).await.context(heading)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_release_without_the_agent_runs_in_a_restricted_namespace_that_belongs_to_it() {
    run("Helm installs into a restricted namespace", restricted).await;
}

async fn restricted(helm: &Helm<'_>) -> anyhow::Result<()> {
    let install = section_blocks(PAGE, "Without the kube-cert-agent")?.join("\n");
    helm.script(&install).await?;
    helm.await_strategy("ImpersonationProxy").await?;
    let label = r"jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}";
    ensure!(helm.admin().kubectl(&["get", "namespace", CONCIERGE, "-o", label]).await? == "restricted");
    // The namespace also admits the pod of the test.
    let test = format!(
        "helm upgrade pinniped-concierge deploy/chart -n pinniped-concierge --reset-then-reuse-values \
         --set test.image={OTHER_TEST_IMAGE} --wait\nhelm test pinniped-concierge -n pinniped-concierge"
    );
    let tested = helm.script(&test).await?;
    ensure!(succeeded(&tested), "{tested}");
    let hooks = helm.script("helm get hooks pinniped-concierge -n pinniped-concierge").await?;
    ensure!(hooks.contains(&format!("image: {OTHER_TEST_IMAGE}\n")), "{hooks}");
    let label = "kube-cert-agent.pinniped.dev";
    let agents = ["get", "deployments,pods", "-n", CONCIERGE, "-l", label, "-o", "name"];
    ensure!(helm.admin().kubectl(&agents).await?.is_empty(), "there is an agent");

    // The namespace is kept. Without the marks of the release, it is adopted only with the flag.
    helm.script("helm uninstall pinniped-concierge -n pinniped-concierge --wait").await?;
    helm.script(
        "kubectl label namespace pinniped-concierge app.kubernetes.io/managed-by-\n\
         kubectl annotate namespace pinniped-concierge meta.helm.sh/release-name- meta.helm.sh/release-namespace-",
    )
    .await?;
    helm.refused(&install).await?;
    helm.script(&format!("{install} --take-ownership")).await?;
    helm.await_strategy("ImpersonationProxy").await?;
    helm.uninstall(&[]).await
}
