//! The page `docs/reference/cli-tour.md`: commands of a user, and their output in a real cluster.
//!
//! The test runs the commands and compares the page. With `UPDATE_PAGES=1` it writes the page.

use std::path::{Path, PathBuf};
use std::process::Command;

use pinniped_test_support::kubectl::run;
use pinniped_test_support::{tools, wait};
use regex::Regex;

use crate::cli::{Home, create_user};
use crate::installed::{self, Installed, TIME_LIMIT};

const PAGE: &str = "docs/reference/cli-tour.md";
/// Writes the page instead of comparing it.
const UPDATE: &str = "UPDATE_PAGES";
/// The column at which lines of output are wrapped.
const WIDTH: usize = 100;

const BEGIN: &str = "# A tour of the command line

This page shows the commands of `pinniped` and their output. A test makes it from real runs on a
cluster with the Concierge: `UPDATE_PAGES=1 cargo xtask test -- -p pinniped-e2e cli_tour`. Values
that differ in each run have placeholders, such as `TIME`. Long lines are wrapped, and continue
after `\\`. On a terminal, the output has marks and colors instead of the time and the words at the
start of a line. All flags are in the [reference](cli.md).

The administrator's kubeconfig is `admin.yaml`. The user is `ana`, who has a password in the
local-user-authenticator of the demo.
";

/// A step: a heading, an introduction, the command, and its exit code.
const STEPS: [(&str, &str, &str, i32); 10] = [
    ("Version", "", "pinniped version", 0),
    (
        "Create a kubeconfig",
        "The kubeconfig of the administrator is read, and a context for logins is added to the kubeconfig
that you use, here `~/.kube/config`. The file has the name of the variable with the token, not the
token. With a JWTAuthenticator, no flag is needed: users log in with a browser.",
        "pinniped get kubeconfig --kubeconfig admin.yaml --portable --merge --context prod \\
    --concierge-authenticator-type webhook \\
    --concierge-authenticator-name local-user-authenticator --static-token-env ANAS_PASSWORD",
        0,
    ),
    (
        "Log in",
        "kubectl runs `pinniped` for the login. The credential is cached.",
        "ANAS_PASSWORD=ana:password123 kubectl auth whoami",
        0,
    ),
    ("Print the user", "", "ANAS_PASSWORD=ana:password123 pinniped whoami", 0),
    (
        "Check the installation",
        "`doctor` logs in with the kubeconfig of `--check-kubeconfig`, and reads the objects of the
Concierge as the administrator.",
        "ANAS_PASSWORD=ana:password123 pinniped doctor --kubeconfig admin.yaml \\
    --check-kubeconfig .kube/config",
        0,
    ),
    (
        "Find out why a login fails",
        "The password is wrong. The cause is printed first.",
        "ANAS_PASSWORD=ana:wrong pinniped doctor --kubeconfig admin.yaml \\
    --check-kubeconfig .kube/config",
        1,
    ),
    (
        "Explain an error",
        "Conditions and reasons in the status of the Concierge's objects are explained, too.",
        "pinniped explain \"login failed: authentication failed\"",
        0,
    ),
    (
        "Print logins and credentials",
        "No request is sent.",
        "ANAS_PASSWORD=ana:password123 pinniped status",
        0,
    ),
    ("Log out", "", "ANAS_PASSWORD=ana:password123 pinniped logout", 0),
    ("After the logout", "", "ANAS_PASSWORD=ana:password123 pinniped status", 0),
];

/// Runs a command of the page in the user's home. Returns both outputs, in their order.
async fn output(home: &Home, installed: &Installed, line: &str) -> (i32, String) {
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("exec 2>&1\n{line}")]).current_dir(home.path());
    home.settle(&mut bash);
    bash.env("TZ", "UTC");
    let kubectl = installed.world().kubectl().program().parent().unwrap().to_owned();
    let mut path: Vec<PathBuf> = vec![kubectl, tools::bin_dir().unwrap()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    bash.env("PATH", std::env::join_paths(path).unwrap());
    let output = run(bash, None).await.unwrap();
    assert_eq!(output.stderr, "", "{line}");
    (output.code, output.stdout)
}

