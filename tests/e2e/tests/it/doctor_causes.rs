//! Clusters and kubeconfigs that are broken in one way each: `pinniped doctor` names the cause as
//! the only problem, and everything that follows from it as a consequence.

use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_e2e::walkthrough::{CONCIERGE, EXTERNAL_NAME};
use pinniped_test_support::kubectl::{CommandOutput, run};
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};

use crate::cli::{AUTHENTICATOR, Home, create_user};
use crate::installed::{self, Installed, TIME_LIMIT};

const DEPLOYMENT: &str = "deployment/pinniped-concierge";
const WEBHOOK: &str = "webhookauthenticators.authentication.concierge.pinniped.dev/local-user-authenticator";

const ISSUER: &str = "credentialissuers.config.concierge.pinniped.dev/pinniped-concierge-config";
/// A pod with the label of the Concierge's, whose program does not exist.
const STUCK_POD: &str = "stuck";
const EXPIRED_SECRET: &str = "expired";

/// The parts of the test: the cluster, and the kubeconfig of a user who can log in.
struct Clinic<'a> {
    installed: &'a Installed,
    home: Home,
    healthy: String,
}

impl Clinic<'_> {
    /// Writes the user's kubeconfig with a change.
    fn kubeconfig(&self, from: &str, to: &str) -> PathBuf {
        assert!(self.healthy.contains(from), "{}", self.healthy);
        std::fs::write(self.home.kubeconfig(), self.healthy.replace(from, to)).unwrap();
        self.home.kubeconfig()
    }

    async fn doctor(&self, user: &Path) -> CommandOutput {
        self.doctor_as(Command::new(tools::binary("pinniped").unwrap()), user).await
    }

    /// Runs the doctor with a command for `pinniped`.
    async fn doctor_as(&self, mut command: Command, user: &Path) -> CommandOutput {
        self.home.settle(&mut command);
        let admin = self.installed.world().admin_kubeconfig();
        command.arg("doctor").arg("--kubeconfig").arg(admin).arg("--check-kubeconfig").arg(user);
        run(command, None).await.unwrap()
    }

    /// Waits until the doctor names this cause and no other one, with these consequences among
    /// others: a change takes a moment to become visible in all places.
    async fn finds(&self, user: &Path, cause: &str, consequences: &[&str]) -> CommandOutput {
        let pinniped = || Command::new(tools::binary("pinniped").unwrap());
        self.finds_as(pinniped, user, cause, consequences).await
    }

    /// Does the same with a command for `pinniped`.
    async fn finds_as(
        &self,
        pinniped: impl Fn() -> Command,
        user: &Path,
        cause: &str,
        consequences: &[&str],
    ) -> CommandOutput {
        wait::until_ok(3 * TIME_LIMIT, format!("doctor to find {cause}"), async || {
            let output = self.doctor_as(pinniped(), user).await;
            let first = output.stdout.lines().next().unwrap_or_default();
            anyhow::ensure!(first.starts_with(&format!("problem  {cause}")), "{output:?}");
            anyhow::ensure!(output.stderr.ends_with("Error: found 1 problem\n"), "{output:?}");
            anyhow::ensure!(output.code == 1, "{output:?}");
            for problem in consequences {
                anyhow::ensure!(is_consequence(&output, problem), "{problem}: {output:?}");
            }
            Ok(output)
        })
        .await
        .unwrap()
    }

    async fn is_healthy(&self) {
        let user = self.kubeconfig("kind: Config", "kind: Config");
        wait::until_ok(3 * TIME_LIMIT, "doctor to find nothing", async || {
            let output = self.doctor(&user).await;
            anyhow::ensure!(output.code == 0, "{output:?}");
            Ok(())
        })
        .await
        .unwrap();
    }

    async fn kubectl(&self, args: &[&str]) -> String {
        self.installed.world().kubectl().output(args).await.unwrap()
    }
}

