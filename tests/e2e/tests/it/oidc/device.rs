//! The device flow (RFC 8628): the terminal has no browser, and a browser elsewhere completes the
//! login.

use std::time::Duration;

use anyhow::Context as _;
use pinniped_e2e::environment::{Environment as _, Running};
use pinniped_test_support::browser::Browser;
use pinniped_test_support::control_plane::tail;
use pinniped_test_support::identity_provider::{Kind, PINNY};
use pinniped_test_support::wait;

use super::environment::{DISCOVERY, Stage, TIME_LIMIT, stage};

/// Returns the link and the code that `pinniped` prints.
fn instructions(printed: &str) -> Option<(String, String)> {
    let mut words = printed.split_whitespace().skip_while(|word| !word.starts_with("https://"));
    let link = words.next()?;
    let code = words.skip_while(|word| *word != "code:").nth(1)?;
    Some((link.to_owned(), code.to_owned()))
}

/// Logs in with the device flow. `person` uses the browser at the printed link with the code.
async fn log_in(
    stage: &Stage,
    person: impl AsyncFnOnce(&Browser, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let Stage { walk, login, installed } = stage;
    walk.write_oidc_kubeconfig(&login.provider, &["--oidc-flow", "device"]).await?;
    let command = walk.oidc_kubectl_command(login, &DISCOVERY);
    let log = format!("device-{}", login.provider.kind().name());
    let running = installed.world().start(&log, command)?;
    let Running::Guarded(mut process) = running else { anyhow::bail!("it is not guarded") };
    let file = installed.world().control_plane().log_file(&log);
    let printed = || tail(&file, 60);
    let (link, code) = wait::until_ok(TIME_LIMIT, "the link and the code", async || {
        instructions(&printed()).with_context(printed)
    })
    .await?;
    let browser = stage.browser();
    browser.open(&link).await?;
    if let Err(error) = person(browser, &code).await {
        return Err(error.context(browser.describe().await).context(printed()));
    }
    let status = wait::until(Duration::from_secs(90), "kubectl to end", async || process.ended()).await?;
    anyhow::ensure!(status.success() && printed().contains("APIVersions"), "{}", printed());
    anyhow::ensure!(login.links.links()?.is_empty(), "a browser was opened on the machine of the terminal");
    Ok(())
}

#[tokio::test]
async fn a_browser_elsewhere_completes_the_device_flow_of_keycloak() {
    let test = "the device flow of Keycloak";
    let Some(stage) = stage(Kind::Keycloak, "device-keycloak", test).await else { return };
    let result = log_in(&stage, async |browser, code| {
        browser.fill("#device-user-code", code).await?;
        browser.click("[type=submit]").await?;
        stage.login.provider.enter_password(browser, PINNY.name, PINNY.password).await?;
        browser.click("#kc-login[name=accept]").await?;
        wait::until_ok(TIME_LIMIT, "the page after the login", async || {
            let text = browser.text().await?;
            anyhow::ensure!(text.contains("Device Login Successful"), "{text}");
            Ok(())
        })
        .await?;
        browser.screenshot("keycloak-device").await.map(drop)
    });
    result.await.unwrap();
}

#[tokio::test]
async fn a_browser_elsewhere_completes_the_device_flow_of_oidc_provider() {
    let test = "the device flow of oidc-provider";
    let Some(stage) = stage(Kind::OidcProvider, "device-oidc-provider", test).await else { return };
    let provider = &stage.login.provider;
    let result = log_in(&stage, async |browser, code| {
        browser.fill("input[name=user_code]:not([type=hidden])", code).await?;
        browser.click("[type=submit]").await?;
        // The page shows the code, which the person compares with the one of the terminal.
        anyhow::ensure!(browser.text_of("code").await? == code);
        browser.click("[form='op.deviceConfirmForm']:not([name=abort])").await?;
        provider.enter_password(browser, PINNY.name, PINNY.password).await?;
        provider.consent(browser).await?;
        wait::until_ok(TIME_LIMIT, "the page after the login", async || {
            let text = browser.text().await?;
            anyhow::ensure!(text.contains("Sign-in Success"), "{text}");
            Ok(())
        })
        .await
    });
    result.await.unwrap();
    let whoami = stage.walk.whoami_with_oidc(&stage.login).await.unwrap();
    assert!(whoami.stdout.contains("Groups: developers"), "{}", whoami.stdout);
}
