//! Texts of servers and kubeconfigs that contain control characters.

use serde_json::json;

use crate::cluster::{home_for, issuer, run, strategy, usual};
use crate::oidc::browser::{Desktop, callback};
use crate::oidc::issuer::{Issuer, Settings, query};
use crate::support::{Home, ReceivedResponse, Server};

/// Clears the screen, sets a color, reverses the order of the text, and deletes a character.
const HOSTILE: &str = "safe\u{1b}[2J\u{9b}31m\u{202e}\u{2066}\u{7f}end";

/// Fails the test if a terminal would interpret a part of the text.
#[track_caller]
fn assert_not_interpreted(text: &str) {
    let is_interpreted = |c: char| {
        (c.is_control() && c != '\n') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.contains(is_interpreted), "{text:?}");
    assert!(text.contains("safe") && text.contains("31m\u{fffd}\u{fffd}\u{fffd}end"), "{text:?}");
}

#[test]
fn messages_of_servers_do_not_control_the_terminal() {
    let status = json!({"kind": "Status", "message": HOSTILE, "code": 403});
    let api = Server::start(move |_| ReceivedResponse::json(&status).with_status(403));
    assert_not_interpreted(&home_for(&api).run(&["whoami"]).stderr);

    let refusal = json!({"kind": "TokenCredentialRequest", "status": {"message": HOSTILE}});
    let concierge = Server::start(move |_| ReceivedResponse::json(&refusal));
    let refused = Home::new().run(&[
        "login",
        "static",
        "--token=t",
        "--enable-concierge",
        "--concierge-authenticator-name=a",
        "--concierge-authenticator-type=webhook",
        &format!("--concierge-endpoint={}", concierge.url()),
        &format!("--concierge-ca-bundle-data={}", concierge.ca_data()),
    ]);
    assert_not_interpreted(&refused.stderr);

    // In a log line.
    let mut cluster = usual();
    let mut broken = strategy("ImpersonationProxy", "Error", "ErrorDuringSetup", &json!(null));
    broken["message"] = json!(HOSTILE);
    cluster.issuers = vec![issuer("test-issuer", &[broken])];
    let server = cluster.start();
    assert_not_interpreted(&run(&home_for(&server), &["--static-token=t"]).stderr);
}

#[test]
fn a_kubeconfig_does_not_control_the_terminal() {
    let home = Home::new();
    let config = json!({
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": {"command": "/no/plugin", "installHint": HOSTILE}}}],
    });
    // YAML does not accept the characters themselves.
    let escape = |c: char| match c {
        ' '..='~' => c.to_string(),
        c => format!("\\u{:04x}", u32::from(c)),
    };
    let path = home.write("config", &config.to_string().chars().map(escape).collect::<String>());
    assert_not_interpreted(&home.run(&["whoami", "--kubeconfig", path.to_str().unwrap()]).stderr);
}

#[test]
fn an_issuer_does_not_control_the_terminal() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let running = desktop.start(&issuer.args(&[]));
    let url = desktop.first_opened();
    let state = query(url.split_once('?').unwrap().1)["state"].clone();
    let description = pinniped_go_compat::url::encode_query(&[("error_description", HOSTILE)]);
    callback(&url, &format!("error=access_denied&state={state}&{description}"));
    assert_not_interpreted(&running.finish().stderr);

    issuer.change(|settings| {
        settings.device = Some(vec!["access_denied"]);
        settings.user_code = HOSTILE;
    });
    assert_not_interpreted(&desktop.home.run(&issuer.args(&["--flow=device"])).stderr);
}

#[cfg(unix)]
#[test]
fn a_terminal_displays_the_output_and_programs_receive_its_exact_bytes() {
    use std::io::Read as _;
    use std::process::Stdio;

    let user = json!({"kind": "WhoAmIRequest", "apiVersion": "identity.concierge.pinniped.dev/v1alpha1",
                      "metadata": {}, "spec": {}, "status": {"kubernetesUserInfo": {"user": {"username": HOSTILE}}}});
    let server = Server::start(move |_| ReceivedResponse::json(&user).with_status(201));
    let home = home_for(&server);
    let piped = home.run(&["whoami"]);
    assert!(piped.stdout.contains(&format!("Username: {HOSTILE}\n")), "{piped:?}");

    let (mut terminal, program_side) = crate::support::pseudo_terminal();
    let mut command = home.command(&["whoami"]);
    assert!(command.stdout(program_side).stderr(Stdio::null()).status().unwrap().success());
    // The program's side closes.
    drop(command);
    let mut shown = Vec::new();
    // Linux reports the end as an error.
    let _ended = terminal.read_to_end(&mut shown);
    // The terminal itself adds the carriage returns.
    assert_not_interpreted(&String::from_utf8(shown).unwrap().replace("\r\n", "\n"));
}
