//! Logins at Keycloak, with passwords.

use pinniped_test_support::identity_provider::{CLIENT_ID, Kind, PINNY, RYAN};

use super::environment::{DISCOVERY, Stage, stage};

const LISTING: [&str; 3] = ["get", "pods", "-A"];
/// The heading of the page of `pinniped` after the provider has authenticated the user.
const SIGNED_IN: &str = "You are signed in";

/// Checks the page that the browser shows after a login.
async fn shows_the_login(stage: &Stage) -> anyhow::Result<()> {
    let browser = stage.browser();
    let text = browser.text().await?;
    anyhow::ensure!(text.starts_with(SIGNED_IN), "the page shows {text}");
    for part in [stage.login.provider.issuer().as_str(), CLIENT_ID, "close this tab"] {
        anyhow::ensure!(text.contains(part), "{part} is not in {text}");
    }
    // One card with its style, which the content security policy of the page allows.
    let style = browser.evaluate("getComputedStyle(document.querySelector('main')).borderTopStyle").await?;
    anyhow::ensure!(style == "solid", "the style is not applied: {style}");
    let resources = browser.evaluate("performance.getEntriesByType('resource').length").await?;
    anyhow::ensure!(resources == 0, "the page loads {resources} resources");
    Ok(())
}

#[tokio::test]
async fn a_person_corrects_a_wrong_password_and_uses_kubectl_with_the_permissions_of_the_group() {
    let test = "a login at Keycloak with a password";
    let Some(stage) = stage(Kind::Keycloak, "keycloak-password", test).await else { return };
    let Stage { walk, login, .. } = &stage;
    walk.write_oidc_kubeconfig(&login.provider, &[]).await.unwrap();
    let kubectl = walk.oidc_kubectl(login, &DISCOVERY);
    let output = stage
        .run_with(kubectl, async |browser| {
            anyhow::ensure!(browser.title().await? == "Sign in to Example Organization");
            stage.screenshots("keycloak-login").await?;
            login.provider.enter_password(browser, PINNY.name, "wrong").await?;
            let error = browser.text_of("[id^=input-error]").await?;
            anyhow::ensure!(error == "Invalid username or password.", "{error}");
            browser.screenshot("keycloak-wrong-password").await?;
            login.provider.log_in(browser, &PINNY).await?;
            shows_the_login(&stage).await?;
            let text = browser.text().await?;
            anyhow::ensure!(text.contains(&format!("User\n{}\n", PINNY.name)), "the page shows {text}");
            stage.screenshots("pinniped-logged-in").await
        })
        .await;
    output.success().unwrap();

    // The same command needs no browser for a long time: first with the credential of the cluster,
    // then with the refresh token.
    walk.allow_group_and_list(login, &PINNY).await.unwrap();
    let whoami = walk.whoami_with_oidc(login).await.unwrap().stdout;
    assert!(whoami.contains("Username: pinny\nGroups: developers, system:authenticated\n"), "{whoami}");
    std::fs::remove_file(walk.home().join(".config/pinniped/credentials.yaml")).unwrap();
    let refreshed = walk.oidc_kubectl(login, &LISTING).run(None).await.unwrap().success().unwrap();
    assert!(refreshed.stdout.contains("frontend"), "{refreshed:?}");
    assert_eq!(login.links.links().unwrap().len(), 1, "the user had to log in again");
}

#[tokio::test]
async fn a_claim_rule_refuses_a_user_whose_email_address_is_not_verified() {
    let test = "a login at Keycloak that a claim rule refuses";
    let Some(stage) = stage(Kind::Keycloak, "keycloak-rule", test).await else { return };
    let Stage { walk, login, .. } = &stage;
    walk.write_oidc_kubeconfig(&login.provider, &[]).await.unwrap();
    let kubectl = walk.oidc_kubectl(login, &DISCOVERY);
    let output = stage
        .run_with(kubectl, async |browser| {
            login.provider.log_in(browser, &RYAN).await?;
            // The provider has authenticated the user; the cluster does not accept the token.
            shows_the_login(&stage).await
        })
        .await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stderr.contains("login failed: authentication failed"), "{output:?}");
    let logs = stage.installed.pods().logs("pinniped-concierge");
    assert!(logs.contains("the email address must be verified"), "{logs}");
}

#[tokio::test]
async fn scopes_that_keycloak_does_not_know_are_reported_in_browser_and_terminal() {
    let test = "a login at Keycloak with unknown scopes";
    let Some(stage) = stage(Kind::Keycloak, "keycloak-scopes", test).await else { return };
    let Stage { walk, login, .. } = &stage;
    walk.write_oidc_kubeconfig(&login.provider, &["--oidc-scopes", "openid,no-such-scope"]).await.unwrap();
    let kubectl = walk.oidc_kubectl(login, &DISCOVERY);
    let output = stage
        .run_with(kubectl, async |browser| {
            let text = browser.text().await?;
            anyhow::ensure!(text.starts_with("The login failed"), "the page shows {text}");
            anyhow::ensure!(text.contains("invalid_scope"), "the page shows {text}");
            stage.screenshots("pinniped-login-failed").await
        })
        .await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stderr.contains("login failed with code \"invalid_scope\""), "{output:?}");
}
