//! Changes of the configuration file while the Concierge runs.

use jiff::Timestamp;
use pinniped_test_support::wait;
use serde_json::{Value, json};

use crate::installed::TIME_LIMIT;
use crate::separate_concierge::{SeparateConcierge, with_proxy};
use crate::service_account_tokens::webhook::Webhook;

const APP: &str = "reconfigured";
const FILE: &str = "pinniped.yaml";

struct Installation {
    own: SeparateConcierge,
    /// The file as it was installed.
    file: String,
}

impl Installation {
    async fn new() -> Option<Self> {
        let own = SeparateConcierge::install(APP, &[], |text| with_proxy(&text)).await?;
        own.await_api().await;
        own.create_authenticator(&Webhook::start().unwrap()).await;
        let map = own.get("configmap", &format!("{APP}-config")).await.unwrap();
        let file = map["data"][FILE].as_str().unwrap().to_owned();
        Some(Self { own, file })
    }

    /// Replaces the file.
    async fn configure(&self, text: &str) {
        let patch = json!({"data": {FILE: text}}).to_string();
        let map = format!("{APP}-config");
        self.own.kubectl(&["patch", "configmap", &map, "--type=merge", "-p", &patch]).await.unwrap();
    }

    /// Waits until a login returns a certificate that expires after about this many seconds.
    async fn await_lifetime(&self, seconds: i64) {
        let user = json!({"username": "reconfigured-pinny"});
        let waited = wait::until_ok(TIME_LIMIT, format!("a lifetime of {seconds} s"), async || {
            let status = self.own.log_in(&user).await?;
            let expires = status["credential"]["expirationTimestamp"].as_str().unwrap_or_default();
            let left = expires.parse::<Timestamp>()?.duration_since(Timestamp::now()).as_secs();
            anyhow::ensure!((seconds - 60..=seconds).contains(&left), "{left}");
            Ok(())
        });
        self.own.check(waited.await);
    }

    /// Returns the log lines with this message.
    fn lines(&self, message: &str) -> Vec<Value> {
        let logs = self.own.pods.logs(APP);
        let lines = logs.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["message"] == message).collect()
    }
}

/// One test, because each step changes the file of the previous one.
#[tokio::test]
async fn a_changed_file_takes_effect_without_a_restart_and_an_invalid_one_does_not() {
    let Some(installation) = Installation::new().await else { return };
    installation.await_lifetime(300).await;
    let debug = "\"level\":\"debug\"";
    assert!(!installation.own.pods.logs(APP).contains(debug));

    let redacted = "logUsernamesAndGroups: disabled";
    assert!(installation.file.contains(redacted));
    let changed = installation.file.replace(redacted, "logUsernamesAndGroups: enabled")
        + "\nlog: {level: debug}\ncredentialLifetimeSeconds: 900\nlogLevl: info\n";
    installation.configure(&changed).await;
    installation.await_lifetime(900).await;
    // Starts a pass of the proxy's controller, which is logged at this level.
    let issuers = format!("credentialissuers.v1alpha1.config.concierge.{}", installation.own.suffix);
    let issuer = format!("{APP}-config");
    installation.own.kubectl(&["annotate", &issuers, &issuer, "example.com/touched=yes"]).await.unwrap();
    installation.own.await_log(debug).await;
    let logged: Vec<_> = installation
        .lines("configuration changed")
        .iter()
        .map(|line| (line["key"].clone(), line["new"].clone()))
        .collect();
    let wanted = [("log.level", json!("debug")), ("credentialLifetimeSeconds", json!(900))];
    assert_eq!(logged, wanted.map(|(key, value)| (json!(key), value)));
    let later = installation.lines("changed keys of the configuration take effect at the next start");
    let keys: Vec<_> = later.iter().map(|line| (&line["warning"], &line["keys"])).collect();
    assert_eq!(keys, [(&json!(true), &json!(["audit.logUsernamesAndGroups"]))]);
    let unknown = installation.lines("unknown key in the configuration is ignored");
    let unknown: Vec<_> = unknown.iter().map(|line| (&line["key"], &line["similar"])).collect();
    assert_eq!(unknown, [(&json!("logLevl"), &json!("log.level"))]);

    installation.configure(&changed.replace("Seconds: 900", "Seconds: 5")).await;
    let invalid = "the changed configuration is invalid, the previous one stays in use";
    installation.own.await_log(invalid).await;
    let errors = installation.lines(invalid);
    assert_eq!(errors[0]["level"], "error");
    assert_eq!(errors[0]["error"], "validate credentialLifetimeSeconds: must be within range 60 to 3600");
    installation.await_lifetime(900).await;

    // The next valid file takes effect, and the invalid one was logged once.
    installation.configure(&installation.file).await;
    installation.await_lifetime(300).await;
    assert_eq!(installation.lines(invalid).len(), 1);
    let restarts: Vec<_> = installation.own.pods.list(APP).iter().map(|(_, pod)| pod.restarts).collect();
    assert_eq!(restarts, [0]);
}
