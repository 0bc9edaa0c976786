//! The npm package `oidc-provider`: one Node.js process that runs
//! `tools/third-party/oidc-provider/provider.js`. Its login page accepts every password.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::{Endpoint, PINNY, RYAN};
use crate::browser::Browser;
use crate::tools;

/// The button of the login page and of the consent page.
const SUBMIT: &str = "button.login-submit";
/// The field that only the consent page has.
const CONSENT: &str = "input[name=prompt][value=consent]";

/// Writes the files of a provider into `dir` and returns the command that starts it.
pub(super) fn command(packages: &Path, dir: &Path, endpoint: &Endpoint) -> anyhow::Result<Command> {
    // Node.js searches for packages in the folders above the script.
    let script = dir.join("provider.js");
    let source = tools::repository().join("tools/third-party/oidc-provider/provider.js");
    std::fs::copy(&source, &script).with_context(|| format!("could not copy {}", source.display()))?;
    let manifest = packages.join("package.json");
    std::fs::copy(&manifest, dir.join("package.json"))
        .with_context(|| format!("{} is missing: run `cargo xtask test`", manifest.display()))?;
    std::os::unix::fs::symlink(packages.join("node_modules"), dir.join("node_modules"))
        .context("could not link the packages")?;
    let users: Map<String, Value> = [PINNY, RYAN]
        .map(|user| {
            let claims =
                json!({"email": user.email, "emailVerified": user.email_verified, "groups": [user.group]});
            (user.name.to_owned(), claims)
        })
        .into_iter()
        .collect();
    let file = dir.join("users.json");
    std::fs::write(&file, Value::Object(users).to_string()).context("could not write the users")?;
    let Endpoint { host, listen, port } = endpoint;
    let mut command = Command::new("node");
    command.arg(script).args([host, &listen.to_string(), &port.to_string()]);
    command.arg(dir.join("tls.crt")).arg(dir.join("tls.key")).arg(file);
    Ok(command)
}

/// Enters a name and a password on the login page.
pub(super) async fn enter_password(browser: &Browser, name: &str, password: &str) -> anyhow::Result<()> {
    browser.fill("input[name=login]", name).await?;
    browser.fill("input[name=password]", password).await?;
    browser.click(SUBMIT).await
}

/// Consents to the scopes on the consent page.
pub(super) async fn consent(browser: &Browser) -> anyhow::Result<()> {
    // The button of the login page looks the same. Waits until the page is the next one.
    let form = format!("form:has({CONSENT}) {SUBMIT}");
    browser.click(&form).await
}
