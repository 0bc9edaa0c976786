//! The table of commands.

use futures::future::LocalBoxFuture;
use pinniped_test_support::tools;
use serde_json::json;

use super::session::{Route, Session, Shown, Version};
use super::{forwards, interactive};

/// A command, and its expected output with each kubectl that it applies to, directly and through
/// the proxy.
pub(super) struct Row {
    /// The name in failure messages.
    pub(super) name: &'static str,
    /// Whether it runs concurrently with the other rows.
    pub(super) long: bool,
    only: Option<Version>,
    act: Act,
    input: Input,
    code: i32,
    contains: &'static [&'static str],
    compared: Compared,
}

enum Act {
    /// One command that runs to completion.
    Run(&'static [&'static str]),
    /// A function, for interactive rows.
    Interactive(for<'a> fn(&'a Session<'a>) -> LocalBoxFuture<'a, anyhow::Result<Shown>>),
}

/// The standard input of a command.
#[derive(Clone, Copy)]
enum Input {
    Nothing,
    Text(&'static str),
    /// One mebibyte.
    Long,
    /// A ConfigMap of 900 KiB.
    BigConfigMap,
}

/// The outputs that must be equal directly and through the proxy, besides the exit code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compared {
    Outputs,
    /// Standard error contains times or counts.
    Stdout,
    /// The output depends on the user.
    Nothing,
}

const fn row(name: &'static str, act: Act) -> Row {
    Row {
        name,
        long: false,
        only: None,
        act,
        input: Input::Nothing,
        code: 0,
        contains: &[],
        compared: Compared::Outputs,
    }
}

const fn run(name: &'static str, args: &'static [&'static str]) -> Row {
    row(name, Act::Run(args))
}

impl Row {
    const fn only(self, version: Version) -> Self {
        Self { only: Some(version), ..self }
    }

    const fn reads(self, input: Input) -> Self {
        Self { input, ..self }
    }

    const fn code(self, code: i32) -> Self {
        Self { code, ..self }
    }

    const fn contains(self, contains: &'static [&'static str]) -> Self {
        Self { contains, ..self }
    }

    const fn compared(self, compared: Compared) -> Self {
        Self { compared, ..self }
    }

    const fn long(self) -> Self {
        Self { long: true, ..self }
    }

    pub(super) fn is_for(&self, session: &Session<'_>) -> bool {
        // `pinniped proxy` always uses its own user, and kubectl prints a warning about it.
        let as_another = matches!(self.act, Act::Run(args) if args.iter().any(|arg| arg.starts_with("--as")));
        self.only.is_none_or(|version| version == session.version)
            && !(as_another && session.route == Route::LocalProxy)
    }

    pub(super) async fn run(&self, session: &Session<'_>) -> anyhow::Result<Shown> {
        match self.act {
            Act::Run(args) => session.run(args, self.input.text().as_deref()).await,
            Act::Interactive(run) => run(session).await,
        }
    }

    /// Returns the problem, if any.
    pub(super) fn problem(&self, direct: &Shown, proxied: &Shown) -> Option<String> {
        let release = format!("v{}.", tools::kubernetes_release());
        for (way, shown) in [("directly", direct), ("through the proxy", proxied)] {
            let lacks = |text: &&&str| {
                let text = if **text == RELEASE { &release } else { **text };
                !shown.stdout.contains(text) && !shown.stderr.contains(text)
            };
            if shown.code != self.code {
                return Some(format!(
                    "{way} it ends with {} instead of {}: {shown:?}",
                    shown.code, self.code
                ));
            }
            if let Some(text) = self.contains.iter().find(lacks) {
                return Some(format!("{way} it does not say {text:?}: {shown:?}"));
            }
        }
        let differs = match self.compared {
            Compared::Outputs => direct != proxied,
            Compared::Stdout => direct.stdout != proxied.stdout,
            Compared::Nothing => false,
        };
        differs.then(|| format!("directly {direct:?}, through the proxy {proxied:?}"))
    }
}

impl Input {
    fn text(self) -> Option<String> {
        let lines =
            |count: usize| "0123456789abcdefghijklmnopqrstuv0123456789abcdefghijklmnopqrstu\n".repeat(count);
        match self {
            Self::Nothing => None,
            Self::Text(text) => Some(text.to_owned()),
            Self::Long => Some(lines(16 * 1024)),
            Self::BigConfigMap => Some(
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"},
                    "data": {"big": lines(900 * 16)}})
                .to_string(),
            ),
        }
    }
}

/// JSON, because the old kubectl treats every input that starts with a brace as JSON.
macro_rules! config_map {
    ($name:literal, $value:literal) => {
        concat!(
            r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ""#,
            $name,
            r#""}, "data": {"key": ""#,
            $value,
            r#""}}"#
        )
    };
}

const ONE: &str = config_map!("applied", "one");
const TWO: &str = config_map!("applied", "two");
const MINE: &str = config_map!("owned", "mine");
const YOURS: &str = config_map!("owned", "yours");
/// The API server warns about this annotation.
const WARNED: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "warned",
    "annotations": {"scheduler.alpha.kubernetes.io/critical-pod": ""}},
    "spec": {"containers": [{"name": "a", "image": "b"}]}}"#;
