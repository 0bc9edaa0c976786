//! The chart with the real Helm: install, upgrade, rollback, uninstall, and the adoption of the
//! objects that upstream's manifests created. Each test has a namespace, names and an API group
//! suffix of its own. The commands are those of `docs/howto/install-with-helm.md`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use pinniped_test_support::kubectl::CommandOutput;
use pinniped_test_support::pods::Pods;
use pinniped_test_support::world::World;
use pinniped_test_support::{kubectl, tools, wait};

use crate::installed::{self, NEW_LEADER_LIMIT, TIME_LIMIT};

/// The kinds of which the chart or the Concierge has objects.
const NAMESPACED: &str = "serviceaccounts,configmaps,secrets,services,deployments.apps,pods,leases,\
                          roles,rolebindings";
const CLUSTER_SCOPED: &str =
    "customresourcedefinitions,clusterroles,clusterrolebindings,apiservices,namespaces";
/// The namespaces of other components in which the chart has objects.
const OTHERS: [&str; 3] = ["default", "kube-public", "kube-system"];
/// Flags for objects that Helm did not create.
const ADOPT: [&str; 2] = ["--take-ownership", "--force-conflicts"];

/// A release whose name, namespace and prefix of names are `app`.
struct Release {
    world: &'static World,
    pods: &'static Pods,
    helm: PathBuf,
    app: &'static str,
    suffix: String,
}

impl Release {
    /// Returns a release that is not installed yet, or records a skip.
    fn new(app: &'static str) -> Option<Self> {
        let world = World::shared().unwrap();
        let pods = world.pods(app)?;
        let helm = tools::helm(app)?;
        Some(Self { world, pods, helm, app, suffix: format!("{app}.example.com") })
    }

