//! The command line on a real cluster, and the real kubectl with the kubeconfigs that it writes.
//!
//! Discovery tests that need other objects than those of the installation use API group suffixes of
//! their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use pinniped_e2e::walkthrough::{CONCIERGE, DECISION, EXTERNAL_NAME, LOCAL_USER_AUTHENTICATOR};
use pinniped_test_support::kubectl::{CommandOutput, run};
use pinniped_test_support::world::World;
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};

use crate::installed::{self, Installed, TIME_LIMIT};

/// A separate home folder with a kubeconfig.
pub(crate) struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig.yaml")
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The path of the credential cache of `pinniped login`.
    fn cache(&self) -> PathBuf {
        self.dir.path().join(".config/pinniped/credentials.yaml")
    }

    pub(crate) fn settle(&self, command: &mut Command) {
        command.env("HOME", self.dir.path()).env_remove("XDG_CONFIG_HOME").env_remove("KUBECONFIG");
        for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
            command.env_remove(name);
        }
    }

    /// Runs `pinniped` with an administrator's kubeconfig.
    async fn pinniped(&self, world: &World, args: &[&str]) -> CommandOutput {
        self.pinniped_with(&world.admin_kubeconfig(), args).await
    }

    pub(crate) async fn pinniped_with(&self, kubeconfig: &Path, args: &[&str]) -> CommandOutput {
        let mut command = Command::new(tools::binary("pinniped").unwrap());
        command.args(args).arg("--kubeconfig").arg(kubeconfig);
        self.settle(&mut command);
        command.env("HOME", self.dir.path());
        run(command, None).await.unwrap()
    }

    /// Runs `pinniped get kubeconfig` and writes its output into this home.
    pub(crate) async fn get_kubeconfig(&self, world: &World, args: &[&str]) -> CommandOutput {
        let output = self.pinniped(world, &[&["get", "kubeconfig"], args].concat()).await.success().unwrap();
        std::fs::write(self.kubeconfig(), &output.stdout).unwrap();
        output
    }

    /// Runs kubectl as the user.
    pub(crate) async fn kubectl(&self, world: &World, args: &[&str], env: &[(&str, &str)]) -> CommandOutput {
        let mut command = world.kubectl().command(args);
        self.settle(&mut command);
        command.arg("--kubeconfig").arg(self.kubeconfig()).envs(env.iter().copied());
        run(command, None).await.unwrap()
    }

    /// Runs the plugin as kubectl does.
    pub(crate) async fn plugin(&self, args: &[String], env: &[(&str, &str)]) -> CommandOutput {
        let mut command = Command::new(tools::binary("pinniped").unwrap());
        self.settle(&mut command);
        command.args(args).env("KUBECONFIG", self.kubeconfig()).envs(env.iter().copied());
        run(command, None).await.unwrap()
    }

    /// Replaces text of the kubeconfig.
    pub(crate) fn edit(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.kubeconfig()).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(self.kubeconfig(), text.replace(from, to)).unwrap();
    }
}

/// The flags that select the installation's authenticator.
pub(crate) const AUTHENTICATOR: [&str; 4] = [
    "--concierge-authenticator-type",
    "webhook",
    "--concierge-authenticator-name",
    "local-user-authenticator",
];

/// Creates a user of the local-user-authenticator with the password `password123`.
pub(crate) async fn create_user(installed: &Installed, name: &str) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": LOCAL_USER_AUTHENTICATOR},
        "stringData": {"groups": "testers", "passwordHash": bcrypt::hash("password123", 4).unwrap()}});
    installed.world().kubectl().apply(&secret.to_string()).await.unwrap();
    let client = installed.admin().await;
    wait::until_ok(TIME_LIMIT, format!("{name} to be known"), async || {
        let response =
            crate::apis::log_in(&client, &format!("{name}:password123"), "local-user-authenticator").await?;
        anyhow::ensure!(response["status"]["credential"].is_object(), "{}", response["status"]);
        Ok(())
    })
    .await
    .unwrap();
}