/// Writes to both streams, and exits with an error.
const BOTH_STREAMS: &str = "echo out; echo err >&2; exit 3";
const PATCH: &str = r#"[{"op": "add", "path": "/data/more", "value": "of it"}]"#;
/// Stands for the beginning of the version of the selected Kubernetes release, such as `v1.36.`.
const RELEASE: &str = "RELEASE";
const IMAGE_FLAG: &str = "--image=example.com/busybox:of-the-matrix";
/// Time limit of kubectl's own waiting.
const TIMEOUT_FLAG: &str = "--timeout=60s";

/// The rows, in order.
pub(super) static MATRIX: &[Row] = &[
    row("port-forward, idle and busy", Act::Interactive(|session| Box::pin(forwards::stay_open(session))))
        .long(),
    // Versions and users.
    run("version", &["version"]).contains(&["Server Version", RELEASE]),
    run("version --client of today", &["version", "--client"]).only(Version::Today).contains(&[RELEASE]),
    run("version --client of old", &["version", "--client"]).only(Version::Old).contains(&["v1.20.2"]),
    run("auth can-i", &["auth", "can-i", "create", "pods", "--subresource=exec"]).contains(&["yes"]),
    run("auth can-i of somebody else", &["auth", "can-i", "list", "secrets", "--as=nobody-at-all"])
        .code(1)
        .contains(&["no"]),
    run("auth can-i --list", &["auth", "can-i", "--list"]).contains(&["*.*"]).compared(Compared::Nothing),
    run("auth whoami", &["auth", "whoami", "-o", "jsonpath={.kind}"])
        .only(Version::Today)
        .contains(&["SelfSubjectReview"]),
    // Read commands.
    run("get", &["get", "pods"]).contains(&["NAME", "target   2/2     Running"]),
    run("get -o jsonpath", &["get", "pod", "target", "-o", "jsonpath={.spec.containers[*].name}"])
        .contains(&["main listener"]),
    run("get in chunks", &["get", "pods,configmaps", "--chunk-size=1", "-o", "name"])
        .contains(&["pod/target", "configmap/kube-root-ca.crt"]),
    run("get what is not there", &["get", "configmap", "absent"]).code(1).contains(&["(NotFound)"]),
    run("get of a kind that is not there", &["get", "unheardofs"])
        .code(1)
        .contains(&["the server doesn't have a resource type"]),
    run("get --raw", &["get", "--raw", "/api/v1/namespaces/NAMESPACE/pods/target:8080/proxy/index.html"])
        .contains(&["served"]),
    row("get --watch", Act::Interactive(|session| Box::pin(interactive::watch(session))))
        .contains(&["configmap/seen"]),
    run("describe", &["describe", "configmap", "kube-root-ca.crt"]).contains(&["BEGIN CERTIFICATE"]),
    run("explain", &["explain", "pod.spec.containers.stdin"]).contains(&["stdin"]),
    run("wait", &["wait", "--for=condition=Ready", "pod/target", TIMEOUT_FLAG])
        .contains(&["pod/target condition met"]),
    // Write commands.
    run("create", &["create", "configmap", "created", "--from-literal=key=value"])
        .contains(&["configmap/created created"]),
    run("create what is there", &["create", "configmap", "created"]).code(1).contains(&["already exists"]),
    run("apply", &["apply", "-f", "-"]).reads(Input::Text(ONE)).contains(&["configmap/applied created"]),
    run("apply again", &["apply", "-f", "-"])
        .reads(Input::Text(ONE))
        .contains(&["configmap/applied unchanged"]),
    run("apply changed", &["apply", "-f", "-"])
        .reads(Input::Text(TWO))
        .contains(&["configmap/applied configured"]),
    run("apply --dry-run=server", &["apply", "--dry-run=server", "-f", "-"])
        .reads(Input::Text(ONE))
        .contains(&["configmap/applied configured (server dry run)"]),
    run("apply with a warning", &["apply", "--dry-run=server", "-f", "-"])
        .reads(Input::Text(WARNED))
        .contains(&["Warning: ", "critical-pod"]),
    run("apply --server-side", &["apply", "--server-side", "--field-manager=me", "-f", "-"])
        .reads(Input::Text(MINE))
        .contains(&["configmap/owned serverside-applied"]),
    run("apply --server-side in conflict", &["apply", "--server-side", "--field-manager=you", "-f", "-"])
        .reads(Input::Text(YOURS))
        .code(1)
        .contains(&["conflict", "\"me\"", ".data.key"]),
    run(
        "apply --server-side --force-conflicts",
        &["apply", "--server-side", "--field-manager=you", "--force-conflicts", "-f", "-"],
    )
    .reads(Input::Text(YOURS))
    .contains(&["configmap/owned serverside-applied"]),
    run("apply --server-side of much", &["apply", "--server-side", "-f", "-"])
        .reads(Input::BigConfigMap)
        .contains(&["configmap/big serverside-applied"]),
    run("get much", &["get", "configmap", "big", "-o", "jsonpath={.data.big}"]),
    run("patch", &["patch", "configmap", "created", "--type=json", "-p", PATCH])
        .contains(&["configmap/created patched"]),
    run("label", &["label", "configmap", "created", "of=mine"]).contains(&["configmap/created labeled"]),
    run("delete", &["delete", "configmap", "applied"]).contains(&["configmap \"applied\" deleted"]),
    run("delete by label", &["delete", "configmaps", "-l", "of=mine"]).contains(&["\"created\" deleted"]),
    run("delete what is not there", &["delete", "configmap", "applied"]).code(1).contains(&["(NotFound)"]),
    // Commands that connect to pods.
    run("logs", &["logs", "target", "-c", "main", "--tail=1"]).contains(&["ready"]),
    row("logs --follow", Act::Interactive(|session| Box::pin(interactive::follow_logs(session))))
        .contains(&["last"]),
    run("exec", &["exec", "target", "-c", "main", "--", "sh", "-c", BOTH_STREAMS]).code(3).contains(&[
        "out",
        "err",
        "command terminated with exit code 3",
    ]),
    run("exec by WebSocket", &["-v=8", "exec", "target", "-c", "main", "--", "echo", "done"])
        .only(Version::Today)
        .contains(&["done\n", "Sec-Websocket-Protocol: v5.channel.k8s.io"])
        .compared(Compared::Stdout),
    run("exec by SPDY", &["-v=8", "exec", "target", "-c", "main", "--", "echo", "done"])
        .only(Version::Old)
        .contains(&["done\n", "101 Switching Protocols", "X-Stream-Protocol-Version: v4.channel.k8s.io"])
        .compared(Compared::Stdout),
    run("exec in no such container", &["exec", "target", "-c", "absent", "--", "true"])
        .code(1)
        .contains(&["container absent"])
        .compared(Compared::Stdout),
    run("exec with input", &["exec", "-i", "target", "-c", "main", "--", "sha256sum"])
        .reads(Input::Long)
        .contains(&["  -\n"]),
    run("exec that repeats its input", &["exec", "-i", "target", "-c", "main", "--", "cat"])
        .reads(Input::Long),
    row("exec with a terminal", Act::Interactive(|session| Box::pin(interactive::terminal(session)))).code(7),
    row("cp there and back", Act::Interactive(|session| Box::pin(interactive::copy(session)))),
    row("attach until input ends", Act::Interactive(|session| Box::pin(interactive::attach(session))))
        .contains(&["heard one", "heard two"])
        .compared(Compared::Stdout),
    row("run -i --rm", Act::Interactive(|session| Box::pin(interactive::run(session))))
        .contains(&["hello\n", "pod \"passing\" deleted"])
        .compared(Compared::Stdout),
    row(
        "debug with an ephemeral container",
        Act::Interactive(|session| Box::pin(interactive::debug_in_place(session))),
    )
    .only(Version::Today)
    .contains(&["told hello"])
    .compared(Compared::Stdout),
    // The old kubectl uses an API that no longer exists.
    run("debug with an ephemeral container, old", &["debug", "target", IMAGE_FLAG, "-c", "debugger"])
        .only(Version::Old)
        .code(1)
        .contains(&["EphemeralContainers in version \"v1\" cannot be handled as a Pod"]),
    row("debug --copy-to", Act::Interactive(|session| Box::pin(interactive::debug_a_copy(session))))
        .contains(&["told hello"])
        .compared(Compared::Stdout),
    row("proxy", Act::Interactive(|session| Box::pin(interactive::proxy(session))))
        .contains(&["200", "served"]),
];