/// Replaces the values that differ in each run.
fn with_placeholders(text: &str, installed: &Installed, home: &Path) -> String {
    let server = installed.world().control_plane().server();
    let home = home.canonicalize().unwrap();
    let text = text
        .replace(&server, "https://API-SERVER")
        .replace(server.trim_start_matches("https://"), "API-SERVER")
        .replace(home.to_str().unwrap(), "~")
        .replace(tools::bin_dir().unwrap().to_str().unwrap(), "/usr/local/bin");
    let mut text = text.replace(pinniped_version::VERSION, "VERSION");
    for (pattern, placeholder) in [
        ("[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} UTC", "TIME"),
        (r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z", "TIME"),
        (r"([a-z_]+/[a-z_]+\.rs):[0-9]+", "$1:LINE"),
        ("X509SHA256=[0-9a-f]{64}", "X509SHA256=DIGEST"),
        ("authenticators: [0-9]+", "authenticators: COUNT"),
        ("the Concierge's pods: [0-9]+", "the Concierge's pods: COUNT"),
        ("leads to ready pods: [0-9]+", "leads to ready pods: COUNT"),
        ("image is [^ ;]+;", "image is IMAGE;"),
        ("(kube-cert-agent|concierge)-[0-9a-f]{8,10}-[0-9a-z]{5}", "$1-POD"),
    ] {
        text = Regex::new(pattern).unwrap().replace_all(&text, placeholder).into_owned();
    }
    text
}

/// Wraps the lines of an output.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut rest = line.trim_end();
        while rest.chars().count() > WIDTH {
            let cut = rest.char_indices().take(WIDTH - 1).filter(|(_, c)| *c == ' ').last();
            let Some((at, _)) = cut.filter(|(at, _)| !rest[..*at].trim().is_empty()) else { break };
            out.push_str(&format!("{} \\\n", rest[..at].trim_end()));
            rest = rest[at..].trim_start();
        }
        out.push_str(&format!("{rest}\n"));
    }
    out
}

#[test]
fn long_lines_are_wrapped_between_words() {
    let long = format!("{} {}", "a".repeat(60), "b".repeat(60));
    assert_eq!(wrapped(&long), format!("{} \\\n{}\n", "a".repeat(60), "b".repeat(60)));
    assert_eq!(wrapped("a  b \n\n c"), "a  b\n\n c\n");
    assert_eq!(wrapped(&"a".repeat(200)), format!("{}\n", "a".repeat(200)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_the_output_of_the_commands() {
    let Some(installed) = installed::alone("the tour of the command line").await else { return };
    create_user(&installed, "ana").await;
    let home = Home::new();
    std::fs::copy(installed.world().admin_kubeconfig(), home.path().join("admin.yaml")).unwrap();
    // Objects of earlier tests may need a moment.
    wait::until_ok(3 * TIME_LIMIT, "the installation to be healthy", async || {
        let (code, text) = output(&home, &installed, "pinniped doctor --kubeconfig admin.yaml").await;
        anyhow::ensure!(code == 0, "{text}");
        Ok(())
    })
    .await
    .unwrap();

    let mut page = BEGIN.to_owned();
    for (heading, text, line, wanted) in STEPS {
        let (code, printed) = output(&home, &installed, line).await;
        assert_eq!(code, wanted, "{line}\n{printed}");
        let printed = with_placeholders(&printed, &installed, home.path());
        page.push_str(&format!("\n## {heading}\n\n"));
        if !text.is_empty() {
            page.push_str(&format!("{text}\n\n"));
        }
        let shown = line.replace("\n    ", "\n>     ");
        page.push_str(&format!("```console\n$ {shown}\n{}```\n", wrapped(&printed)));
    }
    let path = tools::repository().join(PAGE);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let existing = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(page, existing, "{PAGE} is not up to date, run this test with {UPDATE}=1");
}
