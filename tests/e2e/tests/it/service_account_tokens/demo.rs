//! Runs `pinniped-demo --strategy service-account-token` to completion, in a separate world.

use std::process::{Command, Stdio};

use pinniped_test_support::tools;
use serde_json::Value;

#[tokio::test]
async fn the_demo_prints_the_user_and_an_audit_event_with_both_identities() {
    if let Err(why) = pinniped_test_support::world::in_namespace() {
        tools::skip("the demo of service account tokens", &why);
        return;
    }
    let folders = tempfile::tempdir().unwrap();
    // In a world below ours, because the shared one uses the ClusterIPs here.
    let mut demo = Command::new("sh");
    demo.arg(tools::repository().join("tools/test-runner.sh"))
        .args(["--world".as_ref(), tools::binary("pinniped-demo").unwrap().as_os_str()])
        .args(["--strategy", "service-account-token"])
        .env_remove("PINNIPED_WORLD")
        .env("PINNIPED_CONTROL_PLANE", tools::control_plane().unwrap())
        .env("TMPDIR", folders.path())
        .stdin(Stdio::null());
    let output = tokio::process::Command::from(demo).kill_on_drop(true).output().await.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));

    let (before, after) = printed.split_once("== Who am I?").expect("it asks who it is");
    for way in
        ["$ kubectl get pods -A --kubeconfig ", "$ pinniped kubectl -- get pods -A", "$ pinniped proxy "]
    {
        assert!(before.contains(way), "{way:?} was not shown: {before}");
    }
    assert_eq!(before.matches("some-app                   frontend").count(), 3, "{before}");
    assert!(after.contains("\nUsername: pinny\nGroups: group-for-mtls, system:authenticated\n"), "{after}");
    let event = after.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).expect("an event").0;
    let event: Value = serde_json::from_str(&format!("{{{event}}}")).unwrap();
    assert_eq!(event["impersonatedUser"]["username"], "pinny");
    let account = event["user"]["username"].as_str().unwrap();
    assert!(
        account.starts_with("system:serviceaccount:pinniped-concierge-users:pinniped-user-"),
        "{account}"
    );
}