    async fn helm(&self, args: &[&str]) -> CommandOutput {
        let mut command = Command::new(&self.helm);
        command.args(args).args(["--namespace", self.app]).env("KUBECONFIG", self.world.admin_kubeconfig());
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.world.dir().join("helm"));
        }
        kubectl::run(command, None).await.unwrap()
    }

    /// Runs `helm upgrade --install` with values, and waits until the pods are ready.
    async fn upgrade(&self, args: &[&str]) -> CommandOutput {
        let chart = tools::repository().join("deploy/chart").display().to_string();
        // Helm waits until the CredentialIssuer is ready, so one strategy has to work.
        let own = format!(
            "--set=name={},config.apiGroupSuffix={},credentialIssuer.spec.impersonationProxy.mode=enabled,\
             credentialIssuer.spec.impersonationProxy.service.type=None",
            self.app, self.suffix
        );
        let fixed = ["upgrade", "--install", "--create-namespace", self.app, &chart, &own];
        let endpoint = "credentialIssuer.spec.impersonationProxy.externalEndpoint=proxy.example.com";
        let replicas = format!("--set=concierge.replicas=1,{endpoint}");
        let waiting = [&replicas, "--wait", "--timeout=90s"];
        self.helm(&[&fixed[..], &waiting, args].concat()).await
    }

    async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        self.world.kubectl().output(args).await
    }

    fn issuer(&self) -> String {
        format!("credentialissuers.config.concierge.{}/{}-config", self.suffix, self.app)
    }

    /// Returns the UIDs of all objects that belong to this installation, except pods, whose names
    /// change.
    async fn uids(&self) -> BTreeMap<String, String> {
        let path = "jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.uid}{\"\\n\"}{end}";
        let label = format!("--selector=app={}", self.app);
        let kinds = NAMESPACED.replace(",pods", "");
        let mut lists = vec![self.kubectl(&["get", &kinds, "-n", self.app, "-o", path]).await.unwrap()];
        for namespace in OTHERS {
            lists.push(self.kubectl(&["get", &kinds, "-n", namespace, &label, "-o", path]).await.unwrap());
        }
        lists.push(self.kubectl(&["get", CLUSTER_SCOPED, &label, "-o", path]).await.unwrap());
        let issuers = format!("credentialissuers.config.concierge.{}", self.suffix);
        lists.push(self.kubectl(&["get", &issuers, "-o", path]).await.unwrap());
        let all = lists.concat();
        // Helm stores each revision of a release in a Secret.
        let lines = all.lines().filter(|line| !line.contains("sh.helm.release"));
        lines.map(|line| line.rsplit_once(' ').unwrap()).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    /// Waits until the aggregated API responds and the impersonation proxy listens.
    async fn works(&self) {
        let path = format!("/apis/identity.concierge.{}/v1alpha1", self.suffix);
        let issuer = self.issuer();
        let path_of_status = r#"jsonpath={.status.strategies[?(@.type=="ImpersonationProxy")].status}"#;
        let strategy = ["get", &issuer, "-o", path_of_status];
        let waited = wait::until_ok(TIME_LIMIT, "the Concierge to work", async || {
            self.kubectl(&["get", "--raw", &path]).await?;
            let status = self.kubectl(&strategy).await?;
            anyhow::ensure!(status == "Success", "the impersonation proxy: {status}");
            Ok(())
        });
        self.check(waited.await);
    }

    fn check(&self, result: anyhow::Result<()>) {
        if let Err(error) = result {
            panic!("{}\n{error:#}", self.pods.log_tails(self.app, 30));
        }
    }

    /// Sends the request of `helm test`. Its pod needs an image, which this world cannot run.
    async fn test(&self) {
        let hooks = self.helm(&["get", "hooks", self.app]).await.success().unwrap().stdout;
        let line = |part: &str| hooks.lines().find(|line| line.contains(part)).unwrap().trim();
        let file = self.world.dir().join(format!("{}.json", self.app));
        std::fs::write(&file, line("WhoAmIRequest")).unwrap();
        let raw = line("--raw=").trim_start_matches("- ");
        let response = self.kubectl(&["create", raw, "-f", file.to_str().unwrap()]).await.unwrap();
        assert!(response.contains("\"kubernetesUserInfo\""), "{response}");
    }

    /// Uninstalls the release, and waits until only the documented objects are left, and those of
    /// these kinds that only upstream's manifests have.
    async fn uninstall(&self, only_upstream: &[&str]) {
        self.helm(&["uninstall", self.app, "--wait"]).await.success().unwrap();
        let [webhooks, jwts, issuers] = [
            "webhookauthenticators.authentication",
            "jwtauthenticators.authentication",
            "credentialissuers.config",
        ]
        .map(|name| format!("CustomResourceDefinition /{name}.concierge.{}", self.suffix));
        // Kubernetes creates these two in every namespace.
        let [config_map, account] = ["ConfigMap kube-root-ca.crt", "ServiceAccount default"]
            .map(|object| object.replace(' ', &format!(" {}/", self.app)));
        let only_upstream =
            only_upstream.iter().map(|kind| format!("{kind} {0}/{0}-kube-cert-agent", self.app));
        let mut wanted: Vec<_> =
            [config_map, account, webhooks, jwts, issuers].into_iter().chain(only_upstream).collect();
        wanted.sort();
        let waited = wait::until_ok(TIME_LIMIT, "the objects of the release to go", async || {
            let pods = self.kubectl(&["get", "pods", "-n", self.app, "-o", "name"]).await?;
            let left: Vec<String> =
                self.uids().await.into_keys().filter(|k| !k.starts_with("Namespace")).collect();
            anyhow::ensure!(left == wanted && pods.is_empty(), "{left:?}, wanted {wanted:?}, {pods}");
            Ok(())
        });
        self.check(waited.await);
    }
}

impl Drop for Release {
    /// Removes the APIs of a failed test: without a backend, they would block other tests.
    fn drop(&mut self) {
        let [login, identity] =
            ["login", "identity"].map(|group| format!("v1alpha1.{group}.concierge.{}", self.suffix));
        let args = ["delete", "apiservices", &login, &identity, "--ignore-not-found"];
        let deleted = self.world.kubectl().command(&args).output();
        if !deleted.as_ref().is_ok_and(|output| output.status.success()) {
            eprintln!("could not remove the APIs of {}: {deleted:?}", self.app);
        }
    }
}

