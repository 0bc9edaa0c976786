//! `pinniped doctor` on a real cluster: a healthy installation, an unhealthy one, and a caller with
//! few permissions.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_e2e::walkthrough::{EXTERNAL_NAME, LOCAL_USER_AUTHENTICATOR};
use pinniped_test_support::kubectl::{CommandOutput, run};
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};

use crate::installed::{self, Credentials, Installed, TIME_LIMIT};

const ISSUER: &str = "credentialissuers.config.concierge.pinniped.dev/pinniped-concierge-config";

/// Runs `pinniped doctor` with this kubeconfig.
async fn doctor(kubeconfig: &Path, args: &[&str]) -> CommandOutput {
    let mut command = Command::new(tools::binary("pinniped").unwrap());
    command.arg("doctor").arg("--kubeconfig").arg(kubeconfig).args(args).env_remove("KUBECONFIG");
    for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
        command.env_remove(name);
    }
    run(command, None).await.unwrap()
}

async fn configure(installed: &Installed, proxy: Value) {
    let patch = json!({"spec": {"impersonationProxy": proxy}}).to_string();
    installed.world().kubectl().output(&["patch", ISSUER, "--type=merge", "-p", &patch]).await.unwrap();
}

/// Runs it until it prints a line that starts with `line`; a change takes a moment to become
/// visible.
async fn await_line(installed: &Installed, line: &str) -> CommandOutput {
    wait::until_ok(TIME_LIMIT, format!("doctor to say {line}"), async || {
        let output = doctor(&installed.world().admin_kubeconfig(), &[]).await;
        anyhow::ensure!(output.stdout.lines().any(|printed| printed.starts_with(line)), "{output:?}");
        Ok(output)
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_finds_problems_and_prints_the_remedies() {
    let Some(installed) = installed::alone("doctor").await else { return };
    let admin = installed.world().admin_kubeconfig();

    // A healthy installation, also with the kubeconfig of a user.
    let user = installed.world().dir().join("kubeconfigs").join("doctor");
    std::fs::create_dir_all(user.parent().unwrap()).unwrap();
    let kubeconfig = installed.kubeconfig(&Credentials::none());
    std::fs::write(&user, kubeconfig.to_string()).unwrap();
    let fine = format!("ok       https://{EXTERNAL_NAME} presents a certificate that clients accept, until ");
    let output = await_line(&installed, &fine).await;
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{output:?}");
    assert!(!output.stdout.contains("problem") && !output.stdout.contains("skipped"), "{output:?}");
    let check = ["--check-kubeconfig", user.to_str().unwrap()];
    let output = doctor(&admin, &check).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.contains("trusts what the proxy advertises"), "{output:?}");

    // The user's kubeconfig is out of date.
    let mut old = kubeconfig.clone();
    let stranger = rcgen::generate_simple_self_signed(["old".to_owned()]).unwrap().cert.pem();
    old["clusters"][0]["cluster"]["certificate-authority-data"] = json!(STANDARD.encode(stranger));
    std::fs::write(&user, old.to_string()).unwrap();
    let output = doctor(&admin, &check).await;
    assert_eq!((output.code, output.stderr.as_str()), (1, "Error: found 1 problem\n"), "{output:?}");
    assert!(
        output.stdout.contains("trusts another CA than the proxy advertises\n         -> "),
        "{output:?}"
    );

    // An endpoint to which the name does not resolve, and the original one.
    configure(&installed, json!({"externalEndpoint": format!("{EXTERNAL_NAME}:1")})).await;
    let output = await_line(&installed, "problem  no server responds at https://").await;
    assert_eq!(output.code, 1);
    configure(&installed, json!({"externalEndpoint": EXTERNAL_NAME})).await;
    await_line(&installed, &fine).await;

    // A Secret that does not exist, a Secret that is not delegated, and a certificate for another
    // host with a CA that did not sign it.
    configure(&installed, json!({"tls": {"secretName": "mine"}})).await;
    let output = await_line(&installed, "problem  strategy ImpersonationProxy fails: could not load").await;
    assert!(output.stdout.contains("problem  secret pinniped-concierge/mine does not exist\n"), "{output:?}");
    configure(&installed, json!({"tls": {"secretName": "kube-system/mine"}})).await;
    await_line(&installed, "problem  this cluster does not serve the kind TLSCertificateDelegation").await;
    let leaf = rcgen::generate_simple_self_signed(["other.example.com".to_owned()]).unwrap();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "mine", "namespace": "pinniped-concierge"},
        "stringData": {"tls.crt": leaf.cert.pem(), "tls.key": leaf.signing_key.serialize_pem()}});
    installed.world().kubectl().apply(&secret.to_string()).await.unwrap();
    let authority = STANDARD.encode(&installed.ca_pem);
    configure(&installed, json!({"tls": {"secretName": "mine", "certificateAuthorityData": authority}}))
        .await;
    let wrong =
        format!("problem  the certificate at https://{EXTERNAL_NAME} is for [other.example.com], not for ");
    let output = await_line(&installed, &wrong).await;
    for part in
        ["problem  ServingCertificateValid is False: ", "does not verify with the advertised CA bundle"]
    {
        assert!(output.stdout.contains(part), "{part}: {output:?}");
    }

    // Restores the original state.
    configure(&installed, json!({"tls": null})).await;
    installed
        .world()
        .kubectl()
        .output(&["delete", "secret", "mine", "-n", "pinniped-concierge"])
        .await
        .unwrap();
    await_line(&installed, &fine).await;

    // A caller who can read the CredentialIssuer and nothing else.
    let name = "doctor-little";
    let issuers = json!([{"apiGroups": ["config.concierge.pinniped.dev"], "resources": ["credentialissuers"],
        "verbs": ["get", "list"]}]);
    installed.allow(name, issuers).await;
    let pair = installed.certificate(name, None);
    let mut little = installed.kubeconfig(&pair.into());
    little["clusters"][0]["cluster"]["server"] = json!(installed.world().control_plane().server());
    let ca = &installed.world().control_plane().ca().certificate_pem;
    little["clusters"][0]["cluster"]["certificate-authority-data"] = json!(STANDARD.encode(ca));
    std::fs::write(&user, little.to_string()).unwrap();
    let output = doctor(&user, &[]).await;
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{output:?}");
    assert!(
        output.stdout.contains(&fine) && output.stdout.contains("skipped  authenticators: "),
        "{output:?}"
    );
    assert!(
        output.stdout.contains(&format!("User \"{name}\" cannot list resource \"services\"")),
        "{output:?}"
    );
    assert!(!output.stdout.contains(LOCAL_USER_AUTHENTICATOR), "{output:?}");
}
