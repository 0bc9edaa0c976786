//! Keycloak: one Java process with a copy of the prepared database.
//!
//! `cargo xtask` prepares the server and imports the realm
//! (`tools/xtask/src/control_plane/keycloak.rs`). The folder of a running server has links to the
//! prepared one, so that servers do not share a file that they write.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::Endpoint;
use crate::browser::Browser;

/// The realm of the users.
pub(super) const REALM: &str = "pinniped";
/// The administrator of the prepared server.
pub(super) const ADMINISTRATOR: (&str, &str) = ("admin", "admin");
const MAIN: &str = "io.quarkus.bootstrap.runner.QuarkusEntryPoint";

/// The flags of the Java VM, as `kc.sh` sets them, except for those that save time and memory in a
/// server of a few logins: a simple compiler and garbage collector.
const JAVA: [&str; 13] = [
    "-Xms64m",
    "-Xmx512m",
    "-XX:MaxMetaspaceSize=256m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Djava.util.concurrent.ForkJoinPool.common.threadFactory=io.quarkus.bootstrap.forkjoin.QuarkusForkJoinWorkerThreadFactory",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
    "--add-opens=java.base/java.security=ALL-UNNAMED",
    "-Duser.language=en",
    "-Duser.country=US",
    "-Djava.util.logging.manager=org.jboss.logmanager.LogManager",
    "-Dpicocli.disable.closures=true",
];

/// Creates the folder of a server below `dir` and returns the command that starts it.
pub(super) fn command(prepared: &Path, dir: &Path, endpoint: &Endpoint) -> anyhow::Result<Command> {
    let home = dir.join("home");
    for folder in ["conf", "data/h2", "providers", "themes"] {
        std::fs::create_dir_all(home.join(folder)).with_context(|| format!("could not create {folder}"))?;
    }
    std::os::unix::fs::symlink(prepared.join("lib"), home.join("lib")).context("could not link Keycloak")?;
    let database = prepared.join("data/h2");
    let files = std::fs::read_dir(&database)
        .with_context(|| format!("{} is missing: run `cargo xtask test`", database.display()))?;
    for file in files.flatten() {
        let to = home.join("data/h2").join(file.file_name());
        std::fs::copy(file.path(), to).context("could not copy the database")?;
    }
    let mut command = Command::new("java");
    command.args(JAVA);
    command.arg(format!("-Dkc.home.dir={}", home.display()));
    command.arg(format!("-Djboss.server.config.dir={}", home.join("conf").display()));
    command.arg("-cp").arg(prepared.join("lib/quarkus-run.jar")).arg(MAIN);
    command.args(["start", "--optimized", "--cache=local", "--http-enabled=false"]);
    let Endpoint { host, listen, port } = endpoint;
    command.args([
        format!("--http-host={listen}"),
        format!("--https-port={port}"),
        format!("--hostname=https://{host}:{port}"),
    ]);
    command.arg(format!("--https-certificate-file={}", dir.join("tls.crt").display()));
    command.arg(format!("--https-certificate-key-file={}", dir.join("tls.key").display()));
    Ok(command)
}

/// Enters a name and a password on the login page.
pub(super) async fn enter_password(browser: &Browser, name: &str, password: &str) -> anyhow::Result<()> {
    browser.fill("#username", name).await?;
    browser.fill("#password", password).await?;
    browser.click("#kc-login").await
}