/// Returns whether a problem is a consequence of the first one.
fn is_consequence(output: &CommandOutput, problem: &str) -> bool {
    let cause = output.stdout.lines().next().unwrap().strip_prefix("problem  ").unwrap();
    let wanted = format!("         (a consequence of: {cause})");
    let mut lines =
        output.stdout.lines().skip_while(|line| !line.starts_with(&format!("problem  {problem}")));
    lines.next().is_some() && lines.next() == Some(wanted.as_str())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_names_the_cause_of_each_broken_login() {
    let Some(installed) = installed::alone("the causes of failed logins").await else { return };
    create_user(&installed, "patient").await;
    let home = Home::new();
    let more = ["--static-token", "patient:password123"];
    home.get_kubeconfig(installed.world(), &[&AUTHENTICATOR[..], &more].concat()).await;
    let healthy = std::fs::read_to_string(home.kubeconfig()).unwrap();
    let clinic = Clinic { installed: &installed, home, healthy };
    clinic.is_healthy().await;

    // A wrong password.
    let user = clinic.kubeconfig("patient:password123", "patient:wrong");
    let login =
        format!("the login with context {} of kubeconfig {}", context(&clinic.healthy), user.display());
    let refused =
        "fails: could not complete Concierge credential exchange: login failed: authentication failed";
    let output = clinic.finds(&user, &format!("{login} {refused}"), &[]).await;
    assert!(
        output.stdout.contains(
            "\n         -> the authenticator does not accept the token, or its webhook does not respond: "
        ),
        "{output:?}"
    );
    assert!(!output.stdout.contains("patient:wrong"), "{output:?}");

    // A plugin that does not exist.
    let executable = tools::binary("pinniped").unwrap();
    let user =
        clinic.kubeconfig(&format!("command: {}\n", executable.display()), "command: /no/such/pinniped\n");
    clinic.finds(&user, "the plugin /no/such/pinniped of user ", &[&login]).await;

    // An endpoint that does not respond.
    let user = clinic.kubeconfig(
        &format!("server: https://{EXTERNAL_NAME}\n"),
        &format!("server: https://{EXTERNAL_NAME}:1\n"),
    );
    let server = format!("https://{EXTERNAL_NAME}:1");
    let cluster = format!("cluster {} of kubeconfig {}", context(&clinic.healthy), user.display());
    let consequence = format!("no server responds at {server} from here: ");
    let cause = format!("{cluster} leads to {server}, but the proxy is at ");
    clinic.finds(&user, &cause, &[&consequence]).await;

    // A clock that differs from that of the cluster by two minutes.
    for (offset, direction) in [("+120s", "ahead of"), ("-120s", "behind")] {
        let Some(pinniped) = with_clock(offset) else { break };
        let user = clinic.kubeconfig("kind: Config", "kind: Config");
        let output = clinic.finds_as(pinniped, &user, "the clock of this machine is 1", &[]).await;
        let wanted = format!(" seconds {direction} the clock of https://");
        assert!(output.stdout.lines().next().unwrap().contains(&wanted), "{output:?}");
        assert!(output.stdout.contains("\n         -> synchronize the clocks"), "{output:?}");
    }

    // A webhook with another CA than that of its authenticator.
    let user = clinic.kubeconfig("kind: Config", "kind: Config");
    let path = "jsonpath={.spec.tls.certificateAuthorityData}";
    let ca = clinic.kubectl(&["get", WEBHOOK, "-o", path]).await;
    let stranger = rcgen::generate_simple_self_signed(["other".to_owned()]).unwrap().cert.pem();
    trust(&clinic, &STANDARD.encode(stranger)).await;
    let webhook = "webhookauthenticator.authentication.concierge.pinniped.dev/local-user-authenticator";
    let output = clinic.finds(&user, &format!("{webhook} is not ready: "), &[&login]).await;
    assert!(output.stdout.lines().next().unwrap().contains("cannot dial server: "), "{output:?}");
    let remedy =
        "\n         -> see whether the address responds from the cluster, and whether spec.tls has the CA";
    assert!(output.stdout.contains(remedy), "{output:?}");
    trust(&clinic, ca.trim()).await;
    clinic.is_healthy().await;

    // A webhook without pods, and a user with a cached credential.
    let user = clinic.kubeconfig("kind: Config", "kind: Config");
    let mut whoami = Command::new(tools::binary("pinniped").unwrap());
    clinic.home.settle(&mut whoami);
    let whoami = run(
        {
            whoami.arg("whoami").arg("--kubeconfig").arg(&user);
            whoami
        },
        None,
    )
    .await
    .unwrap();
    assert_eq!(whoami.code, 0, "{whoami:?}");
    let deployment = ["deployment/local-user-authenticator", "-n", "local-user-authenticator"];
    clinic.kubectl(&[&["scale", "--replicas=0"], &deployment[..]].concat()).await;
    let service = "local-user-authenticator/local-user-authenticator";
    let unserved = format!("the webhook of {webhook} does not respond: Service {service} has no ready pod");
    clinic.finds(&user, &unserved, &[&login]).await;
    clinic.kubectl(&[&["scale", "--replicas=1"], &deployment[..]].concat()).await;
    clinic.kubectl(&[&["rollout", "status", "--timeout=120s"], &deployment[..]].concat()).await;
    clinic.is_healthy().await;

    // A JWTAuthenticator whose issuer is not reachable.
    let name = "unreachable";
    let object = json!({"apiVersion": "authentication.concierge.pinniped.dev/v1alpha1", "kind": "JWTAuthenticator",
        "metadata": {"name": name}, "spec": {"issuer": "https://127.0.0.1:1", "audience": "a"}});
    installed.world().kubectl().apply(&object.to_string()).await.unwrap();
    let user = clinic.kubeconfig("-type=webhook", "-type=jwt");
    let text = std::fs::read_to_string(&user).unwrap();
    std::fs::write(&user, text.replace("-name=local-user-authenticator", &format!("-name={name}"))).unwrap();
    let jwt = format!("jwtauthenticator.authentication.concierge.pinniped.dev/{name}");
    let output = clinic.finds(&user, &format!("{jwt} is not ready: "), &[&login]).await;
    let first = output.stdout.lines().next().unwrap();
    assert!(first.contains("could not perform oidc discovery on provider issuer: "), "{output:?}");
    let kind = format!("jwtauthenticators.authentication.concierge.pinniped.dev/{name}");
    clinic.kubectl(&["delete", &kind]).await;

    // A wrong password, and one pod of three that is not ready: neither explains the other.
    let user = clinic.kubeconfig("patient:password123", "patient:wrong");
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": STUCK_POD, "namespace": CONCIERGE,
            "labels": {"deployment.pinniped.dev": "concierge"}},
        "spec": {"containers": [{"name": "c", "image": "none:v0.0.0", "command": ["no-such-program"]}]}});
    installed.world().kubectl().apply(&pod.to_string()).await.unwrap();
    wait::until_ok(3 * TIME_LIMIT, "doctor to find both problems", async || {
        let output = clinic.doctor(&user).await;
        let problems: Vec<&str> =
            output.stdout.lines().filter_map(|line| line.strip_prefix("problem  ")).collect();
        let [refused_login, pod] = problems[..] else { anyhow::bail!("{output:?}") };
        anyhow::ensure!(refused_login.starts_with(&format!("{login} {refused}")), "{output:?}");
        anyhow::ensure!(pod.starts_with(&format!("pod {STUCK_POD} is not ready")), "{output:?}");
        anyhow::ensure!(!output.stdout.contains("(a consequence of: "), "{output:?}");
        anyhow::ensure!(output.stderr.ends_with("Error: found 2 problems\n"), "{output:?}");
        Ok(())
    })
    .await
    .unwrap();
    clinic.kubectl(&["delete", "pod", STUCK_POD, "-n", CONCIERGE, "--grace-period=0", "--force"]).await;
    clinic.is_healthy().await;

    // A serving certificate of the proxy that has expired.
    let (pair, authority) = expired_certificate();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": EXPIRED_SECRET, "namespace": CONCIERGE},
        "stringData": {"tls.crt": pair.0, "tls.key": pair.1}});
    installed.world().kubectl().apply(&secret.to_string()).await.unwrap();
    let authority = STANDARD.encode(authority);
    let tls = json!({"secretName": EXPIRED_SECRET, "certificateAuthorityData": authority});
    configure_tls(&clinic, &tls).await;
    let user = clinic.kubeconfig(&STANDARD.encode(&installed.ca_pem), &authority);
    let consequence = format!("the certificate of https://{EXTERNAL_NAME} expired at ");
    let output = clinic.finds(&user, "ServingCertificateValid is False: ", &[&consequence, &login]).await;
    assert!(output.stdout.lines().next().unwrap().contains(" expired at "), "{output:?}");
    configure_tls(&clinic, &Value::Null).await;
    clinic.kubectl(&["delete", "secret", EXPIRED_SECRET, "-n", CONCIERGE]).await;
    clinic.is_healthy().await;

    // A Concierge without pods.
    let user = clinic.kubeconfig("kind: Config", "kind: Config");
    let replicas =
        clinic.kubectl(&["get", DEPLOYMENT, "-n", CONCIERGE, "-o", "jsonpath={.spec.replicas}"]).await;
    scale(&clinic, "0").await;
    let consequence = "the API for logins (APIService v1alpha1.login.concierge) is not available: ";
    let cause = format!("no pod of the Concierge exists in namespace {CONCIERGE}");
    clinic.finds(&user, &cause, &[consequence]).await;
    scale(&clinic, replicas.trim()).await;
    clinic.kubectl(&["rollout", "status", DEPLOYMENT, "-n", CONCIERGE, "--timeout=120s"]).await;
    clinic.is_healthy().await;
}