pub(crate) fn forbidden(user: &str) -> String {
    format!(
        "Error from server (Forbidden): secrets is forbidden: User \"{user}\" cannot list resource \"secrets\" in API \
         group \"\" in the namespace \"default\": {DECISION}\n"
    )
}

/// Returns how often the Concierge received the token with this SHA-256.
fn exchanges(installed: &Installed, token_id: &str) -> usize {
    let field = format!("\"tokenID\":\"{token_id}\"");
    installed.pods().logs(CONCIERGE).matches(&field).count()
}

#[tokio::test]
async fn kubectl_reuses_a_credential_until_it_expires() {
    // SHA-256 of "carol:password123".
    const TOKEN_ID: &str = "f36c1674e0c5c43ea2966b93d423ace7042d17642c4cf70162dd0daba8e73a8f";
    let Some(installed) = installed::shared("a credential is reused").await else { return };
    let world = installed.world();
    create_user(&installed, "carol").await;
    let home = Home::new();
    let more = ["--static-token", "carol:password123"];
    home.get_kubeconfig(world, &[&AUTHENTICATOR[..], &more].concat()).await;
    let text = std::fs::read_to_string(home.kubeconfig()).unwrap();
    assert!(text.contains(&format!("server: https://{EXTERNAL_NAME}\n")), "{text}");
    assert!(text.ends_with("provideClusterInfo: true\n"), "{text}");

    let before = exchanges(&installed, TOKEN_ID);
    let list = ["get", "secrets", "-n", "default"];
    for _ in 0..2 {
        let output = home.kubectl(world, &list, &[]).await;
        assert_eq!((output.code, output.stderr), (1, forbidden("carol")));
    }
    assert_eq!(exchanges(&installed, TOKEN_ID), before + 1, "the second call had a credential");

    // An expired credential is replaced in the cache by a new one.
    let cache = std::fs::read_to_string(home.cache()).unwrap();
    let expiration =
        cache.lines().find(|line| line.trim_start().starts_with("expirationTimestamp:")).unwrap();
    let key = expiration.split_once(':').unwrap().0;
    std::fs::write(home.cache(), cache.replace(expiration, &format!("{key}: \"2026-01-01T00:00:00Z\"")))
        .unwrap();
    for _ in 0..2 {
        let output = home.kubectl(world, &list, &[]).await;
        assert_eq!((output.code, output.stderr), (1, forbidden("carol")));
    }
    assert_eq!(exchanges(&installed, TOKEN_ID), before + 2, "the expired credential was renewed once");
    let renewed = std::fs::read_to_string(home.cache()).unwrap();
    assert_eq!(renewed.matches("expirationTimestamp:").count(), 1, "{renewed}");
    assert!(!renewed.contains("2026-01-01"), "{renewed}");

    // An invalid cache only causes a new login.
    std::fs::write(home.cache(), "no: [yaml").unwrap();
    let output = home.kubectl(world, &list, &[]).await;
    assert_eq!((output.code, output.stderr), (1, forbidden("carol")));
}

#[tokio::test]
async fn a_token_may_come_from_the_environment() {
    let Some(installed) = installed::shared("a token from the environment").await else { return };
    let world = installed.world();
    create_user(&installed, "erin").await;
    let home = Home::new();
    let more = ["--static-token-env", "ERINS_TOKEN", "--credential-cache", ""];
    home.get_kubeconfig(world, &[&AUTHENTICATOR[..], &more].concat()).await;
    let text = std::fs::read_to_string(home.kubeconfig()).unwrap();
    assert!(text.contains("- --credential-cache=\n      - --token-env=ERINS_TOKEN\n"), "{text}");
    assert!(!text.contains("password123"), "{text}");

    let list = ["get", "secrets", "-n", "default"];
    let output = home.kubectl(world, &list, &[("ERINS_TOKEN", "erin:password123")]).await;
    assert_eq!((output.code, output.stderr), (1, forbidden("erin")));
    assert!(!home.cache().exists(), "an empty --credential-cache means none");

    let output = home.kubectl(world, &list, &[]).await;
    assert_ne!(output.code, 0);
    let wanted = "Error: --token-env variable \"ERINS_TOKEN\" is not set\n";
    assert!(output.stderr.contains(wanted), "{}", output.stderr);
    let output = home.kubectl(world, &list, &[("ERINS_TOKEN", "")]).await;
    let wanted = "Error: --token-env variable \"ERINS_TOKEN\" is empty\n";
    assert!(output.stderr.contains(wanted), "{}", output.stderr);
}