#[tokio::test]
async fn a_release_is_installed_upgraded_rolled_back_and_uninstalled_without_leftovers() {
    let Some(release) = Release::new("helm-life") else { return };
    let _undisturbed = installed::undisturbed().await;
    release.upgrade(&[]).await.success().unwrap();
    release.works().await;
    release.test().await;
    let issuer = release.issuer();
    let hook = ["get", &issuer, "-o", "jsonpath={.metadata.annotations.helm\\.sh/hook}"];
    assert!(!release.kubectl(&hook).await.unwrap().is_empty(), "the definition was not served");
    let before = release.uids().await;
    assert!(before.len() > 30, "{before:?}");

    // The CredentialIssuer becomes a regular object; its definition is upgraded with the release.
    let values =
        "--set=config.maxConnections=100,credentialIssuer.spec.certificateSigningRequests.mode=disabled";
    release.upgrade(&[values]).await.success().unwrap();
    release.works().await;
    assert_eq!(release.kubectl(&hook).await.unwrap(), "");
    let name = format!("{}-config", release.app);
    let config = ["get", "configmap", &name, "-n", release.app, "-o", "jsonpath={.data}"];
    let mode = ["get", &issuer, "-o", "jsonpath={.spec.certificateSigningRequests.mode}"];
    assert!(release.kubectl(&config).await.unwrap().contains("maxConnections: 100"));
    assert_eq!(release.kubectl(&mode).await.unwrap(), "disabled");
    assert_eq!(release.uids().await, before);

    // A rollback to the first revision keeps the CredentialIssuer as it is.
    release.helm(&["rollback", release.app, "1", "--wait"]).await.success().unwrap();
    release.works().await;
    assert!(!release.kubectl(&config).await.unwrap().contains("maxConnections"));
    assert_eq!(release.uids().await, before);

    // Without the agent, pods are admitted to a restricted namespace. A changed configuration
    // replaces the pods.
    let label = "pod-security.kubernetes.io/enforce=restricted";
    release.kubectl(&["label", "namespace", release.app, label]).await.unwrap();
    let values = "--set=config.kubeCertAgent.enabled=false,config.log.level=info";
    release.upgrade(&[values]).await.success().unwrap();
    let path = r#"jsonpath={.status.strategies[?(@.type=="KubeClusterSigningCertificate")].message}"#;
    let message = ["get", &issuer, "-o", path];
    let waited = wait::until_ok(NEW_LEADER_LIMIT, "the missing permission in the status", async || {
        let message = release.kubectl(&message).await?;
        anyhow::ensure!(message.contains("pods is forbidden"), "{message}");
        Ok(())
    });
    release.check(waited.await);
    release.works().await;
    release.uninstall(&[]).await;
}

#[tokio::test]
async fn objects_of_upstreams_manifests_are_adopted_with_their_names_and_uids() {
    let Some(release) = Release::new("helm-adopts") else { return };
    let _undisturbed = installed::undisturbed().await;
    let file = "testdata/upstream/manifests/upstream-concierge.yaml";
    let upstream = std::fs::read_to_string(tools::repository().join(file)).unwrap();
    let upstream = upstream
        .replace("concierge.pinniped.dev", &format!("concierge.{}", release.suffix))
        .replace("apiGroupSuffix: pinniped.dev", &format!("apiGroupSuffix: {}", release.suffix))
        // The program and its container keep their names.
        .replace("- pinniped-concierge\n", "- PROGRAM\n")
        .replace("- name: pinniped-concierge\n", "- name: PROGRAM\n")
        .replace("pinniped-concierge", release.app)
        .replace("PROGRAM", "pinniped-concierge")
        .replace("replicas: 2", "replicas: 1");
    // The CredentialIssuer is refused until its definition is served.
    wait::until_ok(TIME_LIMIT, "upstream's manifests to be applied", async || {
        release.world.kubectl().apply(&upstream).await
    })
    .await
    .unwrap();
    let proxy = r#"{"spec":{"impersonationProxy":{"mode":"enabled","externalEndpoint":"proxy.example.com","service":{"type":"None"}}}}"#;
    release.kubectl(&["patch", &release.issuer(), "--type=merge", "-p", proxy]).await.unwrap();
    release.works().await;
    let before = release.uids().await;
    assert!(before.keys().any(|name| name.starts_with("Secret ")), "{before:?}");
    let own = "--field-selector=type!=helm.sh/release.v1";
    let secrets = ["get", "secrets", "-n", release.app, own, "-o", "jsonpath={.items[*].data}"];
    let secrets_before = release.kubectl(&secrets).await.unwrap();

    let refused = release.upgrade(&[]).await;
    assert!(refused.code != 0 && refused.stderr.contains("invalid ownership metadata"), "{refused:?}");
    release.upgrade(&ADOPT).await.success().unwrap();
    release.works().await;
    release.test().await;
    let after = release.uids().await;
    for (name, uid) in &before {
        assert_eq!(after.get(name), Some(uid), "{name}");
    }
    assert_eq!(release.kubectl(&secrets).await.unwrap(), secrets_before);

    // Fields of upstream's manifests that the chart does not have are still there: kubectl is their
    // manager. The page has the command for the one that matters.
    let limit = "jsonpath={.spec.template.spec.containers[0].resources.limits.cpu}";
    let limit = ["get", "deployment", release.app, "-n", release.app, "-o", limit];
    assert_eq!(release.kubectl(&limit).await.unwrap(), "100m");
    let patch = r#"[{"op":"remove","path":"/spec/template/spec/containers/0/resources/limits/cpu"}]"#;
    let patch = ["patch", "deployment", release.app, "-n", release.app, "--type=json", "-p", patch];
    release.kubectl(&patch).await.unwrap();
    // Later upgrades need no flag.
    release.upgrade(&["--set=config.maxConnections=100"]).await.success().unwrap();
    assert_eq!(release.kubectl(&limit).await.unwrap(), "");
    release.works().await;
    release.uninstall(&["Role", "RoleBinding"]).await;
}