/// Returns a command for `pinniped` on a machine whose clock has this offset, or records a skip
/// where there is no program for it.
fn with_clock(offset: &'static str) -> Option<impl Fn() -> Command> {
    const FAKETIME: &str = "faketime";
    if Command::new(FAKETIME).arg("--version").output().is_err() {
        tools::skip("the clock of a client", "faketime is not installed (package faketime)");
        return None;
    }
    let pinniped = tools::binary("pinniped").unwrap();
    Some(move || {
        let mut command = Command::new(FAKETIME);
        command.args(["-f", offset]).arg(&pinniped);
        command
    })
}

/// Returns a certificate and its key for the proxy's name that has expired, and its CA, all as PEM.
fn expired_certificate() -> ((String, String), String) {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut leaf = rcgen::CertificateParams::new([EXTERNAL_NAME.to_owned()]).unwrap();
    leaf.not_before = rcgen::date_time_ymd(2020, 1, 1);
    leaf.not_after = rcgen::date_time_ymd(2020, 1, 2);
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    ((leaf.pem(), key.serialize_pem()), ca_pem)
}

/// Sets `spec.impersonationProxy.tls`.
async fn configure_tls(clinic: &Clinic<'_>, tls: &Value) {
    let patch = json!({"spec": {"impersonationProxy": {"tls": tls}}}).to_string();
    clinic.kubectl(&["patch", ISSUER, "--type=merge", "-p", &patch]).await;
}

/// Returns the only context of a kubeconfig.
fn context(kubeconfig: &str) -> String {
    let line = kubeconfig.lines().find_map(|line| line.strip_prefix("current-context: "));
    line.unwrap().to_owned()
}

async fn trust(clinic: &Clinic<'_>, ca: &str) {
    let patch: Value = json!({"spec": {"tls": {"certificateAuthorityData": ca}}});
    clinic.kubectl(&["patch", WEBHOOK, "--type=merge", "-p", &patch.to_string()]).await;
}

async fn scale(clinic: &Clinic<'_>, replicas: &str) {
    clinic.kubectl(&["scale", DEPLOYMENT, "-n", CONCIERGE, "--replicas", replicas]).await;
}