#[tokio::test]
async fn a_wrong_password_and_an_unknown_authenticator_give_the_same_error() {
    let Some(installed) = installed::shared("logins that fail").await else { return };
    let world = installed.world();
    let home = Home::new();
    let more = ["--static-token", "pinny:password123", "--credential-cache", ""];
    home.get_kubeconfig(world, &[&AUTHENTICATOR[..], &more].concat()).await;
    let fails = async || {
        let output = home.kubectl(world, &["get", "pods"], &[]).await;
        assert_ne!(output.code, 0);
        assert!(
            output.stderr.starts_with(
                "Error: could not complete Concierge credential exchange: login failed: authentication failed\n"
            ),
            "{}",
            output.stderr
        );
        let executable = tools::binary("pinniped").unwrap();
        let wanted =
            format!("getting credentials: exec: executable {} failed with exit code 1", executable.display());
        assert!(output.stderr.contains(&wanted), "{}", output.stderr);
    };
    home.edit("pinny:password123", "pinny:not-it");
    fails().await;
    home.edit("pinny:not-it", "pinny:password123");
    home.edit(
        "--concierge-authenticator-name=local-user-authenticator",
        "--concierge-authenticator-name=unknown",
    );
    fails().await;
    assert!(!home.cache().exists());
}

#[tokio::test]
async fn discovery_finds_the_authenticator_or_reports_that_the_name_does_not_exist() {
    let Some(installed) = installed::shared("authenticator discovery").await else { return };
    let home = Home::new();
    let args = [
        "get",
        "kubeconfig",
        "--static-token=t",
        "--concierge-authenticator-type=webhook",
        "--concierge-authenticator-name=nobody",
    ];
    let output = home.pinniped(installed.world(), &args).await;
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    let wanted = "Error: webhookauthenticators.authentication.concierge.pinniped.dev \"nobody\" not found\n";
    assert!(output.stderr.ends_with(wanted), "{}", output.stderr);
}