/// The namespaces of the dry run. A dry run does not create them for the objects in them.
const DRY: [&str; 4] = ["helm-dry", "helm-dry-users", "helm-dry-authenticator", "helm-dry-gateway"];
/// Definitions of the monitors that the chart can have.
const MONITORS: &str = include_str!("helm/monitors.yaml");

#[tokio::test]
async fn a_real_api_server_accepts_every_optional_object_of_the_chart() {
    let Some(helm) = tools::helm("the chart in a dry run") else { return };
    let kubectl = World::shared().unwrap().kubectl();
    let definitions = render(&helm, &["--show-only=templates/crds/concierge.yaml"]).await;
    kubectl.apply(&[MONITORS, &definitions].join("---\n")).await.unwrap();
    let monitors = ["servicemonitors", "podmonitors"].map(|name| format!("crd/{name}.monitoring.coreos.com"));
    let issuers = "crd/credentialissuers.config.concierge.helm-dry.example.com";
    kubectl.await_established(&[&monitors[0], &monitors[1], issuers]).await.unwrap();
    for namespace in DRY {
        kubectl.output(&["create", "namespace", namespace]).await.unwrap();
    }

    let rendered = render(&helm, &[]).await;
    let apply = async |text: &str| {
        let args = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
        kubectl::run(kubectl.command(&args), Some(text)).await.unwrap()
    };
    // The pod of `helm test` is refused until its namespace has the default account.
    let applied = wait::until_ok(TIME_LIMIT, "the API server to accept the objects", async || {
        Ok(apply(&rendered).await.success()?.stdout)
    })
    .await
    .unwrap();
    let objects = rendered.lines().filter(|line| line.starts_with("kind: ")).count();
    assert!(objects > 60, "{objects}");
    assert_eq!(
        applied.lines().filter(|line| line.ends_with("(server dry run)")).count(),
        objects,
        "{applied}"
    );
    for kind in ["servicemonitor", "podmonitor", "networkpolicy", "poddisruptionbudget", "credentialissuer"] {
        assert!(applied.lines().any(|line| line.starts_with(kind)), "no {kind}: {applied}");
    }

    // A misspelled field of a monitor is refused.
    let wrong = rendered.replace("interval: 30s", "intervall: 30s");
    let refused = apply(&wrong).await;
    assert!(refused.code != 0 && refused.stderr.contains("intervall"), "{refused:?}");

    kubectl.output(&[&["delete", "namespace", "--wait=false"], &DRY[..]].concat()).await.unwrap();
    kubectl.output(&["delete", &monitors[0], &monitors[1]]).await.unwrap();
    let args = ["delete", "-f", "-"];
    kubectl::run(kubectl.command(&args), Some(&definitions)).await.unwrap().success().unwrap();
}

/// Renders the chart with every optional object, with names of its own.
async fn render(helm: &PathBuf, args: &[&str]) -> String {
    let chart = tools::repository().join("deploy/chart");
    let values = chart.join("ci/all-values.yaml");
    let mut command = Command::new(helm);
    command.args(["template", "helm-dry"]).arg(&chart).args(["--namespace=helm-dry", "--values"]).arg(values);
    command.args([
        "--set=name=helm-dry,config.apiGroupSuffix=helm-dry.example.com",
        "--set=localUserAuthenticator.namespace.name=helm-dry-authenticator",
        "--set=gateway.namespace.name=helm-dry-gateway",
        "--api-versions=config.concierge.helm-dry.example.com/v1alpha1/CredentialIssuer",
    ]);
    command.args(args);
    kubectl::run(command, None).await.unwrap().success().unwrap().stdout
}