#[test]
fn a_row_is_checked_by_exit_code_expected_text_and_compared_output() {
    let shown = |code: i32, stdout: &str, stderr: &str| Shown {
        code,
        stdout: stdout.to_owned(),
        stderr: stderr.to_owned(),
    };
    let good = shown(3, "out", "err");
    let row = run("name", &[]).code(3).contains(&["out", "err"]);
    assert_eq!(row.problem(&good, &good), None);
    let table = [
        (shown(0, "out", "err"), "through the proxy it ends with 0 instead of 3"),
        (shown(3, "ou", "err"), "through the proxy it does not say \"out\""),
        (shown(3, "out", "err, but late"), "directly Shown"),
        (shown(3, "out, but more", "err"), "directly Shown"),
    ];
    for (bad, wanted) in &table {
        let why = row.problem(&good, bad).unwrap();
        assert!(why.starts_with(wanted), "{why}");
    }
    let row = row.compared(Compared::Stdout);
    assert_eq!(row.problem(&good, &table[2].0), None);
    assert!(row.problem(&good, &table[3].0).is_some());
    let row = row.compared(Compared::Nothing);
    assert_eq!(row.problem(&good, &table[3].0), None);
    assert!(row.problem(&table[0].0, &good).unwrap().starts_with("directly it ends with 0"));
}
