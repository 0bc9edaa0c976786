//! Logins at oidc-provider, which requires consent.

use pinniped_test_support::identity_provider::{Kind, PINNY};

use super::environment::{DISCOVERY, Stage, stage};

#[tokio::test]
async fn a_person_consents_to_the_scopes_and_is_logged_in() {
    let test = "a login at oidc-provider with consent";
    let Some(stage) = stage(Kind::OidcProvider, "consent", test).await else { return };
    let Stage { walk, login, .. } = &stage;
    walk.write_oidc_kubeconfig(&login.provider, &[]).await.unwrap();
    let kubectl = walk.oidc_kubectl(login, &DISCOVERY);
    let output = stage
        .run_with(kubectl, async |browser| {
            login.provider.enter_password(browser, PINNY.name, PINNY.password).await?;
            let scopes = browser.text_of("form:has(input[value=consent])").await;
            let text = browser.text().await?;
            anyhow::ensure!(scopes.is_ok() && text.contains("groups") && text.contains("email"), "{text}");
            browser.screenshot("oidc-provider-consent").await?;
            login.provider.consent(browser).await?;
            login.provider.await_departure(browser).await?;
            anyhow::ensure!(browser.text().await?.starts_with("You are signed in"));
            Ok(())
        })
        .await;
    output.success().unwrap();
    let whoami = walk.whoami_with_oidc(login).await.unwrap().stdout;
    assert!(whoami.contains("Username: pinny\nGroups: developers, system:authenticated\n"), "{whoami}");
}

#[tokio::test]
async fn a_login_that_the_person_cancels_ends_with_a_reason() {
    let test = "a login at oidc-provider that the user cancels";
    let Some(stage) = stage(Kind::OidcProvider, "cancelled", test).await else { return };
    let Stage { walk, login, .. } = &stage;
    walk.write_oidc_kubeconfig(&login.provider, &[]).await.unwrap();
    let kubectl = walk.oidc_kubectl(login, &DISCOVERY);
    let output = stage
        .run_with(kubectl, async |browser| {
            browser.click(".login-help a").await?;
            login.provider.await_departure(browser).await?;
            let text = browser.text().await?;
            anyhow::ensure!(text.starts_with("The login failed") && text.contains("access_denied"), "{text}");
            Ok(())
        })
        .await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stderr.contains("login failed with code \"access_denied\""), "{output:?}");
}