#[tokio::test]
async fn an_error_names_the_missing_context_or_concierge() {
    const SUFFIX: &str = "not-installed.example.com";
    let world = World::shared().unwrap();
    let home = Home::new();
    let suffix = format!("--concierge-api-group-suffix={SUFFIX}");
    let missing = home.dir.path().join("missing.yaml");
    let get = ["get", "kubeconfig", "--static-token=t"];
    let admin = world.admin_kubeconfig();
    for (kubeconfig, args, wanted) in [
        (
            &admin,
            [&get[..], &["--kubeconfig-context=other"]].concat(),
            "could not load --kubeconfig/--kubeconfig-context: no such context \"other\"".to_owned(),
        ),
        (
            &missing,
            get.to_vec(),
            format!("could not load --kubeconfig: stat {}: no such file or directory", missing.display()),
        ),
        (
            &admin,
            [&get[..], &[suffix.as_str()]].concat(),
            format!(
                "failed to list CredentialIssuer objects for autodiscovery: the server could not find the requested \
                 resource (get credentialissuers.config.concierge.{SUFFIX})"
            ),
        ),
        (
            &admin,
            vec!["whoami", "--kubeconfig-context=other"],
            "could not configure Kubernetes client: context \"other\" does not exist".to_owned(),
        ),
        (
            &missing,
            vec!["whoami"],
            format!(
                "could not configure Kubernetes client: stat {}: no such file or directory",
                missing.display()
            ),
        ),
    ] {
        let output = home.pinniped_with(kubeconfig, &args).await;
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{args:?}");
        assert_eq!(output.stderr, format!("Error: {wanted}\n"), "{args:?}");
    }
    let args = ["whoami", "--api-group-suffix", SUFFIX];
    let output = home.pinniped(world, &args).await;
    assert_eq!(output.code, 1);
    let wanted =
        "Error: could not complete WhoAmIRequest (is the Pinniped WhoAmI API running and healthy?): ";
    assert!(output.stderr.starts_with(wanted), "{}", output.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merges_do_not_overwrite_changes_of_kubectl() {
    const EACH: usize = 5;
    let Some(installed) = installed::shared("merges beside kubectl").await else { return };
    let world = installed.world();
    let home = Home::new();
    let target = home.path().join(".kube/config");
    std::fs::create_dir(target.parent().unwrap()).unwrap();
    std::fs::write(&target, "# Mine.\nkind: Config\n").unwrap();
    let merges = futures::future::join_all((0..EACH).map(|n| {
        let context = format!("--context=merged-{n}");
        let home = &home;
        async move {
            let get = ["get", "kubeconfig", "--static-token-env=T", "--merge", &context];
            home.pinniped(world, &[&get[..], &AUTHENTICATOR].concat()).await.success().unwrap();
        }
    }));
    let changes = async {
        for n in 0..EACH {
            let context = format!("set-{n}");
            // kubectl does not wait for the lock.
            wait::until_ok(TIME_LIMIT, "kubectl to change the kubeconfig", async || {
                let mut command = world.kubectl().command(&["config", "set-context", &context]);
                home.settle(&mut command);
                command.args(["--cluster=c", "--user=u"]);
                run(command, None).await?.success()
            })
            .await
            .unwrap();
        }
    };
    tokio::join!(merges, changes);
    let text = std::fs::read_to_string(&target).unwrap();
    // kubectl reads the file before it takes the lock, so it may remove an entry that was merged
    // meanwhile.
    for n in 0..EACH {
        assert!(text.contains(&format!("name: set-{n}\n")), "{text}");
    }
    assert_eq!(std::fs::read_dir(target.parent().unwrap()).unwrap().count(), 2, "the file and its backup");
    let mut command = world.kubectl().command(&["config", "get-contexts", "-o", "name"]);
    home.settle(&mut command);
    let contexts = run(command, None).await.unwrap().success().unwrap().stdout;
    assert!(contexts.lines().count() >= EACH, "{contexts}");
}

/// Returns a CredentialIssuer with a finished strategy of the TokenCredentialRequest API.
fn issuer(suffix: &str, name: &str) -> (Value, Value) {
    let object = json!({"apiVersion": format!("config.concierge.{suffix}/v1alpha1"), "kind": "CredentialIssuer",
        "metadata": {"name": name}, "spec": {"impersonationProxy": {"mode": "disabled"}}});
    let status = json!({"status": {"strategies": [{"type": "KubeClusterSigningCertificate", "status": "Success",
        "reason": "FetchedKey", "message": "key was fetched successfully",
        "lastUpdateTime": "2026-11-21T10:00:00Z",
        "frontend": {"type": "TokenCredentialRequestAPI", "tokenCredentialRequestInfo":
            {"server": "https://elsewhere.example.com", "certificateAuthorityData": "YWJj"}}}]}});
    (object, status)
}

async fn create_issuer(world: &World, suffix: &str, name: &str) {
    let (object, status) = issuer(suffix, name);
    let resource = format!("credentialissuers.v1alpha1.config.concierge.{suffix}");
    // The definition may be served only since a moment ago.
    wait::until_ok(TIME_LIMIT, "the CredentialIssuer to be created", async || {
        world.kubectl().apply(&object.to_string()).await
    })
    .await
    .unwrap();
    let status = status.to_string();
    let args = ["patch", &resource, name, "--subresource=status", "--type=merge", "-p", &status];
    world.kubectl().output(&args).await.unwrap();
}

#[tokio::test]
async fn discovery_under_another_suffix_counts_issuers_and_authenticators() {
    const SUFFIX: &str = "discovery.example.com";
    let world = World::shared().unwrap();
    let home = Home::new();
    crate::crds::install_ours(world, SUFFIX).await;
    let suffix = format!("--concierge-api-group-suffix={SUFFIX}");
    let get = ["get", "kubeconfig", "--static-token=t", "--skip-validation", &suffix];
    let fails = async |wanted: &str| {
        let output = home.pinniped(world, &get).await;
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{}", output.stderr);
        assert!(output.stderr.ends_with(&format!("Error: {wanted}\n")), "{}", output.stderr);
    };
    fails("no CredentialIssuers were found").await;
    create_issuer(world, SUFFIX, "one").await;
    fails("no authenticators were found").await;
    let webhook = |name: &str| {
        json!({"apiVersion": format!("authentication.concierge.{SUFFIX}/v1alpha1"), "kind": "WebhookAuthenticator",
            "metadata": {"name": name}, "spec": {"endpoint": "https://example.com"}})
        .to_string()
    };
    world.kubectl().apply(&webhook("first")).await.unwrap();
    let found = home.pinniped(world, &get).await.success().unwrap();
    for line in [
        "discovered CredentialIssuer  {\"name\": \"one\"}",
        "discovered Concierge operating in TokenCredentialRequest API mode",
        "discovered WebhookAuthenticator  {\"name\": \"first\"}",
    ] {
        assert!(found.stderr.contains(line), "{}\nlacks {line}", found.stderr);
    }
    // The endpoint is the API server of the source kubeconfig, not the one in the status.
    assert!(
        found.stdout.contains(&format!("server: {}\n", world.control_plane().server())),
        "{}",
        found.stdout
    );
    assert!(found.stdout.contains(&format!("--concierge-api-group-suffix={SUFFIX}\n")), "{}", found.stdout);

    world.kubectl().apply(&webhook("second")).await.unwrap();
    fails(
        "multiple authenticators were found, so the \
         --concierge-authenticator-type/--concierge-authenticator-name flags must be specified",
    )
    .await;
    create_issuer(world, SUFFIX, "two").await;
    fails(
        "multiple CredentialIssuers were found, so the --concierge-credential-issuer flag must be specified",
    )
    .await;
    let named =
        [&get[..], &["--concierge-credential-issuer=two", "--concierge-authenticator-type=WebHook"]].concat();
    let named = [&named[..], &["--concierge-authenticator-name=second"]].concat();
    let found = home.pinniped(world, &named).await.success().unwrap();
    assert!(found.stdout.contains("--concierge-authenticator-name=second\n"), "{}", found.stdout);
}

/// Runs alone, because a second CredentialIssuer breaks the discovery of all other tests.
#[tokio::test]
async fn without_the_proxy_the_exchange_goes_through_the_api_server() {
    let Some(installed) = installed::alone("TokenCredentialRequestAPI mode").await else { return };
    let world = installed.world();
    let home = Home::new();
    create_issuer(world, "pinniped.dev", "written-by-a-test").await;
    let more = ["--static-token", "pinny:password123", "--concierge-credential-issuer", "written-by-a-test"];
    let written = home.get_kubeconfig(world, &[&AUTHENTICATOR[..], &more].concat()).await;
    world
        .kubectl()
        .output(&["delete", "credentialissuers.config.concierge.pinniped.dev", "written-by-a-test"])
        .await
        .unwrap();
    let logged = [
        "discovered Concierge operating in TokenCredentialRequest API mode",
        "discovered Concierge endpoint",
        "discovered Concierge certificate authority bundle  {\"roots\": 1}",
        "validated connection to the cluster",
    ];
    let found: Vec<_> = logged.iter().map(|text| written.stderr.find(text)).collect();
    assert!(found.iter().all(Option::is_some) && found.is_sorted(), "{}", written.stderr);
    let server = world.control_plane().server();
    assert!(written.stdout.contains(&format!("server: {server}\n")), "{}", written.stdout);
    assert!(written.stdout.contains(&format!("--concierge-endpoint={server}\n")), "{}", written.stdout);

    // The exchange works. The proxy's signer issued the certificate, so the API server does not
    // accept it: that needs the cluster's own signing key.
    let output = home.kubectl(world, &["get", "pods"], &[]).await;
    assert_eq!(output.code, 1);
    assert!(
        output.stderr.contains("You must be logged in to the server (Unauthorized)")
            || output.stderr.contains("the server has asked for the client to provide credentials"),
        "{}",
        output.stderr
    );
    assert!(std::fs::read_to_string(home.cache()).unwrap().contains("clientCertificateData:"));
}
