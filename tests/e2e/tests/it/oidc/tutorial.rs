//! Follows docs/tutorials/oidc.md: runs the demo that waits for the browser of its user, logs in
//! with a browser outside of the demo's network, and runs the blocks of the page in the demo's
//! shell.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use pinniped_e2e::pages::shell_blocks;
use pinniped_test_support::browser::{Browser, Programs};
use pinniped_test_support::identity_provider::{Kind, PINNY};
use pinniped_test_support::{tools, world};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

const PAGE: &str = "docs/tutorials/oidc.md";

/// Time limit of each part of the demo. Keycloak takes a minute to start on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(420);

/// The demo as a process.
struct Demo {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Demo {
    /// Starts the demo as `cargo xtask demo --with-oidc --keep` does.
    fn start(keycloak: &Path, folder: &Path) -> anyhow::Result<Self> {
        let mut demo = Command::new("sh");
        demo.arg(tools::repository().join("tools/test-runner.sh"))
            .args(["--world".as_ref(), tools::binary("pinniped-demo")?.as_os_str()])
            .args(["--with-oidc", "--provider", "keycloak", "--keep"])
            .env_remove("PINNIPED_WORLD")
            .env("PINNIPED_CONTROL_PLANE", tools::control_plane()?)
            .env(Kind::Keycloak.env(), keycloak)
            // The printed command runs this shell, which reads the blocks from its standard input.
            .env("SHELL", "bash")
            .env("TMPDIR", folder)
            .stdin(listeners()?)
            .stdout(Stdio::piped());
        let mut process = tokio::process::Command::from(demo).kill_on_drop(true).spawn()?;
        let stdout = process.stdout.take().context("the demo has no output")?;
        Ok(Self { process, lines: BufReader::new(stdout).lines() })
    }

    /// Returns the output up to the first line with a text, and this line without indentation.
    async fn until(&mut self, text: &str) -> anyhow::Result<(String, String)> {
        let mut printed = String::new();
        let found = tokio::time::timeout(TIME_LIMIT, async {
            while let Some(line) = self.lines.next_line().await? {
                if line.contains(text) {
                    return Ok(Some(line.trim().to_owned()));
                }
                printed.push_str(&line);
                printed.push('\n');
            }
            anyhow::Ok(None)
        });
        match found.await {
            Ok(Ok(Some(line))) => Ok((printed, line)),
            other => anyhow::bail!("the demo did not print {text:?} ({other:?}), but {printed}"),
        }
    }
}

/// Creates the listeners through which the browser reaches the demo, as `cargo xtask demo` does.
/// Returns the socket from which the demo receives them.
fn listeners() -> anyhow::Result<Stdio> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (provider, callback) = (bind()?, bind()?);
    let (sender, receiver) = UnixStream::pair()?;
    let descriptors = [provider.as_fd(), callback.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut buffer = SendAncillaryBuffer::new(&mut space);
    anyhow::ensure!(buffer.push(SendAncillaryMessage::ScmRights(&descriptors)), "they do not fit");
    sendmsg(&sender, &[IoSlice::new(&[0])], &mut buffer, SendFlags::empty())?;
    Ok(Stdio::from(OwnedFd::from(receiver)))
}

/// Runs the blocks of the page in the shell that a command of the demo opens.
async fn run_blocks(enter: &str, blocks: &[String]) -> anyhow::Result<String> {
    use tokio::io::AsyncWriteExt as _;
    let mut shell = tokio::process::Command::new("sh")
        .args(["-c", enter])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    // A shell that has failed does not read its input; its status is the error.
    let mut stdin = shell.stdin.take().context("the shell has no input")?;
    let script = format!("set -euo pipefail\n{}\n", blocks.join("\n"));
    let _closed = stdin.write_all(script.as_bytes()).await;
    drop(stdin);
    let output = tokio::time::timeout(TIME_LIMIT, shell.wait_with_output()).await??;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    anyhow::ensure!(output.status.success(), "{}: {printed}", output.status);
    Ok(printed)
}

#[tokio::test]
async fn a_reader_of_the_tutorial_logs_in_with_a_browser_and_uses_the_group() {
    let test = "the tutorial about an identity provider";
    let Some(keycloak) = Kind::Keycloak.for_test(test) else { return };
    let Some(browser) = Programs::for_test(test) else { return };
    if let Err(why) = world::pods_reach_pods() {
        return tools::skip(test, &why);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Demo::start(&keycloak, folder.path()).unwrap();
    let browser = Browser::start(&browser).await.unwrap();

    let (before, link) = demo.until("https://keycloak.localhost:").await.unwrap();
    // The issuer is printed before the link.
    let link = if link.contains("auth?") { link } else { demo.until("auth?").await.unwrap().1 };
    assert!(before.contains("impersonation"), "{before}");
    browser.open(&link).await.unwrap();
    browser.fill("#username", PINNY.name).await.unwrap();
    browser.fill("#password", PINNY.password).await.unwrap();
    browser.click("#kc-login").await.unwrap();
    let page = browser.text_of("main").await.unwrap();
    assert!(page.starts_with("You are signed in"), "{page}");

    let (printed, enter) = demo.until("nsenter --target").await.unwrap();
    assert!(printed.contains("User \"pinny\" cannot list resource \"pods\""), "{printed}");
    assert!(printed.contains("Username: pinny\nGroups: developers, system:authenticated"), "{printed}");
    demo.until("Everything stays until Ctrl-C.").await.unwrap();

    let blocks = shell_blocks(PAGE).unwrap();
    assert!(blocks.len() >= 4, "{PAGE} has only {} blocks", blocks.len());
    let printed = run_blocks(&enter, &blocks).await.unwrap();
    let text = std::fs::read_to_string(tools::repository().join(PAGE)).unwrap();
    let conditions = printed.lines().filter(|line| line.ends_with("=True")).collect::<Vec<_>>().join("\n");
    assert!(!conditions.is_empty() && text.contains(&format!("\n{conditions}\n```")), "{printed}");
    assert!(printed.contains("Username: pinny\nGroups: developers, system:authenticated\n"), "{printed}");
    let refusal = text.lines().find(|line| line.starts_with("Error from server (Forbidden)")).unwrap();
    // The proxy adds its name if it makes the decision.
    assert!(printed.lines().any(|line| line.starts_with(refusal)), "{printed}");
    assert!(printed.contains("its refresh token is revoked"), "{printed}");

    let pid = demo.process.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = tokio::time::timeout(TIME_LIMIT, demo.process.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");
}
