//! Runs the commands of docs/howto/oidc.md for Keycloak.

use pinniped_test_support::identity_provider::{Kind, PINNY};

use super::environment::{Stage, TIME_LIMIT, stage};
use crate::howto_page;

const PAGE: &str = "docs/howto/oidc.md";

#[tokio::test]
async fn the_page_configures_keycloak_and_a_user_logs_in() {
    let test = "the page about identity providers";
    let Some(stage) = stage(Kind::Keycloak, "howto-oidc", test).await else { return };
    let Stage { installed, login, .. } = &stage;
    let provider = &login.provider;
    // The variables that the page requires, and the program that opens links.
    let variables = format!(
        "KEYCLOAK={} REALM=pinniped CA={} ADMINISTRATOR=admin PASSWORD=admin\nexport PATH={}:$PATH\nunset SSH_CONNECTION",
        provider.address(),
        provider.ca_file().display(),
        login.links.bin().display(),
    );
    let mut blocks = howto_page::of(PAGE);
    assert!(blocks.len() >= 5, "{PAGE} has only {} blocks", blocks.len());
    blocks.insert(0, variables);
    let page = howto_page::run(installed, "howto-oidc", &blocks);
    let person = async {
        let browser = stage.browser();
        browser.open(&login.links.link(0, TIME_LIMIT).await?).await?;
        provider.log_in(browser, &PINNY).await
    };
    let (printed, person) = tokio::join!(page, person);
    let printed = printed.unwrap();
    person.unwrap();
    assert!(printed.contains("Username: pinny\nGroups: developers, system:authenticated\n"), "{printed}");
    assert!(
        printed.contains("jwtauthenticator.authentication.concierge.pinniped.dev \"company\" deleted"),
        "{printed}"
    );
}
